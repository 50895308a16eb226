// cuda.c: the CUDA backend: what fits, memory, batches, and the table of entries.
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/alloc.h"
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/kv/kv_type.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/device.h"

enum { HOST_SLICES = 6, DEVICE_SLICES = 16, ALIGN = 256, WIDE = 2, SCRATCH_BYTES = 64 << 20 };
enum { CAPABILITY_LEAST = 75 }; // tensor cores with products of f16 as fragment.cuh needs them
#define RESERVE (256ull << 20)  // of device memory for the driver, cuBLAS, graphs (CUDA_GRAPH_BYTES_MAX) and fragments

// --- sizes ---

static uint64_t words_count(const struct backend_config *config)
{
    uint64_t of_context = (config->context_tokens + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS;
    uint64_t entries = MIN((uint64_t)MIN(config->max_rows, config->max_sequences) * of_context, (uint64_t)CUDA_TABLE_ENTRIES_MAX);
    return (uint64_t)CUDA_ROW_WORDS * config->max_rows + (config->local_pool_bytes ? entries : 0);
}

static uint64_t scratch_floats(const struct backend_config *config)
{
    const struct gpu_pool pool = {.heads = config->model->shape.heads, .head_dim = config->model->shape.head_dim};
    if (!config->local_pool_bytes)
        return 0;
    return MAX(gpu_attend_scratch(&pool, 1, config->context_tokens),
               MIN(gpu_attend_scratch(&pool, config->max_rows, config->context_tokens), (size_t)SCRATCH_BYTES / sizeof(float)));
}

static void host_slices(const struct backend_config *config, struct backend_batch *batch, struct slice *slices)
{
    const struct model_shape *shape = &config->model->shape;
    uint64_t rows = config->max_rows, q = (uint64_t)shape->heads * shape->head_dim,
             kv = (uint64_t)shape->kv_heads * shape->head_dim;
    const struct slice all[HOST_SLICES] = {
        {(void **)&batch->words_host, words_count(config) * 4},
        {(void **)&batch->o_host, rows * q * 4},
        {(void **)&batch->qkv_host, rows * (q + 2 * kv) * 4},
        {(void **)&batch->head_host, cuda_head_bytes(config)},
        {(void **)&batch->logits_host, MIN((uint64_t)CUDA_LOGITS_ROWS, rows) * shape->vocab * 4},
        {(void **)&batch->sampled_host, rows * sizeof(struct gpu_sampled)},
    };
    memcpy(slices, all, sizeof all);
}

// Returns the rows that buffers of products have: whole tiles if products compute in tiles.
static uint64_t rows_held(const struct backend_config *config)
{
    const uint64_t tile = config->batch_invariant ? GPU_GEMM_TILE_ROWS : 1;
    return (config->max_rows + tile - 1) / tile * tile;
}

static void device_slices(const struct backend_config *config, uint64_t panel_bytes, struct backend_batch *batch,
                          struct slice *slices)
{
    const struct model_shape *shape = &config->model->shape;
    uint64_t rows = rows_held(config), q = (uint64_t)shape->heads * shape->head_dim,
             kv = (uint64_t)shape->kv_heads * shape->head_dim;
    const struct slice all[DEVICE_SLICES] = {
        {(void **)&batch->words, words_count(config) * 4},
        {(void **)&batch->head, cuda_head_bytes(config)},
        {(void **)&batch->raw, cuda_adjust_limit(config) * 4},
        {(void **)&batch->sampled, rows * sizeof(struct gpu_sampled)},
        {(void **)&batch->x, rows * shape->hidden * 4},
        {(void **)&batch->qkv, rows * (q + 2 * kv) * 4},
        {(void **)&batch->att, rows * q * 4},
        {&batch->h, rows * shape->hidden * WIDE},
        {&batch->wide_o, rows * q * WIDE},
        {&batch->gate_up, rows * 2 * shape->ffn * WIDE},
        {&batch->act, rows * shape->ffn * WIDE},
        {(void **)&batch->logits, MIN((uint64_t)CUDA_HEAD_ROWS, rows) * shape->vocab * 4},
        {(void **)&batch->scratch, scratch_floats(config) * 4},
        {&batch->workspace, GPU_GEMM_WORKSPACE},
        {&batch->panel, panel_bytes},
        {(void **)&batch->apart, cuda_adds_apart(config->model) ? rows * shape->hidden * 4 : 0},
    };
    memcpy(slices, all, sizeof all);
}

// --- plan, open, close ---

static enum status plan_weights(const struct backend_config *config, const struct layer_range *range, struct cuda_weights_plan *out,
                                struct error *error)
{
    uint64_t *blob_bytes = calloc(range->count + 1, sizeof *blob_bytes);

    if (!blob_bytes)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to plan the weights");
    enum status status = cuda_plan_weights(config, range, out, blob_bytes, error);
    free(blob_bytes);
    return status;
}

// Names what the kernels, or the pool, have no form for.
static enum status check_config(const struct backend_config *config, struct error *error)
{
    const struct model_shape *shape = &config->model->shape;

    if (shape->head_dim % 8 || shape->head_dim > GPU_MAX_HEAD_DIM)
        return error_set(error, STATUS_UNIMPLEMENTED, "%s: heads of %u dimensions: on CUDA multiples of 8 up to %d are supported",
                         gguf_label(config->model->gguf), shape->head_dim, GPU_MAX_HEAD_DIM);
    if (shape->ffn % 8 || shape->hidden % 8)
        return error_set(error, STATUS_UNIMPLEMENTED, "%s: %u values a row and %u in its MLP: on CUDA multiples of 8 are supported",
                         gguf_label(config->model->gguf), shape->hidden, shape->ffn);
    if (config->compute != COMPUTE_AUTO)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--compute %s is for the CPU: on CUDA leave it at auto",
                         config->compute == COMPUTE_INT8 ? "int8" : "f32");
    if (config->page_tokens != GPU_PAGE_TOKENS)
        return error_set(error, STATUS_UNIMPLEMENTED, "pages of %u tokens: on CUDA they have %d", config->page_tokens,
                         GPU_PAGE_TOKENS);
    if (config->context_tokens > GPU_MAX_CONTEXT)
        return error_set(error, STATUS_UNIMPLEMENTED, "a context of %u tokens: on CUDA at most %d (--context)",
                         config->context_tokens, GPU_MAX_CONTEXT);
    if (config->model->positions.data && config->context_tokens > shape->context_length)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: a context of %u tokens, and positions for %u (--context)",
                         gguf_label(config->model->gguf), config->context_tokens, shape->context_length);
    if (shape->vocab > GPU_MAX_VOCAB)
        return error_set(error, STATUS_UNIMPLEMENTED, "%s: a vocabulary of %u tokens: on CUDA at most %d",
                         gguf_label(config->model->gguf), shape->vocab, GPU_MAX_VOCAB);
    if (config->local_pool_bytes && config->kv_type != KV_F16)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "on CUDA the local pool is f16: --kv-type f16, or --local-pool 0 and KV workers");
    if (config->local_pool_bytes && config->sparse_percent)
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "on CUDA the local pool has no sparse attention: --sparse-attention off, or --local-pool 0 and KV workers");
    return loaded_type_check(config, error);
}

