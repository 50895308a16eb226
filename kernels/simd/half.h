// half.h: f16 and bf16 to and from f32 in plain C, for the ref level and for code outside of the ISA files.
#ifndef FD_KERNELS_SIMD_HALF_H
#define FD_KERNELS_SIMD_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Exact.
static inline float f16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 0x1fu, fraction = half & 0x3ffu;
    if (exponent == 0)
        return f32_from_bits(sign | f32_bits((float)fraction * 0x1p-24f));
    return f32_from_bits(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13);
}

// To nearest even; too large becomes infinity, NaN a quiet NaN.
static inline uint16_t f16_from_float(float x)
{
    uint32_t bits = f32_bits(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
    if (magnitude >= 0x477ff000u) // 65520 and above round to infinity
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { // below 2^-14: a multiple of 2^-24, which adding 0.5 rounds to
        float shifted = f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (f32_bits(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

// Rounded down. x is finite and within ±65504.
static inline uint16_t f16_down(float x)
{
    uint16_t bits = f16_from_float(x);
    if (f16_to_float(bits) <= x)
        return bits;
    return (uint16_t)(bits == 0 ? 0x8001 : bits & 0x8000 ? bits + 1 : bits - 1);
}

// Rounded up. x is finite and within ±65504.
static inline uint16_t f16_up(float x) { return f16_down(-x) ^ 0x8000u; }

// Exact.
static inline float bf16_to_float(uint16_t half) { return f32_from_bits((uint32_t)half << 16); }

// To nearest even; NaN a quiet NaN.
static inline uint16_t bf16_from_float(float x)
{
    uint32_t bits = f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

#endif
