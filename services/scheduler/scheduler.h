// scheduler.h: the scheduler service's whole state, composed of the parts that its files own. Every file of the service includes it.
//
// One thread owns everything: its loop runs handlers, which turn calls and answers into events of the scheduling core
// (common/sched). After each turn of the loop scheduler_tick() gives the events to the core and carries out its actions.
//
//     gateways ──Generate──▶ generate.c ────┐                     ┌─▶ s-part: Step                  (steps.c)
//     members ──Register──▶ registration.c ─┤                     ├─▶ places: Free, Release, Fetch  (places.c)
//             ──Heartbeat──▶ members.c ─────┼─▶ events ─▶ core ───┤
//     s-part ──StepReply──▶ steps.c ────────┘        (core.c)     └─▶ gateways: tokens              (generate.c)
//
// The parts and their files, lowest first. A file calls only those before it, but for the tick that a full queue starts (events.h):
//
//     events                     what the core is to be told
//     flights                    the steps that the s-part has
//     s_part        stages.c     the s-part as one process or several
//     view                       the latest steps and events, for people
//     refusals                   members that were refused, and why
//     places, frees, moves       the local pool and the workers' pages, and what is asked of them
//     sequences     generate.c   token logs and their clients; claims.c is below it
//     claims                     what members held before they registered
//                   members.c    members come up and go down
//                   steps.c      steps out, and their answers in
//     core          core.c       the tick
//     model         registration.c
//     watch                      what gateways are told; metrics.c
#ifndef FD_SERVICES_SCHEDULER_SCHEDULER_H
#define FD_SERVICES_SCHEDULER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/rpc/rpc.h"
#include "common/sched/sched.h"
#include "common/trace/otlp.h"
#include "common/trace/trace.h"
#include "services/scheduler/claims.h"
#include "services/scheduler/events.h"
#include "services/scheduler/flights.h"
#include "services/scheduler/generate.h"
#include "services/scheduler/members.h"
#include "services/scheduler/places.h"
#include "services/scheduler/refusals.h"
#include "services/scheduler/registration.h"
#include "services/scheduler/sequence_spans.h"
#include "services/scheduler/stages.h"
#include "services/scheduler/view.h"
#include "services/scheduler/watch.h"

struct scheduler_settings {
    const char *listen, *trace, *otlp_endpoint;
    struct rpc_security_settings security;
    bool trace_append, prefix_cache;
    enum sched_admission admission;
    enum sched_placement placement;
    enum sched_micro_batch micro_batch;
    double step_target_ms;
    uint32_t max_queue, batch_queue, max_batch, mini_batches, chunk, spacing, draft_tokens, worker_timeout_ms;
};

// Returns how many requests may wait or run: interactive ones may run beside as many of class batch.
static inline uint32_t scheduler_requests_max(const struct scheduler_settings *settings)
{
    return settings->max_queue + settings->batch_queue + 2 * settings->max_batch;
}

// The process: what it is to others, and what it runs on.
struct host {
    uint64_t incarnation, started_us;
    uint64_t checked_us; // when members_check() last ran
    struct rpc_security security;
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct otlp *otlp;                       // NULL: requests are not traced
    struct trace_track *track, *track_steps; // track: what this thread does; track_steps: the steps in flight at the s-part
};

// The scheduling core (common/sched), and what a tick of it needs (core.c).
struct core {
    struct sched *sched;        // NULL until s-parts with all layers have registered and described the model
    struct sched_config config; // max_batch_rows, mini_batches and stages are set before it is opened, by the s-part's registration
    struct sched_action *actions; // [ACTIONS_MAX] of one round
    bool stuck;                   // a step could not be sent: no other is sent before the loop has run
    uint64_t busy_ns;             // processor time of ticks: running the core and carrying out its actions
};

struct scheduler {
    struct scheduler_settings settings;
    struct host host;
    struct served_model model;
    struct s_part s_part;
    struct places places;
    struct frees frees;
    struct moves moves;
    struct claims claims;
    struct sequences sequences;
    struct events events;
    struct core core;
    struct flights flights;
    struct watch watch;
    struct view view;
    struct refusals refusals;
};

// --- serve.c: the service's life, for main.c or whoever runs it

// INVALID_ARGUMENT, RESOURCE_EXHAUSTED: the tables of the queue do not fit in memory; *error has the numbers.
enum status scheduler_check_memory(const struct scheduler *scheduler, struct error *error) MUST_CHECK;
// Listens, with `settings` set and everything else zero. After a failure the process ends.
enum status scheduler_open(struct scheduler *scheduler, struct error *error) MUST_CHECK;
// Handles what has come and what is due. If nothing has, waits until something is, but no longer than that.
void scheduler_turn(struct scheduler *scheduler, uint64_t wait_at_most_us);
void scheduler_close(struct scheduler *scheduler);

// --- core.c

// Sets the fields that do not start at 0, such as the links between members and places.
void scheduler_init(struct scheduler *scheduler);
enum status scheduler_open_core(struct scheduler *scheduler, struct error *error) MUST_CHECK;
void scheduler_close_core(struct scheduler *scheduler);
// Gives the core its events and carries out its actions.
void scheduler_tick(struct scheduler *scheduler);

#endif
