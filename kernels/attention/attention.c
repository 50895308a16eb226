/* attention.c: the table of each level, and the two steps that are the same at all of them. */
#include "kernels/attention/attention.h"

#include <math.h>

#define TABLE(number, suffix)                                                                                         \
    {                                                                                                                 \
        .level = number, .store = attend_store_##suffix, .range = attend_range_##suffix, .fold = attend_fold_##suffix \
    }

static const struct attention_kernels tables[ISA_LEVEL_COUNT] = {
    [ISA_REF] = TABLE(ISA_REF, ref),
    [ISA_AVX2] = TABLE(ISA_AVX2, avx2),
    [ISA_AVX512] = TABLE(ISA_AVX512, avx512),
    [ISA_VNNI] = TABLE(ISA_VNNI, avx512), /* nothing here is integer */
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
