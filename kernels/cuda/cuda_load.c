// cuda_load.c: weights from the file into device memory: quantized ones packed (quant.h), others as f16 or bf16; norms, biases and the
// table of RoPE as f32.
//
// Everything lies in one allocation whose size the plan knows: first what always stays on the device, then the segments' matrices, blob by
// blob, as far as they stay there too (cuda_tier.h); the others are kept in pinned memory. q, k, v stand one after the other, as one matrix
// where they have one form, and gate and up likewise, so that each is one product. A piece of rows is converted by all threads into pinned
// memory: where it stays, or from where it is copied to the device.
//
// If the host has no memory for the others either, the blobs go to a packed file instead, and are read from there (cuda_packed.c).
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/cuda.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/quant/dequant.h"

// --- conversion ---
//
// Matrices of the model file into what the device computes with: packed tiles (quant.h), or rows in f16 or bf16. What the
// configuration asks for in fewer bits is quantized on its way, by the encoder of `fastdecode quantize`: both give the same numbers.

// A matrix of the file in items: rows of a wide part, tiles of a packed one.
struct cuda_conversion {
    const struct tensor_view *view;
    enum tensor_type loaded; // the type in which it is loaded (loaded_type_of)
    const struct gpu_quant *part;
    enum gpu_type type; // of wide rows
    struct thread_pool *pool;
};

enum { WIDE_BYTES = 2 };

struct convert_job {
    const struct cuda_conversion *what;
    uint32_t first, count; // items
    unsigned char *out;    // [count] items
    atomic_bool bad;       // relaxed: read when the threads have ended
};

enum gpu_type cuda_type_of(const struct backend_config *config)
{
    enum { BF16_MAJOR = 8 }; // compute capability from which there are products of bf16
    struct cudaDeviceProp properties;

    cuda_must(cudaGetDeviceProperties(&properties, config->device), "asking for the device's properties");
    if (properties.major < BF16_MAJOR)
        return GPU_F16;
    return loaded_type_of(config, &config->model->layers[0].q) == TENSOR_BF16 ? GPU_BF16 : GPU_F16;
}

// Plans how a matrix will lie: packed if a form represents it exactly and a tile fits the staging buffer, else wide.
static void cuda_plan_part(const struct backend_config *config, const struct tensor_view *view, uint32_t outputs,
                           struct gpu_quant *out)
{
    enum gpu_form form = gpu_form_of((uint32_t)loaded_type_of(config, view));
    if (form != GPU_WIDE)
        gpu_quant_plan(form, outputs, view->columns, out);
    if (form == GPU_WIDE || out->tile_bytes > CUDA_STAGING_BYTES)
        *out = (struct gpu_quant){.form = GPU_WIDE, .outputs = outputs, .inputs = view->columns};
}

static uint64_t cuda_part_bytes(const struct gpu_quant *part)
{
    return part->form == GPU_WIDE ? (uint64_t)part->outputs * part->inputs * WIDE_BYTES : part->tiles * part->tile_bytes;
}

static uint64_t cuda_item_bytes(const struct gpu_quant *part)
{
    return part->form == GPU_WIDE ? (uint64_t)part->inputs * WIDE_BYTES : part->tile_bytes;
}

static uint32_t cuda_items(const struct gpu_quant *part, uint32_t rows)
{
    return part->form == GPU_WIDE ? rows : (rows + GPU_TILE_OUTPUTS - 1) / GPU_TILE_OUTPUTS;
}

static uint64_t row_bytes_of(enum tensor_type type, uint32_t columns)
{
    const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
    return (uint64_t)columns / info->block_values * info->block_bytes;
}

static bool widen_row(const struct cuda_conversion *what, const unsigned char *row, uint16_t *out)
{
    enum { PIECE = 1024 }; // values: whole blocks of any type
    const uint32_t columns = what->view->columns;
    const bool quantized = what->loaded != what->view->type;
    unsigned char blocks[PIECE * sizeof(float)];
    float values[PIECE];
    bool ok = true;

    for (uint32_t at = 0, count; at < columns; at += count) {
        const unsigned char *from = row + row_bytes_of(what->view->type, at);
        count = MIN((uint32_t)PIECE, columns - at);
        if (quantized)
            ok &= encode_blocks(what->view->type, from, count, what->loaded, blocks);
        dequantize(what->loaded, quantized ? blocks : from, count, values);
        if (what->type == GPU_F16)
            kernels->f32_to_f16(values, count, out + at);
        else
            kernels->f32_to_bf16(values, count, out + at);
    }
    return ok;
}

