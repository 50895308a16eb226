// evaluate.c: see evaluate.h. A context goes through in steps of at most STEP_ROWS rows, its logits in blocks of HEAD_ROWS.
#include "services/fastdecode/evaluate.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/memory.h"
#include "kernels/backend/kv_of_model.h"

enum { STEP_ROWS = 512, HEAD_ROWS = 32, PAGE_TOKENS = 16, SEQUENCE = 1 };

// One of the two runs.
struct side {
    struct kv_store *store;
    struct kv_batch *kv;
    struct backend_batch *batch;
    float *activations;  // [STEP_ROWS][2 q_width + 2 kv_width] f32: q, o, k, v of each row
    float **q, **k, **v; // [STEP_ROWS] into it
    float **o;           // [STEP_ROWS] into it
    float *logits;       // [HEAD_ROWS][vocab] f32
};

struct evaluation {
    struct evaluation_config config;
    struct model_shape shape;
    const struct backend_ops *ops;
    struct backend *backends[2]; // of the reference, of the other; the same one unless its weights are quantized
    struct side sides[2];        // the reference, the other
    struct backend_row rows[STEP_ROWS];
    struct kv_row kv_rows[STEP_ROWS];
    uint32_t next[STEP_ROWS]; // token after the row; MODEL_NO_TOKEN: the context ends there
};

static bool is_reference(const struct evaluation *evaluation, const struct side *side) { return side == evaluation->sides; }

static struct kv_shape kv_shape_of(const struct evaluation *evaluation, const struct side *side)
{
    struct kv_shape shape = kv_shape_of_model(evaluation->config.model, 0, evaluation->shape.layers);
    shape.page_tokens = PAGE_TOKENS;
    shape.type = is_reference(evaluation, side) ? KV_F32 : evaluation->config.kv_type;
    shape.max_sequences = 1;
    shape.max_context = evaluation->config.context_tokens;
    shape.sparse_percent = is_reference(evaluation, side) ? 0 : evaluation->config.sparse_percent;
    shape.all_windowed = false; // its memory is for the whole text, in steps of any length
    return shape;
}

static uint64_t store_bytes(const struct evaluation *evaluation, const struct side *side)
{
    const struct kv_shape shape = kv_shape_of(evaluation, side);
    return kv_page_memory_bytes(&shape) * ((evaluation->config.context_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS);
}

static uint32_t row_floats(const struct model_shape *shape) { return 2 * (shape->heads + shape->kv_heads) * shape->head_dim; }

// --- open and close --------------------------------------------------------------------------------------------------

static enum status check_memory(const struct evaluation *evaluation, const struct backend_config *config, struct error *error)
{
    uint64_t kv_bytes = 0, table_bytes = 0;
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
        const struct kv_shape shape = kv_shape_of(evaluation, &evaluation->sides[i]);
        const uint64_t bytes = store_bytes(evaluation, &evaluation->sides[i]);
        struct kv_plan kv = kv_store_plan(&shape, bytes, STEP_ROWS, thread_pool_threads(config->pool), 1);
        kv_bytes += bytes;
        table_bytes += kv.fixed_bytes + kv.table_bytes;
    }
    const struct memory_plan memory = {
        .fixed_bytes = plan.weight_bytes + plan.activation_bytes + kv_bytes + table_bytes +
                       2ull * STEP_ROWS * row_floats(&evaluation->shape) * sizeof(float) +
                       2ull * HEAD_ROWS * evaluation->shape.vocab * sizeof(float),
        .start_bytes = plan.start_bytes,
    };
    snprintf(parts, sizeof parts, "weights_mib=%.1f kv_mib=%.1f", (double)plan.weight_bytes / 1048576, (double)kv_bytes / 1048576);
    return memory_plan_check(&memory, parts, error);
}

static enum status open_side(struct evaluation *evaluation, struct side *side, struct error *error)
{
    const struct kv_shape shape = kv_shape_of(evaluation, side);
    size_t floats = row_floats(&evaluation->shape), q = (size_t)shape.heads * shape.head_dim,
           kv = (size_t)shape.kv_heads * shape.head_dim;
    enum status status =
        kv_store_open(&shape, store_bytes(evaluation, side), STEP_ROWS, evaluation->config.pool, &side->store, error);

