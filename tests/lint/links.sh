#!/bin/sh
# links.sh: what a page links to within the repository, and each file that it names in `code`, is there. A name may be the end of a path.
set -u
cd "$(dirname "$0")/../.." || exit 1
bad=0
names=$(git ls-files | sed 's|^|/|')
for page in $(git ls-files '*.md'); do
    folder=$(dirname "$page")
    # shellcheck disable=SC2013  # names have no blanks
    for target in $(grep -oE '\]\([^)]+\)' "$page" | sed -E 's/^\]\(//; s/\)$//; s/#.*//' | grep -vE '^(https?:|$)' | sort -u); do
        if [ ! -e "$folder/$target" ]; then
            echo "$page links to $target, which is not there"
            bad=1
        fi
    done
    # shellcheck disable=SC2013,SC2016
    for file in $(grep -oE '`[A-Za-z0-9/][A-Za-z0-9_/.-]*\.(c|h|cu|cuh|py|proto)`' "$page" | tr -d '`' | sort -u); do
        [ -e "$file" ] || [ -e "$folder/$file" ] || printf '%s\n' "$names" | grep -q -- "/${file}\$" ||
            { echo "$page names $file, which is not there"; bad=1; }
    done
done
exit $bad
