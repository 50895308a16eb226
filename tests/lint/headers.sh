#!/bin/sh
# headers.sh: a header compiles alone. Those of lanes are compiled as an *_avx2.c compiles them; gemm_lanes.h and its parts, those of one
# instruction set too, are the body of such a file, and need the types that it defines. lanes_*.h are parts of lanes.h.
set -u
bad=0
build=${FD_BUILD:-build}
for header in $(find common kernels services -name '*.h' ! -name 'gemm_*lanes.h' ! -name 'gemm_*_avx512.h' ! -name 'gemm_*_neon.h' ! -name '*_body.h' ! -name 'lanes_*.h' | sort); do
    set --
    case $header in *lanes.h) set -- -mavx2 -mfma -mf16c '-DNAME(op)=op##_avx2' -Wno-unused ;; esac
    # tests/cuda/include: of CUDA's runtime, for where there is none
    if ! gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -I. -I"$build/gen" -Itests/cuda/include "$@" -fsyntax-only -x c "$header" 2>/tmp/header.$$ ; then
        echo "$header does not compile alone:"
        cat /tmp/header.$$
        bad=1
    fi
done
rm -f /tmp/header.$$
exit $bad
