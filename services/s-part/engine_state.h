// engine_state.h: the engine, which takes each step through the model's layers. Declares the mini-batches, the links to KV workers,
// and the functions of the engine's files.
//
// One thread owns it all: it computes segments and, between them, handles what has arrived. The states of a mini-batch:
//
//     IDLE ─▶ begin ─▶ READY ─▶ segment: COMPUTING ─▶ q, k, v sent: WAITING ─▶ o is there: READY ─▶ … ─▶ head: SAMPLING ─▶ reply
//
// While one mini-batch computes on a device or waits, another that is ready starts, so that S-part and R-part work at the same
// time. If all rows are local, the engine waits for nothing between the segments, and a device has the whole step queued. Weights
// that do not stay in memory are read once for all mini-batches that are ready: the one that is furthest behind goes first. Steps of
// one mini-batch run in the order in which they came. A step allocates nothing but messages.
//
// A stage of a pipeline has a range of the model's layers: segments are numbered within it. It begins with rows that the stage before has
// sent, and hands them on instead of sampling (engine_stage.c); its mini-batch is FORWARDED until the answer comes back.
//
// Files, each calling only those below it:
//
//     engine.c ─▶ engine_compute.c ─▶ engine_stage.c ─▶ engine_begin.c ─▶ engine_attend.c ─▶ engine_extents.c, engine_spans.c, engine_masks.c (▶ masker.c), engine_pool.c (▶ pooler.c), links.c
//     engine_calls.c ───────────────────────┘        └▶ engine_release.c, reply.c, step_plan.c (▶ step_extents.c), sequence_table.c, engine_idle.c
#ifndef FD_SERVICES_S_PART_ENGINE_STATE_H
#define FD_SERVICES_S_PART_ENGINE_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "attend.pb-c.h"
#include "common/base/id_map.h"
#include "common/base/log.h"
#include "common/kv/kv_costs.h"
#include "common/kv/kv_shape.h"
#include "common/mesh/handover.h"
#include "common/mesh/tensors.h"
#include "common/model/model.h"
#include "common/rpc/rpc.h"
#include "common/sched/stage.h"
#include "common/trace/trace.h"
#include "kernels/backend/backend.h"
#include "services/s-part/sequence_table.h"
#include "services/s-part/step_plan.h"
#include "services/s-part/watchdog.h"

enum {
    ENGINE_BATCHES_MAX = SCHED_MINI_BATCHES_MAX,
    ENGINE_QUEUE_MAX = 8,
    ENGINE_LINKS_MAX = SCHED_WORKERS_MAX,
    ENGINE_RELEASE_CALLS_MAX = 256,
    // Twice the most sequences that can run (a step has at most 8,192 rows, prefill rows included), because as many again may be
    // kept or about to leave.
    ENGINE_SEQUENCES_MAX = 16384,
};
_Static_assert(ENGINE_BATCHES_MAX <= ATTEND_BATCHES_MAX, "a worker has a place for each mini-batch");

struct engine;
struct mini_batch;

// The connection to a KV worker.
struct link {
    struct engine *engine;
    uint32_t worker;
    uint64_t incarnation;
    char address[200];
    struct rpc_channel *channel; // NULL: free entry
    uint32_t open_count;         // grows with each channel
    bool down; // refused, gone or excluded: rows are lost until it is up again or the worker returns with a new incarnation
    uint64_t opened_us;
    bool was_up;
    uint64_t expected_us;   // total time expected for the calls in flight on this link
    struct repeat failures; // of calls, since one was answered, over all of its channels to this address
};

// A place in the step under way.
struct link_use {
    struct mini_batch *batch;
    struct link *link; // NULL: the local pool, or there is none
    struct step_place *place;
    bool local, dead, waiting;
    bool spoiled;               // its worker has sent a malformed reply
    struct rpc_buffer *request; // for the layer being computed; q, k, v are written straight into it
    struct rpc_message *reply;  // from the previous layer; o is read straight from it
    const float *o;
    float *partials;               // of the previous layer, in `reply` or the local pool
    float *read_q;                 // where q of the place's reads goes, in `request`
    uint64_t sent_us, expected_us; // expected_us: for one layer; 0: not known
    uint32_t r_part_us, attend_us; // sums over the step so far: time from request to answer; attention time reported by the worker
};

