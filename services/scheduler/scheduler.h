// scheduler.h: what the files of the scheduler service share.
//
// One thread owns everything: its loop runs handlers, which turn calls and answers into events of the scheduling core
// (common/sched). After each turn of the loop scheduler_tick() gives the events to the core and carries out its actions.
//
//     gateways ──Generate──▶ generate.c ────┐                     ┌─▶ s-part: Step                  (steps.c)
//     members ──Register──▶ registration.c ─┤                     ├─▶ places: Free, Release, Fetch  (places.c)
//             ──Heartbeat──▶ members.c ─────┼─▶ events ─▶ core ───┤
//     s-part ──StepReply──▶ steps.c ────────┘        (core.c)     └─▶ gateways: tokens              (generate.c)
//
// A *member* is a process that registers: the s-part, or a KV worker. A *place* holds KV: the s-part's local pool, or the pages of
// a KV worker. The life of a page, with the functions that allocate and free it, is in docs/life-of-a-page.md.
#ifndef FD_SERVICES_SCHEDULER_SCHEDULER_H
#define FD_SERVICES_SCHEDULER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "cluster.pb-c.h"
#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/kv/kv_costs.h"
#include "common/kv/kv_shape.h"
#include "common/mesh/messages.h"
#include "common/rpc/rpc.h"
#include "common/sched/sched.h"
#include "common/sched/stage.h"
#include "common/trace/trace.h"
#include "services/scheduler/page_names.h"
#include "services/scheduler/sequence_spans.h"
#include "services/scheduler/token_logs.h"
#include "services/scheduler/view.h"
#include "step.pb-c.h"

enum {
    STEPS_MAX = SCHED_MINI_BATCHES_MAX * SCHED_PLAN_AHEAD_MAX,
    WATCHERS_MAX = 256,
    CALIBRATION_MAX = 16,
    END_TOKENS_MAX = 16,
    PARTIAL_BYTES_MAX = 96 << 20, // partial results of a step; the s-part refuses one of 128 MiB
    EXTENTS_MAX = 1024,           // the most extents of all sequences together, their tails not counted
    KEPT_MAX = 4096,              // the most finished sequences whose pages are kept for others
    EVENTS_MAX = 4096, // the most events between two ticks. In a tick each action may add one event, and one round has up to
                       // EVENTS_MAX actions
    EVENTS_ROOM = 2 * EVENTS_MAX,
    ACTIONS_MAX = EVENTS_ROOM + SCHED_ACTIONS_SPARE,
    MOVES_MAX = 64,             // the most hand-overs under way, including those that the core has given up
    UNCLAIMED_FREES_MAX = 4096, // the most unclaimed sequences whose pages are being freed
    HELD_OF_MEMBER_MAX = 1 << 16,
    HELD_MAX = 1 << 20, // of all members
    NAME_BYTES = 64,
    LEVEL_BYTES = 48,
    STEP_ROWS_MOST = 65536,
    STREAM_US_MAX = 1000000000, // of a member's word
    ADDRESS_BYTES = 128,
    CHECK_EVERY_US = 50000, // between two checks for silent members
    SETTLE_US = 2000000, // resubmitted sequences wait at most this long for the members that hold their pages: from claims_from_us
    CLAIM_US = 15000000, // pages that nobody has claimed are freed this long after claims_from_us
    LOSS_EVERY_US = 1000000,  // losses closer together than this count as one
    LOSSES_MAX = 4,           // a place that loses all its rows this many times in a row is declared down ...
    LOSSES_BAR_US = 60000000, // ... and not accepted again for this long
    REACH_FIRST_US = 100000,  // between two questions to the s-part whether it reaches a place that it did not reach ...
    REACH_MOST_US = 2000000,  // ... which is doubled each time, up to this
};

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

struct place;
struct scheduler;

