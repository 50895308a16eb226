// lanes.h: 16 virtual f32 lanes, so that AVX2 and AVX-512 give the same bits.
//
// A float sum depends on its order. So the order is fixed here, once, for a machine of 16 lanes: one __m512, or two
// __m256 (lo = lanes 0..7, hi = lanes 8..15). A kernel body is written once against these operations in a header
// (foo_lanes.h) and included by foo_avx2.c and foo_avx512.c, which are compiled with their own flags. Each operation below
// is exactly rounded (IEEE) or a fixed sequence of such operations, so both builds agree in every bit, NaN payloads
// excepted. Fused multiply-adds happen only where lanes_fma() says so: the project is built with -ffp-contract=off.
//
//     lanes_sum, the fixed tree:   16 ──▶ 8 (i + i+8) ──▶ 4 (i + i+4) ──▶ 2 (i + i+2) ──▶ 1 (0 + 1)
//
// Tails: lanes_load_tail(p, n) touches only n elements, 0 <= n <= 16, and the others read 0; lanes_fill_tail() gives them
// another value (-inf before a max), lanes_fill_head() the first n. Loads and stores need no alignment.
//
// Include only from a file that is compiled with the flags of *_avx2.c, *_avx512.c or *_vnni.c.
#ifndef FD_KERNELS_SIMD_LANES_H
#define FD_KERNELS_SIMD_LANES_H

#include <immintrin.h>
#include <stdint.h>

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "lanes.h needs the flags of an ISA file (*_avx2.c, *_avx512.c, *_vnni.c)"
#endif

#define LANES 16
#define LANES_INLINE static inline __attribute__((always_inline, unused))
// For a function that many instances of a template share: it is compiled once, because inlining it would multiply compile time.
#define LANES_APART static __attribute__((noinline, unused))

// Prefetches the 64 bytes at `at` into the L2 cache; L1 can have only a few lines outstanding. Share of read bandwidth measured for
// attention of one line at head_dim 64: 0.78 into L2, 0.44 into L1, 0.47 without prefetch; for 4-bit products of one row on Zen 4: 0.90
// into L2, 0.62 into L1.
LANES_INLINE void lanes_prefetch(const void *at) { _mm_prefetch((const char *)at, _MM_HINT_T1); }

#if defined(__AVX512F__)

typedef __m512 lanes; // 16 f32
typedef __m512i lanes_i; // 16 i32

#define LANES_MAP1(op, a) _mm512_##op(a)
#define LANES_MAP2(op, a, b) _mm512_##op(a, b)
#define LANES_MAP3(op, a, b, c) _mm512_##op(a, b, c)