enum batch_state {
    BATCH_IDLE,
    BATCH_CONNECTING,
    BATCH_BEGINNING,
    BATCH_COMPUTING,
    BATCH_WAITING,
    BATCH_READY,
    BATCH_MASKING,    // the head waits for the masks of grammars
    BATCH_SAMPLING,   // or x is being copied for the next stage
    BATCH_HANDING_ON, // x is there, and the connection to the next stage is not
    BATCH_FORWARDED,  // the next stage has it
};

// A step that waits for its turn. The request lies in the call's memory.
struct queued_step {
    struct rpc_call *call;
    Fastdecode__StepRequest *request;
    struct forward_request forward; // x NULL: the step comes from the scheduler
};

struct mini_batch {
    struct engine *engine;
    uint32_t index;
    struct queued_step queue[ENGINE_QUEUE_MAX];
    uint32_t queue_head, queue_count;

    enum batch_state state;
    uint64_t ready_order; // the lowest goes first: who has been ready longest or, in a pipeline, who came first
    struct rpc_call *call;
    Fastdecode__StepRequest *request;
    struct forward_request forward;
    const float *x; // [rows][hidden] of the stage before: in the call's memory, or in x_kept
    float *x_kept;  // [max_rows][hidden] x without the rows of runs that were dropped; NULL: the first stage
    struct backend_batch *backend;
    struct step_plan plan;
    uint32_t segment; // next to start
    uint32_t waiting; // replies still outstanding
    struct link_use uses[SCHED_PLACES_MAX];
    const float **o;                                              // [max_rows]
    float **q, **k, **v;                                          // [max_rows]
    struct backend_links links;                                   // those
    bool aside;                                                   // the step goes aside
    uint64_t aside_before_us;                                     // engine.aside_us when the step began
    uint64_t began_us, started_us, s_part_us, sent_us, r_part_us; // started_us: when the current segment or head began
    uint32_t attended_us;                                         // by the segment, of local rows; not booked yet
    struct trace_track *track;                                    // shows the step and its waits
    struct trace_track *device_tracks[BACKEND_TRACKS];            // show what a device does, by its own clock
    uint64_t entered_us;                                          // when the step entered the pipeline
    uint64_t term;                                                // of the pipeline, when the step began
    uint32_t idle_us[SCHED_BUBBLES];                              // of the stage, before and within this step
    bool has_prefill;
    struct rpc_buffer *handing_on; // x is written straight into it
    struct rpc_handle forward_call;
    Fastdecode__StageTime stage_time, *stage_pointers[SCHED_STAGES_MAX]; // of the reply
    uint64_t began_ns, started_ns, ready_ns, wait_from_ns; // for the trace; wait_from_ns is 0 unless replies are awaited

    // the reply, sized once
    Fastdecode__RunResult *results; // [max_rows]
    Fastdecode__RunResult **result_pointers;
    Fastdecode__Token *tokens; // [max_rows] one per output
    Fastdecode__Token **token_pointers;
    Fastdecode__TopToken *tops; // [max_rows * SAMPLER_TOP_LOGPROBS_MAX]
    Fastdecode__TopToken **top_pointers;
    uint32_t *kept_rows; // [max_rows] outputs of runs that are not lost
    struct backend_sample *kept_outputs;
    uint32_t kept_count;

    struct mask_job masks; // of sequences with grammars
    float *hidden;         // [max_rows][hidden] of rows that are pooled; NULL: none are
    uint32_t *hidden_rows; // [max_rows] which those are
    uint32_t hidden_count;
};

// What to free of a sequence that has ended or whose KV is elsewhere.
struct released {
    bool pages;   // its pages in the local pool; false: they stay, others may share them
    bool sampler; // false: the sequence goes on
};

// A Release call that waits for its sequences to go.
struct release_call {
    struct rpc_call *call;
    const Fastdecode__ReleaseRequest *request; // in the call's memory
    size_t gone;                               // how many of its sequences, counted from the first, are known to be gone
};