static bool pack_tile(const struct cuda_conversion *what, uint32_t tile, unsigned char *out)
{
    const struct tensor_view *view = what->view;
    const uint32_t first = tile * GPU_TILE_OUTPUTS, count = MIN((uint32_t)GPU_TILE_OUTPUTS, view->rows - first);
    const uint64_t row_bytes = row_bytes_of(what->loaded, view->columns);
    const unsigned char *rows = (const unsigned char *)view->data + first * (view->bytes / view->rows);
    unsigned char *encoded = NULL;
    bool ok = true;

    if (what->loaded != view->type) {
        encoded = malloc(count * row_bytes);
        ok = encoded && encode_blocks(view->type, rows, (uint64_t)count * view->columns, what->loaded, encoded);
        rows = encoded;
    }
    if (ok)
        gpu_quant_pack_tile(what->part, (uint32_t)what->loaded, rows, row_bytes, count, out);
    free(encoded);
    return ok;
}

static void convert_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct convert_job *job = arg;
    const struct cuda_conversion *what = job->what;
    const unsigned char *data = what->view->data;
    const uint64_t row_bytes = what->view->bytes / what->view->rows, item_bytes = cuda_item_bytes(what->part);

    (void)thread_index, (void)thread_count;
    for (uint32_t i; (i = thread_pool_claim(what->pool)) < job->count;) {
        unsigned char *out = job->out + i * item_bytes;
        bool ok = what->part->form == GPU_WIDE ? widen_row(what, data + (job->first + i) * row_bytes, (uint16_t *)(void *)out)
                                               : pack_tile(what, job->first + i, out);
        if (!ok)
            atomic_store_explicit(&job->bad, true, memory_order_relaxed);
    }
}

// Converts items [first, first + count). false: a value is not finite and cannot be quantized, or there is no memory for a tile.
static bool cuda_convert(const struct cuda_conversion *what, uint32_t first, uint32_t count, unsigned char *out)
{
    struct convert_job job = {.what = what, .first = first, .count = count, .out = out};

    thread_pool_run(what->pool, convert_thread, &job);
    return !atomic_load_explicit(&job.bad, memory_order_relaxed);
}

enum { ALIGN = 256, STAGING_BYTES = CUDA_STAGING_BYTES, TRIES = 5 };
#define LAYOUT_VERSION 1u // grows when the bytes of a blob change and nothing that is mixed in below does

// Walks the model's tensors in one order: to add up sizes, then to place and convert; with a packed file blobs are only placed, and
// converted in a walk of their own if they have to be written.
struct loader {
    const struct backend_config *config;
    struct layer_range range;
    struct backend *backend;      // NULL while sizes are added up
    bool fixed, blobs;            // which of them are converted; else they are only placed
    uint64_t fixed_bytes;         // of what always stays on the device
    uint64_t *blob_bytes;         // [range.count + 1] of the segments' matrices
    uint64_t panel_bytes;         // the most that a panel of a matrix takes
    uint32_t weight_bits;         // of the narrowest form
    uint64_t layout;              // a number made of what the blobs' bytes depend on, beside the model
    unsigned char *staging;       // pinned
    struct cuda_packing *packing; // where blobs go; NULL: where they belong
    cudaStream_t stream;
    struct error *error;
    enum status status;
};

// The place of something: in device memory, and, if its segment's blob is kept on the host, its bytes there.
struct spot {
    unsigned char *device, *host; // NULL while sizes are added up; NULL: not on the host
    uint64_t at;                  // in the blob
};

static void mix(struct loader *loader, uint64_t value) { packed_layout_mix(&loader->layout, value); }

