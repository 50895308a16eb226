// quantize_avx512.c: quantize_lanes.h built for AVX-512.
#define QUANTIZE_NAME quantize_rows_avx512
#include "kernels/gemm/quantize_lanes.h"