// What a stage of a pipeline knows of the others, from the scheduler's latest Join.
struct engine_stage {
    uint64_t term; // 0: none yet, or it is being joined: no step is taken
    // The newest term that was begun, and the scheduler that counts it so: its Joins of that term and earlier ones are refused.
    uint64_t newest_term, newest_term_of;
    uint64_t previous_incarnation, next_incarnation;
    char next_address[200];
    struct rpc_channel *next;
    bool next_is_other; // another process answers there
    uint32_t forward_method;
    struct rpc_call *joining; // a Join that waits for the steps of the term before to end
    const Fastdecode__JoinRequest *join;
    // what bubbles are measured with
    uint64_t idle_from_us, left_us; // when a segment last ended; when a step that was here last left the pipeline
    bool had_prefill;               // the step of that segment had prefill rows
};

struct engine {
    struct rpc_loop *loop;
    const struct backend_ops *ops;
    struct backend *backend;
    struct sequence_table *sequences;
    struct masker *masker;     // of the stage that samples; otherwise NULL
    uint32_t masked_sequences; // the most that were open at once
    const struct model *model; // for its vocabulary; borrowed. NULL: no grammars
    struct pooler *pooler;     // borrowed; NULL: nothing is pooled here
    struct model_shape shape;
    const struct model_layer *layers; // [shape.layers] of the model, for their sinks; borrowed. NULL: none has any
    struct layer_range range;         // count 0 until engine_open(): all layers
    struct engine_stage stage;
    uint32_t context_tokens, max_rows, batch_count, q_width, kv_width, partial_floats;
    struct kv_shape kv_shape; // of all layers of the model
    bool has_sparse;          // workers are told which rows are sparse
    bool takes_aside;         // steps go aside as the last mini-batch (engine_aside.c)
    uint64_t incarnation;
    atomic_ullong scheduler_incarnation; // incarnation of the scheduler that answered our registration; relaxed: only compared
    uint32_t attend_method;
    struct kv_costs attend_costs; // what attention costs with this host's kernels; token_us 0: not measured
    struct mini_batch batches[ENGINE_BATCHES_MAX];
    struct link links[ENGINE_LINKS_MAX];
    struct repeat unreachable, not_opened; // places, by address
    struct repeat not_shared, not_begun, refused, not_forwarded;
    void (*on_link_changed)(struct engine *engine, struct link *link); // engine_link_changed(), which links.c may not call itself
    struct handover handover;                                          // moves local-pool pages to and from workers
    float *zeros;                                                      // [q_width]
    uint64_t ready_counter;
    // Steps that go aside (engine_aside.c): how long they were computed in all, since the latest step of the others ended, and in their latest
    // turn; and for how long they may be before the next step of the others begins.
    uint64_t aside_us, aside_used_us, aside_turn_us, aside_most_us;
    uint64_t aside_began_us, aside_booked_us; // of the turn under way: when it began; up to when it is in aside_us, 0: none is
    struct otlp *otlp;                        // NULL: requests are not traced
    struct trace_track *track_s_part, *track_local; // track_s_part: this thread's segments and similar work; track_local: its
                                                    // attention for local rows
    struct trace_track *track_idle;                 // of a pipeline's stage: its bubbles
    struct backend_span *device_spans;              // [device_spans_max] of one step; NULL: tracing is off, or there is no device
    uint32_t device_spans_max;
    struct id_map deferred_ids; // sequences to release when no step uses them
    struct released *deferred;  // [deferred_ids.capacity]
    struct release_call release_calls[ENGINE_RELEASE_CALLS_MAX];
    uint32_t release_call_count;
    struct watchdog watchdog;   // watches the computation, on a device or a CPU
    atomic_bool awaits_weights; // nothing but reads of weights can go on; relaxed: also read for the log
    uint64_t stream_pieces;     // backend_info.stream_pieces at the latest look
    atomic_ullong progress; // turns of the engine's loop, several a second, for heartbeats; relaxed: no other data depends on it
    double stream_us;       // backend_info.stream_step_us at the end of the latest step
    atomic_ullong busy_us, rows_done, pages_used, pages_peak, pages_total, kv_bytes_read, streamed_bytes,
        streamed_segments; // relaxed: numbers for heartbeats
};

