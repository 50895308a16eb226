/* gemm_avx512.c: the GEMM without VNNI: vpmaddubsw sums two products into 16 bits, which are added up over 32 inputs
 * (at most 8 * 2 * 15 * 127 = 30,480, so nothing saturates) before one vpmaddwd widens them. */
#include "kernels/dispatch/lanes.h"
#include "kernels/gemm/gemm.h"

#define GEMM_NAME gemm_avx512
#define GEMM_ROWS 8
#define GEMM_WIDE_BYTES 0

typedef __m512i quad;
typedef __m512i counts;

LANES_INLINE quad quad_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
LANES_INLINE quad quad_and_0f(quad a) { return _mm512_and_si512(a, _mm512_set1_epi8(0x0f)); }
LANES_INLINE quad quad_shift_4(quad a) { return _mm512_srli_epi16(a, 4); }
LANES_INLINE counts counts_zero(void) { return _mm512_setzero_si512(); }
LANES_INLINE counts counts_add(counts a, quad w, const int8_t *x)
{
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm512_add_epi16(a, _mm512_maddubs_epi16(w, _mm512_set1_epi32(four)));
}
LANES_INLINE lanes_i counts_finish(counts a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }

#include "kernels/gemm/gemm_lanes.h"