// An s-part, or a KV worker.
struct member {
    struct scheduler *scheduler;
    struct place *place; // the place with its pages; for an s-part, the local pool
    char name[NAME_BYTES];
    uint64_t incarnation;
    char control_address[ADDRESS_BYTES], tensor_address[ADDRESS_BYTES];
    struct rpc_channel *channel;
    bool registered;   // it has registered and is not known to be dead
    bool cleaning;     // pages that nobody needs are being freed there; it comes up after that
    bool up;           // the core has been told that it is up
    uint32_t clean_id; // counts how often it was cleaned; answers to calls of an earlier cleaning are ignored
    uint32_t stay;     // counts how often it came up; answers to calls from before that are ignored
    uint64_t lost;     // how often it went down without having been drained
    uint64_t heard_us;
    uint64_t turned_us;                // when compute_turns last changed in its heartbeats
    Fastdecode__HeartbeatRequest last; // only its numbers are valid
};

// Measured times.
struct s_part_times {
    struct sched_time layers[CALIBRATION_MAX], heads[CALIBRATION_MAX]; // of all its layers; of head and sampling
    uint32_t layer_count, head_count;
    double stream_us; // Calibration.stream_us
};

// A process of the s-part, with a range of the layers. One that has all of them is the only stage.
struct stage {
    struct member *member; // of the first layer: s_part.member; else `later`
    struct member later;
    uint32_t first_layer, layer_count; // count 0: the entry was never used
    uint32_t max_rows, mini_batches;   // max_rows: of a step
    uint64_t pages_total;              // of its pool
    struct s_part_times times;
    struct kv_costs kv; // of its pool, if has_kv
    bool has_kv;
    bool on_device;                         // it computes on a device, not on CPUs
    bool rows_alike;                        // a row's numbers do not depend on those beside it
    bool takes_aside;                       // it takes steps that go aside
    bool takes_extents, pool_takes_extents; // steps may name extents at workers; at its pool
    uint32_t features;                      // of sampling, that it has (common/mesh/messages.h)
    char level[LEVEL_BYTES];
    bool asked, joined;                                    // Join was sent to it; it has answered that
    struct rpc_handle join_call;                           // if `asked`
    uint64_t rows;                                         // of steps
    uint64_t s_part_us, r_part_us, idle_us[SCHED_BUBBLES]; // sums over steps
};

struct s_part {
    struct member member;                  // of the stage with the first layer, to which steps are sent
    struct stage stages[SCHED_STAGES_MAX]; // in no order; the first entry is that of `member`
    uint64_t term;                         // of the pipeline: grows with each Join, and each time that a stage goes down
    bool joining;                          // Join calls are under way
    uint64_t join_from_us;                 // no Join is sent before then
    uint64_t join_wait_us;                 // from the end of the latest term until then; 0: a step has been answered since
    struct repeat join_failures;           // since the stages were last together
    void (*on_joined)(struct member *first);
    struct s_part_times times;                   // all stages together, for the core
    struct sched_stage_up ups[SCHED_STAGES_MAX]; // for the core
    char reason[64];
    uint64_t forget[ACTIONS_MAX];      // [forget_count] finished sequences whose sampler state the s-part has yet to forget
    uint32_t forget_count, forgetting; // forgetting: how many of them, counted from the first, the call under way names; 0: no call
    struct rpc_handle forget_call;
};

// What RegisterReply and HeartbeatReply say of the stages of a pipeline, those that are down too; empty if the s-part is one process.
struct stages_message {
    Fastdecode__Stage stages[SCHED_STAGES_MAX], *pointers[SCHED_STAGES_MAX];
    uint32_t count;
};

// A list of entries of scheduler.frees, linked by index; 0 ends it.
struct pending_list {
    uint32_t head, tail;
};

