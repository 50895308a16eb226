// gemm_ref.c: the reference: the same quantized operands, dot products of groups in integers, everything else in double.
#include "common/base/checked.h"
#include "kernels/gemm/gemm.h"
#include "kernels/simd/half.h"

#define COLUMNS PACK_TILE_OUTPUTS

static double f16_double(const uint8_t *section, size_t index) { return (double)f16_to_float(((const uint16_t *)section)[index]); }

// Returns where in a section of scales or minima that of half a group of one output is.
static size_t scale_index(const struct packed_matrix *w, uint32_t g, uint32_t half, uint32_t column)
{
    return (pack_layout_has_halves(w->layout) ? (size_t)g * 2 + half : g) * COLUMNS + column;
}

// Return the scale and (minimum_of) the minimum of half a group, for one output of a tile.
static double scale_of(const struct packed_matrix *w, const uint8_t *tile, uint32_t g, uint32_t half, uint32_t column)
{
    size_t at = scale_index(w, g, half, column);
    if (w->layout == PACK_S8_F32)
        return (double)((const float *)(tile + w->scale_offset))[at];
    if (!w->super)
        return f16_double(tile + w->scale_offset, at);
    double super = f16_double(tile + w->super_offset, (size_t)(g * PACK_GROUP / PACK_SUPER) * COLUMNS + column);
    return super * ((const int8_t *)(tile + w->scale_offset))[at];
}

static double minimum_of(const struct packed_matrix *w, const uint8_t *tile, uint32_t g, uint32_t half, uint32_t column)
{
    size_t at = scale_index(w, g, half, column);
    if (!w->super)
        return f16_double(tile + w->min_offset, at);
    double super = f16_double(tile + w->super_min_offset, (size_t)(g * PACK_GROUP / PACK_SUPER) * COLUMNS + column);
    return -super * (tile + w->min_offset)[at];
}

// Returns value i of group g of one output, without its scale.
static int32_t quant_of(const struct packed_matrix *w, const uint8_t *tile, uint32_t g, uint32_t i, uint32_t column)
{
    const uint8_t *quants = tile + w->quant_offset;
    if (pack_layout_is_u4(w->layout)) {
        uint8_t byte = quants[(((size_t)g * 4 + i / 8) * COLUMNS + column) * 4 + i % 4];
        return (byte >> (i / 4 % 2 * 4) & 0x0f) - (w->minimum ? 0 : 8);
    }
    return quants[(((size_t)g * 8 + i / 4) * COLUMNS + column) * 4 + i % 4] - 128;
}

// Returns the sum of x over half a group.
static double half_sum(const struct quant_part *part, uint32_t half)
{
    int32_t bias = half ? part->bias - part->bias_low : part->bias_low;
    return (double)part->scale * (bias / -128) + (part->index / 16 == half ? (double)part->outlier : 0);
}

static double dot_quantized(const struct packed_matrix *w, const uint8_t *tile, uint32_t column, const struct quant_block *blocks,
                            uint32_t slot)
{
    double total = 0;
    for (uint32_t g = 0; g < w->group_count; g++) {
        const int8_t *x = blocks[g].q[slot];
        const struct quant_part *part = &blocks[g].part[slot];
        int32_t dot[2] = {0, 0};
        for (uint32_t i = 0; i < PACK_GROUP; i++)
            dot[i / 16] += quant_of(w, tile, g, i, column) * x[i];
        double scale = (double)part->scale;
        total += scale * (dot[0] * scale_of(w, tile, g, 0, column) + dot[1] * scale_of(w, tile, g, 1, column));
        total += (double)part->outlier * quant_of(w, tile, g, part->index, column) * scale_of(w, tile, g, part->index / 16, column);
        if (w->minimum && !pack_layout_has_halves(w->layout))
            total += (double)part->sum * minimum_of(w, tile, g, 0, column);
        for (uint32_t half = 0; half < 2 && w->minimum && pack_layout_has_halves(w->layout); half++)
            total += half_sum(part, half) * minimum_of(w, tile, g, half, column);
    }
    return total;
}

static double dot_float(const struct packed_matrix *w, const uint8_t *tile, uint32_t column, const float *x)
{
    const uint8_t *values = tile + w->quant_offset;
    double total = 0;
    for (uint32_t i = 0; i < w->k; i++) {
        size_t at = (size_t)i * COLUMNS + column;
        float value = w->layout == PACK_F32   ? ((const float *)values)[at]
                      : w->layout == PACK_F16 ? f16_to_float(((const uint16_t *)values)[at])
                                              : bf16_to_float(((const uint16_t *)values)[at]);
        total += (double)value * (double)x[i];
    }
    return total;
}

void gemm_ref(const struct packed_matrix *w, const struct quantized_rows *x, uint32_t row_begin, uint32_t row_count,
              uint32_t tile_begin, uint32_t tile_count, const void *next, float *y, size_t y_stride, enum gemm_store store)
{
    (void)next;
    assert_always(w->k == x->k && (uint64_t)tile_begin + tile_count <= w->tile_count);
    assert_always((uint64_t)row_begin + row_count <= x->row_capacity);
    uint32_t output_begin = tile_begin * COLUMNS, output_end = MIN((tile_begin + tile_count) * COLUMNS, w->output_count);
    for (uint32_t o = output_begin; o < output_end; o++) {
        const uint8_t *tile = w->data + o / COLUMNS * w->tile_bytes;
        for (uint32_t row = row_begin; row < row_begin + row_count; row++) {
            size_t first = (size_t)(row / QUANT_BLOCK_ROWS) * x->group_count;
            double dot = w->group_count ? dot_quantized(w, tile, o % COLUMNS, &x->blocks[first], row % QUANT_BLOCK_ROWS)
                                        : dot_float(w, tile, o % COLUMNS, x->values + row * x->value_stride);
            float *out = y + row * y_stride + o;
            *out = store == GEMM_ADD ? *out + (float)dot : (float)dot;
        }
    }
}
