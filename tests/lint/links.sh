#!/bin/sh
# links.sh: what a page links to within the repository is there.
set -u
cd "$(dirname "$0")/../.." || exit 1
bad=0
for page in $(git ls-files '*.md'); do
    folder=$(dirname "$page")
    # shellcheck disable=SC2013  # names have no blanks
    for target in $(grep -oE '\]\([^)]+\)' "$page" | sed -E 's/^\]\(//; s/\)$//; s/#.*//' | grep -vE '^(https?:|$)' | sort -u); do
        if [ ! -e "$folder/$target" ]; then
            echo "$page links to $target, which is not there"
            bad=1
        fi
    done
done
exit $bad
