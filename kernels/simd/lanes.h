// lanes.h: 16 virtual f32 lanes, so that AVX2, AVX-512 and NEON give the same bits.
//
// A float sum depends on its order. So the order is fixed here, once, for a machine of 16 lanes: one __m512, two __m256 or four
// float32x4_t. A kernel body is written once against these operations in a header (foo_lanes.h) and included by a file for each
// instruction set (foo_avx2.c, foo_avx512.c, foo_neon.c), which is compiled with its own flags. Each operation below is exactly
// rounded (IEEE) or a fixed sequence of such operations, so all builds agree in every bit, NaN payloads and signs excepted. Fused
// multiply-adds happen only where lanes_fma() says so: the project is built with -ffp-contract=off.
//
//     lanes_sum, the fixed tree:   16 ──▶ 8 (i + i+8) ──▶ 4 (i + i+4) ──▶ 2 (i + i+2) ──▶ 1 (0 + 1)
//
// Types: lanes (16 f32), lanes_i (16 i32), lanes_s8 (16 bytes). Loads and stores need no alignment. Operations whose names say all
// (lanes_set1, lanes_load, lanes_store, lanes_add, sub, mul, div; with _i on integers) are not listed:
//
//     lanes_load_tail(p, n)          touches only n elements, 0 <= n <= 16; the others read 0. lanes_store_tail(p, x, n) likewise
//     lanes_fill_tail(x, n, fill)    lanes n and above become fill (-inf before a max); lanes_fill_head: those below n
//     lanes_fma(a, b, c)             a * b + c, rounded once; lanes_fnma: c - a * b
//     lanes_max(a, b), lanes_min     b where a or b is NaN: lanes_max(x, best) skips a NaN in x. Of two zeros b, too
//     lanes_round(x)                 to nearest even
//     lanes_to_i(x)                  to nearest even; NaN and what does not fit become INT32_MIN
//     lanes_load_f16, _bf16          16 halves as f32; lanes_store_f16 rounds to nearest even
//     lanes_load_s8, _u8             16 bytes as f32
//     lanes_equal_bits(a, b)         bit i is set where a[i] == b[i] (false for NaN)
//     lanes_swap_pairs(a)            lanes 1, 0, 3, 2, 5, 4, ...
//     lanes_sum(a), lanes_max_all(a) the fixed tree; no lane may be NaN for the largest
//     lanes_sum_i, lanes_max_all_u   the same of integers; the largest is that of unsigned ones
//     lanes_two_largest(a, b)        the two largest of 32 unsigned words, equal ones counted as two
//     lanes_to_s8(a)                 the low 8 bits of each lane, whose values must lie in -128..127; lanes_store_s8, lanes_sum_s8
//     lanes_first(a)                 lane 0
//     lanes_spread(p)                the float at p in all lanes, by a load of its own: gcc would copy it, on a port that multiplies
//     lanes_f16_down(x), lanes_f16_up(x)  one finite value within ±65504 as f16, rounded down or up
//
// Words of four bytes, or of two halves of 16 bits:
//
//     lanes_load_i(p), lanes_store_i 16 words
//     lanes_srl_i(a, bits)           shifts each word right; lanes_sra_i with its sign; lanes_sll_i left
//     lanes_srl_16(a, bits)          shifts each half right; lanes_sra_16 with its sign; lanes_sll_16 left
//     lanes_add_pairs(sum, a, b)     sum + low half of a * that of b + high half of a * that of b, signed
//     lanes_dot_u8s8(sum, a, b)      sum + the four products of a's unsigned and b's signed bytes, if LANES_DOT_U8S8 is defined
//     lanes_dot_s8(sum, a, b)        the same of signed bytes, if LANES_DOT_S8 is defined
//     lanes_pack_pairs(a)            in each four lanes: the low halves of 0, 2, 1, 3, then zeros
//     lanes_pack_bytes(a)            in each four lanes: the lowest bytes of 0, 1, 2, 3, then their second bytes, then zeros
//
// Include only from a file that is compiled with the flags of its instruction set.
#ifndef FD_KERNELS_SIMD_LANES_H
#define FD_KERNELS_SIMD_LANES_H

