// sched_heap.h: a binary min-heap of sequence slots by a 64-bit key, from which any slot can be taken out.
#ifndef FD_SCHED_SCHED_HEAP_H
#define FD_SCHED_SCHED_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define SCHED_HEAP_ABSENT UINT32_MAX

struct sched_heap_entry {
    uint64_t key;
    uint32_t slot;
};

struct sched_heap {
    struct sched_heap_entry *entries; // [count of capacity]
    uint32_t *where;                  // [capacity]: index of a slot's entry, or SCHED_HEAP_ABSENT
    uint32_t count, capacity;
};

// Allocates for slots 0 to capacity - 1; false: no memory (sched_heap_fini() is still right).
bool sched_heap_init(struct sched_heap *heap, uint32_t capacity);
void sched_heap_fini(struct sched_heap *heap);

void sched_heap_push(struct sched_heap *heap, uint32_t slot, uint64_t key); // the slot must be absent
void sched_heap_remove(struct sched_heap *heap, uint32_t slot);             // absent: nothing

static inline bool sched_heap_has(const struct sched_heap *heap, uint32_t slot) { return heap->where[slot] != SCHED_HEAP_ABSENT; }

#endif