    if (!status)
        status = evaluation->ops->batch_open(evaluation->backends[!is_reference(evaluation, side)], &side->batch, error);
    if (status)
        return status;
    side->activations = malloc(STEP_ROWS * floats * sizeof *side->activations);
    side->logits = malloc((size_t)HEAD_ROWS * evaluation->shape.vocab * sizeof *side->logits);
    side->q = calloc(STEP_ROWS, sizeof *side->q);
    side->k = calloc(STEP_ROWS, sizeof *side->k);
    side->v = calloc(STEP_ROWS, sizeof *side->v);
    side->o = calloc(STEP_ROWS, sizeof *side->o);
    if (!side->activations || !side->logits || !side->q || !side->k || !side->v || !side->o ||
        kv_batch_open(side->store, &side->kv))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the activations");
    for (uint32_t row = 0; row < STEP_ROWS; row++) {
        side->q[row] = side->activations + row * floats;
        side->o[row] = side->q[row] + q;
        side->k[row] = side->o[row] + q;
        side->v[row] = side->k[row] + kv;
    }
    return STATUS_OK;
}

static void close_side(const struct evaluation *evaluation, struct side *side)
{
    kv_batch_close(side->kv);
    kv_store_close(side->store);
    if (side->batch)
        evaluation->ops->batch_close(side->batch);
    free(side->activations);
    free(side->logits);
    free(side->q);
    free(side->k);
    free(side->v);
    free(side->o);
}

void evaluation_close(struct evaluation *evaluation)
{
    if (!evaluation)
        return;
    for (uint32_t i = 0; i < 2; i++)
        close_side(evaluation, &evaluation->sides[i]);
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
        .page_tokens = PAGE_TOKENS,
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
        status = open_side(evaluation, &evaluation->sides[0], error);
    if (!status)
        status = open_side(evaluation, &evaluation->sides[1], error);
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

static void wait_done(const struct evaluation *evaluation, struct side *side)
{
    while (!evaluation->ops->done(side->batch)) {}
}

// Runs the step's rows through all layers.
static enum status run_step(struct evaluation *evaluation, struct side *side, uint32_t row_count, struct error *error)
{
    const struct backend_links links = {.o = (const float *const *)side->o, .q = side->q, .k = side->k, .v = side->v};
    uint32_t bad_row, positions = evaluation->rows[row_count - 1].position + 1;
    enum status status = evaluation->ops->begin(side->batch, evaluation->rows, row_count, &bad_row, error);

    if (!status)
        status = kv_store_reserve(side->store, SEQUENCE, positions, error);
    if (!status)
        status = kv_batch_plan(side->kv, evaluation->kv_rows, row_count, &bad_row, error);
    if (status)
        return status;
    for (uint32_t s = 0; s <= evaluation->shape.layers; s++) {
        evaluation->ops->segment(side->batch, s, &links);
        wait_done(evaluation, side);
        if (s == evaluation->shape.layers)
            break;
        kv_batch_sinks(side->kv, evaluation->config.model->layers[s].sink_scores);
        kv_batch_attend(side->kv, s, (const float *const *)side->q, (const float *const *)side->k, (const float *const *)side->v,
                        side->o);
    }
    return STATUS_OK;
}

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
    struct compare_job job = {evaluation, evaluation->next + begin, count, out};
    struct backend_sample samples[HEAD_ROWS];
    struct sampler_result results[HEAD_ROWS];
    uint32_t rows[HEAD_ROWS];

    for (uint32_t s = 0; s < 2; s++) {
        struct side *side = &evaluation->sides[s];
        for (uint32_t i = 0; i < count; i++) {
            rows[i] = begin + i;
            samples[i] = (struct backend_sample){.token = evaluation->next[begin + i],
                                                 .result = &results[i],
                                                 .logits = side->logits + (size_t)i * evaluation->shape.vocab};
        }
        evaluation->ops->head(side->batch, rows, samples, count);
        wait_done(evaluation, side);
    }
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
        for (uint32_t i = 0; i < rows; i++) {
            uint32_t position = begin + i;
            uint32_t token = position < shift ? evaluation->config.first_token : tokens[position - shift];
            evaluation->rows[i] =
                (struct backend_row){.needs_output = true, .sequence = SEQUENCE, .token = token, .position = position};
            evaluation->kv_rows[i] = (struct kv_row){.sequence = SEQUENCE, .position = position, .sparse = true};
            evaluation->next[i] = position + 1 < length ? tokens[position + 1 - shift] : MODEL_NO_TOKEN;
        }
        for (uint32_t s = 0; s < 2 && !status; s++)
            status = run_step(evaluation, &evaluation->sides[s], rows, error);
        rows -= begin + rows == length; // nothing follows the last one
        for (uint32_t at = 0; at < rows && !status; at += HEAD_ROWS) {
            compare(evaluation, at, MIN((uint32_t)HEAD_ROWS, rows - at), out + done);
            done += MIN((uint32_t)HEAD_ROWS, rows - at);
        }
    }
    for (uint32_t s = 0; s < 2; s++)
        kv_store_free(evaluation->sides[s].store, SEQUENCE);
    *out_count = done;
    return status;
}
