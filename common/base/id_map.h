// id_map.h: maps 64-bit ids to small numbers. Each id has a slot in [0, capacity), which stays the same until the id is removed, so
// a table of structs can be indexed by it and pointers into that table stay valid.
//
//     id ─hash▶ buckets[] (open addressing, at most half full) ─▶ slot ─▶ ids[slot], generations[slot], the caller's table[slot]
//
// find, add and remove take constant time on average, but time proportional to the number of ids at worst: do not let strangers
// choose ids freely. open allocates everything (id_map_bytes). Memory becomes resident as slots are used, low numbers first. One
// thread at a time.
#ifndef FD_BASE_ID_MAP_H
#define FD_BASE_ID_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

#define ID_MAP_NONE UINT32_MAX

// Callers may read the fields but not change them.
struct id_map {
    uint32_t capacity; // 1 to 2^30
    uint32_t count;    // number of ids in the map
    uint32_t used;     // slots from this number on were never used
    uint32_t free_count;
    uint32_t bucket_mask;
    uint32_t *buckets;     // [bucket_mask + 1] slot + 1; 0: empty
    uint64_t *ids;         // [capacity] the id of each slot
    uint32_t *generations; // [capacity] odd while the slot has an id
    uint32_t *free_slots;  // [capacity] the first free_count are slots given back; the last one is reused first
};

// Returns the most memory that a map of `capacity` ids takes.
uint64_t id_map_bytes(uint32_t capacity);

// RESOURCE_EXHAUSTED: not enough memory; there is nothing to close then. A map of zeros may be closed.
enum status id_map_open(uint32_t capacity, struct id_map *map) MUST_CHECK;
void id_map_close(struct id_map *map);

// Returns the id's slot; ID_MAP_NONE: it is not in the map.
uint32_t id_map_find(const struct id_map *map, uint64_t id);

// Adds an id, which must not be in the map, and returns its slot; ID_MAP_NONE: the map is full.
uint32_t id_map_add(struct id_map *map, uint64_t id) MUST_CHECK;

// Removes the id, which must be in the map, and frees its slot.
void id_map_remove(struct id_map *map, uint64_t id);

static inline bool id_map_has_slot(const struct id_map *map, uint32_t slot) { return map->generations[slot] & 1; }

// Returns whether the slot still belongs to the id that had it when its generation (generations[slot]) was `generation`.
static inline bool id_map_is_current(const struct id_map *map, uint32_t slot, uint32_t generation)
{
    return map->generations[slot] == generation && (generation & 1);
}

// Iterates over the slots in use, in ascending order; *cursor starts at 0. ID_MAP_NONE: there are no more. Ids may be removed
// meanwhile; an id that is added may be skipped. Takes time proportional to the number of slots ever used.
uint32_t id_map_next(const struct id_map *map, uint32_t *cursor);

#endif