static enum status cuda_plan(const struct backend_config *config, struct backend_plan *plan, struct error *error)
{
    const struct model_shape *shape = &config->model->shape;
    struct slice host[HOST_SLICES], device[DEVICE_SLICES];
    struct backend_batch unused;
    struct layer_range range;
    struct cuda_weights_plan weights;
    size_t free_bytes = 0, total = 0;
    enum status status = layer_range_of(config, &range, error);

    if (status || (status = cuda_check_pieces(config->model, error)))
        return status;
    if ((status = check_config(config, error)) || (status = plan_weights(config, &range, &weights, error)))
        return status;
    cuda_must(cudaSetDevice(config->device), "choosing the device");
    host_slices(config, &unused, host);
    device_slices(config, weights.panel_bytes, &unused, device);
    memset(plan, 0, sizeof *plan);
    plan->weight_bytes = weight_tiers_bytes(&weights.host);
    plan->streamed_bytes = weights.tiers.streamed_bytes;
    plan->weight_slots = weights.tiers.slots;
    plan->disk_bytes = weights.host.streamed_bytes;
    plan->disk_slots = weights.host.slots;
    if (plan->disk_bytes)
        snprintf(plan->weights_kind, sizeof plan->weights_kind, config->quantize_bits ? "cuda-%ubit" : "cuda",
                 config->quantize_bits);
    plan->rows_alike = config->batch_invariant;
    plan->activation_bytes = slices_bytes(host, HOST_SLICES, ALIGN) * config->max_batches;
    plan->device_weight_bytes = weight_tiers_bytes(&weights.tiers);
    plan->device_activation_bytes = slices_bytes(device, DEVICE_SLICES, ALIGN) * config->max_batches;
    plan->pool_page_bytes = cuda_page_bytes(shape, &range);
    plan->pool_pages = config->local_pool_bytes / plan->pool_page_bytes;
    plan->pool_on_device = true;
    plan->activation_bytes += (uint64_t)thread_pool_threads(config->pool) * shape->vocab * 16; // sampling
    plan->activation_bytes += cuda_hidden_bytes(shape);
    plan->activation_bytes += cuda_copy_bytes(config) + cuda_host_bytes(config);
    plan->start_bytes = CUDA_STAGING_BYTES * (plan->disk_bytes ? 2 : 1); // and to write the packed file
    if (plan->pool_pages && plan->pool_pages <= 1u << 30) {
        const struct kv_ledger_shape ledger = cuda_ledger_shape(config, (uint32_t)plan->pool_pages);
        const struct kv_ledger_plan tables = kv_ledger_plan(&ledger);
        plan->pool_fixed_bytes = tables.fixed_bytes + tables.table_bytes;
    }
    cuda_must(cudaMemGetInfo(&free_bytes, &total), "asking for the device's memory");
    plan->device_free_bytes = free_bytes > RESERVE ? free_bytes - RESERVE : 0;
    return STATUS_OK;
}

