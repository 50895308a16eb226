// gemm_avx512.c: the GEMM without VNNI: vpmaddubsw sums two products into 16 bits, which are added up over 32 inputs
// (at most 8 * 2 * 15 * 127 = 30,480, so nothing saturates) before one vpmaddwd widens them.
#include <stdbool.h>

#include "kernels/gemm/gemm.h"
#include "kernels/simd/lanes.h"

#define GEMM_NAME gemm_avx512
#define GEMM_ROWS 4
#define GEMM_FLOAT_ROWS 12
#define GEMM_ONE_ROW gemm_avx2 // as in gemm_vnni.c, which says where it was measured
#define GEMM_TILES 1
#define GEMM_WIDE_BYTES 0
#define WIDENED_LEAST 16u

#include "kernels/gemm/gemm_whole_avx512.h"

typedef __m512i counts;

LANES_INLINE counts counts_zero(void) { return _mm512_setzero_si512(); }
LANES_INLINE counts counts_add(counts a, quad w, quad x) { return _mm512_add_epi16(a, _mm512_maddubs_epi16(w, x)); }
LANES_INLINE counts counts_keep(counts a)
{
    __asm__("" : "+v"(a));
    return a;
}
LANES_INLINE lanes_i counts_finish(counts a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
// An 8-bit weight is taken as its magnitude, at most 128, and x takes its sign. The sum of two products is at most 32,512, so it
// fits 16 bits until vpmaddwd widens it.
typedef struct {
    quad magnitude;
    __mmask64 negative;
} bytes;
LANES_INLINE bytes bytes_load(const uint8_t *p)
{
    quad value = _mm512_xor_si512(quad_load(p), _mm512_set1_epi8(-128));
    return (bytes){_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
}
LANES_INLINE lanes_i bytes_start(int32_t bias)
{
    (void)bias;
    return lanes_set1_i(0);
}
LANES_INLINE lanes_i bytes_add(lanes_i a, bytes w, quad x)
{
    x = _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x);
    return counts_keep(lanes_add_i(a, counts_finish(_mm512_maddubs_epi16(w.magnitude, x))));
}

#include "kernels/gemm/gemm_lanes.h"
