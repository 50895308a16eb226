// attention_store_avx2.c: attention_store_lanes.h built for AVX2.
#define NAME(op) op##_avx2
#include "kernels/attention/attention_store_lanes.h"
