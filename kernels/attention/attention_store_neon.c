// attention_store_neon.c: attention_store_lanes.h built for NEON.
#define NAME(op) op##_neon
#include "kernels/attention/attention_store_lanes.h"
