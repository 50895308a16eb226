/* gemm_vnni.c: the GEMM with vpdpbusd: 64 products of unsigned and signed bytes, summed by fours into 16 lanes, exactly. */
#include "kernels/dispatch/lanes.h"
#include "kernels/gemm/gemm.h"

#define GEMM_NAME gemm_vnni
#define GEMM_ROWS 8
#define GEMM_WIDE_BYTES 1

typedef __m512i quad;
typedef __m512i counts;

/* Loaded once for both nibbles: without the barrier the compiler folds the load into each use. */
LANES_INLINE quad quad_load(const uint8_t *p)
{
    quad a = _mm512_loadu_si512(p);
    __asm__("" : "+v"(a));
    return a;
}
LANES_INLINE quad quad_and_0f(quad a) { return _mm512_and_si512(a, _mm512_set1_epi8(0x0f)); }
LANES_INLINE quad quad_shift_4(quad a) { return _mm512_srli_epi16(a, 4); }
LANES_INLINE counts counts_zero(void) { return _mm512_setzero_si512(); }
/* By hand, because compilers do not fold the broadcast into the instruction. */
LANES_INLINE counts counts_add(counts a, quad w, const int8_t *x)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(a) : "v"(w), "m"(*(const int8_t(*)[4])x));
    return a;
}
LANES_INLINE lanes_i counts_finish(counts a) { return a; }

#include "kernels/gemm/gemm_lanes.h"
