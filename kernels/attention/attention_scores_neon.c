// attention_scores_neon.c: attention_scores_lanes.h and attention_choose_body.h built for NEON.
#define NAME(op) op##_neon
#include "kernels/attention/attention_choose_body.h"
#include "kernels/attention/attention_scores_lanes.h"
