// merge_map.h: the two hash tables that merging looks things up in.
#ifndef FD_TOKENIZER_MERGE_MAP_H
#define FD_TOKENIZER_MERGE_MAP_H

#include "common/tokenizer/tokenizer.h"

enum { TOKEN_NONE = UINT32_MAX }; // larger than any id

// Bytes → id. Open addressing, capacity a power of two, at most half full. The bytes lie in the tokenizer's arena.
struct text_map {
    uint32_t *slots; // [capacity] id, or TOKEN_NONE
    uint32_t capacity;
};

// (left, right) → what they merge to, and with which rank. Open addressing, at most half full.
struct merge_slot {
    uint32_t left, right; // left TOKEN_NONE: empty
    uint32_t rank;        // the lowest merges first
    uint32_t result;
};
struct merge_map {
    struct merge_slot *slots;
    uint32_t capacity; // power of two
};

uint64_t text_map_bytes(uint32_t entries);
uint64_t merge_map_bytes(uint32_t entries);
MUST_CHECK bool text_map_init(struct text_map *map, uint32_t entries);
void text_map_free(struct text_map *map);
// An entry that is already there is kept.
void text_map_put(struct text_map *map, const struct tokenizer *tokenizer, uint32_t symbol);
uint32_t text_map_get(const struct text_map *map, const struct tokenizer *tokenizer, const char *bytes, size_t length);

MUST_CHECK bool merge_map_init(struct merge_map *map, uint32_t entries);
void merge_map_free(struct merge_map *map);
// If there is an entry already, the one of lower rank is kept.
void merge_map_put(struct merge_map *map, uint32_t left, uint32_t right, uint32_t rank, uint32_t result);
const struct merge_slot *merge_map_get(const struct merge_map *map, uint32_t left, uint32_t right); // NULL: none

#endif
