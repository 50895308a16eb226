// attention_avx512.c: attention_lanes.h built for AVX-512: elements f16, bf16 and f32.
#define NAME(op) op##_avx512
#include "kernels/attention/attention_lanes.h"
