// attention_scores_avx512.c: attention_scores_lanes.h built for AVX-512.
#define NAME(op) op##_avx512
#include "kernels/attention/attention_scores_lanes.h"