struct place {
    enum sched_place_kind kind;
    uint32_t index;        // the core's number for it
    struct member *member; // the member that holds its pages
    struct member worker;  // the member, if kind is SCHED_KV_WORKER
    uint64_t pages_total;
    double bytes_per_second;
    struct kv_costs costs; // what it measured at its start, if has_costs
    bool has_costs;
    uint64_t attend_us, tokens_read; // sums over answered steps
    double pair_us;                  // time of prefill attention per row and context token, all layers; 0: not known
    bool shares_cores;               // with the s-part, if that computes on CPUs
    bool hands_over;                 // pages can be handed over from and to it
    bool drained;                    // nothing is left there, so its worker may stop
    struct rpc_call *draining;       // its Drain call, not answered yet
    uint32_t losses;                 // how often in a row a step lost all its rows there, at least LOSS_EVERY_US apart
    uint64_t lost_us;                // when that last happened
    uint64_t barred_until_us;        // it lost rows too often and does not come up before then
    bool reached;                    // the s-part has said that it reaches the tensors, and no step has lost all rows there since
    uint32_t reach_id;               // the member's clean_id when the s-part was last asked: it may have registered anew since
    uint64_t reach_again_us;         // the s-part is not asked whether it does before then
    uint64_t reach_wait_us;          // between the latest two questions; 0 unless it has said that it does not
    struct repeat unreachable;       // since it last said that it does
    struct pending_list to_free, freeing; // to_free: pages that it has yet to be asked to free; freeing: those in the call under
                                          // way
    bool asked_to_free;                   // free_call is under way
    struct rpc_handle free_call;          // ... which is that
    uint64_t free_again_us;               // it could not be asked, or refused: it is not asked again before then
    struct repeat failed_frees, failed_cleans;
};

// A sequence that a member reported to hold and that nobody has claimed yet.
struct held {
    uint64_t sequence;
    uint32_t place, first, positions, certain; // first: of an extent; certain: as in HeldSequence
    bool stale;                                // it is being freed there
};

// A hand-over that was asked for.
struct pending_move {
    struct scheduler *scheduler;
    struct sched_move move;
    uint64_t began_us;
    uint32_t from_stay, to_stay; // the members' `stay` when it began
    bool used, ok;               // ok: the pages have arrived and are being freed at the old place
};

// Pages that a place is to free.
struct pending_free {
    uint64_t sequence;
    uint32_t next;
    bool keep_sampler;         // only pages are freed, because the sequence goes on elsewhere
    bool report;               // the core waits for RELEASED
    struct pending_move *move; // the hand-over that waits for it; NULL: none
};

// A step in flight at the s-part. Arrays are [max rows], sized once.
struct flight {
    bool used;
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
    Fastdecode__Run *runs; // [max rows]
    Fastdecode__Run **run_pointers;
    Fastdecode__SequenceOpen *opens;
    Fastdecode__SequenceOpen **open_pointers;
    Fastdecode__Extent *extents; // [2 * EXTENTS_MAX] of all runs, tails included
    Fastdecode__Extent **extent_pointers;
    Fastdecode__Place places[SCHED_PLACES_MAX];
    Fastdecode__Place *place_pointers[SCHED_PLACES_MAX];
};

struct scheduler {
    struct scheduler_settings settings;
    uint64_t incarnation, next_sequence, started_us;
    uint64_t claims_from_us; // when the s-part was up for the first time: sequences come again from then on; 0: it has not been
    uint64_t checked_us;     // when members_check() last ran
    struct rpc_security security;
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct otlp *otlp;                       // NULL: requests are not traced
    struct trace_track *track, *track_steps; // track: what this thread does; track_steps: the steps in flight at the s-part

    // The model, from the s-part.
    bool model_known;
    Fastdecode__ModelInfo model;
    struct kv_shape kv_shape; // what kv says, and borrows
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

    // The core, and its answers.
    struct sched *core; // NULL until the first s-part has registered and described the model
    struct sched_config core_config;
    uint64_t expected_us; // when the s-part's threads were last woken for a request that is yet to come
    struct sched_event events[EVENTS_ROOM];
    uint32_t event_count;
    struct sched_action *actions;              // [ACTIONS_MAX]
    void (*tick)(struct scheduler *scheduler); // scheduler_tick(), for code that scheduler_tick() itself calls
    bool ticking;                              // actions are being carried out
    bool stuck;                                // a step could not be sent: no other is sent before the loop has run
    struct flight flights[STEPS_MAX];
    uint64_t last_step; // the number of the latest step that was sent
    struct step_scratch scratch;
    uint32_t step_rows_max;
    uint32_t step_failures;     // consecutive steps whose answers came too late
    struct repeat failed_steps; // since one was answered
    struct repeat bad_replies, failed_moves, other_models;
    struct pending_free *frees; // of all places
    uint64_t *free_ids;         // scratch: the ids of one call
    uint32_t frees_unused;      // head of the list of unused entries
    uint32_t frees_waiting;     // number of entries in the places' to_free lists
    uint32_t unclaimed_frees;   // how many of the frees the core does not know of
    struct pending_move moves[MOVES_MAX];

