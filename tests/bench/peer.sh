#!/bin/sh
# peer.sh: builds the peer that `make bench` measures against, llama.cpp's llama-server, outside of the tree, once; and writes the
# default model in the form that is fastest there (Q4_0).
#
#   tests/bench/peer.sh [MODEL.gguf]
#
# FD_PEER_CMAKE: how it is built instead of -DGGML_NATIVE=ON, for instance, for a peer without AVX-512 beside FD_ISA=avx2:
#     FD_PEER_CMAKE="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
# Into FD_PEER_DIR, else ${XDG_CACHE_HOME:-~/.cache}/fastdecode/peer. Takes about 20 minutes on two cores, 77 MB of download and
# 400 MB of disk; where FD_PEER_DIR/bin/llama-server is there already, only the model is written.
set -eu

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
model=${1:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
folder=${FD_PEER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/fastdecode/peer}

for tool in python3 cmake c++ tar sha256sum; do
    command -v "$tool" >/dev/null || { echo "peer.sh: $tool is needed (Debian: apt-get install python3-venv cmake g++)" >&2; exit 1; }
done
[ -f "$model" ] || { echo "peer.sh: no such file: $model (make model gets the default one)" >&2; exit 1; }
mkdir -p "$folder"

if [ ! -x "$folder/bin/llama-server" ] || [ ! -x "$folder/bin/llama-quantize" ]; then
    echo "peer.sh: building llama-server of llama-cpp-python $version in $folder; this takes about 20 minutes on two cores"
    archive="$folder/llama_cpp_python-$version.tar.gz"
    if ! echo "$sha256  $archive" | sha256sum --check --status 2>/dev/null; then
        python3 -m venv "$folder/venv"
        "$folder/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
            --dest "$folder" "llama-cpp-python==$version"
        echo "$sha256  $archive" | sha256sum --check --status || { echo "peer.sh: $archive is not what it should be" >&2; exit 1; }
    fi
    tar -xzf "$archive" -C "$folder"
    # shellcheck disable=SC2086 # options, split on purpose
    cmake -S "$folder/llama_cpp_python-$version/vendor/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
        ${FD_PEER_CMAKE:--DGGML_NATIVE=ON} -DLLAMA_BUILD_SERVER=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >"$folder/log"
    cmake --build "$folder/build" --target llama-server llama-quantize -j "$(nproc)" >>"$folder/log" 2>&1 ||
        { tail -n 30 "$folder/log" >&2; exit 1; }
    ln -sfn build/bin "$folder/bin"
fi

quantized="$folder/$(basename "$model" .gguf).requantized-Q4_0.gguf"
if [ ! -f "$quantized" ]; then
    "$folder/bin/llama-quantize" --allow-requantize "$model" "$quantized.part" Q4_0 >"$folder/quantize.log" 2>&1 ||
        { tail -n 10 "$folder/quantize.log" >&2; exit 1; }
    mv "$quantized.part" "$quantized"
fi
echo "peer.sh: ready: $folder/bin/llama-server, $quantized"
