// slots.c: see slots.h.
#include "common/sched/slots.h"
#include "common/base/status.h"
#include "common/sched/state.h"

#include <stdlib.h>
#include <string.h>

// --- ids ------------------------------------------------------------------------------------------------------------

// Ids are often consecutive or share their upper bits (incarnation): mix all bits into the low ones.
static uint32_t hash_id(uint64_t id)
{
    id ^= id >> 31;
    id *= UINT64_C(0x9e3779b97f4a7c15);
    id ^= id >> 29;
    id *= UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(id >> 32);
}

uint32_t sched_ids_find(const struct sched *s, uint64_t id)
{
    for (uint32_t i = hash_id(id) & s->ids.map_mask; s->ids.map[i] != NONE; i = (i + 1) & s->ids.map_mask) {
        if (s->seqs[s->ids.map[i]].id == id)
            return s->ids.map[i];
    }
    return NONE;
}

static void ids_insert(struct sched *s, uint64_t id, uint32_t slot)
{
    uint32_t i = hash_id(id) & s->ids.map_mask;
    while (s->ids.map[i] != NONE)
        i = (i + 1) & s->ids.map_mask;
    s->ids.map[i] = slot;
}

static void ids_erase(struct sched *s, uint64_t id)
{
    uint32_t i = hash_id(id) & s->ids.map_mask;
    while (s->seqs[s->ids.map[i]].id != id)
        i = (i + 1) & s->ids.map_mask;
    // Later entries of the same run move up, so that no search ends at a hole before its entry.
    for (uint32_t j = i;;) {
        j = (j + 1) & s->ids.map_mask;
        if (s->ids.map[j] == NONE)
            break;
        uint32_t home = hash_id(s->seqs[s->ids.map[j]].id) & s->ids.map_mask;
        if (((j - home) & s->ids.map_mask) >= ((j - i) & s->ids.map_mask)) {
            s->ids.map[i] = s->ids.map[j];
            i = j;
        }
    }
    s->ids.map[i] = NONE;
}

uint32_t sched_ids_take(struct sched *s, uint64_t id)
{
    uint32_t slot = s->ids.free_slots[--s->ids.free_count];
    ids_insert(s, id, slot);
    return slot;
}

void sched_ids_give_back(struct sched *s, uint32_t slot)
{
    ids_erase(s, s->seqs[slot].id);
    s->ids.free_slots[s->ids.free_count++] = slot;
}

uint32_t sched_ids_take_nameless(struct sched *s) { return s->ids.free_slots[--s->ids.free_count]; }

void sched_ids_give_back_nameless(struct sched *s, uint32_t slot) { s->ids.free_slots[s->ids.free_count++] = slot; }

// --- the heap behind the queue and the deadlines --------------------------------------------------------------------
static void heap_put(struct sched_heap *heap, uint32_t index, struct sched_heap_entry entry)
{
    heap->entries[index] = entry;
    heap->where[entry.slot] = index;
}

static void heap_sift_up(struct sched_heap *heap, uint32_t index, struct sched_heap_entry entry)
{
    while (index > 0) {
        uint32_t parent = (index - 1) / 2;
        if (heap->entries[parent].key <= entry.key)
            break;
        heap_put(heap, index, heap->entries[parent]);
        index = parent;
    }
    heap_put(heap, index, entry);
}

static void heap_sift_down(struct sched_heap *heap, uint32_t index, struct sched_heap_entry entry)
{
    for (;;) {
        uint32_t child = 2 * index + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && heap->entries[child + 1].key < heap->entries[child].key)
            child++;
        if (entry.key <= heap->entries[child].key)
            break;
        heap_put(heap, index, heap->entries[child]);
        index = child;
    }
    heap_put(heap, index, entry);
}

void sched_heap_push(struct sched_heap *heap, uint32_t slot, uint64_t key)
{
    assert_always(heap->where[slot] == SCHED_HEAP_ABSENT && heap->count < heap->capacity);
    heap->count++;
    heap_sift_up(heap, heap->count - 1, (struct sched_heap_entry){.key = key, .slot = slot});
}

void sched_heap_remove(struct sched_heap *heap, uint32_t slot)
{
    uint32_t index = heap->where[slot];
    if (index == SCHED_HEAP_ABSENT)
        return;
    heap->where[slot] = SCHED_HEAP_ABSENT;
    heap->count--;
    if (index == heap->count)
        return;
    struct sched_heap_entry moved = heap->entries[heap->count];
    if (index > 0 && moved.key < heap->entries[(index - 1) / 2].key)
        heap_sift_up(heap, index, moved);
    else
        heap_sift_down(heap, index, moved);
}

// --- queue ----------------------------------------------------------------------------------------------------------

// Waiting order: by class, which is the first bit of `arrival`; of a class, rebuilt ones first, then by arrival.
#define FRESH_KEY (UINT64_C(1) << 62)

void sched_queue_add(struct sched *s, uint32_t slot)
{
    const struct sched_seq_cold *cold = &s->cold[slot];
    sched_heap_push(&s->queue.waiting, slot, cold->arrival | (cold->rebuild ? 0 : FRESH_KEY));
    s->queue.count[s->seqs[slot].class]++;
    s->queue.known[s->seqs[slot].class] += s->seqs[slot].known;
    s->queue.fresh[s->seqs[slot].class] += !cold->rebuild;
}

void sched_queue_remove(struct sched *s, uint32_t slot)
{
    if (!sched_heap_has(&s->queue.waiting, slot))
        return;
    sched_heap_remove(&s->queue.waiting, slot);
    s->queue.count[s->seqs[slot].class]--;
    s->queue.known[s->seqs[slot].class] -= s->seqs[slot].known;
    s->queue.fresh[s->seqs[slot].class] -= !s->cold[slot].rebuild;
}

// --- outbox ---------------------------------------------------------------------------------------------------------

void sched_outbox_add(struct sched *s, uint32_t slot)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    if (cold->out.queued)
        return;
    cold->out.queued = true;
    cold->out.next = NONE;
    *(s->outbox.tail == NONE ? &s->outbox.head : &s->cold[s->outbox.tail].out.next) = slot;
    s->outbox.tail = slot;
}

void sched_outbox_release(struct sched *s, uint32_t slot)
{
    s->cold[slot].out.release = true;
    sched_outbox_add(s, slot);
}

void sched_outbox_remove(struct sched *s, uint32_t slot)
{
    uint32_t before = NONE;
    if (!s->cold[slot].out.queued)
        return;
    for (uint32_t at = s->outbox.head; at != slot; at = s->cold[at].out.next)
        before = at;
    *(before == NONE ? &s->outbox.head : &s->cold[before].out.next) = s->cold[slot].out.next;
    if (s->outbox.tail == slot)
        s->outbox.tail = before;
    s->cold[slot].out.queued = false;
}

struct sched_action *sched_outbox_action(struct sched *s, enum sched_action_kind kind)
{
    if (s->outbox.count == s->outbox.capacity)
        return NULL;
    struct sched_action *a = &s->outbox.actions[s->outbox.count++];
    *a = (struct sched_action){.kind = kind};
    return a;
}