LANES_INLINE __mmask16 lanes_tail_mask(uint32_t n) { return (__mmask16)((1u << n) - 1u); }
LANES_INLINE lanes lanes_set1(float x) { return _mm512_set1_ps(x); }
LANES_INLINE lanes_i lanes_set1_i(int32_t x) { return _mm512_set1_epi32(x); }
LANES_INLINE lanes lanes_load(const float *p) { return _mm512_loadu_ps(p); }
LANES_INLINE void lanes_store(float *p, lanes x) { _mm512_storeu_ps(p, x); }
LANES_INLINE lanes lanes_load_tail(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps(lanes_tail_mask(n), p); }
LANES_INLINE void lanes_store_tail(float *p, lanes x, uint32_t n) { _mm512_mask_storeu_ps(p, lanes_tail_mask(n), x); }
// Lanes n and above become fill.
LANES_INLINE lanes lanes_fill_tail(lanes x, uint32_t n, float fill)
{
    return _mm512_mask_mov_ps(_mm512_set1_ps(fill), lanes_tail_mask(n), x);
}
// Lanes below n become fill.
LANES_INLINE lanes lanes_fill_head(lanes x, uint32_t n, float fill)
{
    return _mm512_mask_mov_ps(x, lanes_tail_mask(n), _mm512_set1_ps(fill));
}
LANES_INLINE lanes lanes_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
LANES_INLINE lanes lanes_load_f16_tail(const uint16_t *p, uint32_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes_tail_mask(n), p));
}
// Round to nearest even.
LANES_INLINE void lanes_store_f16(uint16_t *p, lanes x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LANES_INLINE lanes lanes_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
// 16 signed or unsigned bytes as f32.
LANES_INLINE lanes lanes_load_s8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
LANES_INLINE lanes lanes_load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
LANES_INLINE lanes lanes_from_i(lanes_i x) { return _mm512_cvtepi32_ps(x); }
// Round to nearest even; NaN and what does not fit become INT32_MIN.
LANES_INLINE lanes_i lanes_to_i(lanes x) { return _mm512_cvtps_epi32(x); }
LANES_INLINE lanes lanes_round(lanes x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
LANES_INLINE lanes_i lanes_add_i(lanes_i a, lanes_i b) { return _mm512_add_epi32(a, b); }
LANES_INLINE lanes_i lanes_sub_i(lanes_i a, lanes_i b) { return _mm512_sub_epi32(a, b); }
LANES_INLINE lanes_i lanes_sra_i(lanes_i a, int bits) { return _mm512_srai_epi32(a, (unsigned)bits); }
LANES_INLINE lanes_i lanes_sll_i(lanes_i a, int bits) { return _mm512_slli_epi32(a, (unsigned)bits); }
LANES_INLINE lanes lanes_as_f(lanes_i a) { return _mm512_castsi512_ps(a); }
LANES_INLINE lanes_i lanes_as_i(lanes a) { return _mm512_castps_si512(a); }
LANES_INLINE lanes_i lanes_and_i(lanes_i a, lanes_i b) { return _mm512_and_si512(a, b); }
LANES_INLINE lanes_i lanes_max_u(lanes_i a, lanes_i b) { return _mm512_max_epu32(a, b); }
LANES_INLINE lanes_i lanes_min_u(lanes_i a, lanes_i b) { return _mm512_min_epu32(a, b); }
// Bit i is set where a[i] == b[i] (false for NaN).
LANES_INLINE uint32_t lanes_equal_bits(lanes a, lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
// Lanes 1, 0, 3, 2, 5, 4, ...
LANES_INLINE lanes lanes_swap_pairs(lanes a) { return _mm512_permute_ps(a, 0xb1); }
// The low 8 bits of each lane, 16 bytes; the values must lie in -128..127.
LANES_INLINE __m128i lanes_to_s8(lanes_i a) { return _mm512_cvtepi32_epi8(a); }
LANES_INLINE __m256 lanes_lo(lanes a) { return _mm512_castps512_ps256(a); }
LANES_INLINE __m256 lanes_hi(lanes a) { return _mm512_extractf32x8_ps(a, 1); }
LANES_INLINE __m256i lanes_lo_i(lanes_i a) { return _mm512_castsi512_si256(a); }
LANES_INLINE __m256i lanes_hi_i(lanes_i a) { return _mm512_extracti64x4_epi64(a, 1); }

#else // two __m256

typedef struct {
    __m256 lo, hi;
} lanes; // 16 f32
typedef struct {
    __m256i lo, hi;
} lanes_i; // 16 i32

#define LANES_MAP1(op, a) ((lanes){_mm256_##op((a).lo), _mm256_##op((a).hi)})
#define LANES_MAP2(op, a, b) ((lanes){_mm256_##op((a).lo, (b).lo), _mm256_##op((a).hi, (b).hi)})
#define LANES_MAP3(op, a, b, c) ((lanes){_mm256_##op((a).lo, (b).lo, (c).lo), _mm256_##op((a).hi, (b).hi, (c).hi)})

LANES_INLINE __m256i lanes_tail_mask_half(int32_t n) // lanes below n of eight
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
LANES_INLINE lanes lanes_set1(float x) { return (lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LANES_INLINE lanes_i lanes_set1_i(int32_t x) { return (lanes_i){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LANES_INLINE lanes lanes_load(const float *p) { return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LANES_INLINE void lanes_store(float *p, lanes x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
// A masked-out element is never touched, so p + 8 may lie beyond the array, as an address only.
LANES_INLINE lanes lanes_load_tail(const float *p, uint32_t n)
{
    lanes x = {_mm256_maskload_ps(p, lanes_tail_mask_half((int32_t)n)), _mm256_setzero_ps()};
    if (n > 8)
        x.hi = _mm256_maskload_ps(p + 8, lanes_tail_mask_half((int32_t)n - 8));
    return x;
}
LANES_INLINE void lanes_store_tail(float *p, lanes x, uint32_t n)
{
    _mm256_maskstore_ps(p, lanes_tail_mask_half((int32_t)n), x.lo);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, lanes_tail_mask_half((int32_t)n - 8), x.hi);
}
// Lanes n and above become fill.
LANES_INLINE lanes lanes_fill_tail(lanes x, uint32_t n, float fill)
{
    __m256 value = _mm256_set1_ps(fill);
    return (lanes){_mm256_blendv_ps(value, x.lo, _mm256_castsi256_ps(lanes_tail_mask_half((int32_t)n))),
                   _mm256_blendv_ps(value, x.hi, _mm256_castsi256_ps(lanes_tail_mask_half((int32_t)n - 8)))};
}
// Lanes below n become fill.
LANES_INLINE lanes lanes_fill_head(lanes x, uint32_t n, float fill)
{
    __m256 value = _mm256_set1_ps(fill);
    return (lanes){_mm256_blendv_ps(x.lo, value, _mm256_castsi256_ps(lanes_tail_mask_half((int32_t)n))),
                   _mm256_blendv_ps(x.hi, value, _mm256_castsi256_ps(lanes_tail_mask_half((int32_t)n - 8)))};
}
LANES_INLINE lanes lanes_load_f16(const uint16_t *p)
{
    return (lanes){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
LANES_INLINE lanes lanes_load_f16_tail(const uint16_t *p, uint32_t n)
{
    uint16_t padded[LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        padded[i] = p[i];
    return lanes_load_f16(padded);
}
// Round to nearest even.
LANES_INLINE void lanes_store_f16(uint16_t *p, lanes x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LANES_INLINE __m256 lanes_load_bf16_half(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
LANES_INLINE lanes lanes_load_bf16(const uint16_t *p) { return (lanes){lanes_load_bf16_half(p), lanes_load_bf16_half(p + 8)}; }
// 16 signed or unsigned bytes as f32.
LANES_INLINE lanes lanes_load_s8(const int8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
LANES_INLINE lanes lanes_load_u8(const uint8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
LANES_INLINE lanes lanes_from_i(lanes_i x) { return LANES_MAP1(cvtepi32_ps, x); }
// Round to nearest even; NaN and what does not fit become INT32_MIN.
LANES_INLINE lanes_i lanes_to_i(lanes x) { return (lanes_i){_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)}; }
LANES_INLINE lanes lanes_round(lanes x)
{
    return (lanes){_mm256_round_ps(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                   _mm256_round_ps(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
LANES_INLINE lanes_i lanes_add_i(lanes_i a, lanes_i b) { return (lanes_i){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
LANES_INLINE lanes_i lanes_sub_i(lanes_i a, lanes_i b) { return (lanes_i){_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
LANES_INLINE lanes_i lanes_sra_i(lanes_i a, int bits) { return (lanes_i){_mm256_srai_epi32(a.lo, bits), _mm256_srai_epi32(a.hi, bits)}; }
LANES_INLINE lanes_i lanes_sll_i(lanes_i a, int bits) { return (lanes_i){_mm256_slli_epi32(a.lo, bits), _mm256_slli_epi32(a.hi, bits)}; }
LANES_INLINE lanes lanes_as_f(lanes_i a) { return LANES_MAP1(castsi256_ps, a); }
LANES_INLINE lanes_i lanes_as_i(lanes a) { return (lanes_i){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
LANES_INLINE lanes_i lanes_and_i(lanes_i a, lanes_i b) { return (lanes_i){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
LANES_INLINE lanes_i lanes_max_u(lanes_i a, lanes_i b) { return (lanes_i){_mm256_max_epu32(a.lo, b.lo), _mm256_max_epu32(a.hi, b.hi)}; }
LANES_INLINE lanes_i lanes_min_u(lanes_i a, lanes_i b) { return (lanes_i){_mm256_min_epu32(a.lo, b.lo), _mm256_min_epu32(a.hi, b.hi)}; }
// Bit i is set where a[i] == b[i] (false for NaN).
LANES_INLINE uint32_t lanes_equal_bits(lanes a, lanes b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)) << 8;
}
// Lanes 1, 0, 3, 2, 5, 4, ...
LANES_INLINE lanes lanes_swap_pairs(lanes a) { return (lanes){_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)}; }
// The low 8 bits of each lane, 16 bytes; the values must lie in -128..127.
LANES_INLINE __m128i lanes_to_s8(lanes_i a)
{
    __m128i low = _mm_packs_epi32(_mm256_castsi256_si128(a.lo), _mm256_extracti128_si256(a.lo, 1));
    __m128i high = _mm_packs_epi32(_mm256_castsi256_si128(a.hi), _mm256_extracti128_si256(a.hi, 1));
    return _mm_packs_epi16(low, high);
}
LANES_INLINE __m256 lanes_lo(lanes a) { return a.lo; }
LANES_INLINE __m256 lanes_hi(lanes a) { return a.hi; }
LANES_INLINE __m256i lanes_lo_i(lanes_i a) { return a.lo; }
LANES_INLINE __m256i lanes_hi_i(lanes_i a) { return a.hi; }

#endif

LANES_INLINE lanes lanes_zero(void) { return lanes_set1(0.0f); }
LANES_INLINE lanes lanes_add(lanes a, lanes b) { return LANES_MAP2(add_ps, a, b); }
LANES_INLINE lanes lanes_sub(lanes a, lanes b) { return LANES_MAP2(sub_ps, a, b); }
LANES_INLINE lanes lanes_mul(lanes a, lanes b) { return LANES_MAP2(mul_ps, a, b); }
LANES_INLINE lanes lanes_div(lanes a, lanes b) { return LANES_MAP2(div_ps, a, b); }
// a * b + c, rounded once.
LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c) { return LANES_MAP3(fmadd_ps, a, b, c); }
// c - a * b, rounded once.
LANES_INLINE lanes lanes_fnma(lanes a, lanes b, lanes c) { return LANES_MAP3(fnmadd_ps, a, b, c); }
// Where a or b is NaN both give b: lanes_max(x, best) skips a NaN in x.
LANES_INLINE lanes lanes_max(lanes a, lanes b) { return LANES_MAP2(max_ps, a, b); }
LANES_INLINE lanes lanes_min(lanes a, lanes b) { return LANES_MAP2(min_ps, a, b); }

// The fixed tree of the head comment.
LANES_INLINE float lanes_sum(lanes a)
{
    __m256 eight = _mm256_add_ps(lanes_lo(a), lanes_hi(a));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// The largest lane. No lane may be NaN.
LANES_INLINE float lanes_max_all(lanes a)
{
    __m256 eight = _mm256_max_ps(lanes_lo(a), lanes_hi(a));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

LANES_INLINE void lanes_store_s8(int8_t *p, lanes_i a) { _mm_storeu_si128((__m128i *)p, lanes_to_s8(a)); } // 16 bytes

// The largest lane as unsigned.
LANES_INLINE uint32_t lanes_max_all_u(lanes_i a)
{
    __m256i eight = _mm256_max_epu32(lanes_lo_i(a), lanes_hi_i(a));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_max_epu32(four, _mm_srli_si128(four, 8));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_srli_si128(two, 4)));
}

LANES_INLINE int32_t lanes_sum_i(lanes_i a)
{
    __m256i eight = _mm256_add_epi32(lanes_lo_i(a), lanes_hi_i(a));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_add_epi32(four, _mm_srli_si128(four, 8));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_srli_si128(two, 4)));
}

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
