#!/bin/sh
# graph.sh: who may include and call whom. The rules and the reasons are in graph.py.
set -eu
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" tests/lint/graph.py "${FD_BUILD:-build}"
