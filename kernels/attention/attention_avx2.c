// attention_avx2.c: attention_lanes.h built for AVX2: elements f16, bf16 and f32.
#define NAME(op) op##_avx2
#include "kernels/attention/attention_lanes.h"
