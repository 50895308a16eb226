#!/bin/sh
# sched_rooms.sh: the scheduling core has rooms, each with its files and its part of the state (common/sched/sched_state.h lists them).
# A room may use those before it in the list below, never one behind it: neither its functions nor its state. And no two files call
# each other, directly or by others.
set -eu
cd "$(dirname "$0")/../.."

# file  the part of struct sched that is its own (-: none)
rooms='
sched_settings -
sched_tuning -
sched_bubble -
sched -
sched_survival -
sched_lengths -
sched_heap -
sched_curve -
sched_seq -
sched_ids ids
sched_outbox outbox
sched_queue queue
sched_batch batches
sched_place places
sched_move moves
sched_prefix_tree prefix
sched_prefix -
sched_extent extents
sched_time time
sched_speed -
sched_trial -
sched_load load
sched_choice -
sched_overlap overlap
sched_sequence -
sched_split -
sched_chunk chunk
sched_draft drafts
sched_micro_batch micro_batches
sched_batch_count -
sched_handover -
sched_balance balance
sched_migrate migrate
sched_admit -
sched_shortage -
sched_learn -
sched_answer -
sched_event -
sched_plan -
'
# Where all parts meet: the composition, its memory, the tick.
whole=' sched_state sched_init sched '
bad=0

for file in common/sched/*.c; do
    name=$(basename "$file" .c)
    case $whole in *" $name "*) continue ;; esac
    echo "$rooms" | grep -q "^$name " || { echo "sched_rooms: $file is in no room: add it to the list in $0"; bad=1; continue; }
    above=$(echo "$rooms" | awk -v me="$name" '$1 == me { found = 1; next } found && $2 != "-" && NF { printf "%s%s", sep, $2; sep = "|" }')
    if [ -n "$above" ] && grep -nE "\bs->($above)\b" "$file"; then
        echo "sched_rooms: $file reaches into the state of a room above it"
        bad=1
    fi
done

objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
for file in common/sched/*.c; do
    ${CC:-gcc} -std=c11 -D_GNU_SOURCE -O0 -I. -c "$file" -o "$objects/$(basename "$file" .c).o"
done
cd "$objects"
for object in *.o; do
    nm -g --defined-only "$object" | awk -v file="${object%.o}" 'NF == 3 { print $3, file }'
done | sort >defined
for object in *.o; do
    nm -u "$object" | awk -v file="${object%.o}" '{ print $2, file }'
done | sort >used
join used defined | awk '{ print $2, $3 }' | sort -u >calls
if ! tsort calls >/dev/null; then
    echo "sched_rooms: these files of common/sched call one another"
    bad=1
fi
echo "$rooms" | awk 'NF { print $1, ++n }' >ranks
awk 'NR == FNR { rank[$1] = $2; next } $1 in rank && $2 in rank && $1 != "sched" && $2 != "sched" && rank[$2] > rank[$1] {
    print "sched_rooms: " $1 " calls " $2 ", which is above it"; bad = 1 } END { exit bad }' ranks calls || bad=1
exit $bad
