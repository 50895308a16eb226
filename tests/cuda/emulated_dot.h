/* emulated_dot.h: the dot product of the emulated device: f32, each sum in one order, on every machine and for any number of rows, so that
 * what an end-to-end test sees does not hang on which rows happened to share a step. */
#ifndef FD_TESTS_CUDA_EMULATED_DOT_H
#define FD_TESTS_CUDA_EMULATED_DOT_H

#include <stdint.h>

typedef float emulated_quad __attribute__((vector_size(16), aligned(4), may_alias));

static inline float emulated_dot(const float *a, const float *b, uint32_t count)
{
    emulated_quad part[4] = {{0}};
    float sum = 0;
    uint32_t i = 0;
    for (; i + 16 <= count; i += 16) {
        part[0] += *(const emulated_quad *)(a + i) * *(const emulated_quad *)(b + i);
        part[1] += *(const emulated_quad *)(a + i + 4) * *(const emulated_quad *)(b + i + 4);
        part[2] += *(const emulated_quad *)(a + i + 8) * *(const emulated_quad *)(b + i + 8);
        part[3] += *(const emulated_quad *)(a + i + 12) * *(const emulated_quad *)(b + i + 12);
    }
    for (uint32_t lane = 0; lane < 16; lane++)
        sum += part[lane / 4][lane % 4];
    for (; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

#endif
