#!/bin/sh
# words.sh: nothing promises work that is not done; no tracked file is large; shell scripts are clean.
set -u
bad=0
if git grep -nE '\b(TODO|FIXME|XXX|HACK)\b|[Nn]ot implemented' -- '*.c' '*.h' '*.cu' '*.py' Makefile README.md ':!tests/lint'; then
    echo "words that promise work not done"
    bad=1
fi
large=$(git ls-files -z | xargs -0 -r du -k 2>/dev/null | awk '$1 > 1024')
if [ -n "$large" ]; then
    echo "tracked files over 1 MB: $large"
    bad=1
fi
git ls-files -z '*.sh' .ci/run | xargs -0 -r shellcheck -x || bad=1
exit $bad
