// engine_state.h: steps through the layers: the state of each mini-batch, the links to KV workers, and what the engine's files do with them.
//
// One thread owns it all: it computes segments and, between them, takes what has arrived. A mini-batch is
//
//     IDLE ─▶ begin ─▶ READY ─▶ segment: COMPUTING ─▶ q, k, v sent: WAITING ─▶ o is there: READY ─▶ … ─▶ head: SAMPLING ─▶ reply
//
// While one mini-batch computes on a device or waits, another that is ready is started: so S-part and R-part work at the same time. If
// all rows are local, nothing is waited for between the segments, and a device has the whole step queued. Steps of one mini-batch run in
// the order in which they came. A step allocates nothing but messages.
//
// Files, each calling only those below it:
//
//     engine.c ─▶ engine_compute.c ─┬▶ engine_begin.c ─▶ engine_attend.c ─▶ links.c
//     engine_calls.c ───────────────┘        └▶ engine_release.c, reply.c, step_plan.c, sequence_table.c
#ifndef FD_SERVICES_S_PART_ENGINE_STATE_H
#define FD_SERVICES_S_PART_ENGINE_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "attend.pb-c.h"
#include "common/base/id_map.h"
#include "common/handover/handover.h"
#include "common/kv/kv_measure.h"
#include "common/model/model.h"
#include "common/rpc/rpc.h"
#include "common/trace/trace.h"
#include "kernels/backend/backend.h"
#include "services/s-part/sequence_table.h"
#include "services/s-part/step_plan.h"
#include "services/s-part/watchdog.h"

enum {
    ENGINE_BATCHES_MAX = 8,
    ENGINE_QUEUE_MAX = 8,
    ENGINE_LINKS_MAX = SCHED_WORKERS_MAX,
    ENGINE_RELEASE_CALLS_MAX = 256,
    // Twice those that run at most (a step has 8,192 rows, its chunk among them): as many may be kept or about to leave.
    ENGINE_SEQUENCES_MAX = 16384,
};

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
    bool down; // refused, gone, or excluded: its rows are lost until it comes with a new incarnation, or is up again
    uint64_t opened_us;
    bool was_up;
    uint64_t expected_us; // what the calls that are out are expected to take, one after the other
};

// A place in the step under way.
struct link_use {
    struct mini_batch *batch;
    struct link *link; // NULL: the local pool
    struct step_place *place;
    bool dead, waiting;
    struct rpc_buffer *request; // of the layer that is computed: its q, k, v are written where they lie
    struct rpc_message *reply;  // of the layer before: o is read where it lies
    const float *o;
    uint64_t sent_us, expected_us; // expected: of one layer; 0: not known
    uint32_t r_part_us, attend_us; // of the step so far: from sent to answered; what the worker says it took
};

enum batch_state { BATCH_IDLE, BATCH_CONNECTING, BATCH_BEGINNING, BATCH_COMPUTING, BATCH_WAITING, BATCH_READY, BATCH_SAMPLING };

// A step that waits for its turn. The request lies in the call's memory.
struct queued_step {
    struct rpc_call *call;
    Fastdecode__StepRequest *request;
};

struct mini_batch {
    struct engine *engine;
    uint32_t index;
    struct queued_step queue[ENGINE_QUEUE_MAX];
    uint32_t queue_head, queue_count;

    enum batch_state state;
    uint64_t ready_order; // the longest ready goes first
    struct rpc_call *call;
    Fastdecode__StepRequest *request;
    struct backend_batch *backend;
    struct step_plan plan;
    uint32_t segment; // next to start
    uint32_t waiting; // replies that are out
    struct link_use uses[SCHED_PLACES_MAX];
    const float **o;                                              // [max_rows]
    float **q, **k, **v;                                          // [max_rows]
    struct backend_links links;                                   // those
    uint64_t began_us, started_us, s_part_us, sent_us, r_part_us; // started: the segment or head that is computed
    struct trace_track *track;                                    // the step, and what it waits for
    struct trace_track *device_tracks[BACKEND_TRACKS];            // what a device does, by its own clock
    uint64_t began_ns, started_ns, ready_ns, wait_from_ns;        // of the trace; wait_from_ns is 0 while nothing is waited for

    // the reply, sized once
    Fastdecode__RunResult *results; // [max_rows]
    Fastdecode__RunResult **result_pointers;
    Fastdecode__Token *tokens; // [max_rows] one an output
    Fastdecode__Token **token_pointers;
    Fastdecode__TopToken *tops; // [max_rows * SAMPLER_TOP_LOGPROBS_MAX]
    Fastdecode__TopToken **top_pointers;
    uint32_t *kept_rows; // [max_rows] outputs of runs that are not lost
    struct backend_sample *kept_outputs;
    uint32_t kept_count;
};

// What is to go of a sequence that is over, or whose KV is elsewhere now.
struct released {
    bool pages;   // of the local pool; without, others may share them
    bool sampler; // without, it goes on
};

// A Release call that waits for its sequences to go.
struct release_call {
    struct rpc_call *call;
    const Fastdecode__ReleaseRequest *request; // in the call's memory
    size_t gone;                               // of its sequences, so many from the first on
};

