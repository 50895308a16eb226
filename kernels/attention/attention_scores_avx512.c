// attention_scores_avx512.c: attention_scores_lanes.h and attention_choose_body.h built for AVX-512.
#define NAME(op) op##_avx512
#include "kernels/attention/attention_choose_body.h"
#include "kernels/attention/attention_scores_lanes.h"
