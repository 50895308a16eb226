// norm_rope_neon.c: norm_rope_lanes.h built for NEON.
#define NAME(op) op##_neon
#include "kernels/norm_rope/norm_rope_lanes.h"
