// measure_model.c: see measure_model.h. Measures as the s-part does at its start, with more time.
#include <string.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "kernels/backend/kv_of_model.h"
#include "kernels/backend/backend_measure.h"
#include "services/fastdecode/plan/measure_model.h"

enum { ROWS_MAX = 512, SAMPLED_MAX = 128, STEPS_US = 1500000, ATTENTION_US = 400000, PAGE_TOKENS = 16, CONTEXT = 1024 };
enum { MEASURE_BYTES = 64 << 20 };

// Sizes the pool of a device: what weights and activations leave, at most what measuring attention needs.
static enum status size_pool(const struct backend_ops *ops, struct backend_config *config, struct backend_plan *plan,
                             struct error *error)
{
    enum status status = ops->plan(config, plan, error);
    if (status || !plan->pool_on_device)
        return status;
    uint64_t used = plan->device_weight_bytes + plan->device_activation_bytes,
             left = plan->device_free_bytes > used ? (plan->device_free_bytes - used) / 20 * 19 : 0;
    uint64_t pages = (uint64_t)ATTEND_MEASURE_SEQUENCES * ATTEND_MEASURE_CONTEXT / PAGE_TOKENS;
    config->local_pool_bytes = MIN(left / plan->pool_page_bytes, pages) * plan->pool_page_bytes;
    status = ops->plan(config, plan, error);
    used = status ? 0 : plan->device_weight_bytes + plan->device_activation_bytes + plan->pool_pages * plan->pool_page_bytes;
    if (used > plan->device_free_bytes)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: %.0f MiB are needed and %.0f are free",
                         gguf_label(config->model->gguf), (double)used / 1048576, (double)plan->device_free_bytes / 1048576);
    return status;
}

static enum status measure_opened(const struct backend_ops *ops, const struct backend_config *config,
                                  const struct backend_plan *plan, struct backend *backend, struct hardware_model *out,
                                  struct error *error)
{
    const struct model_shape *shape = &config->model->shape;
    struct attend_measure what = {.ops = ops,
                                  .backend = backend,
                                  .shape = shape,
                                  .pages = plan->pool_pages,
                                  .page_tokens = PAGE_TOKENS,
                                  .max_rows = config->max_rows,
                                  .context_tokens = config->context_tokens};
    struct backend_times times;
    enum status status = ops->batch_open(backend, &what.batch, error);

    if (status)
        return status;
    status = backend_measure(ops, what.batch, shape, ROWS_MAX, SAMPLED_MAX, UINT32_MAX, STEPS_US, &times, error);
    for (uint32_t i = 0; !status && i < times.layer_count; i++)
        cost_curve_add(&out->layer, times.layer_rows[i], times.layer_us[i]);
    for (uint32_t i = 0; !status && i < times.head_count; i++)
        cost_curve_add(&out->head, times.head_rows[i], times.head_us[i]);
    if (!status && plan->pool_on_device)
        status = backend_measure_attention(&what, ATTENTION_US, &out->attention, error);
    ops->batch_close(what.batch);
    return status;
}

static enum status measure_steps(const struct model *model, const struct device_choice *device, struct thread_pool *pool,
                                 struct hardware_model *out, struct error *error)
{
    struct backend_config config = {.model = model,
                                    .pool = pool,
                                    .max_rows = ROWS_MAX,
                                    .max_batches = 1,
                                    .context_tokens = MIN(CONTEXT, model->shape.context_length),
                                    .kv_type = KV_F16,
                                    .page_tokens = PAGE_TOKENS,
                                    .max_sequences = ROWS_MAX,
                                    .device = device->index};
    struct backend_plan plan; // says whether the model can run here
    struct backend *backend = NULL;
    enum status status = size_pool(device->ops, &config, &plan, error);

    if (status || (status = device->ops->open(&config, &backend, error)))
        return status;
    status = measure_opened(device->ops, &config, &plan, backend, out, error);
    device->ops->close(backend);
    return status;
}

enum status measure_model(const char *model_path, const struct device_choice *device, struct thread_pool *pool,
                          struct hardware_model *out, struct error *error)
{
    const char *slash = strrchr(model_path, '/');
    struct model *model;
    enum status status = model_open(model_path, &model, error);

    if (status)
        return status;
    struct kv_shape kv = kv_shape_of_model(model, 0, model->shape.layers);
    kv.page_tokens = PAGE_TOKENS;
    kv.type = KV_F16;
    *out = (struct hardware_model){.name = slash ? slash + 1 : model_path};
    status = measure_steps(model, device, pool, out, error);
    if (!status && out->attention.token_us <= 0)
        status = kv_measure(&kv, MEASURE_BYTES, pool, ATTENTION_US, &out->attention, error);
    model_close(model);
    return status;
}
