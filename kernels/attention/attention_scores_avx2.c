// attention_scores_avx2.c: attention_scores_lanes.h and attention_choose_body.h built for AVX2.
#define NAME(op) op##_avx2
#include "kernels/attention/attention_choose_body.h"
#include "kernels/attention/attention_scores_lanes.h"
