#!/bin/sh
# format.sh: C is laid out as .clang-format says; `make format` does it. The vector headers (*lanes.h) are laid out by hand.
set -eu
cd "$(dirname "$0")/../.."
git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' ':!*lanes.h' | xargs clang-format --dry-run -Werror
