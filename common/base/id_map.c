// id_map.c: a map of ids to slots. Removal moves later entries of a run of buckets back, so that there are no tombstones and a map that is
// used for long does not slow down.
#include "common/base/id_map.h"

#include <stdlib.h>

static uint32_t bucket_count(uint32_t capacity)
{
    uint32_t count = 2;
    while (count < 2 * capacity)
        count *= 2;
    return count;
}

uint64_t id_map_bytes(uint32_t capacity)
{
    const struct id_map *map = NULL;
    return (uint64_t)bucket_count(capacity) * sizeof *map->buckets +
           (uint64_t)capacity * (sizeof *map->ids + sizeof *map->generations + sizeof *map->free_slots);
}

enum status id_map_open(uint32_t capacity, struct id_map *map)
{
    assert_always(capacity >= 1 && capacity <= 1u << 30);
    *map = (struct id_map){.capacity = capacity, .bucket_mask = bucket_count(capacity) - 1};
    map->buckets = calloc((size_t)map->bucket_mask + 1, sizeof *map->buckets);
    map->ids = calloc(capacity, sizeof *map->ids);
    map->generations = calloc(capacity, sizeof *map->generations);
    map->free_slots = calloc(capacity, sizeof *map->free_slots);
    if (map->buckets && map->ids && map->generations && map->free_slots)
        return STATUS_OK;
    id_map_close(map);
    return STATUS_RESOURCE_EXHAUSTED;
}

void id_map_close(struct id_map *map)
{
    free(map->buckets);
    free(map->ids);
    free(map->generations);
    free(map->free_slots);
    *map = (struct id_map){0};
}

static uint32_t home(const struct id_map *map, uint64_t id)
{
    uint64_t mixed = (id ^ id >> 32) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(mixed >> 32) & map->bucket_mask;
}

// The bucket of an id, or the empty one where it would go.
static uint32_t find_bucket(const struct id_map *map, uint64_t id)
{
    uint32_t at = home(map, id);
    while (map->buckets[at] && map->ids[map->buckets[at] - 1] != id)
        at = (at + 1) & map->bucket_mask;
    return at;
}

uint32_t id_map_find(const struct id_map *map, uint64_t id)
{
    uint32_t entry = map->buckets[find_bucket(map, id)];
    return entry ? entry - 1 : ID_MAP_NONE;
}

uint32_t id_map_add(struct id_map *map, uint64_t id)
{
    uint32_t at = find_bucket(map, id), slot;

    assert_always(!map->buckets[at]);
    if (map->count == map->capacity)
        return ID_MAP_NONE;
    slot = map->free_count ? map->free_slots[--map->free_count] : map->used++;
    map->buckets[at] = slot + 1;
    map->ids[slot] = id;
    map->generations[slot]++;
    map->count++;
    return slot;
}

void id_map_remove(struct id_map *map, uint64_t id)
{
    uint32_t hole = find_bucket(map, id), slot = map->buckets[hole] - 1;

    assert_always(map->buckets[hole]);
    for (uint32_t at = (hole + 1) & map->bucket_mask; map->buckets[at]; at = (at + 1) & map->bucket_mask) {
        uint32_t from_home = (at - home(map, map->ids[map->buckets[at] - 1])) & map->bucket_mask;
        if (from_home >= ((at - hole) & map->bucket_mask)) { // it may move up to the hole
            map->buckets[hole] = map->buckets[at];
            hole = at;
        }
    }
    map->buckets[hole] = 0;
    map->generations[slot]++;
    map->free_slots[map->free_count++] = slot;
    map->count--;
}

uint32_t id_map_next(const struct id_map *map, uint32_t *cursor)
{
    while (*cursor < map->used) {
        uint32_t slot = (*cursor)++;
        if (id_map_has_slot(map, slot))
            return slot;
    }
    return ID_MAP_NONE;
}
