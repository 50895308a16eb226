#!/bin/sh
# bench_gpu.sh BUILD nvcc|- PYTHON [OPTION...]: what `make bench-gpu` runs: builds where that can be, then bench_gpu.py with the options.
# Without a GPU, or with neither nvcc nor programs that were built elsewhere, it says so and ends with 0. Asks no registry for anything:
# a package or a Python module that is missing is named.
set -eu
build=$1
nvcc=$2
python=$3
shift 3

if [ "$nvcc" = nvcc ]; then
    missing=$(for package in $(deploy/install-packages.sh --list build); do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || printf ' %s' "$package"
    done)
    if [ -n "$missing" ] && [ ! -x "$build/tests/gpu/bench_gpu" ]; then
        echo "bench-gpu: to build here these packages are missing:$missing (make packages-build; or build elsewhere: tests/bench/gpu/pack.sh)"
        exit 1
    fi
    [ -n "$missing" ] || make --no-print-directory BUILD="$build" bench-gpu-programs
elif [ ! -x "$build/tests/gpu/bench_gpu" ]; then
    echo "bench-gpu: no nvcc (CUDA_HOME=DIR says where the toolkit is), and no $build/tests/gpu/bench_gpu that was built elsewhere: nothing is measured"
    exit 0
fi
if [ -d "$build/lib" ]; then # of pack.sh
    folder=$(cd "$build" && pwd)
    export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PYTHONPATH="$folder/site${PYTHONPATH:+:$PYTHONPATH}"
fi
for candidate in "$build/venv/bin/python" "$python"; do
    if "$candidate" -c 'import pytest' 2>/dev/null; then
        exec "$candidate" tests/bench/bench_gpu.py --build "$build" --results tests/bench/results "$@"
    fi
done
echo "bench-gpu: $python has no pytest, which the mesh of the tests is made with: make venv, or tests/bench/gpu/pack.sh elsewhere"
exit 1
