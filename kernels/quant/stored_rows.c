// stored_rows.c: reads matrices that a file has in another order. Floats are read down a strip of rows, column by column: neighbours of a column lie side by side in the
// file, and a strip's part of a column is a cache line or two.
#include "kernels/quant/stored_rows.h"

#include <string.h>

#include "common/base/checked.h"

enum { STRIP_ROWS = 16, BLOCK_NIBBLE_BYTES = 16, NOT_A_NUMBER = 255 };

// Part of some rows of one matrix, in elements.
struct rectangle {
    uint32_t matrix;
    uint64_t row, rows, column, columns;
};

static uint64_t element_of(const struct stored_rows *s, const struct rectangle *r, uint64_t row, uint64_t column)
{
    return s->first + (r->row + row) * s->row_step + (r->column + column) * s->column_step;
}

static void read_floats(const struct stored_rows *s, const struct rectangle *r, uint8_t *out)
{
    const uint8_t *matrix = s->values + s->values_bytes / s->matrix_count * r->matrix;
    const size_t size = tensor_type_info((uint32_t)s->type)->block_bytes;

    for (uint64_t top = 0; top < r->rows; top += STRIP_ROWS) {
        const uint64_t bottom = MIN(top + STRIP_ROWS, r->rows);
        for (uint64_t c = 0; c < r->columns; c++)
            for (uint64_t row = top; row < bottom; row++) {
                const uint8_t *from = matrix + element_of(s, r, row, c) * size;
                uint8_t *to = out + (row * r->columns + c) * size;
                if (size == 2)
                    memcpy(to, from, 2);
                else
                    memcpy(to, from, 4);
            }
    }
}

// GGUF's block: the exponent, then values 0 to 15 in low nibbles and 16 to 31 in high ones.
static bool read_block(uint8_t exponent, const uint8_t *nibbles, uint8_t *out)
{
    out[0] = exponent;
    for (uint32_t i = 0; i < BLOCK_NIBBLE_BYTES; i++) {
        const uint32_t low = nibbles[i / 2] >> (i % 2 * 4) & 15u;
        const uint32_t high = nibbles[BLOCK_NIBBLE_BYTES / 2 + i / 2] >> (i % 2 * 4) & 15u;
        out[1 + i] = (uint8_t)(low | high << 4);
    }
    return exponent != NOT_A_NUMBER;
}

static bool read_mxfp4(const struct stored_rows *s, const struct rectangle *r, uint8_t *out)
{
    const uint8_t *blocks = s->values + s->values_bytes / s->matrix_count * r->matrix;
    const uint8_t *scales = s->scales + s->scales_bytes / s->matrix_count * r->matrix;
    const size_t size = tensor_type_info((uint32_t)s->type)->block_bytes;
    bool ok = true;

    for (uint64_t row = 0; row < r->rows; row++)
        for (uint64_t c = 0; c < r->columns; c++) {
            const uint64_t element = element_of(s, r, row, c);
            ok &= read_block(scales[element], blocks + element * BLOCK_NIBBLE_BYTES, out + (row * r->columns + c) * size);
        }
    return ok;
}

bool stored_rows_read(const struct stored_rows *stored, uint64_t first, uint64_t count, void *out)
{
    const struct tensor_type_info *info = tensor_type_info((uint32_t)stored->type);
    const uint64_t width = stored->columns / info->block_values, end = (first + count) / info->block_values;
    uint8_t *to = out;
    bool ok = true;

    assert_always(first % info->block_values == 0 && count % info->block_values == 0);
    assert_always(end <= width * stored->matrix_rows * stored->matrix_count);
    for (uint64_t at = first / info->block_values; at < end;) {
        const uint64_t row = at / width, left = end - at;
        struct rectangle r = {
            .matrix = (uint32_t)(row / stored->matrix_rows), .row = row % stored->matrix_rows, .rows = 1, .column = at % width};
        r.columns = MIN(width - r.column, left);
        if (r.columns == width)
            r.rows = MIN(left / width, stored->matrix_rows - r.row);
        if (stored->scales)
            ok &= read_mxfp4(stored, &r, to);
        else
            read_floats(stored, &r, to);
        at += r.rows * r.columns;
        to += r.rows * r.columns * info->block_bytes;
    }
    return ok;
}

struct stored_rows stored_rows_matrix(const struct stored_rows *stored, uint32_t index)
{
    struct stored_rows one = *stored;

    assert_always(index < stored->matrix_count);
    one.matrix_count = 1;
    one.values_bytes /= stored->matrix_count;
    one.values += index * one.values_bytes;
    one.scales_bytes /= stored->matrix_count;
    if (one.scales)
        one.scales += index * one.scales_bytes;
    return one;
}