static uint64_t take(uint64_t *used, uint64_t bytes)
{
    const uint64_t at = *used;
    *used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static unsigned char *take_fixed(struct loader *loader, uint64_t bytes)
{
    const uint64_t at = take(&loader->fixed_bytes, bytes);
    return loader->backend ? loader->backend->weights + at : NULL;
}

// segment: whose blob it is part of; CUDA_NO_SEGMENT: it always stays on the device.
static struct spot take_matrix(struct loader *loader, uint32_t segment, uint64_t bytes)
{
    const struct cuda_blob *blob;

    if (segment == CUDA_NO_SEGMENT)
        return (struct spot){.device = take_fixed(loader, bytes)};
    const uint64_t at = take(&loader->blob_bytes[segment], bytes);
    if (!loader->backend)
        return (struct spot){.device = NULL};
    blob = &loader->backend->tier.blobs[segment];
    return (struct spot){.device = blob->device + at, .host = blob->host ? blob->host + at : NULL, .at = at};
}

static void copy_up(struct loader *loader, void *to, const void *from, uint64_t bytes)
{
    cuda_must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, loader->stream), "copying weights");
    cuda_must(cudaStreamSynchronize(loader->stream), "copying weights");
}

// --- matrices ---

// Converts a view into its place in a part, or for the packed file.
static void convert(struct loader *loader, uint32_t segment, const struct tensor_view *view, const struct gpu_quant *part,
                    struct spot to)
{
    const struct cuda_conversion what = {.view = view,
                                         .loaded = loaded_type_of(loader->config, view),
                                         .part = part,
                                         .type = loader->backend->type,
                                         .pool = loader->config->pool};
    const uint64_t item_bytes = cuda_item_bytes(part);
    assert_always(!view->stored); // only experts are, which the plan refuses
    const uint32_t items = cuda_items(part, view->rows), at_once = (uint32_t)MAX(1u, STAGING_BYTES / item_bytes);

    for (uint32_t first = 0; first < items && !loader->status; first += at_once) {
        const uint32_t count = MIN(at_once, items - first);
        const uint64_t at = first * item_bytes;
        const bool in_place = to.host && !loader->packing;
        if (!cuda_convert(&what, first, count, in_place ? to.host + at : loader->staging))
            loader->status = error_set(loader->error, STATUS_DATA_LOSS,
                                       "tensor '%.*s' cannot be quantized: a value is not finite, or no memory is left",
                                       (int)view->name_length, view->name);
        else if (loader->packing)
            loader->status =
                cuda_packing_put(loader->packing, segment, to.at + at, loader->staging, count * item_bytes, loader->error);
        else if (!in_place)
            copy_up(loader, to.device + at, loader->staging, count * item_bytes);
    }
    model_release_tensor(loader->config->model, view); // so that the file is never in memory as a whole
}

// Plans matrices with the same inputs, one below the other: one part if they have one form and tiles end where a matrix does.
static void plan_linear(const struct backend_config *config, const struct tensor_view *const *views, uint32_t view_count,
                        struct cuda_linear *out)
{
    assert_always(view_count <= CUDA_PARTS_MAX);
    *out = (struct cuda_linear){.inputs = views[0]->columns};
    for (uint32_t i = 0; i < view_count; out->outputs += views[i]->rows, i++) {
        struct gpu_quant *last = out->part_count ? &out->parts[out->part_count - 1] : NULL;
        struct gpu_quant alone;
        cuda_plan_part(config, views[i], views[i]->rows, &alone);
        if (last && last->form == alone.form && (alone.form == GPU_WIDE || last->outputs % GPU_TILE_OUTPUTS == 0))
            cuda_plan_part(config, views[i], last->outputs + views[i]->rows, last);
        else
            out->parts[out->part_count++] = alone;
    }
}

static void mix_part(struct loader *loader, const struct gpu_quant *part)
{
    const uint64_t of[] = {part->form, part->outputs, part->inputs, part->scale_offset, part->super_offset, part->tile_bytes};
    for (size_t i = 0; i < ARRAY_COUNT(of); i++)
        mix(loader, of[i]);
}

static void load_linear(struct loader *loader, uint32_t segment, const struct tensor_view *const *views, uint32_t view_count,
                        struct cuda_linear *out)
{
    const bool converts = loader->backend && (segment == CUDA_NO_SEGMENT ? loader->fixed : loader->blobs);
    struct cuda_linear linear;
    uint32_t view = 0;