static void cuda_close(struct backend *backend)
{
    if (!backend)
        return;
    cuda_copy_close(backend);
    cuda_pool_close(backend);
    cudaFreeHost(backend->host_memory);
    gpu_gemm_close(backend->gemm);
    cuda_tier_close(&backend->tier);
    cudaFree(backend->weights);
    for (uint32_t i = 0; backend->scratch && i < thread_pool_threads(backend->config.pool); i++)
        sampler_scratch_close(backend->scratch[i]);
    free(backend->scratch);
    cuda_hidden_close(backend);
    free(backend->layers);
    free(backend);
}

static enum status open_all(struct backend *backend, struct error *error)
{
    uint32_t threads = thread_pool_threads(backend->config.pool);
    enum status status;

    cuda_must(cudaSetDevice(backend->config.device), "choosing the device");
    snprintf(backend->name, sizeof backend->name, "cuda:%d", backend->config.device);
    if (cudaHostAlloc((void **)&backend->host_memory, cuda_host_bytes(&backend->config), cudaHostAllocDefault)) {
        backend->host_memory = NULL;
        (void)cudaGetLastError();
        log_warn("MESSAGES-NOT-PINNED", "what=\"no %llu MiB of pinned memory: what workers send and get is copied once more\"",
                 (unsigned long long)(cuda_host_bytes(&backend->config) >> 20));
    }
    backend->scratch = calloc(threads, sizeof *backend->scratch);
    if (!backend->scratch)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for sampling");
    for (uint32_t i = 0; i < threads; i++)
        if (sampler_scratch_open(backend->shape.vocab, &backend->scratch[i]))
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for sampling");
    if ((status = gpu_gemm_open(backend->type, MAX(backend->config.max_rows, (uint32_t)CUDA_HEAD_ROWS), &backend->gemm, error)))
        return status;
    if (backend->config.batch_invariant)
        gpu_gemm_invariant(backend->gemm);
    if ((status = cuda_hidden_open(backend, error)) || (status = cuda_load_weights(backend, error)))
        return status;
    snprintf(backend->level, sizeof backend->level, "%s%s/cuda%s",
             backend->weight_bits == 4   ? "4-bit/"
             : backend->weight_bits == 8 ? "8-bit/"
                                         : "",
             backend->type == GPU_F16 ? "f16" : "bf16", backend->config.batch_invariant ? "/invariant" : "");
    if ((status = cuda_pool_open(backend, error)))
        return status;
    return cuda_copy_open(backend, error);
}

static enum status cuda_open(const struct backend_config *config, struct backend **out, struct error *error)
{
    struct backend *backend = calloc(1, sizeof *backend);
    enum status status;

    if (!backend)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the CUDA backend");
    backend->config = *config;
    backend->shape = config->model->shape;
    backend->type = cuda_type_of(config);
    backend->q_width = backend->shape.heads * backend->shape.head_dim;
    backend->kv_width = backend->shape.kv_heads * backend->shape.head_dim;
    backend->qkv_width = backend->q_width + 2 * backend->kv_width;
    cuda_choose_pieces(backend);
    status = layer_range_of(config, &backend->range, error);
    if (!status)
        status = open_all(backend, error);
    if (status) {
        cuda_close(backend);
        return status;
    }
    *out = backend;
    return STATUS_OK;
}

