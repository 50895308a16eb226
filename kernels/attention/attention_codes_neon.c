// attention_codes_neon.c: attention_lanes.h built for NEON: K and V as codes.
#define NAME(op) op##_neon
#define CODES
#include "kernels/attention/attention_lanes.h"
