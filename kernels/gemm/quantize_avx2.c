// quantize_avx2.c: quantize_lanes.h built for AVX2.
#define QUANTIZE_NAME quantize_rows_avx2
#include "kernels/gemm/quantize_lanes.h"