    plan_linear(loader->config, views, view_count, &linear);
    for (uint32_t i = 0; i < view_count; i++)
        mix(loader, loaded_type_of(loader->config, views[i]));
    for (uint32_t i = 0; i < linear.part_count; i++) {
        struct gpu_quant *part = &linear.parts[i];
        const struct spot to = take_matrix(loader, segment, cuda_part_bytes(part));
        part->data = to.device;
        mix_part(loader, part);
        loader->panel_bytes = MAX(loader->panel_bytes, cuda_panel_bytes(part));
        loader->weight_bits = MIN(loader->weight_bits, gpu_form_bits(part->form));
        for (uint32_t row = 0; converts && !loader->status && row < part->outputs; row += views[view++]->rows) {
            const uint64_t at = cuda_items(part, row) * cuda_item_bytes(part); // what lies above ends with a tile
            convert(loader, segment, views[view], part,
                    (struct spot){.device = to.device + at, .host = to.host ? to.host + at : NULL, .at = to.at + at});
        }
    }
    *out = linear;
}

// --- the rest ---

static void load_vector(struct loader *loader, const struct tensor_view *view, const float **out)
{
    uint64_t count = (uint64_t)view->rows * view->columns;
    float *to = view->data ? (float *)(void *)take_fixed(loader, count * sizeof *to) : NULL;

    if (to && loader->fixed) { // a norm or a bias: far below the staging's size, as the model's limits have it
        assert_always(count * sizeof *to <= STAGING_BYTES);
        dequantize(view->type, view->data, count, (float *)loader->staging);
        copy_up(loader, to, loader->staging, count * sizeof *to);
    }
    if (loader->backend)
        *out = to;
}

static void load_norm(struct loader *loader, const struct tensor_view *weight, const struct tensor_view *bias,
                      struct cuda_norm_weights *out)
{
    load_vector(loader, weight, &out->weight);
    load_vector(loader, bias, &out->bias);
}

// A layer is started by the segment of its own number, and finished by the next.
static void load_layer(struct loader *loader, uint32_t layer, const struct model_layer *from, struct cuda_layer *to)
{
    to->roped = from->roped;
    load_norm(loader, &from->attn_norm, &from->attn_norm_bias, &to->attn_norm);
    load_norm(loader, &from->ffn_norm, &from->ffn_norm_bias, &to->ffn_norm);
    load_vector(loader, &from->post_attn_norm, &to->post_attn_norm);
    load_vector(loader, &from->post_ffn_norm, &to->post_ffn_norm);
    load_vector(loader, &from->q_norm, &to->q_norm);
    load_vector(loader, &from->k_norm, &to->k_norm);
    load_vector(loader, &from->q_bias, &to->q_bias);
    load_vector(loader, &from->k_bias, &to->k_bias);
    load_vector(loader, &from->v_bias, &to->v_bias);
    load_vector(loader, &from->o_bias, &to->o_bias);
    load_vector(loader, &from->gate_bias, &to->gate_bias);
    load_vector(loader, &from->up_bias, &to->up_bias);
    load_vector(loader, &from->down_bias, &to->down_bias);
    load_linear(loader, layer, (const struct tensor_view *[]){&from->q, &from->k, &from->v}, 3, &to->qkv);
    load_linear(loader, layer + 1, (const struct tensor_view *[]){&from->o}, 1, &to->o);
    load_linear(loader, layer + 1, (const struct tensor_view *[]){&from->gate, &from->up}, from->up.data ? 2 : 1, &to->gate_up);
    load_linear(loader, layer + 1, (const struct tensor_view *[]){&from->down}, 1, &to->down);
}

// Learned positions: rows of position 0 on, as many as a sequence may have. They need not fit the staging memory.
static void load_positions(struct loader *loader, const struct model *model, uint32_t context_tokens, const float **out)
{
    const struct tensor_view *view = &model->positions;
    const uint64_t row_bytes = view->columns * sizeof(float);
    unsigned char *to = view->data ? take_fixed(loader, context_tokens * row_bytes) : NULL;

    assert_always(!view->data || context_tokens <= view->rows - model->shape.positions_before);
    for (uint32_t first = 0, count; to && loader->fixed && first < context_tokens; first += count) {
        const uint64_t file_row = model->shape.positions_before + first;
        count = (uint32_t)MIN(STAGING_BYTES / row_bytes, (uint64_t)context_tokens - first);
        dequantize(view->type, (const unsigned char *)view->data + file_row * (view->bytes / view->rows),
                   (uint64_t)count * view->columns, (float *)loader->staging);
        copy_up(loader, to + first * row_bytes, loader->staging, count * row_bytes);
    }
    if (loader->backend)
        *out = (const float *)(void *)to;
}

