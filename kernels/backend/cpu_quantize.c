// cpu_quantize.c: rows of the model file into tiles, or into f32. Matrices of 16 or 32 bits may be made into 4 or 8 on their way (--quantize), by the
// encoder of `fastdecode quantize`, so that both give the same numbers; those that lie in another order are put into GGUF's. A tile is
// converted by itself: what is needed beside the result is a tile for each thread.
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

// Room for some rows on their way: as the file would have them, if they lie in another order, and in the type that they are loaded in, if it
// is another.
struct room {
    unsigned char *read, *encoded; // NULL: not needed
    bool failed;
};

static struct room make_room(const struct tensor_view *view, enum tensor_type type, uint32_t rows)
{
    struct room room = {0};

    if (view->stored)
        room.failed = !(room.read = malloc(rows * (view->bytes / view->rows)));
    if (type != view->type)
        room.failed |= !(room.encoded = malloc(rows * row_bytes_of(type, view->columns)));
    return room;
}

static void free_room(struct room *room)
{
    free(room->read);
    free(room->encoded);
}

// Rows of a view as blocks of `type`, wherever they are then. NULL: a value is not finite, or there is no room.
static const void *rows_as(enum tensor_type type, const struct tensor_view *view, uint32_t row, uint32_t count,
                           const struct room *room)
{
    const void *rows = room->failed ? NULL : model_view_rows(view, row, count, room->read);

    if (!rows || type == view->type)
        return rows;
    return encode_blocks(view->type, rows, (uint64_t)count * view->columns, type, room->encoded) ? room->encoded : NULL;
}

bool cpu_pack_tiles(const struct packed_matrix *matrix, const struct tensor_view *view, uint32_t tile_begin, uint32_t tile_count)
{
    enum tensor_type type = (enum tensor_type)matrix->source_type;
    struct room room = make_room(view, type, PACK_TILE_OUTPUTS);
    bool ok = true;

    for (uint32_t tile = tile_begin; tile < tile_begin + tile_count && ok; tile++) {
        uint32_t first = tile * PACK_TILE_OUTPUTS, count = MIN(PACK_TILE_OUTPUTS, view->rows - first);
        const void *rows = rows_as(type, view, first, count, &room);
        struct packed_matrix one = *matrix;
        one.data += tile * matrix->tile_bytes;
        one.output_count = count;
        one.tile_count = 1;
        if ((ok = rows != NULL))
            pack_tiles(&one, rows, 0, 1);
    }
    free_room(&room);
    return ok;
}

bool cpu_dequantize_rows(enum tensor_type type, const struct tensor_view *view, uint32_t row_begin, uint32_t row_count, float *out)
{
    struct room room = make_room(view, type, PACK_TILE_OUTPUTS);
    bool ok = true;

    for (uint32_t done = 0, count; done < row_count && ok; done += count) {
        count = MIN(PACK_TILE_OUTPUTS, row_count - done);
        const void *rows = rows_as(type, view, row_begin + done, count, &room);
        if ((ok = rows != NULL))
            dequantize(type, rows, (uint64_t)count * view->columns, out + (uint64_t)done * view->columns);
    }
    free_room(&room);
    return ok;
}