struct engine {
    struct rpc_loop *loop;
    const struct backend_ops *ops;
    struct backend *backend;
    struct sequence_table *sequences;
    struct model_shape shape;
    uint32_t context_tokens, max_rows, batch_count, q_width, kv_width;
    uint64_t incarnation;
    atomic_ullong scheduler_incarnation; // of the one that registration was answered by; relaxed: only ever compared
    uint32_t attend_method;
    struct kv_costs attend_costs; // of attention by the kernels of this host; token_us 0: not measured
    struct mini_batch batches[ENGINE_BATCHES_MAX];
    struct link links[ENGINE_LINKS_MAX];
    void (*on_link_changed)(struct engine *engine, struct link *link); // what links.c, below, calls of engine_begin.c
    struct handover handover;                                          // of the local pool's pages, from and to workers
    float *zeros;                                                      // [q_width]
    uint64_t ready_counter;
    struct trace_track *track_s_part, *track_local; // what this thread does: segments and the like; attention of local rows
    struct backend_span *device_spans;              // [device_spans_max] of a step; NULL: there is no trace, or no device
    uint32_t device_spans_max;
    struct id_map deferred_ids; // sequences to release when no step uses them
    struct released *deferred;  // [deferred_ids.capacity]
    struct release_call release_calls[ENGINE_RELEASE_CALLS_MAX];
    uint32_t release_call_count;
    struct watchdog watchdog; // of whatever computes
    atomic_ullong progress;   // turns of the engine's thread, several a second: for heartbeats; relaxed, it stands alone
    atomic_ullong busy_us, rows_done, pages_used, pages_peak, pages_total, kv_bytes_read; // relaxed: numbers for heartbeats
};

// A span of a step on the S-part's track. Gives the time.
#define ENGINE_SPAN(batch, name, began_ns, ...)                                                                                 \
    trace_span((batch)->engine->track_s_part, name, began_ns, {"step", (batch)->request->step}, {"mini_batch", (batch)->index}, \
               ##__VA_ARGS__)

// The scheduler that the handlers listen to: older ones are refused.
static inline uint64_t engine_newest_scheduler(const struct engine *engine)
{
    return atomic_load_explicit(&engine->scheduler_incarnation, memory_order_relaxed);
}

// engine.c. open: with the fields set that say what the backend and the model are (max_rows: rows of a step; batch_count: mini-batches).
// The backend is the engine's to use, the caller's to close. advance: goes on with what a device has computed or copied, and starts the
// segment that has waited longest; false: there is nothing to do.
enum status engine_open(struct engine *engine, struct error *error) MUST_CHECK;
void engine_close(struct engine *engine);
bool engine_advance(struct engine *engine);

// engine_compute.c. start: the next segment of a mini-batch that is READY. poll: goes on with what the backend has computed; false: it
// computes nothing of this mini-batch.
void engine_compute_start(struct mini_batch *batch);
bool engine_compute_poll(struct mini_batch *batch);

// engine_calls.c: handlers of the SPart service; user: the engine.
void engine_step_handler(struct rpc_call *call, void *user);
void engine_exclude_handler(struct rpc_call *call, void *user);
void engine_fetch_handler(struct rpc_call *call, void *user);

// engine_begin.c. start_next: begins the next step that is queued, if none is under way. link_changed: a link went down or came up.
void engine_start_next(struct mini_batch *batch);
void engine_link_changed(struct engine *engine, struct link *link);

// pages.c. page_bytes: bytes of a page as workers have them; 0: the local pool gives and takes none.
uint64_t engine_page_bytes(const struct engine *engine);
void engine_pages_open(struct engine *engine);

// engine_release.c. in_use: whether a step of another mini-batch than `except` (NULL: of any) uses the sequence. deferred: releases what
// waited for the step that has just ended. pages: releases those of the local pool alone, at once or when the step that uses them has
// ended. forget_older(engine): drops the samplers that an older scheduler opened; its successor opens those that it goes on with.
enum status engine_release_open(struct engine *engine) MUST_CHECK;
void engine_release_close(struct engine *engine);
bool engine_in_use(const struct engine *engine, uint64_t sequence, const struct mini_batch *except);
void engine_release_deferred(struct engine *engine);
void engine_release_pages(struct engine *engine, uint64_t sequence);
void engine_release_handler(struct rpc_call *call, void *user);
void engine_forget_older(void *engine);

// engine_attend.c: attention of a layer. expect: once a step, how long answers may take. prepare: allocates a place's message for the
// layer, and points q, k, v of its rows into it; NULL: no memory, or the link is down. point_nowhere: q, k, v of a lost place.
// point_to_replies: o of the layer before, for the workers' rows. send: what was prepared. attend_local: the local rows meanwhile.
// lose_place: its rows, in mid-step; the rest of the step goes on. make_ready: all answers are in, or given up.
void engine_expect(struct mini_batch *batch);
struct rpc_buffer *engine_prepare(struct mini_batch *batch, struct link_use *use, uint32_t layer);
void engine_point_nowhere(struct mini_batch *batch, const struct step_place *place);
void engine_point_to_replies(struct mini_batch *batch);
void engine_free_replies(struct mini_batch *batch);
void engine_send(struct mini_batch *batch);
void engine_attend_local(struct mini_batch *batch, uint32_t layer);
void engine_lose_place(struct mini_batch *batch, struct link_use *use);
void engine_make_ready(struct mini_batch *batch);

// links.c. get: the link to a place, opened if need be; NULL: it cannot be, or the place is older than the worker there. drop: closes the
// connection; its rows in flight are lost.
struct link *link_get(struct engine *engine, const Fastdecode__Place *place);
void link_drop(struct link *link);
void link_close_all(struct engine *engine);

// reply.c: turns results into the StepReply and ends the call.
enum status reply_open(struct mini_batch *batch) MUST_CHECK;
void reply_close(struct mini_batch *batch);
void reply_send(struct mini_batch *batch);

#endif
