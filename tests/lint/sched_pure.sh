#!/bin/sh
# The scheduling core is pure: what its objects ask for from outside is memory, the assertion and nothing else. No clock,
# no I/O, no thread. usage: sched_pure.sh DIRECTORY-OF-OBJECTS (default: the core is compiled into a temporary one)
set -eu
cd "$(dirname "$0")/../.."
objects=${1:-}
if [ -z "$objects" ]; then
    objects=$(mktemp -d)
    trap 'rm -rf "$objects"' EXIT
    for file in common/sched/*.c; do
        ${CC:-gcc} -std=c11 -D_GNU_SOURCE -O2 -I. -c "$file" -o "$objects/$(basename "$file" .c).o"
    done
fi
set -- "$objects"/*.o
[ -e "$1" ] || { echo "sched_pure: no objects in $objects"; exit 1; }
defined=$(mktemp)
nm -g --defined-only "$@" | awk 'NF == 3 { print $3 }' | sort -u >"$defined"
allowed='^(memcpy|memset|memmove|memcmp|calloc|aligned_alloc|free|assert_failed|error_set|sqrt|exp|log|fabs|floor|ceil|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_|__(asan|ubsan|tsan|gcov)_.*|mcount)$'
foreign=$(nm -u "$@" | awk '$1 == "U" { print $2 }' | sort -u | comm -23 - "$defined" | grep -Ev "$allowed" || true)
rm -f "$defined"
if [ -n "$foreign" ]; then
    echo "sched_pure: the scheduling core may not use: $foreign"
    exit 1
fi
for object in "$@"; do
    case $object in
    */init.o) ;;
    *)
        if nm -u "$object" | grep -qwE 'calloc|malloc|realloc|aligned_alloc'; then
            echo "sched_pure: $object allocates; only sched_init() may"
            exit 1
        fi ;;
    esac
done
bad=$(grep -nE '#include "' common/sched/*.[ch] | grep -vE '"common/(sched/|base/(status|checked)\.h)' || true)
if [ -n "$bad" ]; then
    echo "sched_pure: the scheduling core includes more than status.h and checked.h:"
    echo "$bad"
    exit 1
fi
