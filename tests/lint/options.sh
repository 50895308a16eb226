#!/bin/sh
# options.sh [--write]: docs/options.md is what the programs print for --help; --write makes it so.
set -eu
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" tests/lint/options.py "${FD_BUILD:-build}" "$@"
