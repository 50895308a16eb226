// pack.c: plans and fills the tiles that pack.h describes, and reads single rows back out of them.
#include "kernels/quant/pack.h"

#include <string.h>

#include "common/base/checked.h"
#include "kernels/quant/pack_source.h"
#include "kernels/simd/half.h"

#define MAX_OUTPUTS (1u << 30)
#define MAX_INPUTS (1u << 24) // so that a tile's offsets fit 32 bits: 2^24 inputs are 1 GiB of f32 a tile
#define COLUMNS PACK_TILE_OUTPUTS

static uint32_t align_section(uint32_t bytes) { return (bytes + PACK_ALIGN - 1) & ~(PACK_ALIGN - 1); }

static uint32_t float_bytes(enum pack_layout layout) { return layout == PACK_F32 ? 4 : 2; }

// Lays the sections of a tile one after another.
static void plan_tile(struct packed_matrix *m)
{
    uint32_t groups = m->group_count, supers = m->super ? m->k / PACK_SUPER : 0;
    uint32_t scale_bytes = m->super ? 1 : m->layout == PACK_S8_F32 ? 4 : 2, halves = pack_layout_has_halves(m->layout) ? 2 : 1;
    uint32_t at = 0;
    m->super_offset = at;
    at = align_section(at + supers * COLUMNS * 2);
    m->super_min_offset = at;
    at = align_section(at + (m->minimum ? supers * COLUMNS * 2 : 0));
    m->scale_offset = at;
    at = align_section(at + groups * halves * COLUMNS * scale_bytes);
    m->min_offset = at;
    at = align_section(at + (m->minimum ? groups * halves * COLUMNS * scale_bytes : 0));
    m->quant_offset = at;
    uint32_t quant_bytes = pack_layout_is_u4(m->layout) ? groups * COLUMNS * 16
                           : groups                     ? groups * COLUMNS * 32
                                                        : m->k * COLUMNS * float_bytes(m->layout);
    m->tile_bytes = align_section(at + quant_bytes);
}

enum status pack_plan(uint32_t source_type, uint64_t output_count, uint64_t k, struct packed_matrix *out, struct error *error)
{
    const struct pack_source *source = pack_source_find(source_type);
    if (!source)
        return error_set(error, STATUS_INVALID_ARGUMENT, "tensor type %u cannot be packed: expected one of " TENSOR_TYPES_SUPPORTED,
                         source_type);
    const struct tensor_type_info *info = tensor_type_info(source_type);
    if (output_count == 0 || output_count > MAX_OUTPUTS || k == 0 || k > MAX_INPUTS || k % info->block_values != 0)
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "a %s matrix of %llu x %llu cannot be packed: rows must be a multiple of %u values, at most %u, and there are 1 to %u of them",
            info->name, (unsigned long long)output_count, (unsigned long long)k, info->block_values, MAX_INPUTS, MAX_OUTPUTS);
    *out = (struct packed_matrix){
        .layout = source->layout,
        .super = source->super,
        .minimum = source->minimum,
        .source_type = source_type,
        .output_count = (uint32_t)output_count,
        .k = (uint32_t)k,
        .group_count = source->read ? (uint32_t)k / PACK_GROUP : 0,
        .tile_count = ((uint32_t)output_count + COLUMNS - 1) / COLUMNS,
        .source_row_bytes = k / info->block_values * info->block_bytes,
    };
    plan_tile(out);
    out->bytes = out->tile_count * out->tile_bytes; // below 2^26 * 2^31
    return STATUS_OK;
}

uint64_t packed_bytes(uint32_t source_type, uint64_t output_count, uint64_t k)
{
    struct packed_matrix matrix = {0};
    return pack_plan(source_type, output_count, k, &matrix, NULL) == STATUS_OK ? matrix.bytes : 0;
}

