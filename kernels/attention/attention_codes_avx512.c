// attention_codes_avx512.c: attention_lanes.h built for AVX-512: K and V as codes.
#define NAME(op) op##_avx512
#define CODES
#include "kernels/attention/attention_lanes.h"
