// id_map.h: 64-bit ids to small numbers: a slot in [0, capacity) for each id, the same one until the id is removed, so that a table of
// structs can be indexed by it and pointers into that table stay valid.
//
//     id ─hash▶ buckets[] (open addressing, at most half full) ─▶ slot ─▶ ids[slot], generations[slot], the caller's table[slot]
//
// find, add and remove take expected constant time, and at worst time in the number of ids: do not let a stranger choose ids freely.
// open allocates all there is (id_map_bytes); nothing is allocated afterwards, and memory becomes resident as slots are used, low
// numbers first. One thread at a time.
#ifndef FD_BASE_ID_MAP_H
#define FD_BASE_ID_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

#define ID_MAP_NONE UINT32_MAX

// The fields are for reading.
struct id_map {
    uint32_t capacity; // 1 to 2^30
    uint32_t count;    // ids that are in the map
    uint32_t used;     // slots from here on were never given
    uint32_t free_count;
    uint32_t bucket_mask;
    uint32_t *buckets;     // [bucket_mask + 1] slot + 1; 0: empty
    uint64_t *ids;         // [capacity] of each slot
    uint32_t *generations; // [capacity] odd while the slot has an id
    uint32_t *free_slots;  // [capacity] the first free_count are slots that were given back; the last of them goes first
};

// What a map of `capacity` ids takes at most.
uint64_t id_map_bytes(uint32_t capacity);

// RESOURCE_EXHAUSTED without memory; then there is nothing to close. A map that is all zero may be closed.
enum status id_map_open(uint32_t capacity, struct id_map *map) MUST_CHECK;
void id_map_close(struct id_map *map);

// The id's slot; ID_MAP_NONE: it is not in the map.
uint32_t id_map_find(const struct id_map *map, uint64_t id);

// The slot of a new id, which must not be in the map; ID_MAP_NONE: the map is full.
uint32_t id_map_add(struct id_map *map, uint64_t id) MUST_CHECK;

// Gives the slot back. The id must be in the map.
void id_map_remove(struct id_map *map, uint64_t id);

// Makes what was remembered with the slot's generation out of date, as removing and adding the id would.
void id_map_renew(struct id_map *map, uint32_t slot);

static inline bool id_map_has_slot(const struct id_map *map, uint32_t slot) { return map->generations[slot] & 1; }

// Whether the slot is still that of the id whose generation (generations[slot]) was remembered.
static inline bool id_map_is_current(const struct id_map *map, uint32_t slot, uint32_t generation)
{
    return map->generations[slot] == generation && (generation & 1);
}

// Iterates over the slots in use, in ascending order; *cursor starts at 0. ID_MAP_NONE: there are no more. Ids may be removed meanwhile;
// one that is added may be passed over. Takes time in the number of slots ever used.
uint32_t id_map_next(const struct id_map *map, uint32_t *cursor);

#endif