// Scales of group g of one output into their sections.
static void pack_scales(const struct packed_matrix *m, uint8_t *tile, uint32_t g, uint32_t column, const struct pack_group *group)
{
    uint16_t *scale = (uint16_t *)(tile + m->scale_offset), *min = (uint16_t *)(tile + m->min_offset);
    if (m->layout == PACK_S8_F32) {
        ((float *)(tile + m->scale_offset))[g * COLUMNS + column] = group->scale_f32;
        return;
    }
    if (!m->super) {
        scale[g * COLUMNS + column] = group->scale;
        if (m->minimum)
            min[g * COLUMNS + column] = group->minimum;
        return;
    }
    uint32_t super = g / (PACK_SUPER / PACK_GROUP), halves = pack_layout_has_halves(m->layout) ? 2 : 1;
    int8_t *small = (int8_t *)(tile + m->scale_offset);
    ((uint16_t *)(tile + m->super_offset))[super * COLUMNS + column] = group->scale;
    if (m->minimum)
        ((uint16_t *)(tile + m->super_min_offset))[super * COLUMNS + column] = group->minimum;
    for (uint32_t half = 0; half < halves; half++) {
        small[(g * halves + half) * COLUMNS + column] = group->small_scale[half];
        if (m->minimum)
            (tile + m->min_offset)[(g * halves + half) * COLUMNS + column] = group->small_minimum[half];
    }
}

static uint32_t quad_of(const uint8_t *q, uint32_t quad)
{
    uint32_t word;
    memcpy(&word, q + quad * 4, sizeof word);
    return word;
}

static void pack_quantized_tile(const struct packed_matrix *m, const struct pack_source *source, const uint8_t *rows,
                                uint32_t columns, uint8_t *tile)
{
    const struct tensor_type_info *info = tensor_type_info(m->source_type);
    uint32_t groups_per_block = info->block_values / PACK_GROUP;
    struct pack_group group[COLUMNS] = {0};
    for (uint32_t g = 0; g < m->group_count; g++) {
        for (uint32_t o = 0; o < columns; o++) {
            const uint8_t *block = rows + o * m->source_row_bytes + (size_t)(g / groups_per_block) * info->block_bytes;
            source->read(block, g % groups_per_block, &group[o]);
            pack_scales(m, tile, g, o, &group[o]);
        }
        if (pack_layout_is_u4(m->layout)) {
            uint32_t *quads = (uint32_t *)(tile + m->quant_offset) + (size_t)g * 4 * COLUMNS;
            for (uint32_t o = 0; o < COLUMNS; o++)
                for (uint32_t j = 0; j < 4; j++)
                    quads[j * COLUMNS + o] = quad_of(group[o].q, 2 * j) | quad_of(group[o].q, 2 * j + 1) << 4;
        } else {
            uint32_t *quads = (uint32_t *)(tile + m->quant_offset) + (size_t)g * 8 * COLUMNS;
            for (uint32_t o = 0; o < COLUMNS; o++)
                for (uint32_t j = 0; j < 8; j++)
                    quads[j * COLUMNS + o] = quad_of(group[o].q, j);
        }
    }
}

static void pack_float_tile(const struct packed_matrix *m, const uint8_t *rows, uint32_t columns, uint8_t *tile)
{
    size_t size = float_bytes(m->layout);
    uint8_t *out = tile + m->quant_offset;
    for (uint32_t o = 0; o < columns; o++) {
        const uint8_t *row = rows + o * m->source_row_bytes;
        for (uint32_t i = 0; i < m->k; i++)
            memcpy(out + ((size_t)i * COLUMNS + o) * size, row + i * size, size);
    }
}

