#!/bin/sh
# check_arm.sh: AArch64's kernels and programs, built by a cross compiler and run by qemu-user: the kernel tests at their three levels, hashes of
# what the kernels compute beside those of this machine's AVX2, and a mesh's answer with the default model equal to this machine's.
#
# Needs the programs of this machine (make programs venv model). BUILD, VENV: their folders. FD_SEED: which sample of the kernel tests.
# Exit status 77: it cannot be done here; the last line says why.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build} venv=${VENV:-${BUILD:-build}/venv} jobs=${JOBS:-$(nproc)}
sysroot=$PWD/$build/sysroot-arm64 arm=$build/arm64 bad=0
skip() {
    echo "AArch64 is not checked: $1"
    exit 77
}

[ "$(uname -m)" = x86_64 ] || skip "it is compared with AVX2, and this is no x86-64"
grep -qw avx2 /proc/cpuinfo || skip "it is compared with AVX2, which this machine does not have"
deploy/install-packages.sh arm || skip "the cross compiler and qemu cannot be installed"
tests/arm/sysroot.sh "$sysroot"
case $? in
0) ;;
77) skip "Debian's packages for arm64 cannot be had" ;;
*) exit 1 ;;
esac

kernels="dispatch gemm gemm_floats norm_rope stored_rows attention attention_spans"
hashes=tests/kernels/kernel_hashes
programs="$arm/$hashes"
for name in $kernels; do
    programs="$programs $arm/tests/kernels/test_$name"
done
make "-j$jobs" --no-print-directory "$build/$hashes" BUILD="$build" || exit 1
# shellcheck disable=SC2086  # a list of files
make "-j$jobs" --no-print-directory CC=aarch64-linux-gnu-gcc BUILD="$arm" SYSROOT="$sysroot" all $programs || exit 1

# run CPU PROGRAM ARGUMENT...: a program of AArch64 on qemu's model of a processor
run() {
    cpu=$1
    shift
    FD_EMULATED=1 qemu-aarch64 -cpu "$cpu" -L "$sysroot" "$@"
}

# One processor a level: what it has is found, and nothing else. `max` runs all levels.
for pair in cortex-a72:neon neoverse-n1:dotprod max:i8mm; do
    cpu=${pair%:*} level=${pair#*:}
    echo "== $level: what the kernels compute, beside avx2"
    "$build/$hashes" avx2 >"$arm/hashes-avx2" && run "$cpu" "$arm/$hashes" "$level" >"$arm/hashes-$level" &&
        diff "$arm/hashes-avx2" "$arm/hashes-$level" && echo "$(wc -l <"$arm/hashes-$level") are equal" || bad=1
    echo "== $level: test_dispatch"
    run "$cpu" "$arm/tests/kernels/test_dispatch" || bad=1
done
if run neoverse-n1 "$arm/$hashes" i8mm 2>/dev/null; then
    echo "a level runs on a processor that lacks it"
    bad=1
fi
for name in $kernels; do
    echo "== test_$name"
    run max "$arm/tests/kernels/test_$name" || bad=1
done

echo "== an answer"
FD_ARM_RUN="qemu-aarch64 -cpu max -L $sysroot" FD_ARM_BIN=$PWD/$arm/bin FD_BUILD=$build "$venv/bin/python" -m pytest -q tests/e2e/test_arm.py || bad=1
exit $bad
