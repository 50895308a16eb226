#!/bin/sh
# log_lines.sh: docs/log-lines.md has a row for each ID that is logged at level warn or error, under the services that can log it.
set -eu
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" tests/lint/log_lines.py
