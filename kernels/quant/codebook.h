// codebook.h: what the 4-bit codes of IQ4_NL, IQ4_XS and MXFP4 stand for, and MXFP4's scales.
#ifndef FD_KERNELS_QUANT_CODEBOOK_H
#define FD_KERNELS_QUANT_CODEBOOK_H

#include <stdint.h>

#include "kernels/simd/half.h"

// IQ4_NL and IQ4_XS: denser around zero, where most weights of a block lie.
static const int8_t codebook_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// MXFP4: the sixteen floats of a sign, two exponent bits and one of mantissa (0, 0.5, 1, 1.5, 2, 3, 4, 6), doubled to be integers.
static const int8_t codebook_mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Returns half of the scale 2^(exponent - 127), because codes are doubled: 2^(exponent - 128). Below 2^-126 that is a subnormal.
static inline float codebook_mxfp4_scale(uint8_t exponent)
{
    return f32_from_bits(exponent < 2 ? 0x00200000u << exponent : (uint32_t)(exponent - 1) << 23);
}

#endif
