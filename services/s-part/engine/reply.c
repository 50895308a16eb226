// reply.c: the StepReply of a mini-batch, in arrays that are sized once.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/s-part/engine/engine.h"

enum status reply_open(struct mini_batch *batch)
{
    uint32_t rows = batch->engine->batches.max_rows, tops = rows * SAMPLER_TOP_LOGPROBS_MAX;

    batch->reply.results = calloc(rows, sizeof *batch->reply.results);
    batch->reply.result_pointers = calloc(rows, sizeof *batch->reply.result_pointers);
    batch->reply.tokens = calloc(rows, sizeof *batch->reply.tokens);
    batch->reply.token_pointers = calloc(rows, sizeof *batch->reply.token_pointers);
    batch->reply.tops = calloc(tops, sizeof *batch->reply.tops);
    batch->reply.top_pointers = calloc(tops, sizeof *batch->reply.top_pointers);
    if (!batch->reply.results || !batch->reply.result_pointers || !batch->reply.tokens || !batch->reply.token_pointers ||
        !batch->reply.tops || !batch->reply.top_pointers)
        return STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t i = 0; i < rows; i++) {
        batch->reply.result_pointers[i] = &batch->reply.results[i];
        batch->reply.token_pointers[i] = &batch->reply.tokens[i];
    }
    for (uint32_t i = 0; i < tops; i++)
        batch->reply.top_pointers[i] = &batch->reply.tops[i];
    return STATUS_OK;
}

void reply_close(struct mini_batch *batch)
{
    free(batch->reply.results);
    free(batch->reply.result_pointers);
    free(batch->reply.tokens);
    free(batch->reply.token_pointers);
    free(batch->reply.tops);
    free(batch->reply.top_pointers);
}

static void fill_token(struct mini_batch *batch, uint32_t output)
{
    const struct sampler_result *result = &batch->plan.results[output];
    Fastdecode__Token *token = &batch->reply.tokens[output];
    uint32_t first = output * SAMPLER_TOP_LOGPROBS_MAX;

    fastdecode__token__init(token);
    token->token = result->token;
    token->logprob = result->logprob;
    token->n_top = result->top_count;
    token->top = &batch->reply.top_pointers[first];
    for (uint32_t i = 0; i < result->top_count; i++) {
        fastdecode__top_token__init(&batch->reply.tops[first + i]);
        batch->reply.tops[first + i].token = result->top[i].token;
        batch->reply.tops[first + i].logprob = result->top[i].logprob;
    }
}

// With the last row of a prompt: what it was pooled to.
static void fill_pooled(const struct step_run *run, Fastdecode__RunResult *result)
{
    const struct pooled_sequence *pooled = run->sequence->pooled;
    uint32_t count;
    const float *vector =
        pooled && run->run->position + run->row_count == run->sequence->prompt_tokens ? pooled_result(pooled, &count) : NULL;

    if (vector)
        result->pooled = (ProtobufCBinaryData){.len = count * sizeof *vector, .data = (uint8_t *)(uintptr_t)vector};
}

// Outputs of a run: its scores in row order, then its samples.
static void fill_run(struct mini_batch *batch, const struct step_run *run)
{
    Fastdecode__RunResult *result = &batch->reply.results[run->result_index];

    fastdecode__run_result__init(result);
    result->sequence = run->run->sequence;
    if (run->lost || !run->sequence) {
        result->outcome = run->lost ? FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST : FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_UNKNOWN;
        result->lost_extent = run->lost_extent;
        return;
    }
    result->outcome = FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE;
    if (run->fault) {
        result->error = (char *)(uintptr_t)run->fault;
        result->request_fault = run->request_fault;
        return;
    }
    uint32_t first_sample = run->first_output + run->output_count - run->sample_count, last = first_sample + run->taken;
    if (run->taken) {
        result->sampled = &batch->reply.tokens[first_sample];
        result->n_more = run->taken - 1;
        result->more = &batch->reply.token_pointers[first_sample + 1];
    }
    result->n_scores = run->output_count - run->sample_count;
    result->scores = &batch->reply.token_pointers[run->first_output];
    for (uint32_t output = run->first_output; output < last; output++)
        fill_token(batch, output);
    fill_pooled(run, result);
}

void reply_time_stage(struct mini_batch *batch)
{
    Fastdecode__StageTime *time = &batch->reply.stage_time;

    fastdecode__stage_time__init(time);
    time->total_us = (uint32_t)(clock_now_us() - batch->time.began_us);
    time->s_part_us = (uint32_t)batch->time.s_part_us;
    time->r_part_us = (uint32_t)batch->time.r_part_us;
    time->idle_both_us = batch->time.idle_us[SCHED_BUBBLE_PB1];
    time->idle_one_us = batch->time.idle_us[SCHED_BUBBLE_PB2];
    time->idle_none_us = batch->time.idle_us[SCHED_BUBBLE_PB3];
    time->idle_attend_us = batch->time.idle_us[SCHED_BUBBLE_R];
    batch->reply.stage_pointers[0] = time;
}