// Records a span of a step on the S-part's track. Returns the span's end time.
#define ENGINE_SPAN(batch, name, began_ns, ...)                                                                                 \
    trace_span((batch)->engine->track_s_part, name, began_ns, {"step", (batch)->request->step}, {"mini_batch", (batch)->index}, \
               ##__VA_ARGS__)

// Whether this s-part has only a part of the layers.
static inline bool engine_is_stage(const struct engine *engine) { return !engine->range.is_first || !engine->range.is_last; }

// Returns the incarnation of the scheduler that the handlers obey; older ones are refused.
static inline uint64_t engine_newest_scheduler(const struct engine *engine)
{
    return atomic_load_explicit(&engine->scheduler_incarnation, memory_order_relaxed);
}

// engine.c. open: first set the fields that describe the backend and the model (max_rows: the most rows of a step; batch_count: the
// number of mini-batches, with the one for steps that go aside). The engine uses the backend; the caller closes it. advance: continues what a device has computed or
// copied, and starts a segment whose weights are in memory; false: there is nothing to do before something arrives.
enum status engine_open(struct engine *engine, struct error *error) MUST_CHECK;
void engine_close(struct engine *engine);
bool engine_advance(struct engine *engine);

// engine_aside.c. waits: whether a mini-batch that is READY has to, because others have the time. turn: around a segment of a step
// that goes aside. ended: a step is about to be answered. total_us: what it took, without the turns of others.
bool engine_aside_waits(const struct engine *engine, const struct mini_batch *batch);
void engine_aside_began(struct mini_batch *batch);
void engine_aside_turn_begins(struct engine *engine);
void engine_aside_turn_ends(struct engine *engine);
void engine_aside_ended(struct mini_batch *batch);
uint64_t engine_aside_total_us(const struct mini_batch *batch);

// engine_compute.c. start: starts the next segment of a mini-batch that is READY. poll: continues with what the backend has
// computed; false: the backend has no work of this mini-batch.
void engine_compute_start(struct mini_batch *batch);
bool engine_compute_poll(struct mini_batch *batch);

// engine_calls.c: handlers of the SPart service; user: the engine.
void engine_step_handler(struct rpc_call *call, void *user);
void engine_exclude_handler(struct rpc_call *call, void *user);
void engine_reach_handler(struct rpc_call *call, void *user);
void engine_expect_handler(struct rpc_call *call, void *user);
void engine_fetch_handler(struct rpc_call *call, void *user);
void engine_forward_handler(struct rpc_call *call, void *user);

// engine_stage.c: a stage of a pipeline. join_handler: the scheduler's Join. prepare: allocates the message to the next stage, and returns
// where x of the step's rows goes; NULL: no memory. hand_on: sends it, now or once there is a connection; the mini-batch is HANDING_ON
// or FORWARDED then, or has begun another step. advance: goes on with what waits or is given up; it costs nothing if this is no stage.
void engine_join_handler(struct rpc_call *call, void *user);
float *engine_stage_prepare(struct mini_batch *batch);
void engine_stage_hand_on(struct mini_batch *batch);
void engine_stage_advance(struct engine *engine);
void engine_stage_close(struct engine *engine);

// engine_idle.c: bubbles. ended: a segment, the head, or the attention of the local rows is done. begins: one begins; counts the time between for its step.
void engine_idle_ended(struct mini_batch *batch);
void engine_idle_begins(struct mini_batch *batch);

// engine_begin.c. start_next: begins the next step that is queued, if none is under way. refuse_queued: those that were planned behind one that
// has failed or was given up, since they lack the tokens that it would have sampled. give_up: ends the step under way without an
// answer; the backend must be done with it. link_changed: a link went down or came up.
void engine_start_next(struct mini_batch *batch);
void engine_refuse_queued(struct mini_batch *batch);
void engine_give_up(struct mini_batch *batch);
void engine_link_changed(struct engine *engine, struct link *link);

// pages.c. page_bytes: size of a page in the workers' format; 0: the local pool cannot exchange pages with workers.
uint64_t engine_page_bytes(const struct engine *engine);
void engine_pages_open(struct engine *engine);

// engine_release.c. in_use: whether a step of any mini-batch but `except` (NULL: of any at all) uses the sequence. deferred:
// releases what waited for the step that has just ended. pages: releases only the pages in the local pool, at once or when the step
// that uses them has ended. forget_older(engine): drops samplers opened by any scheduler but the newest, which reopens the
// sequences it continues.
enum status engine_release_open(struct engine *engine) MUST_CHECK;
void engine_release_close(struct engine *engine);
bool engine_in_use(const struct engine *engine, uint64_t sequence, const struct mini_batch *except);
void engine_forget_all(struct engine *engine);
void engine_release_deferred(struct engine *engine);
void engine_release_pages(struct engine *engine, uint64_t sequence);
void engine_release_handler(struct rpc_call *call, void *user);
void engine_forget_older(void *engine);

// engine_attend.c: attention of a layer. expect: called once a step, sets how long answers may take. prepare: allocates a place's
// message for the layer, and points q, k, v of its rows into it; NULL: no memory, or the link is down. point_nowhere: sets q, k, v
// of a lost place's rows to NULL. point_to_replies: points o of the workers' rows into the previous layer's replies. send: sends
// the prepared messages. attend_local: attends the local rows meanwhile. lose_place: gives up a place's rows in mid-step; the rest
// of the step goes on. make_ready: called when every answer has arrived or is given up.
void engine_expect(struct mini_batch *batch);
struct rpc_buffer *engine_prepare(struct mini_batch *batch, struct link_use *use, uint32_t layer);
void engine_point_nowhere(struct mini_batch *batch, const struct step_place *place);
void engine_point_to_replies(struct mini_batch *batch);
void engine_free_replies(struct mini_batch *batch);
void engine_send(struct mini_batch *batch);
void engine_attend_local(struct mini_batch *batch, uint32_t layer);
void engine_lose_place(struct link_use *use);
void engine_make_ready(struct mini_batch *batch);

// engine_extents.c: sequences that lie at several places. put_reads: describes the reads of a place's message, and remembers where their q
// goes. copy_reads: copies q there, once the segment has written it for the rows. fold: makes o of their rows from the partials of the
// layer before.
void engine_put_reads(struct mini_batch *batch, struct link_use *use, const struct attend_request_parts *parts);
void engine_copy_reads(struct mini_batch *batch);
void engine_fold_extents(struct mini_batch *batch);

// engine_masks.c: grammars. open: gives the sequence that was just put into the table its grammar, if it has one. begin: has the masks of a step
// made that has begun. done: polls for them. faults: notes at their runs why sequences have none; call it before the head. wait: they are done, or
// not needed any more.
enum status engine_masks_open(struct mini_batch *batch, const Fastdecode__SequenceOpen *open, struct error *error) MUST_CHECK;
void engine_masks_begin(struct mini_batch *batch);
bool engine_masks_done(struct mini_batch *batch);
void engine_masks_faults(struct mini_batch *batch);
void engine_masks_wait(struct mini_batch *batch);
// engine_pool.c: prompts that are pooled. bytes: the memory of all mini-batches for it. open_sequence: for the one that was just put into the
// table. start: asks the backend for the hidden states of a step's rows; call it after the last segment. finish: takes them, once they are there.
uint64_t engine_pool_bytes(uint32_t max_rows, uint32_t hidden, uint32_t batch_count);
enum status engine_pool_open(struct mini_batch *batch) MUST_CHECK;
void engine_pool_close(struct mini_batch *batch);
enum status engine_pool_open_sequence(struct mini_batch *batch, const Fastdecode__SequenceOpen *open,
                                      struct error *error) MUST_CHECK;
void engine_pool_start(struct mini_batch *batch);
void engine_pool_finish(struct mini_batch *batch);

// links.c. get: returns the link to a place, opening it if need be; NULL: it cannot be opened, or the worker there has a newer
// incarnation than the place. drop: closes the connection; its rows in flight are lost.
struct link *link_get(struct engine *engine, const Fastdecode__Place *place);
void link_drop(struct link *link);
void link_close_all(struct engine *engine);

// reply.c: turns results into the StepReply and ends the call.
enum status reply_open(struct mini_batch *batch) MUST_CHECK;
void reply_close(struct mini_batch *batch);
void reply_send(struct mini_batch *batch);
// time_stage: notes what the step took here, for the reply of a pipeline's stage.
// pass_on: adds to the reply of the next stage what this one knows, and ends the call with it. False: the reply is not of this step,
// and nothing was done.
void reply_time_stage(struct mini_batch *batch);
bool reply_pass_on(struct mini_batch *batch, Fastdecode__StepReply *reply) MUST_CHECK;

#endif
