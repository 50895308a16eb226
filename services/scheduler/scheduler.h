// scheduler.h: what the files of the scheduler service share.
//
// One thread owns everything: its loop runs handlers, which turn what happened into events of the scheduling core (common/sched).
// After each turn of the loop scheduler_tick() gives the events to the core and carries out its actions.
//
//     gateways ──Generate──▶ generate.c ────┐                     ┌─▶ s-part: Step                  (steps.c)
//     members ──Register──▶ registration.c ─┤                     ├─▶ places: Free, Release, Fetch  (places.c)
//             ──Heartbeat──▶ members.c ─────┼─▶ events ─▶ core ───┤
//     s-part ──StepReply──▶ steps.c ────────┘        (core.c)     └─▶ gateways: tokens              (generate.c)
//
// A *member* is what registers: the s-part, or a KV worker. A *place* holds KV: the s-part's local pool, or the pages of a KV worker.
// The life of a page, with the functions that allocate and free it, is in docs/life-of-a-page.md.
#ifndef FD_SERVICES_SCHEDULER_SCHEDULER_H
#define FD_SERVICES_SCHEDULER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "cluster.pb-c.h"
#include "common/base/checked.h"
#include "common/rpc/rpc.h"
#include "common/sched/sched.h"
#include "common/trace/trace.h"
#include "services/scheduler/page_names.h"
#include "services/scheduler/token_logs.h"
#include "step.pb-c.h"

enum {
    STEPS_MAX = SCHED_MINI_BATCHES_MAX * SCHED_PLAN_AHEAD_MAX,
    WATCHERS_MAX = 256,
    CALIBRATION_MAX = 16,
    END_TOKENS_MAX = 16,
    KEPT_MAX = 4096,    // finished sequences whose pages stay for others
    CHOSEN_BATCHES = 2, // mini-batches at most where the core chooses their number
    EVENTS_MAX = 4096,  // between two ticks; in a tick each action may add one, and a full round is EVENTS_MAX of them
    EVENTS_ROOM = 2 * EVENTS_MAX,
    ACTIONS_MAX = EVENTS_ROOM + SCHED_ACTIONS_SPARE,
    MOVES_MAX = 64,             // hand-overs under way, those that the core has given up included
    UNCLAIMED_FREES_MAX = 4096, // unclaimed sequences whose pages are being freed
    HELD_OF_MEMBER_MAX = 1 << 16,
    HELD_MAX = 1 << 20, // of all members
    NAME_BYTES = 64,
    ADDRESS_BYTES = 128,
    CHECK_EVERY_US = 50000,   // between two looks at who is silent
    SETTLE_US = 2000000,      // after a start, resubmitted sequences wait at most so long for those that hold their pages
    CLAIM_US = 15000000,      // after a start, pages that nobody claims are freed then
    LOSS_EVERY_US = 1000000,  // what is lost at once counts once
    LOSSES_MAX = 4,           // a place that loses all its rows so many times in a row is declared down ...
    LOSSES_BAR_US = 60000000, // ... and not taken back for so long
};

struct scheduler_settings {
    const char *listen, *trace, *mesh_secret_file;
    struct rpc_secret mesh_secret;
    bool trace_append, greedy, prefix_cache;
    enum sched_placement placement;
    double step_target_ms;
    uint32_t max_queue, max_batch, mini_batches, chunk, spacing, draft_tokens, worker_timeout_ms;
};

struct place;
struct scheduler;

// The s-part, or a KV worker.
struct member {
    struct scheduler *scheduler;
    struct place *place; // of its pages: the local pool is the s-part's
    char name[NAME_BYTES];
    uint64_t incarnation;
    char control_address[ADDRESS_BYTES], tensor_address[ADDRESS_BYTES];
    struct rpc_channel *channel;
    bool registered;   // has said who it is and is not known to be dead
    bool cleaning;     // pages that nobody needs are being freed there: it is not up before
    bool up;           // the core was told
    uint32_t clean_id; // counts the times it was cleaned: answers to an earlier call are ignored
    uint32_t stay;     // counts the times it came up: answers to calls of an earlier stay are ignored
    uint64_t lost;     // times it went down without having been drained
    uint64_t heard_us;
    uint64_t turned_us;                // when a heartbeat first said what the latest says of compute_turns
    Fastdecode__HeartbeatRequest last; // numbers only
};