static void load_rope(struct loader *loader, uint32_t context_tokens, const float **out)
{
    if (loader->config->model->shape.rope_style == ROPE_NONE)
        return;
    const struct rope_params params = model_rope_params(&loader->config->model->shape, MODEL_ROPE_WHOLE, context_tokens);
    size_t row_bytes = rope_row_floats(&params) * sizeof(float);
    unsigned char *to = take_fixed(loader, context_tokens * row_bytes);
    uint32_t at_once = (uint32_t)(STAGING_BYTES / row_bytes);

    for (uint32_t first = 0; to && loader->fixed && first < context_tokens; first += at_once) {
        uint32_t count = MIN(at_once, context_tokens - first);
        rope_table_build(&params, first, count, (float *)loader->staging);
        copy_up(loader, to + first * row_bytes, loader->staging, count * row_bytes);
    }
    if (to)
        *out = (const float *)to;
}

static void walk(struct loader *loader)
{
    const struct model *model = loader->config->model;
    struct backend unused, *backend = loader->backend ? loader->backend : &unused;
    struct cuda_layer layer;

    loader->fixed_bytes = 0;
    memset(loader->blob_bytes, 0, (loader->range.count + 1) * sizeof *loader->blob_bytes);
    if (loader->range.is_first)
        load_linear(loader, CUDA_NO_SEGMENT, (const struct tensor_view *[]){&model->embedding}, 1, &backend->embedding);
    if (loader->range.is_last && !(loader->range.is_first && model->tied))
        load_linear(loader, CUDA_NO_SEGMENT, (const struct tensor_view *[]){&model->output}, 1, &backend->output);
    else if (loader->range.is_last && loader->backend)
        backend->output = backend->embedding;
    if (loader->range.is_last)
        load_norm(loader, &model->output_norm, &model->output_norm_bias, &backend->output_norm);
    if (loader->range.is_first)
        load_positions(loader, model, loader->config->context_tokens, &backend->positions);
    load_rope(loader, loader->config->context_tokens, &backend->rope_table);
    for (uint32_t i = 0; i < loader->range.count; i++)
        load_layer(loader, i, &model->layers[loader->range.first + i], loader->backend ? &backend->layers[i] : &layer);
}

// Whether products may have so many rows that packed weights are expanded for them.
static bool expands(const struct backend_config *config)
{
    return config->max_rows > GPU_QUANT_DIRECT_ROWS && !config->batch_invariant;
}

// Chooses which of the blobs that the device has no room for stay in pinned memory.
static enum status plan_host(const struct backend_config *config, const uint64_t *blob_bytes, struct cuda_weights_plan *out,
                             struct error *error)
{
    uint64_t *sizes = calloc(out->tiers.segment_count, sizeof *sizes);
    uint32_t count = 0;

    if (!sizes)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to plan the weights");
    for (uint32_t s = 0; s < out->tiers.segment_count; s++)
        if (weight_tiers_streams(&out->tiers, s))
            sizes[count++] = packed_file_align(blob_bytes[s]);
    enum status status = weight_tiers_choose(
        sizes, count, 0, config->weights_host_memory ? config->weights_host_memory : UINT64_MAX, &out->host, error);
    free(sizes);
    return status ? error_prefix(error, "on the host") : STATUS_OK;
}

enum status cuda_plan_weights(const struct backend_config *config, const struct layer_range *range, struct cuda_weights_plan *out,
                              uint64_t *blob_bytes, struct error *error)
{
    struct loader loader = {.config = config, .range = *range, .blob_bytes = blob_bytes, .weight_bits = 16};

    mix(&loader, LAYOUT_VERSION);
    mix(&loader, cuda_type_of(config));
    mix(&loader, range->first);
    walk(&loader);
    *out = (struct cuda_weights_plan){
        .fixed_bytes = loader.fixed_bytes,
        .panel_bytes = expands(config) ? loader.panel_bytes : 0,
        .weight_bits = loader.weight_bits,
        .layout = loader.layout,
    };
    enum status status = weight_tiers_choose(blob_bytes, range->count + 1, out->fixed_bytes,
                                             config->weights_memory ? config->weights_memory : UINT64_MAX, &out->tiers, error);
    return status ? status : plan_host(config, blob_bytes, out, error);
}

// --- loading ---

// Converts all blobs for the packed file. ALREADY_EXISTS: another process has written it meanwhile.
static enum status pack(struct loader *loader, const struct packed_layout *layout, struct error *error)
{
    const char *path = loader->config->packed_path;
    struct cuda_packing packing;
    enum status status = cuda_packing_begin(path, layout, &packing, error);

