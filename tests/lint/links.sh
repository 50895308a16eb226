#!/bin/sh
# links.sh: links of pages, and the files, folders and functions that they name, are there (links.py).
set -eu
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" tests/lint/links.py