void pack_tiles(const struct packed_matrix *matrix, const void *source, uint32_t tile_begin, uint32_t tile_count)
{
    const struct pack_source *type = pack_source_find(matrix->source_type);
    assert_always(type && matrix->data && (uint64_t)tile_begin + tile_count <= matrix->tile_count);
    for (uint32_t t = tile_begin; t < tile_begin + tile_count; t++) {
        uint32_t first = t * COLUMNS, columns = MIN(COLUMNS, matrix->output_count - first);
        const uint8_t *rows = (const uint8_t *)source + first * matrix->source_row_bytes;
        uint8_t *tile = matrix->data + t * matrix->tile_bytes;
        if (columns < COLUMNS) // padding outputs have scale 0
            memset(tile, 0, matrix->tile_bytes);
        else // no bytes between sections are left undefined
            memset(tile, 0, matrix->quant_offset);
        if (type->read)
            pack_quantized_tile(matrix, type, rows, columns, tile);
        else
            pack_float_tile(matrix, rows, columns, tile);
    }
}

static float f16_at(const uint8_t *section, size_t index)
{
    uint16_t bits;
    memcpy(&bits, section + index * 2, sizeof bits);
    return f16_to_float(bits);
}

static void dequantize_float(const struct packed_matrix *m, const uint8_t *tile, uint32_t column, float *out)
{
    const uint8_t *values = tile + m->quant_offset;
    for (uint32_t i = 0; i < m->k; i++) {
        size_t index = (size_t)i * COLUMNS + column;
        uint32_t word;
        uint16_t half;
        if (m->layout == PACK_F16) {
            out[i] = f16_at(values, index);
        } else if (m->layout == PACK_F32) {
            memcpy(&word, values + index * 4, 4);
            out[i] = f32_from_bits(word);
        } else {
            memcpy(&half, values + index * 2, 2);
            out[i] = bf16_to_float(half);
        }
    }
}

// Scale and minimum of one half of a group: the group's own where halves share them.
static void half_scale(const struct packed_matrix *m, const uint8_t *tile, uint32_t g, uint32_t half, uint32_t column, float *scale,
                       float *minimum)
{
    size_t at = (pack_layout_has_halves(m->layout) ? (size_t)g * 2 + half : g) * COLUMNS + column;
    *minimum = 0;
    if (m->layout == PACK_S8_F32) {
        memcpy(scale, tile + m->scale_offset + at * sizeof *scale, sizeof *scale);
        return;
    }
    if (!m->super) {
        *scale = f16_at(tile + m->scale_offset, at);
        if (m->minimum)
            *minimum = f16_at(tile + m->min_offset, at);
        return;
    }
    size_t super_at = (size_t)(g / (PACK_SUPER / PACK_GROUP)) * COLUMNS + column;
    *scale = f16_at(tile + m->super_offset, super_at) * ((const int8_t *)(tile + m->scale_offset))[at];
    if (m->minimum)
        *minimum = -(f16_at(tile + m->super_min_offset, super_at) * (float)(tile + m->min_offset)[at]);
}

void pack_dequantize_row(const struct packed_matrix *matrix, uint32_t row, float *out)
{
    assert_always(row < matrix->output_count);
    const uint8_t *tile = matrix->data + row / COLUMNS * matrix->tile_bytes;
    uint32_t column = row % COLUMNS;
    if (matrix->group_count == 0) {
        dequantize_float(matrix, tile, column, out);
        return;
    }
    bool is_u4 = pack_layout_is_u4(matrix->layout);
    int offset = is_u4 ? (matrix->minimum ? 0 : 8) : 128;
    for (uint32_t g = 0; g < matrix->group_count; g++) {
        float scale[2], minimum[2];
        for (uint32_t half = 0; half < 2; half++)
            half_scale(matrix, tile, g, half, column, &scale[half], &minimum[half]);
        for (uint32_t i = 0; i < PACK_GROUP; i++) {
            const uint8_t *quants = tile + matrix->quant_offset;
            int q;
            if (is_u4)
                q = quants[((g * 4 + i / 8) * (size_t)COLUMNS + column) * 4 + i % 4] >> (i / 4 % 2 * 4) & 0x0f;
            else
                q = quants[((g * 8 + i / 4) * (size_t)COLUMNS + column) * 4 + i % 4];
            float product = scale[i / 16] * (float)(q - offset);
            out[g * PACK_GROUP + i] = matrix->minimum ? product + minimum[i / 16] : product;
        }
    }
}
