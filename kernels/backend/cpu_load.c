// cpu_load.c: weights from the file into the layouts that the kernels read.
//
// All matrices, norms and biases go into one anonymous mapping whose size is known from the plan; threads claim ranges of
// tiles (packed) or rows (dense). Afterwards nothing points into the file, so its pages can be given back.
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/checked.h"
#include "kernels/backend/cpu_internal.h"
#include "kernels/quant/dequant.h"

enum { LINEARS_A_LAYER = 7, ALIGN = 64 };

// Walks the model's tensors in one order, twice: to add up sizes, then to place and convert.
struct loader {
    const struct model *model;
    const struct backend_config *config;
    struct layer_range range;
    bool dense;
    unsigned char *base; // NULL while sizes are added up
    uint64_t used, peak; // peak: with the tensor that is being read
    struct backend *backend;
    struct error *error;
    enum status status;
};

static void *take(struct loader *loader, uint64_t bytes)
{
    uint64_t at = loader->used;
    loader->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return loader->base ? loader->base + at : NULL;
}

static void load_vector(struct loader *loader, const struct tensor_view *view, const float **out)
{
    if (!view->data || loader->status) {
        *out = NULL;
        return;
    }
    uint64_t count = (uint64_t)view->rows * view->columns;
    float *values = take(loader, count * sizeof *values);
    if (values)
        dequantize(view->type, view->data, count, values);
    *out = values;
}

struct convert_job {
    struct thread_pool *pool;
    struct cpu_linear *linear;
    const struct tensor_view *view;
    enum tensor_type type; // as it is loaded; another than the view's: quantized
    float *dense;
    atomic_bool bad; // relaxed: read when the threads have ended
};

static void quantize_items(struct convert_job *job, uint32_t begin, uint32_t count)
{
    bool ok = job->dense
                  ? cpu_dequantize_quantized(job->type, job->view, begin, count, job->dense + (uint64_t)begin * job->linear->inputs)
                  : cpu_pack_quantized(&job->linear->packed, job->view, begin, count);
    if (!ok)
        atomic_store_explicit(&job->bad, true, memory_order_relaxed);
}

static void convert_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    enum { GRAIN = 16 };
    struct convert_job *job = arg;
    uint32_t items = job->dense ? job->linear->outputs : job->linear->packed.tile_count;
    uint64_t row_bytes = job->view->bytes / job->view->rows;

    (void)thread_index, (void)thread_count;
    for (uint64_t begin; (begin = (uint64_t)thread_pool_claim(job->pool) * GRAIN) < items;) {
        uint32_t count = (uint32_t)MIN((uint64_t)GRAIN, items - begin);
        if (job->type != job->view->type) {
            quantize_items(job, (uint32_t)begin, count);
            continue;
        }
        if (!job->dense) {
            pack_tiles(&job->linear->packed, job->view->data, (uint32_t)begin, count);
            continue;
        }
        for (uint64_t row = begin; row < begin + count; row++)
            dequantize(job->view->type, (const unsigned char *)job->view->data + row * row_bytes, job->linear->inputs,
                       job->dense + row * job->linear->inputs);
    }
}

static void load_linear(struct loader *loader, const struct tensor_view *view, struct cpu_linear *out)
{
    if (loader->status)
        return;
    *out = (struct cpu_linear){.outputs = view->rows, .inputs = view->columns};
    struct convert_job job = {.linear = out, .view = view, .type = cpu_type_of(loader->config, view)};
    if (loader->dense) {
        out->dense = job.dense = take(loader, (uint64_t)view->rows * view->columns * sizeof(float));
    } else {
        loader->status = pack_plan((uint32_t)job.type, view->rows, view->columns, &out->packed, loader->error);
        if (loader->status) {
            error_prefix(loader->error, "tensor '%.*s'", (int)view->name_length, view->name);
            return;
        }
        out->packed.data = take(loader, out->packed.bytes);
    }
    loader->peak = MAX(loader->peak, loader->used + view->bytes);
    if (loader->base) {
        job.pool = loader->backend->config.pool;
        thread_pool_run(job.pool, convert_thread, &job);
        model_release_tensor(loader->model, view); // so that the file is never in memory twice as a whole
        if (atomic_load_explicit(&job.bad, memory_order_relaxed))
            loader->status = error_set(loader->error, STATUS_DATA_LOSS,
                                       "tensor '%.*s' cannot be quantized: a value is not finite, or no memory is left",
                                       (int)view->name_length, view->name);
    }
}

