// gemm_vnni.c: the GEMM with vpdpbusd: 64 products of unsigned and signed bytes, summed by fours into 16 lanes, exactly.
//
// One row is bound by memory, and there AVX2 is faster: measured on one machine, with Zen 4, where 512-bit code runs so far ahead of memory
// that the core drops prefetches. It reads 31 GB/s where this file reads 23 to 29, and whole steps of one row take 0.8 times the time.
// GEMM_ONE_ROW is that choice, for all machines. bench_gemm at one row, with and without it, shows whether it is right for another one.
#include <stdbool.h>

#include "kernels/gemm/gemm.h"
#include "kernels/simd/lanes.h"

#define GEMM_NAME gemm_vnni
#define GEMM_ROWS 8
#define GEMM_FLOAT_ROWS 12
#define GEMM_ONE_ROW gemm_avx2
#define GEMM_TILES 2
#define GEMM_WIDE_BYTES 1
#define WIDENED_LEAST 16u

#include "kernels/gemm/gemm_whole_avx512.h"

typedef __m512i counts;

LANES_INLINE counts counts_from(int32_t i) { return _mm512_set1_epi32(i); }
LANES_INLINE counts counts_add(counts a, quad w, quad x) { return _mm512_dpbusd_epi32(a, w, x); }

#include "kernels/gemm/gemm_lanes.h"
