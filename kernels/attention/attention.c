/* attention.c: the table of each level, and the two steps that are the same at all of them. */
#include "kernels/attention/attention.h"

#include <math.h>
#include <string.h>

#include "common/base/checked.h"

#define TABLE(number, suffix, range_suffix)                                                                                      \
    {                                                                                                                            \
        .level = number, .store = attend_store_##suffix, .load_q = attend_load_q_##suffix, .range = attend_range_##range_suffix, \
        .fold = attend_fold_##suffix                                                                                             \
    }

static const struct attention_kernels tables[ISA_LEVEL_COUNT] = {
    [ISA_REF] = TABLE(ISA_REF, ref, ref),
    [ISA_AVX2] = TABLE(ISA_AVX2, avx2, avx2),
    [ISA_AVX512] = TABLE(ISA_AVX512, avx512, avx512),
    [ISA_VNNI] = TABLE(ISA_VNNI, avx512, vnni),
};

const struct attention_kernels *attention_of_level(enum isa_level level) { return isa_supported(level) ? &tables[level] : NULL; }

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

/* Columns of 16 elements, one of each token. */
static size_t copy_columns(unsigned char *to, const unsigned char *from, size_t bytes, size_t element_bytes, uint32_t count)
{
    for (size_t at = 0; at < bytes; at += element_bytes * ATTEND_TILE)
        memcpy(to + at, from + at, element_bytes * count);
    return bytes;
}

/* Words of four bytes, one of each token. */
static void copy_words(unsigned char *to, const unsigned char *from, size_t row_bytes, uint32_t count)
{
    for (uint32_t token = 0; token < count; token += 4)
        for (size_t i = 0; i < row_bytes; i++)
            memcpy(to + token * row_bytes + i * 4, from + token * row_bytes + i * 4, MIN(4u, count - token));
}

void attend_copy_tokens(enum attend_type type, uint32_t head_dim, void *to, const void *from, uint32_t count)
{
    size_t k_codes = attend_k_code_bytes(head_dim, type), k_bytes = attend_k_bytes(head_dim, type);
    size_t row_bytes = attend_v_row_bytes(head_dim, type), at = 0;
    size_t scales = type <= ATTEND_BF16 ? 0
                                        : (type == ATTEND_INT8 ? 1 : 2) * attend_groups(head_dim) * ATTEND_TILE * sizeof(uint16_t);
    unsigned char *into = to;
    const unsigned char *tile = from;

    at += copy_columns(into, tile, k_codes, type == ATTEND_F16 || type == ATTEND_BF16 ? 2 : 4, count);
    at += copy_columns(into + at, tile + at, k_bytes - k_codes, sizeof(uint16_t), count);
    if (type <= ATTEND_BF16)
        memcpy(into + at, tile + at, row_bytes * count);
    else
        copy_words(into + at, tile + at, row_bytes, count);
    at += row_bytes * ATTEND_TILE;
    copy_columns(into + at, tile + at, scales, sizeof(uint16_t), count);
}
