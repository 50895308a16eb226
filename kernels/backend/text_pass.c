// text_pass.c: runs a text through a model, with a pool of its own.
#include "kernels/backend/text_pass.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "kernels/backend/backend.h"
#include "kernels/kv/kv_store.h"

enum { SEQUENCE = 1 };

struct text_pass {
    struct text_pass_config config;
    bool owns_batch;
    struct kv_store *store;
    struct kv_batch *kv;
    uint32_t position;   // of the next token
    float *activations;  // [step_rows][2 q_width + 2 kv_width] f32: q, o, k, v of each row
    float **q, **k, **v; // [step_rows] into it
    float **o;           // [step_rows] into it
    struct backend_row rows[TEXT_PASS_ROWS];
    struct kv_row kv_rows[TEXT_PASS_ROWS];
    struct backend_sample samples[TEXT_PASS_ROWS];
    struct sampler_result results[TEXT_PASS_ROWS];
};

static struct kv_shape store_shape(const struct text_pass_config *config)
{
    struct kv_shape shape = kv_shape_of_model(config->model, 0, config->model->shape.layers);
    shape.page_tokens = TEXT_PASS_PAGE_TOKENS;
    shape.type = config->kv_type;
    shape.max_sequences = 1;
    shape.max_context = config->context_tokens;
    shape.sparse_percent = config->sparse_percent;
    shape.all_windowed = false; // its memory is for the whole text, in steps of any length
    return shape;
}

static uint64_t page_bytes(const struct text_pass_config *config)
{
    const struct kv_shape shape = store_shape(config);
    return kv_page_memory_bytes(&shape) * ((config->context_tokens + TEXT_PASS_PAGE_TOKENS - 1) / TEXT_PASS_PAGE_TOKENS);
}

static uint32_t row_floats(const struct model_shape *shape) { return 2 * (shape->heads + shape->kv_heads) * shape->head_dim; }

uint64_t text_pass_bytes(const struct text_pass_config *config, uint64_t *other)
{
    const struct kv_shape shape = store_shape(config);
    const uint64_t bytes = page_bytes(config);
    const struct kv_plan kv = kv_store_plan(&shape, bytes, config->step_rows, thread_pool_threads(config->pool), 1);

    *other = kv.fixed_bytes + kv.table_bytes + sizeof(struct text_pass) +
             (uint64_t)config->step_rows * row_floats(&config->model->shape) * sizeof(float);
    return bytes;
}

static enum status open_rows(struct text_pass *pass, struct error *error)
{
    const struct model_shape *shape = &pass->config.model->shape;
    const size_t rows = pass->config.step_rows, floats = row_floats(shape), q = (size_t)shape->heads * shape->head_dim,
                 kv = (size_t)shape->kv_heads * shape->head_dim;

    pass->activations = malloc(rows * floats * sizeof *pass->activations);
    pass->q = calloc(rows, sizeof *pass->q);
    pass->k = calloc(rows, sizeof *pass->k);
    pass->v = calloc(rows, sizeof *pass->v);
    pass->o = calloc(rows, sizeof *pass->o);
    if (!pass->activations || !pass->q || !pass->k || !pass->v || !pass->o || kv_batch_open(pass->store, &pass->kv))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the activations");
    for (size_t row = 0; row < rows; row++) {
        pass->q[row] = pass->activations + row * floats;
        pass->o[row] = pass->q[row] + q;
        pass->k[row] = pass->o[row] + q;
        pass->v[row] = pass->k[row] + kv;
    }
    return STATUS_OK;
}

enum status text_pass_open(const struct text_pass_config *config, struct text_pass **out, struct error *error)
{
    struct text_pass *pass = calloc(1, sizeof *pass);
    const struct kv_shape shape = store_shape(config);

    assert_always(config->step_rows && config->step_rows <= TEXT_PASS_ROWS);
    if (!pass)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate a pass");
    pass->config = *config;
    pass->owns_batch = !config->batch;
    enum status status = kv_store_open(&shape, page_bytes(config), config->step_rows, config->pool, &pass->store, error);
    if (!status && pass->owns_batch)
        status = config->ops->batch_open(config->backend, &pass->config.batch, error);
    if (!status)
        status = open_rows(pass, error);
    if (status) {
        text_pass_close(pass);
        return status;
    }
    *out = pass;
    return STATUS_OK;
}

void text_pass_close(struct text_pass *pass)
{
    if (!pass)
        return;
    kv_batch_close(pass->kv);
    kv_store_close(pass->store);
    if (pass->owns_batch && pass->config.batch)
        pass->config.ops->batch_close(pass->config.batch);
    free(pass->activations);
    free(pass->q);
    free(pass->k);
    free(pass->v);
    free(pass->o);
    free(pass);
}

static void wait_done(const struct text_pass *pass)
{
    while (!pass->config.ops->done(pass->config.batch)) {}
}

enum status text_pass_step(struct text_pass *pass, const uint32_t *tokens, uint32_t count, struct error *error)
{
    const struct backend_ops *ops = pass->config.ops;
    const struct model *model = pass->config.model;
    const struct backend_links links = {.o = (const float *const *)pass->o, .q = pass->q, .k = pass->k, .v = pass->v};
    uint32_t bad_row;

    assert_always(count <= pass->config.step_rows);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t position = pass->position + i;
        pass->rows[i] = (struct backend_row){.needs_output = true, .sequence = SEQUENCE, .token = tokens[i], .position = position};
        pass->kv_rows[i] = (struct kv_row){.sequence = SEQUENCE, .position = position, .sparse = true};
    }
    enum status status = ops->begin(pass->config.batch, pass->rows, count, &bad_row, error);
    if (!status)
        status = kv_store_reserve(pass->store, SEQUENCE, pass->position + count, error);
    if (!status)
        status = kv_batch_plan(pass->kv, pass->kv_rows, count, &bad_row, error);
    if (status)
        return status;
    for (uint32_t s = 0; s <= model->shape.layers; s++) {
        ops->segment(pass->config.batch, s, &links);
        wait_done(pass);
        if (s == model->shape.layers)
            break;
        kv_batch_sinks(pass->kv, model->layers[s].sink_scores);
        kv_batch_attend(pass->kv, s, (const float *const *)pass->q, (const float *const *)pass->k, (const float *const *)pass->v,
                        pass->o);
    }
    pass->position += count;
    return STATUS_OK;
}

void text_pass_logits(struct text_pass *pass, const uint32_t *rows, uint32_t count, float *out)
{
    assert_always(count <= pass->config.step_rows);
    for (uint32_t i = 0; i < count; i++)
        pass->samples[i] = (struct backend_sample){
            .token = 0, .result = &pass->results[i], .logits = out + (size_t)i * pass->config.model->shape.vocab};
    pass->config.ops->head(pass->config.batch, rows, pass->samples, count);
    wait_done(pass);
}

void text_pass_begin(struct text_pass *pass)
{
    kv_store_free(pass->store, SEQUENCE);
    pass->position = 0;
}
