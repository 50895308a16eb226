#!/bin/sh
# headers.sh: a header compiles alone.
set -u
bad=0
build=${FD_BUILD:-build}
for header in $(find common kernels services -name '*.h' ! -name '*lanes*' ! -name '*_body.h' | sort); do
    # tests/cuda/include: of CUDA's runtime, for where there is none
    if ! gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -I. -I"$build/gen" -Itests/cuda/include -fsyntax-only -x c "$header" 2>/tmp/header.$$ ; then
        echo "$header does not compile alone:"
        cat /tmp/header.$$
        bad=1
    fi
done
rm -f /tmp/header.$$
exit $bad
