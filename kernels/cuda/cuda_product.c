// cuda_product.c: products with a linear's weights, wide or packed, and rows of the embedding: the one place that knows how weights lie.
//
// A linear is one or more matrices below each other (q, k, v may come in different forms), each a product of its own into its columns
// of y. Packed ones are multiplied as they are for few rows (quant.h); for more, a panel of outputs is expanded to the batch's panel
// and multiplied by gemm.h, then the next. Panels of a matrix are of one size, or nearly so, so that none is left too small to fill
// the device. Batch-invariant, packed ones are multiplied as they are for any number of rows: each 16 read them anew.
#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { WIDE_BYTES = 2, PANEL_STEP = 128 /* outputs: a tile of the GEMM, and y stays aligned */ };

uint32_t cuda_panel_outputs(const struct gpu_quant *quant, uint64_t panel_bytes)
{
    uint64_t most = panel_bytes / ((uint64_t)quant->inputs * WIDE_BYTES);
    if (most >= quant->outputs)
        return quant->outputs;
    if (most < PANEL_STEP)
        return (uint32_t)(most / GPU_TILE_OUTPUTS * GPU_TILE_OUTPUTS);
    most = most / PANEL_STEP * PANEL_STEP;
    uint64_t panels = (quant->outputs + most - 1) / most, even = (quant->outputs + panels - 1) / panels;
    return (uint32_t)MIN(most, (even + PANEL_STEP - 1) / PANEL_STEP * PANEL_STEP);
}

uint64_t cuda_panel_bytes(const struct gpu_quant *quant)
{
    uint64_t row_bytes = (uint64_t)quant->inputs * WIDE_BYTES;
    if (quant->form == GPU_WIDE)
        return 0;
    return MIN(quant->outputs * row_bytes, MAX(CUDA_PANEL_BYTES, GPU_TILE_OUTPUTS * row_bytes));
}

static void expand_and_multiply(struct backend_batch *batch, const struct gpu_quant *quant, struct gpu_product product)
{
    const struct backend *backend = batch->backend;
    const uint32_t at_once = cuda_panel_outputs(quant, batch->panel_bytes);
    unsigned char *y = product.y;

    assert_always(at_once);
    for (uint32_t first = 0; first < quant->outputs; first += at_once) {
        product.outputs = MIN(at_once, quant->outputs - first);
        product.w = batch->panel;
        product.y = y + first * (product.y_wide ? WIDE_BYTES : sizeof(float));
        gpu_quant_expand(backend->type, quant, first, product.outputs, batch->panel, batch->stream);
        gpu_gemm_run(backend->gemm, &product, batch->workspace, batch->stream);
    }
}

void cuda_product(struct backend_batch *batch, const struct cuda_linear *linear, const void *x, uint32_t rows, void *y, bool y_wide,
                  bool add)
{
    const struct backend *backend = batch->backend;
    unsigned char *to = y;

    for (uint32_t i = 0; i < linear->part_count; i++) {
        const struct gpu_quant *part = &linear->parts[i];
        if (part->form != GPU_WIDE && (rows <= GPU_QUANT_DIRECT_ROWS || backend->config.batch_invariant)) {
            const struct gpu_quant_product product = {x, to, rows, linear->outputs, y_wide, add};
            gpu_quant_multiply(backend->type, part, &product, batch->stream);
        } else {
            const struct gpu_product product = {part->data,     x,      to,  rows,           part->outputs,
                                                linear->inputs, y_wide, add, linear->outputs};
            if (part->form == GPU_WIDE)
                gpu_gemm_run(backend->gemm, &product, batch->workspace, batch->stream);
            else
                expand_and_multiply(batch, part, product);
        }
        to += part->outputs * (y_wide ? WIDE_BYTES : sizeof(float));
    }
}

void cuda_embed(struct backend_batch *batch)
{
    const struct backend *backend = batch->backend;
    const struct model_shape *shape = &backend->shape;
    const struct gpu_quant *table = &backend->embedding.parts[0];

    if (table->form == GPU_WIDE)
        gpu_embed(backend->type, table->data, batch->words, batch->padded_rows, shape->hidden, batch->x, batch->stream);
    else
        gpu_quant_embed(table, batch->words, batch->padded_rows, batch->x, batch->stream);
    if (shape->embedding_scale != 1 || backend->positions)
        gpu_place(shape->embedding_scale, backend->positions, batch->words + backend->config.max_rows, batch->padded_rows,
                  shape->hidden, batch->x, batch->stream);
}
