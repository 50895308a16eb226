// attention.c: the tables of kernels, one for each instruction set level of this architecture.
#include "kernels/attention/attention.h"

#define TABLE(number, suffix, range_suffix)                                                                                      \
    {                                                                                                                            \
        .level = number, .store = attend_store_##suffix, .load_q = attend_load_q_##suffix, .range = attend_range_##range_suffix, \
        .fold = attend_fold_##suffix, .scores = attend_scores_##suffix, .choose = attend_choose_##suffix                         \
    }

static const struct attention_kernels tables[ISA_LEVEL_COUNT] = {
    [ISA_REF] = TABLE(ISA_REF, ref, ref),
#if defined(__x86_64__)
    [ISA_AVX2] = TABLE(ISA_AVX2, avx2, avx2),
    [ISA_AVXVNNI] = TABLE(ISA_AVXVNNI, avx2, avxvnni),
    [ISA_AVX512] = TABLE(ISA_AVX512, avx512, avx512),
    [ISA_VNNI] = TABLE(ISA_VNNI, avx512, vnni),
#elif defined(__aarch64__)
    [ISA_NEON] = TABLE(ISA_NEON, neon, neon),
    [ISA_DOTPROD] = TABLE(ISA_DOTPROD, neon, dotprod),
    [ISA_I8MM] = TABLE(ISA_I8MM, neon, i8mm),
#endif
};

const struct attention_kernels *attention_of_level(enum isa_level level) { return isa_supported(level) ? &tables[level] : NULL; }