#include <stdint.h>

#define LANES 16
#define LANES_INLINE static inline __attribute__((always_inline, unused))
// For a function that many instances of a template share: it is compiled once, because inlining it would multiply compile time.
#define LANES_APART static __attribute__((noinline, unused))

// The two largest of some magnitudes.
struct lanes_two {
    float first, second;
};

// Prefetches the 64 bytes at `at` into the L2 cache; L1 can have only a few lines outstanding. Share of read bandwidth measured for
// attention of one line at head_dim 64: 0.78 into L2, 0.44 into L1, 0.47 without prefetch; for 4-bit products of one row on Zen 4: 0.90
// into L2, 0.62 into L1.
LANES_INLINE void lanes_prefetch(const void *at) { __builtin_prefetch(at, 0, 2); }

#if defined(__AVX512F__)
#include "kernels/simd/lanes_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "kernels/simd/lanes_avx2.h"
#elif defined(__aarch64__)
#include "kernels/simd/lanes_neon.h"
#else
#error "lanes.h needs the flags of a file of an instruction set (*_avx2.c, *_avx512.c, *_vnni.c, *_neon.c)"
#endif

LANES_INLINE lanes lanes_zero(void) { return lanes_set1(0.0f); }

// e^x = 2^n * e^r with n = round(x / ln 2), |r| <= 0.3466, and e^r by Taylor's series to r^7 (the rest is below 6e-9). ln 2
// is split in two so that n * (its upper part) is exact. Returns e^r.
LANES_INLINE lanes lanes_exp_fraction(lanes x, lanes_i *exponent)
{
    lanes n = lanes_round(lanes_mul(x, lanes_set1(0x1.715476p+0f)));
    lanes r = lanes_fnma(n, lanes_set1(0x1.62e4p-1f), x);
    r = lanes_fnma(n, lanes_set1(0x1.7f7d1cp-20f), r);
    lanes p = lanes_set1(1.0f / 5040.0f);
    p = lanes_fma(p, r, lanes_set1(1.0f / 720.0f));
    p = lanes_fma(p, r, lanes_set1(1.0f / 120.0f));
    p = lanes_fma(p, r, lanes_set1(1.0f / 24.0f));
    p = lanes_fma(p, r, lanes_set1(1.0f / 6.0f));
    p = lanes_fma(p, r, lanes_set1(0.5f));
    p = lanes_fma(p, r, lanes_set1(1.0f));
    p = lanes_fma(p, r, lanes_set1(1.0f));
    *exponent = lanes_to_i(n);
    return p;
}

// e^x within 2 ulp; 0 below -104, +inf above 89, denormal results right, NaN stays NaN. 2^n is applied as two factors, because n
// reaches 129 and -150.
LANES_INLINE lanes lanes_exp(lanes x)
{
    lanes_i exponent;
    lanes p = lanes_exp_fraction(lanes_min(lanes_set1(89.0f), lanes_max(lanes_set1(-104.0f), x)), &exponent);
    lanes_i half = lanes_sra_i(exponent, 1);
    lanes_i rest = lanes_sub_i(exponent, half);
    lanes_i bias = lanes_set1_i(127);
    p = lanes_mul(p, lanes_as_f(lanes_sll_i(lanes_add_i(half, bias), 23)));
    return lanes_mul(p, lanes_as_f(lanes_sll_i(lanes_add_i(rest, bias), 23)));
}

// tanh(x) within 2e-7 of it; NaN stays NaN.
LANES_INLINE lanes lanes_tanh(lanes x)
{
    lanes one = lanes_set1(1.0f), e = lanes_exp(lanes_add(x, x));
    return lanes_sub(one, lanes_div(lanes_set1(2.0f), lanes_add(e, one)));
}

#endif
