// quantize_neon.c: quantize_lanes.h built for NEON.
#define QUANTIZE_NAME quantize_rows_neon
#include "kernels/gemm/quantize_lanes.h"
