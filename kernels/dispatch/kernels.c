// kernels.c: one function table a level of this architecture. VNNI has its own dot products; the rest of it is the AVX-512 code. So it is
// with AVX-VNNI and the AVX2 code, and with dotprod and i8mm and the NEON code.
#include "kernels/dispatch/kernels.h"

#define NORM_ROPE_ENTRIES(suffix)                                                                                           \
    .rms_norm = rms_norm_##suffix, .layer_norm = layer_norm_##suffix, .gelu_mul = gelu_mul_##suffix, .gelu = gelu_##suffix, \
    .gpt_oss_mul = gpt_oss_mul_##suffix, .relu = relu_##suffix, .scale = scale_##suffix, .soft_cap = soft_cap_##suffix,     \
    .rope_pairs = rope_pairs_##suffix, .rope_neox = rope_neox_##suffix, .silu_mul = silu_mul_##suffix, .add = add_##suffix, \
    .log_sum_exp = log_sum_exp_##suffix, .softmax = softmax_##suffix, .log_softmax = log_softmax_##suffix,                  \
    .argmax = argmax_##suffix, .f32_to_f16 = f32_to_f16_##suffix, .f16_to_f32 = f16_to_f32_##suffix,                        \
    .f32_to_bf16 = f32_to_bf16_##suffix, .bf16_to_f32 = bf16_to_f32_##suffix

static const struct kernels tables[ISA_LEVEL_COUNT] = {
    [ISA_REF] = {.level = ISA_REF, .quantize_rows = quantize_rows_ref, .gemm = gemm_ref, NORM_ROPE_ENTRIES(ref)},
#if defined(__x86_64__)
    [ISA_AVX2] = {.level = ISA_AVX2, .quantize_rows = quantize_rows_avx2, .gemm = gemm_avx2, NORM_ROPE_ENTRIES(avx2)},
    [ISA_AVXVNNI] = {.level = ISA_AVXVNNI, .quantize_rows = quantize_rows_avx2, .gemm = gemm_avxvnni, NORM_ROPE_ENTRIES(avx2)},
    [ISA_AVX512] = {.level = ISA_AVX512, .quantize_rows = quantize_rows_avx512, .gemm = gemm_avx512, NORM_ROPE_ENTRIES(avx512)},
    [ISA_VNNI] = {.level = ISA_VNNI, .quantize_rows = quantize_rows_avx512, .gemm = gemm_vnni, NORM_ROPE_ENTRIES(avx512)},
#elif defined(__aarch64__)
    [ISA_NEON] = {.level = ISA_NEON, .quantize_rows = quantize_rows_neon, .gemm = gemm_neon, NORM_ROPE_ENTRIES(neon)},
    [ISA_DOTPROD] = {.level = ISA_DOTPROD, .quantize_rows = quantize_rows_neon, .gemm = gemm_dotprod, NORM_ROPE_ENTRIES(neon)},
    [ISA_I8MM] = {.level = ISA_I8MM, .quantize_rows = quantize_rows_neon, .gemm = gemm_i8mm, NORM_ROPE_ENTRIES(neon)},
#endif
};

const struct kernels *kernels;

enum status kernels_init(const char *level_name, struct error *error)
{
    enum isa_level level;
    enum status status = isa_choose(level_name, &level, error);
    if (status != STATUS_OK)
        return status;
    kernels = &tables[level];
    return STATUS_OK;
}

const char *kernels_level_name(void) { return kernels ? isa_name(kernels->level) : "none"; }

const struct kernels *kernels_of_level(enum isa_level level) { return isa_supported(level) ? &tables[level] : NULL; }
