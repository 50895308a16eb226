// flights.h: steps that the s-part has (flights.c), how they are sent, and how their answers are taken (steps.c).
#ifndef FD_SERVICES_SCHEDULER_FLIGHTS_H
#define FD_SERVICES_SCHEDULER_FLIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/log.h"
#include "common/rpc/rpc.h"
#include "common/sched/sched.h"
#include "step.pb-c.h"

struct scheduler;

enum {
    STEPS_MAX = SCHED_MINI_BATCHES_MAX * SCHED_PLAN_AHEAD_MAX,
    EXTENTS_MAX = 1024, // the most extents of all sequences together, their tails not counted
};

// A step in flight. Arrays are [flights.rows_max], sized once.
struct flight {
    bool used; // false as soon as its answer says nothing any more, while the call may be under way
    uint64_t step;
    struct rpc_handle call;
    struct scheduler *scheduler;
    uint64_t sent_ns; // of the trace
    uint64_t sent_us;
    uint32_t mini_batch;
    uint32_t run_count, row_count;
    uint64_t *sequences; // of its runs
    uint32_t *positions;
    const struct sched_run *runs; // [run_count] owned by the core, valid until the step is answered
    struct sched_result *results;
    struct sched_place_time places[SCHED_PLACES_MAX];
    uint32_t place_count;
    uint32_t stage_us[SCHED_STAGES_MAX];
    struct rpc_message *message;        // the reply, kept until the tick; NULL: not arrived yet
    const Fastdecode__StepReply *reply; // in it
};

// Scratch for a StepRequest: sized once, used for one message at a time.
struct step_scratch {
    Fastdecode__Run *runs; // [flights.rows_max]
    Fastdecode__Run **run_pointers;
    Fastdecode__SequenceOpen *opens;
    Fastdecode__SequenceOpen **open_pointers;
    Fastdecode__Extent *extents; // [2 * EXTENTS_MAX] of all runs, tails included
    Fastdecode__Extent **extent_pointers;
    Fastdecode__Place places[SCHED_PLACES_MAX];
    Fastdecode__Place *place_pointers[SCHED_PLACES_MAX];
};

struct flights {
    struct flight of[STEPS_MAX]; // in no order: answers are taken by their steps' numbers
    uint64_t last_step;          // the number of the latest step that was sent; numbers only grow
    struct step_scratch scratch;
    uint32_t rows_max;      // the most rows of a step
    uint32_t late;          // consecutive steps whose answers came too late
    struct repeat failures; // since one was answered
    struct repeat bad_replies;
    uint64_t s_part_busy_us, s_part_wait_us; // sums over answered steps
};

enum status flights_open(struct flights *flights, uint32_t rows) MUST_CHECK;
void flights_close(struct flights *flights);
struct flight *flights_unused(struct flights *flights);
// Returns the oldest step that is answered and whose answer is not taken yet; NULL: none.
struct flight *flights_oldest_answered(struct flights *flights);
void flights_end(struct flight *flight);
// Voids all steps, because the s-part is gone. The event S_PART_DOWN tells the core. channel: to the s-part; may be NULL.
void flights_void(struct flights *flights, struct rpc_channel *channel);
// Returns the number of the oldest unanswered step; of the next one to be sent, if there is none.
uint64_t flights_oldest_step(const struct flights *flights);
// Returns whether an unanswered step has rows at the place.
bool flights_use_place(const struct flights *flights, uint32_t place);

void steps_send(struct scheduler *scheduler, const struct sched_step_action *action);
// Passes the results of answered steps that the core took on to the clients.
void steps_take_answered(struct scheduler *scheduler);

#endif
