// bpe.c: merges symbols pair by pair: the lowest rank first, and among equal ranks the leftmost. Both kinds of tokenizers use it.
//
// Short words are merged in an array: look at all pairs, merge the best one, move the rest up. Longer words use a heap of pairs over a
// linked list, which takes n log n time:
//
//     symbols   h   e   l   l   o          list: previous[] and next[] by position; a merged symbol lies at its left part's
//     heap      (he 3 @0) (ll 9 @2) …      place. A popped pair is stale if its symbols have changed since it was pushed.
//
// Every merge pops one pair and pushes at most two, so a word of n symbols needs at most 2n heap entries: 12 bytes of
// lists and 32 of heap a symbol, 440 MB for a word of 10 MB. A word that must have more than max_tokens tokens however well it merges is
// refused before that is allocated.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/tokenizer/bpe.h"

enum { SHORT_WORD = 24, NO_LINK = UINT32_MAX };

enum status bpe_reserve(struct encoder *encoder, size_t count, size_t covered)
{
    if (count <= encoder->symbol_capacity)
        return STATUS_OK;
    if (covered / encoder->tokenizer->max_symbols > encoder->max_tokens - encoder->count) {
        encoder->count = encoder->max_tokens;
        return encoder_put(encoder, 0); // fails: it is one too many
    }
    size_t capacity = MAX(count, 2 * encoder->symbol_capacity);
    if (capacity >= NO_LINK)
        return error_set(encoder->error, STATUS_OUT_OF_RANGE, "a word of %zu characters is too long to tokenize", count);
    free(encoder->symbols);
    encoder->symbol_capacity = 0;
    encoder->symbols = malloc(capacity * 3 * sizeof(uint32_t));
    if (!encoder->symbols)
        return error_set(encoder->error, STATUS_RESOURCE_EXHAUSTED, "no memory to tokenize a word of %zu bytes", count);
    encoder->previous = encoder->symbols + capacity;
    encoder->next = encoder->previous + capacity;
    encoder->symbol_capacity = capacity;
    return STATUS_OK;
}

static size_t merge_short(const struct merge_map *map, uint32_t *symbols, size_t count)
{
    const struct merge_slot *pairs[SHORT_WORD];
    for (size_t i = 0; i + 1 < count; i++)
        pairs[i] = merge_map_get(map, symbols[i], symbols[i + 1]);
    while (count > 1) {
        size_t best = count;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < count; i++)
            if (pairs[i] && pairs[i]->rank < rank)
                rank = pairs[i]->rank, best = i;
        if (best == count)
            break;
        symbols[best] = pairs[best]->result;
        count--;
        for (size_t i = best + 1; i < count; i++)
            symbols[i] = symbols[i + 1];
        for (size_t i = best + 1; i + 1 < count; i++)
            pairs[i] = pairs[i + 1];
        if (best > 0)
            pairs[best - 1] = merge_map_get(map, symbols[best - 1], symbols[best]);
        if (best + 1 < count)
            pairs[best] = merge_map_get(map, symbols[best], symbols[best + 1]);
    }
    return count;
}

static bool sooner(const struct merge_item *a, const struct merge_item *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void sift_down(struct merge_item *heap, size_t count, size_t at)
{
    struct merge_item item = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && sooner(&heap[child + 1], &heap[child]))
            child++;
        if (!sooner(&heap[child], &item))
            break;
        heap[at] = heap[child];
    }
    heap[at] = item;
}

static void push_pair(struct encoder *encoder, size_t *heap_count, uint32_t at)
{
    uint32_t right_at = at == NO_LINK ? NO_LINK : encoder->next[at];
    if (right_at == NO_LINK)
        return;
    uint32_t left = encoder->symbols[at], right = encoder->symbols[right_at];
    const struct merge_slot *merge = merge_map_get(&encoder->tokenizer->merges, left, right);
    if (!merge)
        return;
    struct merge_item item = {merge->rank, at, left, right};
    size_t slot = (*heap_count)++;
    for (; slot > 0 && sooner(&item, &encoder->heap[(slot - 1) / 2]); slot = (slot - 1) / 2)
        encoder->heap[slot] = encoder->heap[(slot - 1) / 2];
    encoder->heap[slot] = item;
}

// Merges until the heap is empty.
static void merge_list(struct encoder *encoder, size_t heap_count)
{
    uint32_t *symbols = encoder->symbols, *previous = encoder->previous, *next = encoder->next;
    while (heap_count > 0) {
        struct merge_item item = encoder->heap[0];
        encoder->heap[0] = encoder->heap[--heap_count];
        if (heap_count > 0)
            sift_down(encoder->heap, heap_count, 0);
        uint32_t right = next[item.at];
        if (symbols[item.at] != item.left || right == NO_LINK || symbols[right] != item.right)
            continue;
        symbols[item.at] = merge_map_get(&encoder->tokenizer->merges, item.left, item.right)->result;
        symbols[right] = TOKEN_NONE; // makes all pairs that begin there stale
        next[item.at] = next[right];
        if (next[right] != NO_LINK)
            previous[next[right]] = item.at;
        push_pair(encoder, &heap_count, previous[item.at]);
        push_pair(encoder, &heap_count, item.at);
    }
}

enum status bpe_merge(struct encoder *encoder, size_t count, size_t *left)
{
    if (count <= SHORT_WORD) {
        *left = merge_short(&encoder->tokenizer->merges, encoder->symbols, count);
        return STATUS_OK;
    }
    if (encoder->heap_capacity < 2 * count) {
        free(encoder->heap);
        encoder->heap_capacity = 0;
        encoder->heap = malloc(2 * encoder->symbol_capacity * sizeof *encoder->heap);
        if (!encoder->heap)
            return error_set(encoder->error, STATUS_RESOURCE_EXHAUSTED, "no memory to tokenize a word of %zu bytes", count);
        encoder->heap_capacity = 2 * encoder->symbol_capacity;
    }
    for (size_t i = 0; i < count; i++) {
        encoder->previous[i] = i > 0 ? (uint32_t)i - 1 : NO_LINK;
        encoder->next[i] = i + 1 < count ? (uint32_t)i + 1 : NO_LINK;
    }
    size_t heap_count = 0;
    for (size_t i = 0; i < count; i++)
        push_pair(encoder, &heap_count, (uint32_t)i);
    merge_list(encoder, heap_count);
    *left = 0;
    for (uint32_t at = 0; at != NO_LINK; at = encoder->next[at])
        encoder->symbols[(*left)++] = encoder->symbols[at];
    return STATUS_OK;
}

enum status bpe_encode_word(struct encoder *encoder, const char *bytes, size_t length)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (length <= tokenizer->max_symbols) {
        uint32_t id = text_map_get(&tokenizer->texts, tokenizer, bytes, length);
        if (id != TOKEN_NONE && tokenizer->whole[id])
            return encoder_put(encoder, id);
    }
    size_t known = 0, count = 0, left;
    for (size_t i = 0; i < length; i++)
        known += tokenizer->byte_ids[(unsigned char)bytes[i]] != TOKEN_NONE;
    enum status status = bpe_reserve(encoder, known, known);
    if (status)
        return status;
    for (size_t i = 0; i < length; i++) {
        uint32_t id = tokenizer->byte_ids[(unsigned char)bytes[i]];
        if (id != TOKEN_NONE)
            encoder->symbols[count++] = id; // a vocabulary may lack bytes: they are left out
    }
    status = bpe_merge(encoder, count, &left);
    for (size_t i = 0; status == STATUS_OK && i < left; i++)
        status = encoder_put(encoder, encoder->symbols[i]);
    return status;
}
