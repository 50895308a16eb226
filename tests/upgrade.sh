#!/bin/sh
# upgrade.sh REVISION: a mesh of another revision's programs is replaced by this tree's, one service after the other, under 64 streams
# (tests/e2e/test_scaling.py). Builds that revision in a folder of its own.
set -eu
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo "usage: upgrade.sh REVISION" >&2; exit 2; }
build=${BUILD:-build}
revision=$(git rev-parse --verify "$1^{commit}")
folder=$PWD/$build/upgrade-$revision
if [ ! -x "$folder/build/bin/fastdecode" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    git archive "$revision" | tar -x -C "$folder"
    make -C "$folder" --no-print-directory "-j$(nproc)" BUILD=build all
fi
FD_OLD_BIN=$folder/build/bin exec "$build/venv/bin/python" -m pytest -q -s tests/e2e/test_scaling.py -k replaced