struct s_part {
    struct member member;
    uint32_t max_rows;                                                 // of a step
    struct sched_time layers[CALIBRATION_MAX], heads[CALIBRATION_MAX]; // measured: of all layers; of head and sampling
    uint32_t layer_count, head_count;
    bool on_device;                    // it computes on a device, not on CPUs
    bool rows_alike;                   // a row's numbers do not depend on those beside it
    uint64_t forget[ACTIONS_MAX];      // [forget_count] finished sequences whose sampler state it has yet to forget
    uint32_t forget_count, forgetting; // forgetting: how many of the first the call under way names; 0: there is none
    struct rpc_handle forget_call;
};

// A list of scheduler.frees by index; 0 ends it.
struct pending_list {
    uint32_t head, tail;
};

struct place {
    enum sched_place_kind kind;
    uint32_t index;        // the core's name for it
    struct member *member; // who holds its pages
    struct member worker;  // with SCHED_KV_WORKER: that member
    uint64_t pages_total;
    double bytes_per_second;
    double pair_us;                       // of prefill attention, all layers; 0: not known
    bool shares_cores;                    // with an s-part that computes on CPUs
    bool hands_over;                      // pages can be taken from it and given to it
    bool drained;                         // nothing is left there: its worker may go
    struct rpc_call *draining;            // its Drain call, to be answered
    uint32_t losses;                      // times in a row that a step lost all its rows there, each LOSS_EVERY_US after the last
    uint64_t lost_us;                     // the last of them
    uint64_t barred_until_us;             // it lost too many: not up before
    struct pending_list to_free, freeing; // pages that it is yet to be asked to free; those of the call under way
    bool asked_to_free;                   // a call is under way ...
    struct rpc_handle free_call;          // ... which is that
    uint64_t free_again_us;               // it could not be asked, or refused: not again before
};

// A sequence that a member said it holds and that nobody has claimed yet.
struct held {
    uint64_t sequence;
    uint32_t place, positions, certain; // certain: as in HeldSequence
    bool stale;                         // it is being freed there
};

// A hand-over that was asked for.
struct pending_move {
    struct scheduler *scheduler;
    struct sched_move move;
    uint64_t began_us;
    uint32_t from_stay, to_stay; // of the members there when it began
    bool used, ok;               // ok: the pages have arrived; they are being freed where they came from
};

// Pages that a place is to free.
struct pending_free {
    uint64_t sequence;
    uint32_t next;
    bool keep_sampler;         // only pages are freed: the sequence goes on elsewhere
    bool report;               // the core waits for RELEASED
    struct pending_move *move; // that waits for it; NULL: none
};

// A step that the s-part has. Arrays are [max rows], sized once.
struct flight {
    bool used;
    uint64_t step;
    struct rpc_handle call;
    struct scheduler *scheduler;
    uint64_t sent_ns; // of the trace
    uint32_t run_count, row_count;
    uint64_t *sequences; // of its runs
    uint32_t *positions;
    const struct sched_run *runs; // [run_count] the core's, until it is answered
    struct sched_result *results;
    struct sched_place_time places[SCHED_PLACES_MAX];
    uint32_t place_count;
    struct rpc_message *message;        // the reply, kept until the tick; NULL: it has not come
    const Fastdecode__StepReply *reply; // in it
};

// Scratch for a StepRequest: sized once, used for one message at a time.
struct step_scratch {
    Fastdecode__Run *runs; // [max rows]
    Fastdecode__Run **run_pointers;
    Fastdecode__SequenceOpen *opens;
    Fastdecode__SequenceOpen **open_pointers;
    Fastdecode__Place places[SCHED_PLACES_MAX];
    Fastdecode__Place *place_pointers[SCHED_PLACES_MAX];
};

struct scheduler {
    struct scheduler_settings settings;
    uint64_t incarnation, next_sequence, started_us;
    uint64_t checked_us; // when members_check() last ran
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct trace_track *track, *track_steps; // what this thread does; the steps that the s-part has