static void cuda_info(const struct backend *backend, struct backend_info *info)
{
    *info = (struct backend_info){.device = backend->name, .level = backend->level, .attend_bytes = backend->attend_bytes};
    if (backend->pool.pages) {
        info->pages_total = backend->ledger.shape.pages;
        info->pages_used = backend->ledger.shape.pages - backend->ledger.free_count;
        info->pages_peak = backend->ledger.pages_peak;
    }
    info->streamed_segments = backend->tier.copies;
    info->streamed_bytes = backend->tier.copied_bytes;
    info->stream_pieces = backend->tier.disk.queue ? disk_queue_pieces(backend->tier.disk.queue) : 0;
    info->stream_step_us = cuda_tier_step_us(&backend->tier);
}

// --- batches ---

static void cuda_batch_close(struct backend_batch *batch)
{
    if (!batch)
        return;
    if (batch->stream)
        cudaStreamSynchronize(batch->stream);
    cuda_visit_close(&batch->backend->tier, &batch->visit);
    cuda_wire_close(batch);
    cuda_graphs_close(batch);
    cudaFree(batch->memory);
    cudaFreeHost(batch->host);
    cuda_times_close(batch);
    if (batch->event)
        cudaEventDestroy(batch->event);
    if (batch->stream)
        cudaStreamDestroy(batch->stream);
    free(batch->rows);
    free(batch->kv_rows);
    free(batch->slots);
    free(batch);
}

static enum status cuda_batch_open(struct backend *backend, struct backend_batch **out, struct error *error)
{
    struct backend_batch *batch = calloc(1, sizeof *batch);
    struct slice host[HOST_SLICES], device[DEVICE_SLICES];
    const struct backend_config *config = &backend->config;

    if (!batch)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a mini-batch");
    batch->backend = backend;
    host_slices(config, batch, host);
    device_slices(config, backend->panel_bytes, batch, device);
    batch->rows = calloc(config->max_rows, sizeof *batch->rows);
    batch->kv_rows = calloc(config->max_rows, sizeof *batch->kv_rows);
    batch->slots = calloc(config->max_rows, sizeof *batch->slots);
    if (!batch->rows || !batch->kv_rows || !batch->slots || cuda_wire_open(batch) || cuda_times_open(batch) ||
        cuda_visit_open(&backend->tier, &batch->visit) ||
        cudaHostAlloc((void **)&batch->host, slices_bytes(host, HOST_SLICES, ALIGN), cudaHostAllocDefault) ||
        cudaMalloc((void **)&batch->memory, slices_bytes(device, DEVICE_SLICES, ALIGN))) {
        cuda_batch_close(batch);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED,
                         "%s: no memory for the activations of a mini-batch: %llu MiB of the device, %llu MiB pinned",
                         backend->name, (unsigned long long)(slices_bytes(device, DEVICE_SLICES, ALIGN) >> 20),
                         (unsigned long long)(slices_bytes(host, HOST_SLICES, ALIGN) >> 20));
    }
    slices_place(host, HOST_SLICES, ALIGN, batch->host);
    slices_place(device, DEVICE_SLICES, ALIGN, batch->memory);
    batch->scratch_floats = scratch_floats(config);
    batch->panel_bytes = backend->panel_bytes;
    cuda_must(cudaStreamCreateWithFlags(&batch->stream, cudaStreamNonBlocking), "a stream");
    cuda_must(cudaEventCreateWithFlags(&batch->event, cudaEventDisableTiming), "an event");
    cuda_try_products(batch);
    cuda_graphs_open(batch, CUDA_GRAPHS_MAX / config->max_batches, CUDA_GRAPH_BYTES_MAX / config->max_batches);
    *out = batch;
    return STATUS_OK;
}

static enum status cuda_begin(struct backend_batch *batch, const struct backend_row *rows, uint32_t row_count, uint32_t *bad_row,
                              struct error *error)
{
    const struct backend *backend = batch->backend;
    uint32_t max_rows = backend->config.max_rows;
    enum status status;

    assert_always(row_count <= max_rows);
    cuda_must(cudaSetDevice(backend->config.device),
              "choosing the device"); // a thread's own setting: steps may have another than open
    memcpy(batch->rows, rows, row_count * sizeof *rows);
    batch->row_count = row_count;
    batch->padded_rows = gpu_padded_rows(row_count, max_rows);
    batch->wire.links = NULL;
    batch->completes = false;
    cuda_times_begin_step(batch);
    batch->samples = NULL;
    for (uint32_t row = 0; row < row_count; row++) {
        *bad_row = row;
        if (rows[row].token >= backend->shape.vocab || rows[row].position >= backend->config.context_tokens)
            return error_set(error, STATUS_INVALID_ARGUMENT, "row %u: token %u or position %u out of range", row, rows[row].token,
                             rows[row].position);
        batch->words_host[row] = rows[row].token;
        batch->words_host[max_rows + row] = rows[row].position;
    }
    for (uint32_t row = row_count; row < batch->padded_rows; row++)
        batch->words_host[row] = batch->words_host[max_rows + row] = 0; // some token and position that there are
    if ((status = cuda_plan_local(batch, bad_row, error)))
        return status;
    uint64_t words = batch->local_count ? (uint64_t)CUDA_ROW_WORDS * max_rows + batch->table_entries : 2ull * max_rows;
    cuda_must(cudaMemcpyAsync(batch->words, batch->words_host, words * sizeof *batch->words, cudaMemcpyHostToDevice, batch->stream),
              "copying tokens and page tables to the device");
    if (backend->range.is_first)
        cuda_embed(batch);
    cuda_tier_begin(&batch->visit);
    cuda_queued(batch, "starting the embedding");
    return STATUS_OK;
}

