// gemm_avx2.c: the GEMM on two halves of 8 outputs: vpmaddubsw sums two products into 16 bits, which are added up over 32
// inputs (at most 8 * 2 * 15 * 127 = 30,480, so nothing saturates) before one vpmaddwd widens them.
#include <stdbool.h>

#include "kernels/gemm/gemm.h"
#include "kernels/simd/lanes.h"

#define GEMM_NAME gemm_avx2
#define GEMM_ROWS 4
#define GEMM_FLOAT_ROWS 6
#define GEMM_TILES 1
#define GEMM_WIDE_BYTES 0
#define WIDENED_LEAST 16u

#include "kernels/gemm/gemm_quad_lanes.h"

typedef lanes_i counts;

LANES_INLINE counts counts_zero(void) { return lanes_set1_i(0); }
LANES_INLINE counts counts_add(counts a, quad w, quad x)
{
    a.lo = _mm256_add_epi16(a.lo, _mm256_maddubs_epi16(w.lo, x.lo));
    a.hi = _mm256_add_epi16(a.hi, _mm256_maddubs_epi16(w.hi, x.hi));
    return a;
}
LANES_INLINE counts counts_keep(counts a)
{
    __asm__("" : "+x"(a.lo), "+x"(a.hi));
    return a;
}
LANES_INLINE lanes_i counts_finish(counts a)
{
    __m256i ones = _mm256_set1_epi16(1);
    return (lanes_i){_mm256_madd_epi16(a.lo, ones), _mm256_madd_epi16(a.hi, ones)};
}
// An 8-bit weight is taken as its magnitude, at most 128, and x takes its sign. The sum of two products is at most 32,512, so it
// fits 16 bits until vpmaddwd widens it.
typedef struct {
    quad value, magnitude;
} bytes;
LANES_INLINE bytes bytes_load(const uint8_t *p)
{
    quad stored = quad_load(p);
    __m256i offset = _mm256_set1_epi8(-128);
    quad value = {_mm256_xor_si256(stored.lo, offset), _mm256_xor_si256(stored.hi, offset)};
    return (bytes){value, {_mm256_abs_epi8(value.lo), _mm256_abs_epi8(value.hi)}};
}
LANES_INLINE lanes_i bytes_start(int32_t bias)
{
    (void)bias;
    return lanes_set1_i(0);
}
LANES_INLINE lanes_i bytes_add(lanes_i a, bytes w, quad x)
{
    quad pairs = {_mm256_maddubs_epi16(w.magnitude.lo, _mm256_sign_epi8(x.lo, w.value.lo)),
                  _mm256_maddubs_epi16(w.magnitude.hi, _mm256_sign_epi8(x.hi, w.value.hi))};
    return counts_keep(lanes_add_i(a, counts_finish(pairs)));
}

#include "kernels/gemm/gemm_lanes.h"
