#!/bin/sh
# intrinsics.sh: vector types and intrinsics of a processor are only in kernels/simd and in files named after an instruction set; kernels' bodies
# (*_lanes.h) know lanes.h alone.
set -u
cd "$(dirname "$0")/../.." || exit 1
x86='\b_mm(256|512)?_[a-z]|\b__m(128|256|512)[id]?\b|\b__mmask(8|16|32|64)\b|<[a-z]*mmintrin\.h>|<cpuid\.h>'
arm='<arm_[a-z]+\.h>|\b(u?int|float|bfloat)(8|16|32|64)x[0-9]+(x[0-9])?_t\b|\bv[a-z0-9]+(_[a-z0-9]+)*_(s|u|f|bf)(8|16|32|64)\b'
if git grep -nE "$x86|$arm" -- 'common/*.[ch]' 'kernels/*.[ch]' 'services/*.[ch]' 'tests/*.[ch]' ':!kernels/simd' ':!kernels/cuda' ':!tests/bench' \
    ':!*_avx2.c' ':!*_avxvnni.c' ':!*_avx512.[ch]' ':!*_vnni.c' ':!*_neon.[ch]' ':!*_dotprod.c' ':!*_i8mm.c'; then
    echo "intrinsics outside of kernels/simd and the files of an instruction set"
    exit 1
fi
