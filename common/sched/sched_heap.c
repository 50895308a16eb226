// sched_heap.c: the indexed heap behind the waiting queue (order of arrival) and the deadlines.
#include "common/sched/sched_heap.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"

bool sched_heap_init(struct sched_heap *heap, uint32_t capacity)
{
    heap->entries = calloc(capacity, sizeof(*heap->entries));
    heap->where = calloc(capacity, sizeof(*heap->where));
    heap->count = 0;
    heap->capacity = capacity;
    if (heap->entries == NULL || heap->where == NULL)
        return false;
    memset(heap->where, 0xff, capacity * sizeof(*heap->where));
    return true;
}

void sched_heap_fini(struct sched_heap *heap)
{
    free(heap->entries);
    free(heap->where);
    heap->entries = NULL;
    heap->where = NULL;
}

static void put(struct sched_heap *heap, uint32_t index, struct sched_heap_entry entry)
{
    heap->entries[index] = entry;
    heap->where[entry.slot] = index;
}

static void sift_up(struct sched_heap *heap, uint32_t index, struct sched_heap_entry entry)
{
    while (index > 0) {
        uint32_t parent = (index - 1) / 2;
        if (heap->entries[parent].key <= entry.key)
            break;
        put(heap, index, heap->entries[parent]);
        index = parent;
    }
    put(heap, index, entry);
}

static void sift_down(struct sched_heap *heap, uint32_t index, struct sched_heap_entry entry)
{
    for (;;) {
        uint32_t child = 2 * index + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && heap->entries[child + 1].key < heap->entries[child].key)
            child++;
        if (entry.key <= heap->entries[child].key)
            break;
        put(heap, index, heap->entries[child]);
        index = child;
    }
    put(heap, index, entry);
}

void sched_heap_push(struct sched_heap *heap, uint32_t slot, uint64_t key)
{
    assert_always(heap->where[slot] == SCHED_HEAP_ABSENT && heap->count < heap->capacity);
    heap->count++;
    sift_up(heap, heap->count - 1, (struct sched_heap_entry){.key = key, .slot = slot});
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
        sift_up(heap, index, moved);
    else
        sift_down(heap, index, moved);
}
