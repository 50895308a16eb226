#!/bin/sh
# sched_rooms.sh: the scheduling core has rooms, each with its file and its parts of the state (common/sched/state.h lists them). A room may
# use those before it in the list below, never one behind it: neither its functions nor its state.
set -eu
cd "$(dirname "$0")/../.."

# file and the parts of struct sched that are its own, lowest first
rooms='
lengths
slots ids outbox queue
batch batches
place places moves
prefix prefix
extent extents
step_time time
load load
choice overlap
sequence
split
chunk chunk micro_batches
draft drafts
balance balance migrate
admit
event
plan
'
# These use all of it: the memory, and the tick; stage is for other programs.
whole=' init sched stage '
bad=0

objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
for file in common/sched/*.c; do
    name=$(basename "$file" .c)
    ${CC:-gcc} -std=c11 -D_GNU_SOURCE -O0 -I. -c "$file" -o "$objects/$name.o"
    case $whole in *" $name "*) continue ;; esac
    echo "$rooms" | grep -qE "^$name( |\$)" || { echo "sched_rooms: $file is in no room: add it to the list in $0"; bad=1; continue; }
    above=$(echo "$rooms" | awk -v me="$name" '$1 == me { found = 1; next } found { for (i = 2; i <= NF; i++) { printf "%s%s", sep, $i; sep = "|" } }')
    if [ -n "$above" ] && grep -nE "\bs->($above)\b" "$file"; then
        echo "sched_rooms: $file reaches into the state of a room above it"
        bad=1
    fi
done

cd "$objects"
for object in *.o; do
    nm -g --defined-only "$object" | awk -v file="${object%.o}" 'NF == 3 { print $3, file }'
done | sort >defined
for object in *.o; do
    nm -u "$object" | awk -v file="${object%.o}" '{ print $2, file }'
done | sort >used
join used defined | awk '{ print $2, $3 }' | sort -u >calls
(echo "$rooms" && echo sched) | awk 'NF { print $1, ++n }' >ranks
awk 'NR == FNR { rank[$1] = $2; next } $1 in rank && $2 in rank && rank[$2] > rank[$1] {
    print "sched_rooms: " $1 " calls " $2 ", which is above it"; bad = 1 } END { exit bad }' ranks calls || bad=1
exit $bad
