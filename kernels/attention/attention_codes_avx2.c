// attention_codes_avx2.c: attention_lanes.h built for AVX2: K and V as codes.
#define NAME(op) op##_avx2
#define CODES
#include "kernels/attention/attention_lanes.h"
