// reply.h: the StepReply of a mini-batch, in arrays that are sized once. See reply.c.
#ifndef FD_SERVICES_S_PART_ENGINE_REPLY_H
#define FD_SERVICES_S_PART_ENGINE_REPLY_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/sched/settings.h"
#include "step.pb-c.h"

struct mini_batch;

struct batch_reply {
    Fastdecode__RunResult *results; // [max_rows]
    Fastdecode__RunResult **result_pointers;
    Fastdecode__Token *tokens; // [max_rows] one per output
    Fastdecode__Token **token_pointers;
    Fastdecode__TopToken *tops; // [max_rows * SAMPLER_TOP_LOGPROBS_MAX]
    Fastdecode__TopToken **top_pointers;
    Fastdecode__StageTime stage_time, *stage_pointers[SCHED_STAGES_MAX]; // of this stage; of all, this one first
};

enum status reply_open(struct mini_batch *batch) MUST_CHECK;
void reply_close(struct mini_batch *batch);
// Turns results into the StepReply and ends the call.
void reply_send(struct mini_batch *batch);
// Notes what the step took here, for the reply of a pipeline's stage.
void reply_time_stage(struct mini_batch *batch);
// Adds to the reply of the next stage what this one knows, and ends the call with it. False: the reply is not of this step, and nothing was
// done.
bool reply_pass_on(struct mini_batch *batch, Fastdecode__StepReply *reply) MUST_CHECK;

#endif
