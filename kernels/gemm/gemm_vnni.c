// gemm_vnni.c: the GEMM with vpdpbusd: 64 products of unsigned and signed bytes, summed by fours into 16 lanes, exactly.
//
// One row is bound by memory, and there AVX2 is faster: measured on one machine, with Zen 4, where 512-bit code runs so far ahead of memory
// that the core drops prefetches. It reads 31 GB/s where this file reads 23 to 29, and whole steps of one row take 0.8 times the time.
// GEMM_ONE_ROW is that choice, for all machines. bench_gemm at one row, with and without it, shows whether it is right for another one.
#include <stdbool.h>

#include "kernels/simd/lanes.h"
#include "kernels/gemm/gemm.h"

#define GEMM_NAME gemm_vnni
#define GEMM_ROWS 8
#define GEMM_FLOAT_ROWS 12
#define GEMM_ONE_ROW gemm_avx2
#define GEMM_TILES 2
#define GEMM_WIDE_BYTES 1

typedef __m512i quad;
typedef __m512i counts;

// The asm keeps the value in a register for both nibbles; without it gcc loads it at each use.
LANES_INLINE quad quad_load(const uint8_t *p)
{
    quad a = _mm512_loadu_si512(p);
    __asm__("" : "+v"(a));
    return a;
}
LANES_INLINE quad quad_and_0f(quad a) { return _mm512_and_si512(a, _mm512_set1_epi8(0x0f)); }
LANES_INLINE quad quad_shift_4(quad a) { return _mm512_srli_epi16(a, 4); }
LANES_INLINE counts counts_from(int32_t i) { return _mm512_set1_epi32(i); }
LANES_INLINE quad quad_spread(const int8_t *x)
{
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}
LANES_INLINE counts counts_add(counts a, quad w, quad x) { return _mm512_dpbusd_epi32(a, w, x); }
LANES_INLINE counts counts_keep(counts a) { return a; } // gcc leaves the order of vpdpbusd as it is
LANES_INLINE lanes_i counts_finish(counts a) { return a; }
typedef quad bytes;
LANES_INLINE bytes bytes_load(const uint8_t *p) { return quad_load(p); }
LANES_INLINE lanes_i bytes_start(int32_t bias) { return counts_from(bias); }
LANES_INLINE lanes_i bytes_add(lanes_i a, bytes w, quad x) { return counts_add(a, w, x); }
// A table of the 16 products. The look-up reads only the low four bits of each word, so it masks, converts and multiplies at once.
typedef __m512 products;
LANES_INLINE products nibble_products(float x, bool bias)
{
    __m512 n = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mul_ps(_mm512_sub_ps(n, _mm512_set1_ps(bias ? 8 : 0)), _mm512_set1_ps(x));
}
LANES_INLINE lanes pick_product(const uint8_t *line, const uint32_t *shift, products table)
{
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_loadu_si512(line), _mm512_set1_epi32((int32_t)*shift)), table);
}
LANES_INLINE lanes pick_byte(const uint8_t *line, const uint32_t *shift)
{
    __m512i word = _mm512_srlv_epi32(_mm512_loadu_si512(line), _mm512_set1_epi32((int32_t)*shift));
    return _mm512_cvtepi32_ps(_mm512_and_si512(word, _mm512_set1_epi32(255)));
}

#include "kernels/gemm/gemm_lanes.h"
