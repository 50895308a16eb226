// engine.h: the engine, which takes each step through the model's layers.
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
// sent, and hands them on instead of sampling (stage.c); its mini-batch is FORWARDED until the answer comes back.
//
// The files, each calling only those to its right; their parts of the engine's and of a mini-batch's state are in the headers of their names
// (step.h: begin.c and compute.c; attend.h: attend.c and extents.c):
//
//     engine.c ─▶ compute.c ─▶ stage.c ─▶ begin.c ─▶ attend.c ─▶ extents.c, spans.c
//     calls.c ────────────────────┘          └─▶ head_inputs.c, pool.c (▶ spans.c), reply.c ─▶ aside.c
#ifndef FD_SERVICES_S_PART_ENGINE_ENGINE_H
#define FD_SERVICES_S_PART_ENGINE_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/mesh/tensors.h"
#include "common/model/model.h"
#include "common/rpc/rpc.h"
#include "kernels/backend/backend.h"
#include "services/s-part/engine/aside.h"
#include "services/s-part/engine/attend.h"
#include "services/s-part/engine/head_inputs.h"
#include "services/s-part/engine/pool.h"
#include "services/s-part/engine/reply.h"
#include "services/s-part/engine/spans.h"
#include "services/s-part/engine/stage.h"
#include "services/s-part/engine/step.h"
#include "services/s-part/engine/watchdog.h"
#include "services/s-part/step/sequence_table.h"
#include "services/s-part/step/step_plan.h"

enum {
    ENGINE_BATCHES_MAX = SCHED_MINI_BATCHES_MAX,
    // Twice the most sequences that can run (a step has at most 8,192 rows, prefill rows included), because as many again may be
    // kept or about to leave.
    ENGINE_SEQUENCES_MAX = 16384,
};
_Static_assert(ENGINE_BATCHES_MAX <= ATTEND_BATCHES_MAX, "a worker has a place for each mini-batch");

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

struct mini_batch {
    struct engine *engine;
    uint32_t index;
    struct step_queue queue;
    enum batch_state state;
    uint64_t ready_order; // the lowest goes first: who has been ready longest or, in a pipeline, who came first
    struct backend_batch *backend;
    // The step under way; of the latest one while IDLE, but no request.
    struct batch_step step;
    struct step_plan plan;
    uint32_t segment; // next to start; range.count: the last, before the head
    struct batch_attend attend;
    struct batch_head head;
    struct batch_reply reply;
    struct handing_on handing_on;
    struct batch_time time;
    struct batch_tracks tracks;
};

struct mini_batches {
    struct mini_batch of[ENGINE_BATCHES_MAX]; // [count]
    uint32_t count;                           // with the one for steps that go aside
    uint32_t max_rows;                        // of a step
    uint64_t ready_counter;                   // the next ready_order
};

// The model, and sizes that follow from it. Set before engine_open(), but for the widths.
struct engine_model {
    const struct model *vocabulary; // the model, for its vocabulary; borrowed. NULL: no grammars
    struct model_shape shape;
    const struct model_layer *layers; // [shape.layers] of the model, for their sinks; borrowed. NULL: none has any
    struct layer_range range;         // count 0 until engine_open(): all layers
    struct kv_shape kv;               // of all layers of the model
    uint32_t context_tokens, q_width, kv_width, partial_floats;
    bool has_sparse; // workers are told which rows are sparse
};

// Tells whether the computation hangs.
struct engine_watch {
    struct watchdog watchdog;   // watches the computation, on a device or a CPU
    atomic_bool awaits_weights; // nothing but reads of weights can go on; relaxed: also read for the log
    uint64_t stream_pieces;     // backend_info.stream_pieces at the latest look
    double stream_us;           // backend_info.stream_step_us at the end of the latest step
};

// Numbers for heartbeats, which another thread reads; relaxed: no other data depends on them.
struct engine_counters {
    atomic_ullong progress; // turns of the engine's loop, several a second
    atomic_ullong busy_us, rows_done, pages_used, pages_peak, kv_bytes_read, streamed_bytes, streamed_segments;
};

struct engine {
    struct rpc_loop *loop;
    uint64_t incarnation;
    atomic_ullong scheduler_incarnation; // incarnation of the scheduler that answered our registration; relaxed: only compared
    const struct backend_ops *ops;
    struct backend *backend;
    struct engine_model model;
    struct sequence_table *sequences;
    struct mini_batches batches;
    struct links links;
    struct engine_head head;
    struct engine_pool pool;
    struct engine_stage stage;
    struct aside aside;
    struct step_failures failures;
    struct engine_watch watch;
    struct engine_counters counters;
    struct traces traces;
};

// Records a span of a step on the S-part's track. Returns the span's end time.
#define ENGINE_SPAN(batch, name, began_ns, ...)                                                       \
    trace_span((batch)->engine->traces.s_part, name, began_ns, {"step", (batch)->step.request->step}, \
               {"mini_batch", (batch)->index}, ##__VA_ARGS__)

// Returns whether this s-part has only a part of the layers.
static inline bool engine_is_stage(const struct engine *engine)
{
    return !engine->model.range.is_first || !engine->model.range.is_last;
}

// Returns the incarnation of the scheduler that the handlers obey; older ones are refused.
static inline uint64_t engine_newest_scheduler(const struct engine *engine)
{
    return atomic_load_explicit(&engine->scheduler_incarnation, memory_order_relaxed);
}

// Set the loop, the backend, the model, the number and the rows of mini-batches before. The engine uses the backend; the caller closes it.
enum status engine_open(struct engine *engine, struct error *error) MUST_CHECK;
void engine_close(struct engine *engine);
// Continues what a device has computed or copied, and starts a segment whose weights are in memory. False: there is nothing to do before
// something arrives.
bool engine_advance(struct engine *engine);

// --- calls.c: handlers of the SPart service; user: the engine

void engine_step_handler(struct rpc_call *call, void *user);
void engine_exclude_handler(struct rpc_call *call, void *user);
void engine_reach_handler(struct rpc_call *call, void *user);
void engine_expect_handler(struct rpc_call *call, void *user);
void engine_fetch_handler(struct rpc_call *call, void *user);
void engine_forward_handler(struct rpc_call *call, void *user);

#endif