    // Sequences.
    struct token_logs *logs;
    size_t grammar_bytes; // of the requests that the logs still have
    struct page_names page_names;
    struct draft_odds draft_odds; // of all sequences
    uint64_t *settling;           // ids of resubmitted sequences that wait for the members that hold their pages
    uint32_t settling_count, settling_capacity;

    struct rpc_call *watchers[WATCHERS_MAX];
    uint32_t watcher_count;
    uint64_t watched_us;
    Fastdecode__MeshState last_state;
    char reason[256];                                   // of a state that is sent
    Fastdecode__SamplingFeature features[FEATURES_MAX]; // of a state that is sent

    uint64_t generated_tokens, prompt_tokens, finished, cancelled, s_part_busy_us, s_part_wait_us;
    uint64_t busy_ns; // processor time of ticks: running the core and carrying out its actions
    struct view view;
};

// Queues an event for the next tick. The queue has room for the events of one turn of the loop; when it is full, a tick runs at
// once.
static inline void scheduler_event(struct scheduler *scheduler, const struct sched_event *event)
{
    if (scheduler->event_count >= EVENTS_MAX && !scheduler->ticking)
        scheduler->tick(scheduler);
    assert_always(scheduler->event_count < EVENTS_ROOM);
    scheduler->events[scheduler->event_count++] = *event;
}

static inline bool scheduler_waits_for_claims(const struct scheduler *scheduler, uint64_t now_us)
{
    return !scheduler->claims_from_us || now_us - scheduler->claims_from_us < CLAIM_US;
}

// --- core.c

// Sets the fields that do not start at 0, such as the links between members and places.
void scheduler_init(struct scheduler *scheduler);
enum status scheduler_open_core(struct scheduler *scheduler, struct error *error) MUST_CHECK;
void scheduler_close_core(struct scheduler *scheduler);
// Gives the core its events and carries out its actions.
void scheduler_tick(struct scheduler *scheduler);

// --- flights.c

enum status flights_open(struct scheduler *scheduler, uint32_t rows) MUST_CHECK;
void flights_close(struct scheduler *scheduler);
struct flight *flights_unused(struct scheduler *scheduler);
// Returns the oldest step that is answered and whose answer is not taken yet; NULL: none.
struct flight *flights_oldest_answered(struct scheduler *scheduler);
void flights_end(struct flight *flight);
// Voids all steps, because the s-part is gone. The event S_PART_DOWN tells the core.
void flights_void(struct scheduler *scheduler);
// Returns the number of the oldest unanswered step; of the next one to be sent, if there is none.
uint64_t flights_oldest_step(const struct scheduler *scheduler);
// Returns whether an unanswered step has rows at the place.
bool flights_use_place(const struct scheduler *scheduler, uint32_t place);

// --- steps.c

void steps_send(struct scheduler *scheduler, const struct sched_step_action *action);
// Passes the results of answered steps that the core took on to the clients.
void steps_take_answered(struct scheduler *scheduler);
// --- generate.c

void generate_handler(struct rpc_call *call, void *user);
void expect_handler(struct rpc_call *call, void *user);
// Tells the sequence's client that it waits or runs, and under which id.
void generate_accepted(struct scheduler *scheduler, uint64_t sequence);
// Passes the last `count` tokens of the log on to its client.
void generate_tokens(struct scheduler *scheduler, struct token_log *log, Fastdecode__Token **tokens, uint32_t count);
void generate_scores(struct token_log *log, uint32_t index, Fastdecode__Token **scores, size_t count);
void generate_pooled(struct token_log *log, const ProtobufCBinaryData *pooled);
void generate_finish(struct scheduler *scheduler, struct token_log *log, enum sched_reason reason, uint32_t cached_tokens);
void generate_reject(struct scheduler *scheduler, struct token_log *log, uint64_t retry_after_us);

