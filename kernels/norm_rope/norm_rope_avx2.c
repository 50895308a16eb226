// norm_rope_avx2.c: norm_rope_lanes.h built for AVX2.
#define NAME(op) op##_avx2
#include "kernels/norm_rope/norm_rope_lanes.h"
