// head_inputs.c: what the head of a step is given beside its rows: masks of sequences with grammars, and rows of prompts that are pooled.
//
// The masker (masker.h) writes a step's masks while its rows go through the layers. Hidden states are asked for behind the last segment.
#include <stdlib.h>

#include "common/base/checked.h"
#include "services/s-part/engine/engine.h"

// --- grammars

enum { MASKS_PER_SEQUENCE = 4 }; // room for drafts: those for which there is none do not count

enum status engine_masks_open(struct mini_batch *batch, const Fastdecode__SequenceOpen *open, struct error *error)
{
    struct engine *engine = batch->engine;
    struct sequence *sequence = sequence_table_find(engine->sequences, open->sequence);
    const Fastdecode__Sampling *sampling = open->sampling;
    const struct masked_sequence_config config = {.packed = sampling->grammar.data,
                                                  .packed_bytes = sampling->grammar.len,
                                                  .generated = open->tokens + open->prompt_tokens,
                                                  .generated_count = (uint32_t)open->n_tokens - open->prompt_tokens,
                                                  .end_tokens = sampling->end_token,
                                                  .end_count = (uint32_t)sampling->n_end_token,
                                                  .ends_late = sampling->ends_late};

    if (!sampling->grammar.len || !engine->head.masker)
        return STATUS_OK;
    engine->head.masked_sequences = MAX(engine->head.masked_sequences, sequence_table_masked(engine->sequences) + 1);
    sequence->masked = masker_sequence_open(engine->head.masker, &config);
    if (sequence->masked && mask_job_reserve(&batch->head.masks, engine->head.masker,
                                             MIN(engine->head.masked_sequences * MASKS_PER_SEQUENCE, engine->batches.max_rows)))
        return STATUS_OK;
    sequence_table_remove(engine->sequences, open->sequence); // without its grammar it must not go on
    return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the grammar of sequence %llx",
                     (unsigned long long)open->sequence);
}

static bool wants_masks(const struct step_run *run)
{
    return run->sequence && run->sequence->masked && run->sample_count && !run->lost;
}

// Asks for a run's masks, and has its samples look at them.
static void add_run(struct mini_batch *batch, struct step_run *run, uint32_t others)
{
    struct step_plan *plan = &batch->plan;
    const uint32_t first = batch->head.masks.mask_count, left = batch->head.masks.capacity - MIN(first, batch->head.masks.capacity);
    const uint32_t most = left > others ? left - others : MIN(left, 1u); // each of the others gets one
    const uint32_t sample = run->first_output + run->output_count - run->sample_count;
    const uint32_t *drafts = run->run->tokens + run->run->n_tokens - run->run->drafts;

    run->mask_count = mask_job_add(&batch->head.masks, run->sequence->masked, drafts, MIN(run->sample_count, most));
    for (uint32_t k = 0; k < run->mask_count; k++)
        plan->outputs[sample + k].allowed = mask_job_mask(&batch->head.masks, first + k);
}

void engine_masks_begin(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    struct step_plan *plan = &batch->plan;
    uint32_t count = 0;

    if (!engine->head.masked_sequences)
        return;
    mask_job_clear(&batch->head.masks);
    for (uint32_t i = 0; i < plan->run_count; i++)
        count += wants_masks(&plan->runs[i]);
    if (!count || !mask_job_reserve(&batch->head.masks, engine->head.masker,
                                    count)) // sequences that came from another mini-batch; else there is room
        return;
    for (uint32_t i = 0; i < plan->run_count; i++)
        if (wants_masks(&plan->runs[i]))
            add_run(batch, &plan->runs[i], --count);
    mask_job_post(&batch->head.masks, engine->head.masker);
}

bool engine_masks_done(struct mini_batch *batch) { return mask_job_done(&batch->head.masks); }

void engine_masks_faults(struct mini_batch *batch)
{
    for (uint32_t i = 0; batch->engine->head.masked_sequences && i < batch->plan.run_count; i++) {
        struct step_run *run = &batch->plan.runs[i];
        if (!wants_masks(run))
            continue;
        const struct masked_sequence *masked = run->sequence->masked;
        run->request_fault = masked->failed && masked->request_fault;
        if (masked->failed)
            run->fault = masked->error;
        else if (!run->mask_count)
            run->fault = "the s-part has no memory for masks";
    }
}

void engine_masks_wait(struct mini_batch *batch) { mask_job_wait(&batch->head.masks); }

// --- prompts that are pooled

uint64_t engine_hidden_bytes(uint32_t max_rows, uint32_t hidden, uint32_t batch_count)
{
    return batch_count * (uint64_t)max_rows * (hidden * sizeof(float) + sizeof(uint32_t));
}

enum status engine_hidden_open(struct mini_batch *batch)
{
    const struct engine *engine = batch->engine;

    if (!engine->head.pooler)
        return STATUS_OK;
    batch->head.hidden = calloc((size_t)engine->batches.max_rows * engine->model.shape.hidden, sizeof *batch->head.hidden);
    batch->head.hidden_rows = calloc(engine->batches.max_rows, sizeof *batch->head.hidden_rows);
    return batch->head.hidden && batch->head.hidden_rows ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
}

void engine_hidden_close(struct mini_batch *batch)
{
    free(batch->head.hidden);
    free(batch->head.hidden_rows);
}

// Earlier stages of a pipeline have none of it: the last one pools.
enum status engine_hidden_open_sequence(struct mini_batch *batch, const Fastdecode__SequenceOpen *open, struct error *error)
{
    struct engine *engine = batch->engine;
    struct sequence *sequence = sequence_table_find(engine->sequences, open->sequence);
    const Fastdecode__Pooling kind = open->sampling->pooling;

    if (kind == FASTDECODE__POOLING__POOLING_UNSPECIFIED || !engine->model.range.is_last)
        return STATUS_OK;
    if (!engine->head.pooler)
        return error_set(error, STATUS_UNIMPLEMENTED, "sequence %llx is to be pooled: this s-part was started without --pooling",
                         (unsigned long long)open->sequence);
    if (open->n_tokens != open->prompt_tokens)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx is to be pooled, and has tokens behind its prompt",
                         (unsigned long long)open->sequence);
    return pooled_open(engine->head.pooler, (enum model_pool)kind, open->prompt_tokens, &sequence->pooled, error);
}

// Whether a row of the plan is asked for: its run is not lost.
static bool is_kept(const struct step_plan *plan, uint32_t wanted)
{
    return !plan->runs[plan->row_run[plan->hidden_row[wanted]]].lost;
}

void engine_hidden_start(struct mini_batch *batch)
{
    const struct step_plan *plan = &batch->plan;

    batch->head.hidden_count = 0;
    for (uint32_t i = 0; i < plan->hidden_count; i++)
        if (is_kept(plan, i))
            batch->head.hidden_rows[batch->head.hidden_count++] = plan->hidden_row[i];
    if (batch->head.hidden_count)
        batch->engine->ops->hidden(batch->backend, batch->head.hidden_rows, batch->head.hidden, batch->head.hidden_count);
}

void engine_hidden_finish(struct mini_batch *batch)
{
    const struct step_plan *plan = &batch->plan;
    const size_t width = batch->engine->model.shape.hidden;

    for (uint32_t i = 0; i < batch->head.hidden_count; i++) {
        const uint32_t row = batch->head.hidden_rows[i];
        pooled_take(plan->runs[plan->row_run[row]].sequence->pooled, plan->rows[row].position, batch->head.hidden + i * width);
    }
    batch->head.hidden_count = 0;
}
