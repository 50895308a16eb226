// cpu_quantize.c: matrices of 16 or 32 bits made into 4 or 8 while they are loaded (--quantize), by the encoder of `fastdecode quantize`, so
// that both give the same numbers. A tile is encoded by itself: what is needed beside the result is a tile for each thread.
#include <stdlib.h>

#include "common/base/checked.h"
#include "kernels/backend/cpu_internal.h"
#include "kernels/quant/dequant.h"
#include "kernels/quant/encode.h"

static uint64_t row_bytes_of(enum tensor_type type, uint32_t columns)
{
    const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
    return (uint64_t)columns / info->block_values * info->block_bytes;
}

static const unsigned char *row_at(const struct tensor_view *view, uint64_t row)
{
    return (const unsigned char *)view->data + row * (view->bytes / view->rows);
}

bool cpu_pack_quantized(const struct packed_matrix *matrix, const struct tensor_view *view, uint32_t tile_begin,
                        uint32_t tile_count)
{
    enum tensor_type type = (enum tensor_type)matrix->source_type;
    unsigned char *blocks = malloc(PACK_TILE_OUTPUTS * row_bytes_of(type, view->columns));
    bool ok = blocks != NULL;

    for (uint32_t tile = tile_begin; tile < tile_begin + tile_count && ok; tile++) {
        uint32_t first = tile * PACK_TILE_OUTPUTS, rows = MIN(PACK_TILE_OUTPUTS, view->rows - first);
        struct packed_matrix one = *matrix;
        one.data += tile * matrix->tile_bytes;
        one.output_count = rows;
        one.tile_count = 1;
        ok = encode_blocks(view->type, row_at(view, first), (uint64_t)rows * view->columns, type, blocks);
        if (ok)
            pack_tiles(&one, blocks, 0, 1);
    }
    free(blocks);
    return ok;
}

bool cpu_dequantize_quantized(enum tensor_type type, const struct tensor_view *view, uint32_t row_begin, uint32_t row_count,
                              float *out)
{
    unsigned char *blocks = malloc(row_bytes_of(type, view->columns));
    bool ok = blocks != NULL;

    for (uint32_t i = 0; i < row_count && ok; i++) {
        ok = encode_blocks(view->type, row_at(view, row_begin + i), view->columns, type, blocks);
        if (ok)
            dequantize(type, blocks, view->columns, out + (uint64_t)i * view->columns);
    }
    free(blocks);
    return ok;
}
