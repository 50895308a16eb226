#!/bin/sh
# mutants.sh: the code still has what each row of tests/mutants.py replaces.
set -eu
cd "$(dirname "$0")/../.."
exec tests/mutants.py --stale
