#!/bin/sh
# architectures.sh [--write]: the table of architectures in docs/models.md is what `fastdecode model --architectures` prints from the rows;
# --write makes it so.
set -eu
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" tests/lint/architectures.py "${FD_BUILD:-build}" "$@"
