// attention_sparse.c: bounds of tiles, and which tiles a sparse row may choose among.
#include "kernels/attention/attention_sparse.h"

#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/simd/half.h"

#define EDGE_TILES (ATTEND_EDGE / KV_TILE)
#define F16_MOST 65504.0f

struct attend_choice attend_choice_of(uint32_t position, uint32_t percent)
{
    struct attend_choice choice = {.tiles = position / KV_TILE + 1};
    uint32_t edge = position + 1 > ATTEND_EDGE ? (position + 1 - ATTEND_EDGE) / KV_TILE : 0;

    choice.first = MIN(EDGE_TILES, choice.tiles);
    choice.last = MAX(edge, choice.first);
    choice.keep = (uint32_t)(((uint64_t)(choice.last - choice.first) * percent + 99) / 100);
    choice.keep = MIN(MAX(choice.keep, ATTEND_KEEP_LEAST), choice.last - choice.first);
    return choice;
}

// --- bounds ----------------------------------------------------------------------------------------------------------

// f16 in an order of integers: sign and magnitude become two's complement, and back.
static int16_t ordered(int16_t bits) { return (int16_t)(bits ^ (bits >> 15 & 0x7fff)); }

// K in f16 is stored exactly: the bounds are two of its values.
static void bounds_f16(const int16_t *tokens, uint16_t *low, uint16_t *high)
{
    const int16_t infinity = 0x7c00;
    int16_t smallest = INT16_MAX, largest = INT16_MIN;

    for (uint32_t slot = 0; slot < KV_TILE; slot++) {
        int16_t value = ordered(tokens[slot]);
        smallest = MIN(smallest, value);
        largest = MAX(largest, value);
    }
    if (largest > infinity || smallest < ordered((int16_t)0xfc00)) // a NaN
        largest = 0x7bff, smallest = ordered((int16_t)0xfbff);
    *low = (uint16_t)ordered(smallest);
    *high = (uint16_t)ordered(largest);
}

static uint16_t u16_at(const unsigned char *at, size_t index)
{
    uint16_t bits;
    memcpy(&bits, at + 2 * index, sizeof bits);
    return bits;
}

// Dimension i of the tile's 16 tokens.
static void load_k(enum kv_type type, uint32_t head_dim, const unsigned char *tile, uint32_t i, float *out)
{
    const unsigned char *scales = tile + kv_k_code_bytes(head_dim, type);
    uint32_t groups = kv_groups(head_dim), group = i / KV_GROUP_DIM;

    for (uint32_t slot = 0; slot < KV_TILE; slot++) {
        size_t at = (size_t)i * KV_TILE + slot;
        if (type == KV_F32) {
            memcpy(&out[slot], tile + 4 * at, sizeof *out);
        } else if (type == KV_BF16) {
            out[slot] = bf16_to_float(u16_at(tile, at));
        } else if (type != KV_INT4X) {
            int code = tile[((size_t)i / 4 * KV_TILE + slot) * 4 + i % 4] - 128;
            out[slot] = f16_to_float(u16_at(scales, group * KV_TILE + slot)) * (float)code;
        } else {
            int code = tile[((size_t)i / 8 * KV_TILE + slot) * 4 + i % 4] >> (i % 8 < 4 ? 0 : 4) & 15;
            out[slot] = f16_to_float(u16_at(scales, group * KV_TILE + slot)) * (float)code +
                        f16_to_float(u16_at(scales, (groups + group) * KV_TILE + slot));
        }
    }
}

static void bounds_of(const float *tokens, uint16_t *low, uint16_t *high)
{
    float smallest = F16_MOST, largest = -F16_MOST;

    for (uint32_t slot = 0; slot < KV_TILE; slot++) {
        float value = MIN(MAX(tokens[slot], -F16_MOST), F16_MOST);
        smallest = MIN(smallest, value);
        largest = MAX(largest, value);
    }
    for (uint32_t slot = 0; slot < KV_TILE; slot++)
        if (isnan(tokens[slot]))
            smallest = -F16_MOST, largest = F16_MOST;
    *low = f16_down(smallest);
    *high = f16_down(-largest) ^ 0x8000;
}

void attend_bounds(enum kv_type type, uint32_t head_dim, const void *tile, uint16_t *out)
{
    for (uint32_t i = 0; i < head_dim; i++) {
        float tokens[KV_TILE];
        if (type == KV_F16) {
            bounds_f16((const int16_t *)tile + (size_t)i * KV_TILE, &out[i], &out[head_dim + i]);
            continue;
        }
        load_k(type, head_dim, tile, i, tokens);
        bounds_of(tokens, &out[i], &out[head_dim + i]);
    }
}

void attend_bound_q(uint32_t heads, uint32_t head_dim, const float *q, float *out)
{
    memset(out, 0, 2 * head_dim * sizeof *out);
    for (uint32_t head = 0; head < heads; head++, q += head_dim)
        for (uint32_t i = 0; i < head_dim; i++) {
            out[i] += q[i] < 0 ? q[i] : 0;
            out[head_dim + i] += q[i] < 0 ? 0 : q[i];
        }
}
