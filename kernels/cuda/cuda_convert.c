// cuda_convert.c: matrices of the model file into what the device computes with: packed tiles (quant.h), or rows in f16 or bf16. What the
// configuration asks for in fewer bits is quantized on its way, by the encoder of `fastdecode quantize`: both give the same numbers.
#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "kernels/backend/loaded_type.h"
#include "kernels/cuda/cuda.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/quant/dequant.h"
#include "kernels/quant/encode.h"

enum { WIDE_BYTES = 2 };

struct convert_job {
    const struct cuda_conversion *what;
    uint32_t first, count; // items
    unsigned char *out;    // [count] items
    atomic_bool bad;       // relaxed: read when the threads have ended
};

enum gpu_type cuda_type_of(const struct backend_config *config)
{
    return loaded_type_of(config, &config->model->layers[0].q) == TENSOR_BF16 ? GPU_BF16 : GPU_F16;
}

void cuda_plan_part(const struct backend_config *config, const struct tensor_view *view, uint32_t outputs, struct gpu_quant *out)
{
    enum gpu_form form = gpu_form_of((uint32_t)loaded_type_of(config, view));
    if (form != GPU_WIDE)
        gpu_quant_plan(form, outputs, view->columns, out);
    if (form == GPU_WIDE || out->tile_bytes > CUDA_STAGING_BYTES)
        *out = (struct gpu_quant){.form = GPU_WIDE, .outputs = outputs, .inputs = view->columns};
}

uint64_t cuda_part_bytes(const struct gpu_quant *part)
{
    return part->form == GPU_WIDE ? (uint64_t)part->outputs * part->inputs * WIDE_BYTES : part->tiles * part->tile_bytes;
}

uint64_t cuda_item_bytes(const struct gpu_quant *part)
{
    return part->form == GPU_WIDE ? (uint64_t)part->inputs * WIDE_BYTES : part->tile_bytes;
}

uint32_t cuda_items(const struct gpu_quant *part, uint32_t rows)
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

bool cuda_convert(const struct cuda_conversion *what, uint32_t first, uint32_t count, unsigned char *out)
{
    struct convert_job job = {.what = what, .first = first, .count = count, .out = out};

    thread_pool_run(what->pool, convert_thread, &job);
    return !atomic_load_explicit(&job.bad, memory_order_relaxed);
}
