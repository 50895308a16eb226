/* sched_heap.h: a binary min-heap of sequence slots by a 64-bit key, from which any slot can be taken out. */
#ifndef FD_SCHED_SCHED_HEAP_H
#define FD_SCHED_SCHED_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define HEAP_ABSENT UINT32_MAX

struct heap_entry {
    uint64_t key;
    uint32_t slot;
};

struct sched_heap {
    struct heap_entry *entries; // [count of capacity]
    uint32_t *where;            // [capacity]: index of a slot's entry, or HEAP_ABSENT
    uint32_t count, capacity;
};

/* Allocates for slots 0 to capacity - 1; false: no memory (heap_fini() is still right). */
bool heap_init(struct sched_heap *heap, uint32_t capacity);
void heap_fini(struct sched_heap *heap);

void heap_push(struct sched_heap *heap, uint32_t slot, uint64_t key); // the slot must be absent
void heap_remove(struct sched_heap *heap, uint32_t slot);             // absent: nothing

static inline bool heap_has(const struct sched_heap *heap, uint32_t slot) { return heap->where[slot] != HEAP_ABSENT; }

#endif