    if (status)
        return status;
    loader->packing = &packing;
    walk(loader);
    loader->packing = NULL;
    return cuda_packing_end(&packing, path, loader->status, error);
}

// Fills the blobs that stay from the packed file, which is written first if there is none that is right, and opens the stream of the others.
static enum status load_packed(struct loader *loader, const struct packed_layout *layout, struct error *error)
{
    struct backend *backend = loader->backend;
    const struct disk_config config = {
        .method = backend->config.disk, .on_done = backend->config.on_weights, .user = backend->config.on_weights_user};
    struct packed_file *file;
    double us_per_byte;
    enum status status;

    if (!backend->config.packed_path)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "weights that fit neither the device nor the host need a packed file (--cache-dir)");
    loader->fixed = false, loader->blobs = true;
    for (uint32_t i = 0; i < TRIES; i++) {
        status = cuda_packed_read(backend, layout, loader->staging, loader->stream, &file, &us_per_byte, error);
        if (!status)
            return cuda_disk_open(&backend->tier, file, &config, us_per_byte, error);
        if (status != STATUS_NOT_FOUND)
            log_warn("WEIGHTS-PACKED-ANEW", "why=\"%s\"", error->text);
        if ((status = pack(loader, layout, error)) && status != STATUS_ALREADY_EXISTS)
            return status;
    }
    return status ? status : error_set(error, STATUS_UNAVAILABLE, "%s: cannot be read", backend->config.packed_path);
}

// Places and converts everything, once there is memory for it.
static enum status load_all(struct loader *loader, const struct cuda_weights_plan *plan, uint64_t *file_bytes, struct error *error)
{
    const uint32_t segments = loader->range.count + 1;
    const bool packed = plan->host.streamed_count > 0;

    loader->fixed = true, loader->blobs = !packed;
    walk(loader);
    if (loader->status || !packed)
        return loader->status;
    for (uint32_t s = 0; s < segments; s++)
        file_bytes[s] = packed_file_align(loader->backend->tier.blobs[s].bytes);
    const struct packed_layout layout = {
        .model = loader->config->model->fingerprint, .layout = plan->layout, .blob_count = segments, .blob_bytes = file_bytes};
    return load_packed(loader, &layout, error);
}

static enum status fill(struct backend *backend, const struct cuda_weights_plan *plan, uint64_t *blob_bytes, struct error *error)
{
    struct loader loader = {
        .config = &backend->config, .range = backend->range, .backend = backend, .blob_bytes = blob_bytes, .error = error};
    enum status status =
        cuda_tier_open(&plan->tiers, &plan->host, blob_bytes, plan->fixed_bytes, backend->weights, &backend->tier, error);

    if (status)
        return status;
    if (cudaHostAlloc((void **)&loader.staging, STAGING_BYTES, cudaHostAllocDefault))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no %d MiB of pinned memory to load weights through",
                         STAGING_BYTES >> 20);
    cuda_must(cudaStreamCreateWithFlags(&loader.stream, cudaStreamNonBlocking), "a stream");
    status = load_all(&loader, plan, blob_bytes + backend->range.count + 1, error);
    cudaStreamDestroy(loader.stream);
    cudaFreeHost(loader.staging);
    assert_always(status || loader.fixed_bytes == plan->fixed_bytes);
    return status;
}

enum status cuda_load_weights(struct backend *backend, struct error *error)
{
    uint64_t *blob_bytes = calloc(2 * (backend->range.count + 1), sizeof *blob_bytes), bytes; // and of the file's
    struct cuda_weights_plan plan;
    enum status status;

    backend->layers = calloc(backend->range.count, sizeof *backend->layers);
    if (!backend->layers || !blob_bytes) {
        free(blob_bytes);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the table of layers");
    }
    status = cuda_plan_weights(&backend->config, &backend->range, &plan, blob_bytes, error);
    bytes = weight_tiers_bytes(&plan.tiers);
    if (!status && cudaMalloc((void **)&backend->weights, bytes))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no %llu MiB of device memory in one piece for the weights",
                           backend->name, (unsigned long long)(bytes >> 20));
    if (!status)
        status = fill(backend, &plan, blob_bytes, error);
    free(blob_bytes);
    backend->weight_bits = plan.weight_bits;
    backend->panel_bytes = plan.panel_bytes;
    return status;
}