    // The model, from the s-part.
    bool model_known;
    Fastdecode__ModelInfo model;
    Fastdecode__KvShape kv;
    char model_name[NAME_BYTES];
    uint32_t end_tokens[END_TOKENS_MAX];
    uint32_t end_token_count;
    uint64_t page_bytes;

    // Members and places.
    struct s_part s_part;
    struct place places[SCHED_PLACES_MAX];
    uint32_t place_count;
    struct held *held; // [held_count]
    uint32_t held_count, held_capacity;

    // The core, and what it said.
    struct sched *core; // NULL until the first s-part has said what the model is
    struct sched_config core_config;
    struct sched_event events[EVENTS_ROOM];
    uint32_t event_count;
    struct sched_action *actions;              // [ACTIONS_MAX]
    void (*tick)(struct scheduler *scheduler); // scheduler_tick(): for those that it calls itself
    bool ticking;                              // actions are being carried out
    bool stuck;                                // a step could not be sent: not again before the loop has run
    struct flight flights[STEPS_MAX];
    struct step_scratch scratch;
    uint32_t step_rows_max;
    uint32_t step_failures;     // in a row, that came too late
    struct pending_free *frees; // of all places
    uint64_t *free_ids;         // scratch: those of one call
    uint32_t frees_unused;      // list of the others
    uint32_t frees_waiting;     // in lists of to_free
    uint32_t unclaimed_frees;   // that the core does not know of
    struct pending_move moves[MOVES_MAX];

    // Sequences.
    struct token_logs *logs;
    struct page_names page_names;
    struct draft_odds draft_odds; // of all sequences
    uint64_t *settling;           // ids of resubmitted ones that wait for their holders
    uint32_t settling_count, settling_capacity;

    struct rpc_call *watchers[WATCHERS_MAX];
    uint32_t watcher_count;
    uint64_t watched_us;
    Fastdecode__MeshState last_state;

    uint64_t generated_tokens, prompt_tokens, finished, cancelled, s_part_busy_us, s_part_wait_us;
    uint64_t busy_ns; // processor time of ticks: the core, and carrying out what it says
};

// Queues an event for the next tick. The queue has room for what one turn of the loop brings; when it is full a tick runs at once.
static inline void scheduler_event(struct scheduler *scheduler, const struct sched_event *event)
{
    if (scheduler->event_count >= EVENTS_MAX && !scheduler->ticking)
        scheduler->tick(scheduler);
    assert_always(scheduler->event_count < EVENTS_ROOM);
    scheduler->events[scheduler->event_count++] = *event;
}

static inline bool scheduler_waits_for_claims(const struct scheduler *scheduler, uint64_t now_us)
{
    return now_us - scheduler->started_us < CLAIM_US;
}

// --- core.c

// For all that has no other start value than 0: members and places know where they belong.
void scheduler_init(struct scheduler *scheduler);
enum status scheduler_open_core(struct scheduler *scheduler, struct error *error) MUST_CHECK;
void scheduler_close_core(struct scheduler *scheduler);
// Gives the core its events and carries out its actions.
void scheduler_tick(struct scheduler *scheduler);

// --- flights.c

enum status flights_open(struct scheduler *scheduler, uint32_t rows) MUST_CHECK;
void flights_close(struct scheduler *scheduler);
struct flight *flights_unused(struct scheduler *scheduler);
// The first step that is answered and not taken yet; NULL: none.
struct flight *flights_oldest_answered(struct scheduler *scheduler);
void flights_end(struct flight *flight);
// The s-part is gone: its steps are void. The core is told by S_PART_DOWN.
void flights_void(struct scheduler *scheduler);
// Whether a step that is not answered has rows there.
bool flights_use_place(const struct scheduler *scheduler, uint32_t place);

// --- steps.c

void steps_send(struct scheduler *scheduler, const struct sched_step_action *action);
// Passes on what the core took of answered steps.
void steps_take_answered(struct scheduler *scheduler);
// --- generate.c

void generate_handler(struct rpc_call *call, void *user);
// Passes the last `count` tokens of the log on.
void generate_tokens(struct scheduler *scheduler, struct token_log *log, Fastdecode__Token **tokens, uint32_t count);
void generate_scores(struct token_log *log, uint32_t index, Fastdecode__Token **scores, size_t count);
void generate_finish(struct scheduler *scheduler, struct token_log *log, enum sched_reason reason, uint32_t cached_tokens);
void generate_reject(struct token_log *log, uint64_t retry_after_us);

