// attention_store_avx512.c: attention_store_lanes.h built for AVX-512.
#define NAME(op) op##_avx512
#include "kernels/attention/attention_store_lanes.h"
