// tensor_type.h: the element types of tensors in a GGUF file that this program reads; the numbers are GGUF's own.
//
// A quantized type stores blocks of block_values values in block_bytes bytes; a row of a matrix is a whole number of
// blocks. Worked number: 576 values of Q4_1 are 18 blocks of 20 bytes: 360 bytes, 5 bits a value.
#ifndef FD_KERNELS_QUANT_TENSOR_TYPE_H
#define FD_KERNELS_QUANT_TENSOR_TYPE_H

#include <stddef.h>
#include <stdint.h>

enum tensor_type {
    TENSOR_F32 = 0,
    TENSOR_F16 = 1,
    TENSOR_Q4_0 = 2,
    TENSOR_Q4_1 = 3,
    TENSOR_Q5_0 = 6,
    TENSOR_Q5_1 = 7,
    TENSOR_Q8_0 = 8,
    TENSOR_Q2_K = 10,
    TENSOR_Q3_K = 11,
    TENSOR_Q4_K = 12,
    TENSOR_Q5_K = 13,
    TENSOR_Q6_K = 14,
    TENSOR_Q8_K = 15,
    TENSOR_IQ4_NL = 20,
    TENSOR_IQ4_XS = 23,
    TENSOR_BF16 = 30,
    TENSOR_MXFP4 = 39,
    TENSOR_TYPE_END // above every number here
};

#define TENSOR_TYPES_SUPPORTED \
    "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ4_NL, IQ4_XS, MXFP4"

struct tensor_type_info {
    const char *name;
    uint32_t block_values;
    uint32_t block_bytes;
    double host_bits,
        gpu_bits; // that a weight of a large matrix takes once it is packed (pack.h; kernels/cuda/quant.h), scales included
};

// Returns what `type` (any number, e.g. straight from a file) is; NULL if it is not supported. Static; any thread.
static inline const struct tensor_type_info *tensor_type_info(uint32_t type)
{
    static const struct tensor_type_info infos[] = {
        [TENSOR_F32] = {.name = "F32", .block_values = 1, .block_bytes = 4, .host_bits = 32, .gpu_bits = 16},
        [TENSOR_F16] = {.name = "F16", .block_values = 1, .block_bytes = 2, .host_bits = 16, .gpu_bits = 16},
        [TENSOR_Q4_0] = {.name = "Q4_0", .block_values = 32, .block_bytes = 18, .host_bits = 4.5, .gpu_bits = 4.5},
        [TENSOR_Q4_1] = {.name = "Q4_1", .block_values = 32, .block_bytes = 20, .host_bits = 5, .gpu_bits = 5},
        [TENSOR_Q5_0] = {.name = "Q5_0", .block_values = 32, .block_bytes = 22, .host_bits = 8.5, .gpu_bits = 8.5},
        [TENSOR_Q5_1] = {.name = "Q5_1", .block_values = 32, .block_bytes = 24, .host_bits = 9, .gpu_bits = 9},
        [TENSOR_Q8_0] = {.name = "Q8_0", .block_values = 32, .block_bytes = 34, .host_bits = 8.5, .gpu_bits = 8.5},
        [TENSOR_Q2_K] = {.name = "Q2_K", .block_values = 256, .block_bytes = 84, .host_bits = 5.125, .gpu_bits = 16},
        [TENSOR_Q3_K] = {.name = "Q3_K", .block_values = 256, .block_bytes = 110, .host_bits = 4.5625, .gpu_bits = 8.5625},
        [TENSOR_Q4_K] = {.name = "Q4_K", .block_values = 256, .block_bytes = 144, .host_bits = 4.625, .gpu_bits = 4.625},
        [TENSOR_Q5_K] = {.name = "Q5_K", .block_values = 256, .block_bytes = 176, .host_bits = 8.625, .gpu_bits = 8.625},
        [TENSOR_Q6_K] = {.name = "Q6_K", .block_values = 256, .block_bytes = 210, .host_bits = 8.5625, .gpu_bits = 8.5625},
        [TENSOR_Q8_K] = {.name = "Q8_K", .block_values = 256, .block_bytes = 292, .host_bits = 9, .gpu_bits = 16},
        [TENSOR_IQ4_NL] = {.name = "IQ4_NL", .block_values = 32, .block_bytes = 18, .host_bits = 8.5, .gpu_bits = 8.5},
        [TENSOR_IQ4_XS] = {.name = "IQ4_XS", .block_values = 256, .block_bytes = 136, .host_bits = 8.3125, .gpu_bits = 8.5625},
        [TENSOR_BF16] = {.name = "BF16", .block_values = 1, .block_bytes = 2, .host_bits = 16, .gpu_bits = 16},
        [TENSOR_MXFP4] = {.name = "MXFP4", .block_values = 32, .block_bytes = 17, .host_bits = 9, .gpu_bits = 16},
    };
    return type < sizeof infos / sizeof infos[0] && infos[type].name ? &infos[type] : NULL;
}

#endif
