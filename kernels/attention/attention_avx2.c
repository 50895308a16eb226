/* attention_avx2.c: attention_lanes.h built for AVX2. */
#define NAME(op) op##_avx2
#include "kernels/attention/attention_lanes.h"
