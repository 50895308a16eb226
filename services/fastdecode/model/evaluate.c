// evaluate.c: see evaluate.h. A context goes through in steps of at most STEP_ROWS rows, its logits in blocks of HEAD_ROWS.
#include "services/fastdecode/model/evaluate.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/memory.h"
#include "kernels/backend/text_pass.h"

enum { STEP_ROWS = TEXT_PASS_ROWS, HEAD_ROWS = 32 };

// One of the two runs.
struct side {
    struct text_pass *pass;
    float *logits; // [HEAD_ROWS][vocab] f32
};

struct evaluation {
    struct evaluation_config config;
    struct model_shape shape;
    const struct backend_ops *ops;
    struct backend *backends[2]; // of the reference, of the other; the same one unless its weights are quantized
    struct side sides[2];        // the reference, the other
    uint32_t next[STEP_ROWS];    // token after the row; MODEL_NO_TOKEN: the context ends there
};

static struct text_pass_config pass_config(const struct evaluation *evaluation, uint32_t side)
{
    const struct evaluation_config *config = &evaluation->config;
    return (struct text_pass_config){.ops = evaluation->ops,
                                     .backend = evaluation->backends[side],
                                     .model = config->model,
                                     .pool = config->pool,
                                     .kv_type = side ? config->kv_type : KV_F32,
                                     .sparse_percent = side ? config->sparse_percent : 0,
                                     .context_tokens = config->context_tokens,
                                     .step_rows = STEP_ROWS};
}

// --- open and close --------------------------------------------------------------------------------------------------

static enum status check_memory(const struct evaluation *evaluation, const struct backend_config *config, struct error *error)
{
    uint64_t kv_bytes = 0, other_bytes = 0;
    struct backend_config reference = *config;
    struct backend_plan plan, other = {0};
    char parts[96];

    reference.quantize_bits = 0;
    enum status status = evaluation->ops->plan(&reference, &plan, error);
    if (!status && config->quantize_bits)
        status = evaluation->ops->plan(config, &other, error);
    if (status)
        return status;
    plan.weight_bytes += other.weight_bytes;
    plan.activation_bytes += other.activation_bytes;
    plan.start_bytes = MAX(plan.start_bytes, other.start_bytes);
    for (uint32_t i = 0; i < 2; i++) {
        const struct text_pass_config pass = pass_config(evaluation, i);
        uint64_t more;
        kv_bytes += text_pass_bytes(&pass, &more);
        other_bytes += more;
    }
    const struct memory_plan memory = {
        .fixed_bytes = plan.weight_bytes + plan.activation_bytes + kv_bytes + other_bytes +
                       2ull * HEAD_ROWS * evaluation->shape.vocab * sizeof(float),
        .start_bytes = plan.start_bytes,
    };
    snprintf(parts, sizeof parts, "weights_mib=%.1f kv_mib=%.1f", (double)plan.weight_bytes / 1048576, (double)kv_bytes / 1048576);
    return memory_plan_check(&memory, parts, error);
}

static enum status open_side(struct evaluation *evaluation, uint32_t index, struct error *error)
{
    const struct text_pass_config config = pass_config(evaluation, index);
    struct side *side = &evaluation->sides[index];

    side->logits = malloc((size_t)HEAD_ROWS * evaluation->shape.vocab * sizeof *side->logits);
    if (!side->logits)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the logits");
    return text_pass_open(&config, &side->pass, error);
}

void evaluation_close(struct evaluation *evaluation)
{
    if (!evaluation)
        return;
    for (uint32_t i = 0; i < 2; i++) {
        text_pass_close(evaluation->sides[i].pass);
        free(evaluation->sides[i].logits);
    }
    if (evaluation->backends[1] && evaluation->backends[1] != evaluation->backends[0])
        evaluation->ops->close(evaluation->backends[1]);
    if (evaluation->backends[0])
        evaluation->ops->close(evaluation->backends[0]);
    free(evaluation);
}

// Opens one backend for both runs, or one for each if the weights differ. config: the other run's.
static enum status open_backends(struct evaluation *evaluation, const struct backend_config *config, struct error *error)
{
    struct backend_config reference = *config;

    reference.quantize_bits = 0;
    enum status status = evaluation->ops->open(&reference, &evaluation->backends[0], error);
    if (!status && config->quantize_bits)
        return evaluation->ops->open(config, &evaluation->backends[1], error);
    evaluation->backends[1] = evaluation->backends[0];
    return status;
}