// --- stages.c: the s-part as one process, or as a pipeline of stages

void stages_init(struct s_part *s_part, struct scheduler *scheduler, struct place *pool);
// Fills in the stages that are registered, in order of their layers; out: [SCHED_STAGES_MAX]. Returns their number.
uint32_t stages_list(const struct s_part *s_part, const struct stage **out);
// Whether a registered stage has fewer than all of the model's layers.
bool stages_are_several(const struct s_part *s_part, uint32_t layers);
// Says why there is no s-part that takes steps.
const char *stages_reason(struct scheduler *scheduler);
// Checks the layers of a registration, and its numeric class, against the stages that are registered.
enum status stages_check(const struct scheduler *scheduler, const Fastdecode__RegisterRequest *request,
                         struct error *error) MUST_CHECK;
// Returns the member for the layers of a registration; NULL: there are too many stages.
struct member *stages_member(struct scheduler *scheduler, const Fastdecode__RegisterRequest *request);
// Takes over what a registration says of the stage.
void stages_take(struct member *member, const Fastdecode__RegisterRequest *request);
bool stages_has_said_so(const struct member *member, const Fastdecode__RegisterRequest *request);
void stages_tell_core(struct scheduler *scheduler);
// Returns whether every stage takes steps of sequences with extents at such a place.
bool stages_take_extents(const struct s_part *s_part, enum sched_place_kind kind);
// Returns the features of sampling that all registered stages and this scheduler have.
uint32_t stages_features(const struct s_part *s_part);
// Sets the fields of core_config that follow from the stages. False: layers are missing.
bool stages_configure_core(struct scheduler *scheduler);
// Puts the stages together if all layers are there, and calls on_all_joined once they have answered. Does nothing if they are, or are
// being.
void stages_join(struct scheduler *scheduler, void (*on_all_joined)(struct member *first));
// Ends the term: none of the stages is up.
void stages_void(struct scheduler *scheduler);
// Calls a method of SPart at every stage; on_end is called when the last has answered. False: it cannot be called.
bool stages_call(struct scheduler *scheduler, const char *method, const ProtobufCMessage *request,
                 void (*on_end)(void *user, enum status status, const char *text), void *user, struct rpc_handle *call);
void stages_tell(const struct scheduler *scheduler, struct stages_message *out);
// Forgets which layers stages had that are gone, because the model is another one now. None may be registered.
void stages_forget(struct s_part *s_part);
// Whether any s-part is registered, of a pipeline or not.
bool stages_any(const struct s_part *s_part);
// Takes note that a step was answered. Adds up what steps take at each stage. Fills in stage_us [SCHED_STAGES_MAX], what this one took, and
// returns the number of stages; 0: there is one, or the reply does not say.
uint32_t stages_count_step(struct s_part *s_part, const Fastdecode__StepReply *reply, uint32_t rows, uint32_t *stage_us);

// --- registration.c

void registration_handler(struct rpc_call *call, void *user);

// --- members.c

void members_heartbeat_handler(struct rpc_call *call, void *user);
void members_drain_handler(struct rpc_call *call, void *user);
// Returns the worker with that name, a new one if need be; NULL: every place is in use.
struct member *members_find_or_add(struct scheduler *scheduler, const char *name);
// Returns the worker that has registered under the name; NULL: none.
struct member *members_find(struct scheduler *scheduler, const char *name);
// Connects to the member, and tells the core of it once it is reached and clean.
void members_connect(struct member *member);
void members_disconnect(struct member *member);
void members_down(struct member *member, const char *why);
// Ends the pipeline's term, because a stage does not take steps of it: the s-part is down, and its stages are put together again.
void members_part_stages(struct scheduler *scheduler, const char *why);
// Returns whether the member is not registered and has been silent for as long as a dead one.
bool members_is_gone(const struct member *member);
// Frees what the member holds and nobody needs, then tells the core that it is up. Does nothing before it is registered and reached.
void members_clean_then_up(struct member *member);
// Finds members that are silent or hang. Call it at least every CHECK_EVERY_US; time in which this process was stopped does not
// count against them.
void members_check(struct scheduler *scheduler, uint64_t now_us);
// Records that a step was answered; lost: all its rows at the place were lost.
void members_answered(struct scheduler *scheduler, uint32_t place, bool lost);
// Returns a worker whose tensors the s-part does not reach; NULL: there is none.
const struct member *members_unreachable(const struct scheduler *scheduler);
void members_close(struct scheduler *scheduler);

