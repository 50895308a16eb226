/* measure_model.c: what a model's layers, head and attention take here: as the s-part measures at its start, with more time for it. */
#include <string.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "kernels/backend/backend_measure.h"
#include "services/fastdecode/measure.h"

enum { ROWS_MAX = 512, SAMPLED_MAX = 128, STEPS_US = 1500000, ATTENTION_US = 400000, PAGE_TOKENS = 16, CONTEXT = 1024 };
enum { MEASURE_BYTES = 64 << 20 };

static enum status measure_steps(const struct model *model, struct thread_pool *pool, struct hardware_model *out,
                                 struct error *error)
{
    const struct backend_config config = {.model = model,
                                          .pool = pool,
                                          .max_rows = ROWS_MAX,
                                          .max_batches = 1,
                                          .context_tokens = MIN(CONTEXT, model->shape.context_length),
                                          .kv_type = KV_F16,
                                          .page_tokens = PAGE_TOKENS,
                                          .max_sequences = ROWS_MAX};
    struct backend_plan plan; /* says whether the model can run here */
    struct backend *backend = NULL;
    struct backend_batch *batch = NULL;
    struct backend_times times;
    enum status status = backend_cpu.plan(&config, &plan, error);

    if (status || (status = backend_cpu.open(&config, &backend, error)))
        return status;
    if (!(status = backend_cpu.batch_open(backend, &batch, error)))
        status = backend_measure(&backend_cpu, batch, &model->shape, ROWS_MAX, SAMPLED_MAX, STEPS_US, &times, error);
    for (uint32_t i = 0; !status && i < times.layer_count; i++)
        cost_curve_add(&out->layer, times.layer_rows[i], times.layer_us[i]);
    for (uint32_t i = 0; !status && i < times.head_count; i++)
        cost_curve_add(&out->head, times.head_rows[i], times.head_us[i]);
    backend_cpu.batch_close(batch);
    backend_cpu.close(backend);
    return status;
}

enum status measure_model(const char *model_path, struct thread_pool *pool, struct hardware_model *out, struct error *error)
{
    const char *slash = strrchr(model_path, '/');
    struct model *model;
    enum status status = model_open(model_path, &model, error);

    if (status)
        return status;
    const struct kv_shape kv = {.layers = model->shape.layers,
                                .heads = model->shape.heads,
                                .kv_heads = model->shape.kv_heads,
                                .head_dim = model->shape.head_dim,
                                .page_tokens = PAGE_TOKENS,
                                .type = KV_F16};
    *out = (struct hardware_model){.name = slash ? slash + 1 : model_path};
    status = measure_steps(model, pool, out, error);
    if (!status)
        status = kv_measure(&kv, MEASURE_BYTES, pool, ATTENTION_US, &out->attention, error);
    model_close(model);
    return status;
}
