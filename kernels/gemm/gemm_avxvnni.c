// gemm_avxvnni.c: the GEMM with the vpdpbusd of AVX-VNNI on two halves of 8 outputs: 32 products of unsigned and signed bytes, summed by
// fours into 8 lanes, exactly. Processors without AVX-512 have it (Alder Lake, Zen 5's small cores), so registers are 16 of 256 bits.
//
// One row is bound by memory, where the AVX2 code has been measured (gemm_vnni.c); GEMM_ONE_ROW takes it here too.
#include <stdbool.h>

#include "kernels/gemm/gemm.h"
#include "kernels/simd/lanes.h"

#define GEMM_NAME gemm_avxvnni
#define GEMM_ROWS 4
#define GEMM_FLOAT_ROWS 6
#define GEMM_ONE_ROW gemm_avx2
#define GEMM_TILES 1
#define GEMM_WIDE_BYTES 1
#define WIDENED_LEAST 16u

#include "kernels/gemm/gemm_quad_lanes.h"

typedef lanes_i counts;

LANES_INLINE counts counts_from(int32_t i) { return lanes_set1_i(i); }
LANES_INLINE counts counts_add(counts a, quad w, quad x)
{
    return (counts){_mm256_dpbusd_avx_epi32(a.lo, w.lo, x.lo), _mm256_dpbusd_avx_epi32(a.hi, w.hi, x.hi)};
}

#include "kernels/gemm/gemm_lanes.h"
