// merge_map.c: the two hash tables of a tokenizer: bytes → id, and (left id, right id) → merge.
//
// Open addressing with linear probing, filled once at open and at most half full; a lookup is one or two cache lines.
#include <stdlib.h>
#include <string.h>

#include "common/tokenizer/merge_map.h"
#include "common/tokenizer/tokenizer_state.h"

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

static uint64_t hash_bytes(const char *bytes, size_t length)
{
    uint64_t hash = length * 0x9e3779b97f4a7c15u, word;
    for (; length >= 8; bytes += 8, length -= 8) {
        memcpy(&word, bytes, 8);
        hash = mix(hash ^ word);
    }
    word = 0;
    memcpy(&word, bytes, length);
    return mix(hash ^ word);
}

static uint32_t capacity_for(uint32_t entries)
{
    uint32_t capacity = 16;
    while (capacity / 2 < entries)
        capacity *= 2;
    return capacity;
}

uint64_t text_map_bytes(uint32_t entries) { return capacity_for(entries) * (uint64_t)sizeof(uint32_t); }
uint64_t merge_map_bytes(uint32_t entries) { return capacity_for(entries) * (uint64_t)sizeof(struct merge_slot); }

bool text_map_init(struct text_map *map, uint32_t entries)
{
    map->capacity = capacity_for(entries);
    map->slots = malloc(map->capacity * sizeof *map->slots);
    if (map->slots)
        memset(map->slots, 0xff, map->capacity * sizeof *map->slots);
    return map->slots != NULL;
}

void text_map_free(struct text_map *map)
{
    free(map->slots);
    map->slots = NULL;
}

static uint32_t *text_slot(const struct text_map *map, const struct tokenizer *tokenizer, const char *bytes, size_t length)
{
    uint32_t mask = map->capacity - 1;
    for (uint32_t at = (uint32_t)hash_bytes(bytes, length) & mask;; at = (at + 1) & mask) {
        uint32_t symbol = map->slots[at];
        if (symbol == TOKEN_NONE)
            return &map->slots[at];
        struct text_span span = token_span(tokenizer, symbol);
        if (span.length == length && memcmp(span.bytes, bytes, length) == 0)
            return &map->slots[at];
    }
}

void text_map_put(struct text_map *map, const struct tokenizer *tokenizer, uint32_t symbol)
{
    struct text_span span = token_span(tokenizer, symbol);
    uint32_t *slot = text_slot(map, tokenizer, span.bytes, span.length);
    if (*slot == TOKEN_NONE)
        *slot = symbol;
}

uint32_t text_map_get(const struct text_map *map, const struct tokenizer *tokenizer, const char *bytes, size_t length)
{
    return *text_slot(map, tokenizer, bytes, length);
}

bool merge_map_init(struct merge_map *map, uint32_t entries)
{
    map->capacity = capacity_for(entries);
    map->slots = malloc(map->capacity * sizeof *map->slots);
    if (map->slots)
        memset(map->slots, 0xff, map->capacity * sizeof *map->slots);
    return map->slots != NULL;
}

void merge_map_free(struct merge_map *map)
{
    free(map->slots);
    map->slots = NULL;
}

static struct merge_slot *merge_slot_of(const struct merge_map *map, uint32_t left, uint32_t right)
{
    uint32_t mask = map->capacity - 1;
    for (uint32_t at = (uint32_t)mix((uint64_t)left << 32 | right) & mask;; at = (at + 1) & mask) {
        struct merge_slot *slot = &map->slots[at];
        if (slot->left == TOKEN_NONE || (slot->left == left && slot->right == right))
            return slot;
    }
}

void merge_map_put(struct merge_map *map, uint32_t left, uint32_t right, uint32_t rank, uint32_t result)
{
    struct merge_slot *slot = merge_slot_of(map, left, right);
    if (slot->left == TOKEN_NONE || rank < slot->rank)
        *slot = (struct merge_slot){.left = left, .right = right, .rank = rank, .result = result};
}

const struct merge_slot *merge_map_get(const struct merge_map *map, uint32_t left, uint32_t right)
{
    const struct merge_slot *slot = merge_slot_of(map, left, right);
    return slot->left == TOKEN_NONE ? NULL : slot;
}
