// sched_ids.h: the slots of sequences, and which id is in which slot. Private to common/sched.
#ifndef FD_SCHED_SCHED_IDS_H
#define FD_SCHED_SCHED_IDS_H

#include <stdbool.h>
#include <stdint.h>

#define NONE UINT32_MAX // no slot, no place, no node: the same for all 32-bit indices in the core

struct sched_ids {
    uint32_t *free_slots; // stack
    uint32_t free_count;
    uint32_t *map; // [map_mask + 1] slots by id; NONE: empty
    uint32_t map_mask;
};

struct sched;

// Returns the slot of an id; NONE: it is unknown.
uint32_t sched_ids_find(const struct sched *s, uint64_t id);
uint32_t sched_ids_take(struct sched *s, uint64_t id);    // gives the id a free slot; there must be one
void sched_ids_give_back(struct sched *s, uint32_t slot); // frees the slot and forgets its id
// The same for slots that no id is looked up for.
uint32_t sched_ids_take_nameless(struct sched *s);
void sched_ids_give_back_nameless(struct sched *s, uint32_t slot);

#endif
