// attention_neon.c: attention_lanes.h built for NEON: elements f16, bf16 and f32.
#define NAME(op) op##_neon
#include "kernels/attention/attention_lanes.h"
