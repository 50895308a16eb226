// attention_steps.c: steps of attention whose code, and therefore whose bits, are the same at every level.
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/attention/attention.h"

void attend_scale_q(uint32_t head_dim, const float *q, float *out)
{
    float scale = 1.0f / sqrtf((float)head_dim);
    for (uint32_t i = 0; i < head_dim; i++)
        out[i] = q[i] * scale;
}

void attend_finish(uint32_t head_dim, const float *acc, float l, float *out)
{
    for (uint32_t i = 0; i < head_dim; i++)
        out[i] = acc[i] / l;
}

// Copies the first `count` elements of columns of 16, one element per token. Returns `bytes`.
static size_t copy_columns(unsigned char *to, const unsigned char *from, size_t bytes, size_t element_bytes, uint32_t count)
{
    for (size_t at = 0; at < bytes; at += element_bytes * KV_TILE)
        memcpy(to + at, from + at, element_bytes * count);
    return bytes;
}

// Copies the first `count` tokens of rows whose words hold one byte each of four tokens.
static void copy_words(unsigned char *to, const unsigned char *from, size_t row_bytes, uint32_t count)
{
    for (uint32_t token = 0; token < count; token += 4)
        for (size_t i = 0; i < row_bytes; i++)
            memcpy(to + token * row_bytes + i * 4, from + token * row_bytes + i * 4, MIN(4u, count - token));
}

void attend_copy_tokens(enum kv_type type, uint32_t head_dim, void *to, const void *from, uint32_t count)
{
    size_t k_codes = kv_k_code_bytes(head_dim, type), k_bytes = kv_k_bytes(head_dim, type);
    size_t row_bytes = kv_v_row_bytes(head_dim, type), at = 0;
    size_t scales = type <= KV_BF16 ? 0 : (type == KV_INT8 ? 1 : 2) * kv_groups(head_dim) * KV_TILE * sizeof(uint16_t);
    unsigned char *into = to;
    const unsigned char *tile = from;

    at += copy_columns(into, tile, k_codes, type == KV_F16 || type == KV_BF16 ? 2 : 4, count);
    at += copy_columns(into + at, tile + at, k_bytes - k_codes, sizeof(uint16_t), count);
    if (type <= KV_BF16)
        memcpy(into + at, tile + at, row_bytes * count);
    else
        copy_words(into + at, tile + at, row_bytes, count);
    at += row_bytes * KV_TILE;
    copy_columns(into + at, tile + at, scales, sizeof(uint16_t), count);
}
