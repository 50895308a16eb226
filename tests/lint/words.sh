#!/bin/sh
# words.sh: nothing promises work that is not done; comments begin as sentences; initializers name their fields; no tracked file is large; shell
# scripts are clean.
set -u
bad=0
if git grep -nE '\b(TODO|FIXME|XXX|HACK)\b|[Nn]ot implemented' -- '*.c' '*.h' '*.cu' '*.py' Makefile README.md ':!tests/lint'; then
    echo "words that promise work not done"
    bad=1
fi
# A comment's first line must not begin with a word that hangs in the air. A line of `//` below one at the same column goes on with it.
# shellcheck disable=SC2016
git ls-files -z '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs -0 -r awk '
    BEGIN { opener = "(Of|Who|What|Where|Again|So)([^A-Za-z0-9_]|$)" }
    FNR == 1 { above = 0 }
    {
        at = match($0, /(^|[ \t])\/\/( |$)/) ? index(substr($0, RSTART), "//") + RSTART - 1 : 0
        follows = at && at == above && /^[ \t]*\/\//
        if ((at && !follows && substr($0, at) ~ "^// " opener) || $0 ~ "/[*] " opener) {
            print FILENAME ":" FNR ": " $0
            bad = 1
        }
        above = at
    }
    END { exit bad }' || { echo "comments that begin with Of, Who, What, Where, Again or So: say what the thing is or does"; bad=1; }
"${PYTHON:-python3}" tests/lint/initializers.py || bad=1
large=$(git ls-files -z | xargs -0 -r du -k 2>/dev/null | awk '$1 > 1024')
if [ -n "$large" ]; then
    echo "tracked files over 1 MB: $large"
    bad=1
fi
git ls-files -z '*.sh' .ci/run | xargs -0 -r shellcheck -x || bad=1
exit $bad
