// engine_masks.c: what the engine has the masker do (masker.h): sequences with grammars are opened, and each step's masks are written while its
// rows go through the layers.
#include "common/base/checked.h"
#include "services/s-part/engine_state.h"

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

    if (!sampling->grammar.len || !engine->masker)
        return STATUS_OK;
    engine->masked_sequences = MAX(engine->masked_sequences, sequence_table_masked(engine->sequences) + 1);
    sequence->masked = masker_sequence_open(engine->masker, &config);
    if (sequence->masked &&
        mask_job_reserve(&batch->masks, engine->masker, MIN(engine->masked_sequences * MASKS_PER_SEQUENCE, engine->max_rows)))
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
    const uint32_t first = batch->masks.mask_count, left = batch->masks.capacity - MIN(first, batch->masks.capacity);
    const uint32_t most = left > others ? left - others : MIN(left, 1u); // each of the others gets one
    const uint32_t sample = run->first_output + run->output_count - run->sample_count;
    const uint32_t *drafts = run->run->tokens + run->run->n_tokens - run->run->drafts;

    run->mask_count = mask_job_add(&batch->masks, run->sequence->masked, drafts, MIN(run->sample_count, most));
    for (uint32_t k = 0; k < run->mask_count; k++)
        plan->outputs[sample + k].allowed = mask_job_mask(&batch->masks, first + k);
}

void engine_masks_begin(struct mini_batch *batch)
{
    struct engine *engine = batch->engine;
    struct step_plan *plan = &batch->plan;
    uint32_t count = 0;

    if (!engine->masked_sequences)
        return;
    mask_job_clear(&batch->masks);
    for (uint32_t i = 0; i < plan->run_count; i++)
        count += wants_masks(&plan->runs[i]);
    if (!count ||
        !mask_job_reserve(&batch->masks, engine->masker, count)) // sequences that came from another mini-batch; else there is room
        return;
    for (uint32_t i = 0; i < plan->run_count; i++)
        if (wants_masks(&plan->runs[i]))
            add_run(batch, &plan->runs[i], --count);
    mask_job_post(&batch->masks, engine->masker);
}

bool engine_masks_done(struct mini_batch *batch) { return mask_job_done(&batch->masks); }

void engine_masks_faults(struct mini_batch *batch)
{
    for (uint32_t i = 0; batch->engine->masked_sequences && i < batch->plan.run_count; i++) {
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

void engine_masks_wait(struct mini_batch *batch) { mask_job_wait(&batch->masks); }