enum status evaluation_open(const struct evaluation_config *config, struct evaluation **out, struct error *error)
{
    struct evaluation *evaluation = calloc(1, sizeof *evaluation);
    const struct backend_config backend = {
        .model = config->model,
        .compute = config->compute,
        .pool = config->pool,
        .max_rows = STEP_ROWS,
        .max_batches = 2,
        .context_tokens = config->context_tokens,
        .kv_type = KV_F32, // the backend has no pool of its own
        .page_tokens = TEXT_PASS_PAGE_TOKENS,
        .quantize_bits = config->quantize_bits,
    };
    enum status status;

    if (!evaluation)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate an evaluation");
    evaluation->config = *config;
    evaluation->shape = config->model->shape;
    evaluation->ops = &backend_cpu;
    status = check_memory(evaluation, &backend, error);
    if (!status)
        status = open_backends(evaluation, &backend, error);
    if (!status)
        status = open_side(evaluation, 0, error);
    if (!status)
        status = open_side(evaluation, 1, error);
    if (status) {
        evaluation_close(evaluation);
        return status;
    }
    *out = evaluation;
    return STATUS_OK;
}

const char *evaluation_level(const struct evaluation *evaluation)
{
    struct backend_info info;
    evaluation->ops->info(evaluation->backends[0], &info);
    return info.level;
}

// --- a context -------------------------------------------------------------------------------------------------------

struct compare_job {
    struct evaluation *evaluation;
    const uint32_t *next;
    uint32_t count;
    struct divergence *out;
};

static void compare_rows(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct compare_job *job = arg;
    const struct side *sides = job->evaluation->sides;
    uint32_t vocab = job->evaluation->shape.vocab;

    (void)thread_index, (void)thread_count;
    for (uint32_t i; (i = thread_pool_claim(job->evaluation->config.pool)) < job->count;)
        divergence_of(sides[0].logits + (size_t)i * vocab, sides[1].logits + (size_t)i * vocab, vocab, job->next[i], &job->out[i]);
}

// Computes the logits of rows [begin, begin + count) on both sides, then how far they lie apart.
static void compare(struct evaluation *evaluation, uint32_t begin, uint32_t count, struct divergence *out)
{
    struct compare_job job = {.evaluation = evaluation, .next = evaluation->next + begin, .count = count, .out = out};
    uint32_t rows[HEAD_ROWS];

    for (uint32_t i = 0; i < count; i++)
        rows[i] = begin + i;
    for (uint32_t s = 0; s < 2; s++)
        text_pass_logits(evaluation->sides[s].pass, rows, count, evaluation->sides[s].logits);
    thread_pool_run(evaluation->config.pool, compare_rows, &job);
}

uint32_t evaluation_context_tokens(const struct evaluation *evaluation, uint32_t count)
{
    uint32_t most = evaluation->config.context_tokens - (evaluation->config.first_token != MODEL_NO_TOKEN);
    return MIN(most, count);
}

enum status evaluation_run(struct evaluation *evaluation, const uint32_t *tokens, uint32_t count, struct divergence *out,
                           uint32_t *out_count, struct error *error)
{
    uint32_t shift = evaluation->config.first_token != MODEL_NO_TOKEN, length = count + shift, done = 0;
    enum status status = STATUS_OK;

    assert_always(count <= evaluation_context_tokens(evaluation, count));
    for (uint32_t begin = 0; begin < length && !status; begin += STEP_ROWS) {
        uint32_t rows = MIN((uint32_t)STEP_ROWS, length - begin);
        uint32_t ids[STEP_ROWS];
        for (uint32_t i = 0; i < rows; i++) {
            uint32_t position = begin + i;
            ids[i] = position < shift ? evaluation->config.first_token : tokens[position - shift];
            evaluation->next[i] = position + 1 < length ? tokens[position + 1 - shift] : MODEL_NO_TOKEN;
        }
        for (uint32_t s = 0; s < 2 && !status; s++)
            status = text_pass_step(evaluation->sides[s].pass, ids, rows, error);
        rows -= begin + rows == length; // nothing follows the last one
        for (uint32_t at = 0; at < rows && !status; at += HEAD_ROWS) {
            compare(evaluation, at, MIN((uint32_t)HEAD_ROWS, rows - at), out + done);
            done += MIN((uint32_t)HEAD_ROWS, rows - at);
        }
    }
    for (uint32_t s = 0; s < 2; s++)
        text_pass_begin(evaluation->sides[s].pass);
    *out_count = done;
    return status;
}