static bool cuda_done(struct backend_batch *batch)
{
    if (!cuda_has_come(batch->event, "a step"))
        return false;
    batch->ended_ns = clock_now_ns();
    if (!cuda_qkv_ready(batch))
        return false;
    if (batch->completes)
        cuda_complete(batch);
    if (batch->samples)
        cuda_hand_out_samples(batch);
    if (batch->hidden)
        cuda_hand_out_hidden(batch);
    return true;
}

static uint32_t cuda_turn(struct backend_batch *batch, uint32_t s) { return cuda_tier_turn(&batch->backend->tier, s); }

static bool cuda_advance(struct backend *backend)
{
    if (!backend->tier.disk.stream)
        return false;
    cuda_must(cudaSetDevice(backend->config.device), "choosing the device"); // this may be the thread's first call
    return cuda_tier_advance(&backend->tier);
}

static void cuda_hold(struct backend *backend, bool hold) { cuda_tier_hold(&backend->tier, hold); }

static void cuda_end(struct backend_batch *batch) { cuda_tier_end(&batch->visit); }

static const struct backend_ops backend_cuda = {
    .name = "cuda",
    .plan = cuda_plan,
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .batch_open = cuda_batch_open,
    .batch_close = cuda_batch_close,
    .begin = cuda_begin,
    .put_x = cuda_put_x,
    .get_x = cuda_get_x,
    .segment = cuda_segment,
    .turn = cuda_turn,
    .advance = cuda_advance,
    .hold = cuda_hold,
    .end = cuda_end,
    .attend = cuda_attend,
    .head = cuda_head,
    .hidden = cuda_hidden,
    .done = cuda_done,
    .times = cuda_times,
    .spans = cuda_spans,
    .host_memory = cuda_host_memory,
    .qkv_ready = cuda_qkv_ready,
    .pool_release = cuda_pool_release,
    .pool_share = cuda_pool_share,
    .pool_held = cuda_pool_held,
    .pool_page_bytes = cuda_pool_page_bytes,
    .pool_export = cuda_pool_export,
    .pool_import = cuda_pool_import,
    .pool_copied = cuda_pool_copied,
    .pool_stop_copy = cuda_pool_stop_copy,
};

// --- the library's interface, which device.c opens ---

static enum status probe(int index, char *name, size_t name_bytes, struct error *error)
{
    struct cudaDeviceProp properties;
    size_t free_bytes, total;
    int count = 0;
    cudaError_t failed = cudaGetDeviceCount(&count);

    if (failed != cudaSuccess || count == 0)
        return error_set(error, STATUS_UNAVAILABLE, "no CUDA device: %s", failed ? cudaGetErrorString(failed) : "none is visible");
    if (index >= count)
        return error_set(error, STATUS_UNAVAILABLE, "there are %d CUDA devices, numbered from 0", count);
    if ((failed = cudaGetDeviceProperties(&properties, index)) || (failed = cudaSetDevice(index)) ||
        (failed = cudaMemGetInfo(&free_bytes, &total)))
        return error_set(error, STATUS_UNAVAILABLE, "cuda:%d does not start: %s", index, cudaGetErrorString(failed));
    if (10 * properties.major + properties.minor < CAPABILITY_LEAST)
        return error_set(error, STATUS_UNAVAILABLE, "cuda:%d, %s, has compute capability %d.%d, 7.5 is needed", index,
                         properties.name, properties.major, properties.minor);
    snprintf(name, name_bytes, "%s, %.1f of %.1f GiB free", properties.name, (double)free_bytes / 1073741824,
             (double)total / 1073741824);
    return STATUS_OK;
}

__attribute__((visibility("default"))) const struct device_library fastdecode_device = {
    .layout = DEVICE_LAYOUT, .ops = &backend_cuda, .probe = probe, .measure = cuda_measure};
