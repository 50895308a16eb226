// step.h: a step from its begin (begin.c) through the layers to its end (compute.c).
#ifndef FD_SERVICES_S_PART_ENGINE_STEP_H
#define FD_SERVICES_S_PART_ENGINE_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/log.h"
#include "common/mesh/tensors.h"
#include "common/rpc/rpc.h"
#include "common/sched/stage.h"
#include "step.pb-c.h"

struct engine;
struct mini_batch;

enum { ENGINE_QUEUE_MAX = 8 };

// A step that waits for its turn. The request lies in the call's memory.
struct queued_step {
    struct rpc_call *call;
    Fastdecode__StepRequest *request;
    struct forward_request forward; // x NULL: the step comes from the scheduler
};

struct step_queue {
    struct queued_step of[ENGINE_QUEUE_MAX]; // a ring: they run in the order in which they came
    uint32_t head, count;
};

// The step under way, as it came.
struct batch_step {
    struct rpc_call *call; // NULL: it is answered, though the next stage may still have it
    Fastdecode__StepRequest *request;
    struct forward_request forward;
    const float *x;           // [rows][hidden] of the stage before: in the call's memory, or in x_kept; NULL: the first stage
    float *x_kept;            // [max_rows][hidden] x without the rows of runs that were dropped; NULL: the first stage
    uint64_t entered_us;      // when it entered the pipeline
    uint64_t term;            // of the pipeline, when it began
    bool aside;               // it goes aside
    uint64_t aside_before_us; // engine.aside.us when it began
    bool has_prefill;         // of a pipeline's stage
};

// The time that the step under way took so far, in microseconds, and for the trace in nanoseconds.
struct batch_time {
    uint64_t began_us, started_us;                         // the step; the current segment or head
    uint64_t s_part_us, r_part_us;                         // sums
    uint64_t sent_us;                                      // when the current wait for attention began
    uint32_t attended_us;                                  // by the segment, of local rows; not booked yet
    uint32_t idle_us[SCHED_BUBBLES];                       // of the stage, before and within this step
    uint64_t began_ns, started_ns, ready_ns, wait_from_ns; // wait_from_ns is 0 unless replies are awaited
};

// Steps that were refused, and runs that were left out, since it last went well.
struct step_failures {
    struct repeat not_shared, not_begun, refused;
};

// Begins the next step that is queued, if none is under way.
void engine_start_next(struct mini_batch *batch);
// Begins the step that waited for connections, once none of its places is still connecting. Returns whether it has begun.
bool engine_begin_poll(struct mini_batch *batch);
// Refuses those that were planned behind one that has failed or was given up, since they lack the tokens that it would have sampled.
void engine_refuse_queued(struct mini_batch *batch);
// Ends the step under way without an answer; the backend must be done with it.
void engine_give_up(struct mini_batch *batch);

// Starts the next segment of a mini-batch that is READY.
void engine_compute_start(struct mini_batch *batch);
// Continues with what the backend has computed. False: the backend has no work of this mini-batch.
bool engine_compute_poll(struct mini_batch *batch);

#endif