static bool is_of_step(const struct mini_batch *batch, const Fastdecode__StepReply *reply)
{
    const uint32_t vocab = batch->engine->model.shape.vocab;
    bool good = reply->step == batch->step.request->step && reply->n_results == batch->plan.run_count &&
                reply->n_stages < ARRAY_COUNT(batch->reply.stage_pointers);

    for (size_t i = 0; good && i < reply->n_results; i++) {
        const Fastdecode__RunResult *result = reply->results[i];
        good = !result->sampled || result->sampled->token < vocab;
        for (size_t m = 0; m < result->n_more; m++)
            good = good && result->more[m]->token < vocab;
    }
    return good;
}

// Runs that this stage could not compute are lost, or unknown, whatever the later stages say; of the others it learns the last token.
static void take_result(const struct step_run *run, Fastdecode__RunResult *result)
{
    if (run->lost || !run->sequence) {
        fastdecode__run_result__init(result);
        result->sequence = run->run->sequence;
        result->outcome = run->sequence ? FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST : FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_UNKNOWN;
        result->lost_extent = run->lost_extent;
    } else if (result->outcome == FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE && result->sampled) {
        run->sequence->last_token = result->n_more ? result->more[result->n_more - 1]->token : result->sampled->token;
    }
}

// Adds the time that a place took here.
static void take_place(const struct mini_batch *batch, Fastdecode__PlaceTime *time)
{
    for (uint32_t p = 0; p < batch->plan.place_count; p++)
        if (batch->step.request->places[batch->plan.places[p].index]->worker == time->worker) {
            time->r_part_us += batch->attend.uses[p].r_part_us;
            time->attend_us += batch->attend.uses[p].attend_us;
        }
}

bool reply_pass_on(struct mini_batch *batch, Fastdecode__StepReply *reply)
{
    if (!is_of_step(batch, reply))
        return false;
    for (uint32_t i = 0; i < batch->plan.run_count; i++)
        take_result(&batch->plan.runs[i], reply->results[batch->plan.runs[i].result_index]);
    for (size_t i = 0; i < reply->n_places; i++)
        take_place(batch, reply->places[i]);
    for (size_t i = 0; i < reply->n_stages; i++)
        batch->reply.stage_pointers[i + 1] = reply->stages[i];
    reply->n_stages++; // with this one, whose time was noted when the step was handed on
    reply->stages = batch->reply.stage_pointers;
    reply->s_part_us += (uint32_t)batch->time.s_part_us;
    reply->r_part_us += (uint32_t)batch->time.r_part_us;
    reply->total_us = (uint32_t)(clock_now_us() - batch->time.began_us);
    reply->stream_us = MAX(reply->stream_us, batch->engine->watch.stream_us);
    rpc_call_reply(batch->step.call, &reply->base);
    batch->step.call = NULL;
    return true;
}

void reply_send(struct mini_batch *batch)
{
    Fastdecode__StepReply reply = FASTDECODE__STEP_REPLY__INIT;
    Fastdecode__PlaceTime times[SCHED_PLACES_MAX], *time_pointers[SCHED_PLACES_MAX];

    for (uint32_t i = 0; i < batch->plan.run_count; i++)
        fill_run(batch, &batch->plan.runs[i]);
    for (uint32_t i = 0; i < batch->plan.place_count; i++) {
        const struct step_place *place = &batch->plan.places[i];
        fastdecode__place_time__init(&times[i]);
        times[i].worker = batch->step.request->places[place->index]->worker;
        times[i].r_part_us = batch->attend.uses[i].r_part_us;
        times[i].attend_us = batch->attend.uses[i].attend_us;
        for (uint32_t row = place->first_row; row < place->first_row + place->row_count; row++)
            times[i].tokens_read += batch->plan.rows[row].position + 1 - batch->plan.rows[row].first;
        for (uint32_t read = place->first_read; read < place->first_read + place->read_count; read++)
            times[i].tokens_read += batch->plan.reads[read].end - batch->plan.reads[read].first;
        time_pointers[i] = &times[i];
    }
    reply.step = batch->step.request->step;
    reply.n_results = batch->plan.run_count;
    reply.results = batch->reply.result_pointers;
    reply.total_us = (uint32_t)engine_aside_total_us(batch);
    reply.s_part_us = (uint32_t)batch->time.s_part_us;
    reply.r_part_us = (uint32_t)batch->time.r_part_us;
    reply.stream_us = batch->engine->watch.stream_us;
    reply.n_places = batch->plan.place_count;
    reply.places = time_pointers;
    if (engine_is_stage(batch->engine)) {
        reply_time_stage(batch);
        reply.n_stages = 1;
        reply.stages = batch->reply.stage_pointers;
    }
    engine_aside_ended(batch);
    rpc_call_reply(batch->step.call, &reply.base);
    batch->step.call = NULL;
}
