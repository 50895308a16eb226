#!/bin/sh
# check_arm.sh [hashes]: AArch64's kernels and programs, built by a cross compiler and run by qemu-user: the kernel tests at their three levels, hashes of
# what the kernels compute beside those of this machine's AVX2, and a mesh's answer with the default model equal to this machine's.
#
# Needs the programs of this machine (make all venv model). BUILD, VENV: their folders. FD_SEED: which sample of the kernel tests. With `hashes`,
# which the gate runs, neither kernel tests nor a mesh.
# Exit status 77: it cannot be done here; the last line says why. check_arm.sh --item NAME is how it runs one of its items (below), many at a time.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build} venv=${VENV:-${BUILD:-build}/venv} jobs=${JOBS:-$(nproc)}
sysroot=$PWD/$build/sysroot-arm64 arm=$build/arm64 hashes=tests/kernels/kernel_hashes bad=0
unset FD_ALL # all cases of a test would take hours: the hashes have every kernel and type

# emulate CPU PROGRAM ARGUMENT...: runs a program of AArch64 on qemu's model of a processor
emulate() {
    cpu=$1
    shift
    FD_EMULATED=1 qemu-aarch64 -cpu "$cpu" -L "$sysroot" "$@"
}

# compare CPU LEVEL: a processor's best level is found, and what the kernels compute at it is what they compute here
compare() {
    emulate "$1" "$arm/tests/kernels/test_dispatch" || return 1
    emulate "$1" "$arm/$hashes" "$2" >"$arm/hashes-$2" || return 1
    diff "$arm/hashes-avx2" "$arm/hashes-$2" && echo "$(wc -l <"$arm/hashes-$2") hashes are equal to those of avx2"
}

# item NAME: one processor a level, or a test of kernels on `max`, which runs all levels
item() {
    case $1 in
    neon) compare cortex-a72 neon ;;
    dotprod) compare neoverse-n1 dotprod ;;
    i8mm) compare max i8mm ;;
    *) emulate max "$arm/tests/kernels/$1" ;;
    esac
}

if [ "${1:-}" = --item ]; then
    began=$(date +%s) status=0
    item "$2" >"$arm/$2.log" 2>&1 || status=1
    printf '== %s, %s s\n%s\n' "$2" $(($(date +%s) - began)) "$(cat "$arm/$2.log")"
    exit $status
fi

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

# The longest first.
tests="test_attention test_gemm test_attention_spans test_gemm_floats test_norm_rope test_stored_rows test_dispatch"
programs="$arm/$hashes $arm/tests/kernels/test_dispatch"
if [ "${1:-}" = hashes ]; then
    tests=
else
    programs="$programs all"
fi
for name in $tests; do
    programs="$programs $arm/tests/kernels/$name"
done
make "-j$jobs" --no-print-directory "$build/$hashes" BUILD="$build" || exit 1
# shellcheck disable=SC2086  # a list of files
make "-j$jobs" --no-print-directory CC=aarch64-linux-gnu-gcc BUILD="$arm" SYSROOT="$sysroot" $programs || exit 1

"$build/$hashes" avx2 >"$arm/hashes-avx2" || exit 1
# shellcheck disable=SC2086  # a list of words
printf '%s\n' neon dotprod i8mm $tests | BUILD=$build xargs -P "$jobs" -n 1 tests/arm/check_arm.sh --item || bad=1
if emulate neoverse-n1 "$arm/$hashes" i8mm 2>/dev/null; then
    echo "a level runs on a processor that lacks it"
    bad=1
fi

[ "${1:-}" != hashes ] || exit $bad

echo "== an answer"
FD_ARM_RUN="qemu-aarch64 -cpu max -L $sysroot" FD_ARM_BIN=$PWD/$arm/bin FD_BUILD=$build "$venv/bin/python" -m pytest -q tests/e2e/test_arm.py || bad=1
exit $bad
