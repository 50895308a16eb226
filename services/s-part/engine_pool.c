// engine_pool.c: steps with rows of prompts that are pooled: what is opened, which rows' hidden states the backend is asked for, and where they go.
#include <stdlib.h>

#include "common/base/checked.h"
#include "services/s-part/engine_state.h"

uint64_t engine_pool_bytes(uint32_t max_rows, uint32_t hidden, uint32_t batch_count)
{
    return batch_count * (uint64_t)max_rows * (hidden * sizeof(float) + sizeof(uint32_t));
}

enum status engine_pool_open(struct mini_batch *batch)
{
    const struct engine *engine = batch->engine;

    if (!engine->pooler)
        return STATUS_OK;
    batch->hidden = calloc((size_t)engine->max_rows * engine->shape.hidden, sizeof *batch->hidden);
    batch->hidden_rows = calloc(engine->max_rows, sizeof *batch->hidden_rows);
    return batch->hidden && batch->hidden_rows ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
}

void engine_pool_close(struct mini_batch *batch)
{
    free(batch->hidden);
    free(batch->hidden_rows);
}

// Earlier stages of a pipeline have none of it: the last one pools.
enum status engine_pool_open_sequence(struct mini_batch *batch, const Fastdecode__SequenceOpen *open, struct error *error)
{
    struct engine *engine = batch->engine;
    struct sequence *sequence = sequence_table_find(engine->sequences, open->sequence);
    const Fastdecode__Pooling kind = open->sampling->pooling;

    if (kind == FASTDECODE__POOLING__POOLING_UNSPECIFIED || !engine->range.is_last)
        return STATUS_OK;
    if (!engine->pooler)
        return error_set(error, STATUS_UNIMPLEMENTED, "sequence %llx is to be pooled: this s-part was started without --pooling",
                         (unsigned long long)open->sequence);
    if (open->n_tokens != open->prompt_tokens)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx is to be pooled, and has tokens behind its prompt",
                         (unsigned long long)open->sequence);
    return pooled_open(engine->pooler, (enum model_pool)kind, open->prompt_tokens, &sequence->pooled, error);
}

// Whether a row of the plan is asked for: its run is not lost.
static bool is_kept(const struct step_plan *plan, uint32_t wanted)
{
    return !plan->runs[plan->row_run[plan->hidden_row[wanted]]].lost;
}

void engine_pool_start(struct mini_batch *batch)
{
    const struct step_plan *plan = &batch->plan;

    batch->hidden_count = 0;
    for (uint32_t i = 0; i < plan->hidden_count; i++)
        if (is_kept(plan, i))
            batch->hidden_rows[batch->hidden_count++] = plan->hidden_row[i];
    if (batch->hidden_count)
        batch->engine->ops->hidden(batch->backend, batch->hidden_rows, batch->hidden, batch->hidden_count);
}

void engine_pool_finish(struct mini_batch *batch)
{
    const struct step_plan *plan = &batch->plan;
    const size_t width = batch->engine->shape.hidden;

    for (uint32_t i = 0; i < batch->hidden_count; i++) {
        const uint32_t row = batch->hidden_rows[i];
        pooled_take(plan->runs[plan->row_run[row]].sequence->pooled, plan->rows[row].position, batch->hidden + i * width);
    }
    batch->hidden_count = 0;
}