static void load_layer(struct loader *loader, const struct model_layer *source, struct cpu_layer *out)
{
    load_vector(loader, &source->attn_norm, &out->attn_norm);
    load_vector(loader, &source->ffn_norm, &out->ffn_norm);
    const struct {
        const struct tensor_view *weight, *bias;
        struct cpu_linear *linear;
    } parts[LINEARS_A_LAYER] = {
        {&source->q, &source->q_bias, &out->q}, {&source->k, &source->k_bias, &out->k}, {&source->v, &source->v_bias, &out->v},
        {&source->o, &source->o_bias, &out->o}, {&source->gate, NULL, &out->gate},      {&source->up, NULL, &out->up},
        {&source->down, NULL, &out->down},
    };
    for (uint32_t i = 0; i < LINEARS_A_LAYER; i++) {
        load_linear(loader, parts[i].weight, parts[i].linear);
        if (parts[i].bias)
            load_vector(loader, parts[i].bias, &parts[i].linear->bias);
    }
}

static void load_all(struct loader *loader)
{
    const struct model *model = loader->model;
    struct backend sizes = {0}, *backend = loader->backend ? loader->backend : &sizes;
    struct cpu_layer layer_sizes;

    if (loader->range.is_first)
        load_linear(loader, &model->embedding, &backend->embedding);
    if (loader->range.is_last && loader->range.is_first && model->tied)
        backend->output = backend->embedding;
    else if (loader->range.is_last)
        load_linear(loader, &model->output, &backend->output);
    if (loader->range.is_last)
        load_vector(loader, &model->output_norm, &backend->output_norm);
    for (uint32_t i = 0; i < loader->range.count && !loader->status; i++)
        load_layer(loader, &model->layers[loader->range.first + i], loader->base ? &backend->layers[i] : &layer_sizes);
}

bool cpu_wants_dense(const struct backend_config *config)
{
    switch (config->compute) {
    case COMPUTE_F32: return true;
    case COMPUTE_INT8: return false;
    case COMPUTE_AUTO: break;
    }
    enum tensor_type type = cpu_type_of(config, &config->model->layers[0].q);
    return type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16;
}

enum status cpu_plan_weights(const struct backend_config *config, const struct layer_range *range, uint64_t *bytes,
                             uint64_t *start_bytes, struct error *error)
{
    struct loader loader = {
        .model = config->model, .config = config, .range = *range, .dense = cpu_wants_dense(config), .error = error};
    load_all(&loader);
    *bytes = loader.used;
    *start_bytes = loader.peak > loader.used ? loader.peak - loader.used : 0;
    return loader.status;
}

enum status cpu_load_weights(struct backend *backend, struct error *error)
{
    struct loader loader = {.model = backend->config.model,
                            .config = &backend->config,
                            .range = backend->range,
                            .dense = backend->dense,
                            .error = error,
                            .backend = backend};
    uint64_t start_bytes;
    enum status status = cpu_plan_weights(loader.config, &loader.range, &backend->weights_bytes, &start_bytes, error);

    if (status)
        return status;
    backend->weights = mmap(NULL, backend->weights_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (backend->weights == MAP_FAILED) {
        backend->weights = NULL;
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%llu MiB of memory for the weights are not to be had",
                         (unsigned long long)(backend->weights_bytes >> 20));
    }
    madvise(backend->weights, backend->weights_bytes, MADV_HUGEPAGE); // fewer TLB misses; a kernel without them is fine
    loader.base = backend->weights;
    load_all(&loader);
    return loader.status;
}