// --- registration.c

void registration_handler(struct rpc_call *call, void *user);

// --- members.c

void members_heartbeat_handler(struct rpc_call *call, void *user);
void members_drain_handler(struct rpc_call *call, void *user);
// Whom a registration of that name is for; NULL: every place is in use.
struct member *members_find_or_add(struct scheduler *scheduler, bool s_part, const char *name);
// The newest incarnation that has registered under the name; 0: none.
uint64_t members_newest(struct scheduler *scheduler, bool s_part, const char *name);
// Connects to it, and tells the core of it once it is reached and clean.
void members_connect(struct member *member);
void members_disconnect(struct member *member);
void members_down(struct member *member, const char *why);
// Frees what the member holds and nobody needs, then tells the core that it is up. Does nothing before it is registered and reached.
void members_clean_then_up(struct member *member);
// At least every CHECK_EVERY_US, as far as this process runs: what it was stopped for counts against no member.
void members_check(struct scheduler *scheduler, uint64_t now_us);
// A step was answered: of its rows at the place some counted, or all were lost.
void members_answered(struct scheduler *scheduler, uint32_t place, bool lost);
void members_close(struct scheduler *scheduler);

// --- claims.c: pages that members held before they registered

// Takes over the list of a registration. RESOURCE_EXHAUSTED: it is too long; nothing is taken of it.
enum status claims_take(struct scheduler *scheduler, uint32_t place, const Fastdecode__RegisterRequest *request,
                        struct error *error) MUST_CHECK;
// Marks what is held at the place and nobody may claim; their ids go to *ids, which the caller frees. RESOURCE_EXHAUSTED: nothing is.
enum status claims_mark_stale(struct scheduler *scheduler, uint32_t place, uint64_t **ids, uint32_t *count) MUST_CHECK;
// Those are freed now, or, without `freed`, still there.
void claims_end_stale(struct scheduler *scheduler, uint32_t place, bool freed);
// The place is up, of which the core is about to hear: sequences that wait to be rebuilt have back what it holds of them.
void claims_reclaim(struct scheduler *scheduler, uint32_t place);
// Frees what nobody has claimed at the place: it is in the way.
void claims_drop(struct scheduler *scheduler, uint32_t place);
// Starts a new sequence: at once, or, if it was resubmitted, when a place that holds its pages is up.
void claims_arrive(struct scheduler *scheduler, const struct token_log *log);
// Starts resubmitted ones whose place is up, or that have waited long enough.
void claims_settle(struct scheduler *scheduler);

// --- places.c

enum status places_open(struct scheduler *scheduler, uint32_t sequences) MUST_CHECK;
void places_close(struct scheduler *scheduler);
// RELEASE of the core. forget: the sequence is over, so that the s-part may forget its sampler state.
void places_release(struct scheduler *scheduler, uint64_t sequence, uint32_t place, bool forget);
// Frees pages that the core does not know of. False: too many are being freed; try again.
bool places_free_unclaimed(struct scheduler *scheduler, uint32_t place, uint64_t sequence, bool keep_sampler);
void places_move(struct scheduler *scheduler, const struct sched_move *move);
void places_drained(struct scheduler *scheduler, uint32_t place);
// Asks the places for what has been gathered since the last time.
void places_send(struct scheduler *scheduler);
// The place is down: what it was to free counts as free.
void places_down(struct place *place);
// Tells the s-part that a worker is dead, whatever its connection looks like.
void places_exclude(struct scheduler *scheduler, const struct place *place);
// Frees sequences of a member that is not up yet, then calls done(member, ok). False: it cannot be asked now.
bool places_clean(struct member *member, const uint64_t *sequences, uint32_t count, void (*done)(struct member *member, bool ok));

// --- watch.c, metrics.c

void watch_handler(struct rpc_call *call, void *user);
void watch_publish(struct scheduler *scheduler, uint64_t now_us);
void metrics_handler(struct rpc_call *call, void *user);

#endif