// --- claims.c: pages that members held before they registered

// Takes over the registration's list of held sequences. RESOURCE_EXHAUSTED: the list is too long; nothing is taken from it.
enum status claims_take(struct scheduler *scheduler, uint32_t place, const Fastdecode__RegisterRequest *request,
                        struct error *error) MUST_CHECK;
// Marks the sequences held at the place that nobody may claim. Their ids go to *ids, which the caller frees. RESOURCE_EXHAUSTED:
// nothing is marked.
enum status claims_mark_stale(struct scheduler *scheduler, uint32_t place, uint64_t **ids, uint32_t *count) MUST_CHECK;
// Ends the marking: with `freed`, the marked sequences are gone; without, they are still there.
void claims_end_stale(struct scheduler *scheduler, uint32_t place, bool freed);
// Gives sequences that wait to be rebuilt what the place holds of them. Call it when the place comes up, after the core's PLACE_UP
// event is queued.
void claims_reclaim(struct scheduler *scheduler, uint32_t place);
// Frees what nobody has claimed at the place, to make room.
void claims_drop(struct scheduler *scheduler, uint32_t place);
// Starts a new sequence at once, or, if it was resubmitted, when a place that holds its pages is up.
void claims_arrive(struct scheduler *scheduler, const struct token_log *log);
// Starts resubmitted sequences whose place is up, or that have waited long enough.
void claims_settle(struct scheduler *scheduler);

// --- places.c

enum status places_open(struct scheduler *scheduler, uint32_t sequences) MUST_CHECK;
void places_close(struct scheduler *scheduler);
// Carries out the core's RELEASE. forget: the sequence is over, so the s-part may forget its sampler state.
void places_release(struct scheduler *scheduler, uint64_t sequence, uint32_t place, bool forget);
// Frees pages that the core does not know of. Returns false if too many are being freed; try again.
bool places_free_unclaimed(struct scheduler *scheduler, uint32_t place, uint64_t sequence, bool keep_sampler);
// Tells the workers that had rows of a traced sequence, which is over, except the one at `freed`, which is asked to free its pages.
void places_end_spans(struct scheduler *scheduler, const struct sequence_spans *spans, uint64_t sequence, uint32_t freed);
void places_move(struct scheduler *scheduler, const struct sched_move *move);
void places_drained(struct scheduler *scheduler, uint32_t place);
// Sends the requests gathered since the last time to the places.
void places_send(struct scheduler *scheduler);
// Counts the pages that the place had to free as free, because it is down.
void places_down(struct place *place);
// Tells the s-part that a worker is dead, whatever its connection looks like.
void places_exclude(struct scheduler *scheduler, const struct place *place);
// Frees sequences of a member that is not up yet, then calls done(member, ok). Returns false if the member cannot be asked now.
bool places_clean(struct member *member, const uint64_t *sequences, uint32_t count, void (*done)(struct member *member, bool ok));

// --- watch.c, metrics.c

void watch_handler(struct rpc_call *call, void *user);
void watch_publish(struct scheduler *scheduler, uint64_t now_us);
void metrics_handler(struct rpc_call *call, void *user);

// --- view.c, outlook.c: what people who watch the mesh see

void view_handler(struct rpc_call *call, void *user);
// Notes that something happened to a member. why: "" if there is nothing to say.
void view_note(struct scheduler *scheduler, Fastdecode__EventKind kind, const char *name, const char *why);
// Notes an answered step: its flight has the runs, the reply and the places' times.
void view_note_step(struct scheduler *scheduler, const struct flight *flight);
// Fills in what common/plan predicts for what runs now. False: the members have not measured themselves, or nothing runs.
bool outlook_fill(const struct scheduler *scheduler, const struct sched_stats *stats, Fastdecode__PlanView *out);

#endif
