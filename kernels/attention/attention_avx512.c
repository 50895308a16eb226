/* attention_avx512.c: attention_lanes.h built for AVX-512. */
#define NAME(op) op##_avx512
#include "kernels/attention/attention_lanes.h"
