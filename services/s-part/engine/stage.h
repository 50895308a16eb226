// stage.h: a stage of a pipeline: what it hands on to the next one, and what comes back. See stage.c.
#ifndef FD_SERVICES_S_PART_ENGINE_STAGE_H
#define FD_SERVICES_S_PART_ENGINE_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/log.h"
#include "common/rpc/rpc.h"
#include "step.pb-c.h"

struct engine;
struct mini_batch;

// The other stages of the pipeline, as the scheduler's latest Join named them.
struct engine_stage {
    uint64_t term; // 0: none yet, or it is being joined: no step is taken
    // The newest term that was begun, and the scheduler that counts it so: its Joins of that term and earlier ones are refused.
    uint64_t newest_term, newest_term_of;
    uint64_t previous_incarnation, next_incarnation;
    char next_address[200];
    struct rpc_channel *next; // NULL: the last stage, or none was joined
    bool next_is_other;       // another process answers there
    uint32_t forward_method;
    struct repeat failures;   // of handing on, since one was answered
    struct rpc_call *joining; // a Join that waits for the steps of the term before to end
    const Fastdecode__JoinRequest *join;
    // what bubbles are measured with
    uint64_t idle_from_us, left_us; // when a segment last ended; when a step that was here last left the pipeline
    bool had_prefill;               // the step of that segment had prefill rows
};

// A step on its way to the next stage.
struct handing_on {
    struct rpc_buffer *buffer; // x is written straight into it; NULL once it is sent
    struct rpc_handle call;    // while FORWARDED
};

// The scheduler's Join.
void engine_join_handler(struct rpc_call *call, void *user);
// Allocates the message to the next stage, and returns where x of the step's rows goes; NULL: no memory.
float *engine_stage_prepare(struct mini_batch *batch);
// Sends it, now or once there is a connection. The mini-batch is HANDING_ON or FORWARDED then, or has begun another step.
void engine_stage_hand_on(struct mini_batch *batch);
// Goes on with what waits or is given up. It costs nothing if this is no stage.
void engine_stage_advance(struct engine *engine);
void engine_stage_close(struct engine *engine);

#endif
