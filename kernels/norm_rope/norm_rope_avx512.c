// norm_rope_avx512.c: norm_rope_lanes.h built for AVX-512.
#define NAME(op) op##_avx512
#include "kernels/norm_rope/norm_rope_lanes.h"
