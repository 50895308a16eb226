#!/bin/sh
# pack.sh [BUILD [OUT]]: what `make bench-gpu` and `make check-gpu`'s programs need on a machine with a GPU that reaches no registry: programs
# without debug information, the shared libraries that they use (without the C library's and CUDA's: those are the machine's), and
# pytest, which is plain Python. OUT (build-gpu) is laid out as a build is: copy it, or BUILD/bench-gpu.tar.xz with it, beside the sources
# there, then
#
#     make bench-gpu BUILD=build-gpu        or, without make: tests/bench/gpu/bench_gpu.sh build-gpu - python3
set -eu
build=${1:-build}
out=${2:-build-gpu}
if [ ! -x "$build/tests/gpu/bench_gpu" ]; then
    echo "pack.sh: there is no $build/tests/gpu/bench_gpu: make bench-gpu-programs" >&2
    exit 1
fi
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/site" "$out/tests/gpu" "$out/tests/bench"
cp "$build"/bin/* "$out/bin/"
cp "$build"/tests/gpu/* "$out/tests/gpu/"
cp "$build/tests/bench/bench_machine" "$out/tests/bench/"
strip "$out"/bin/* "$out"/tests/*/*
for program in "$out"/bin/* "$out"/tests/*/*; do
    ldd "$program"
done | sed -nE 's/.*=> (\/[^ ]+) .*/\1/p' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*|libcublas[^/]*|libcuda[^/]*|libnv[^/]*)\.so' |
    while read -r library; do
        cp -L "$library" "$out/lib/"
    done
for module in pytest _pytest pluggy iniconfig packaging; do
    found=$(find "$build"/venv/lib/python*/site-packages -maxdepth 1 -name "$module" 2>/dev/null | head -n 1)
    [ -z "$found" ] || cp -r "$found" "$out/site/"
done
[ -d "$out/site/pytest" ] || echo "pack.sh: no pytest in $build/venv (make venv): the other machine needs its own" >&2
tar -C "$(dirname "$out")" -cJf "$build/bench-gpu.tar.xz" "$(basename "$out")"
du -sh "$out" "$build/bench-gpu.tar.xz" | sed 's/\t/ in /'
