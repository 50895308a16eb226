// grammar_trie.c: see grammar_trie.h.
#include "common/grammar/grammar_trie.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

static int compare_entries(const void *left, const void *right)
{
    const struct grammar_trie_entry *a = left, *b = right;
    int order = memcmp(a->bytes, b->bytes, MIN(a->length, b->length));

    if (order)
        return order;
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

static uint32_t common_bytes(const struct grammar_trie_entry *a, const struct grammar_trie_entry *b)
{
    uint32_t count = 0;

    while (count < a->length && count < b->length && a->bytes[count] == b->bytes[count])
        count++;
    return count;
}

// Fills the nodes. path: the node of each depth.
static void fill(const struct grammar_trie_entry *entries, uint32_t count, struct grammar_trie *out, uint32_t *path)
{
    uint32_t depth = 0, nodes = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct grammar_trie_entry *entry = &entries[i];
        uint32_t common = i ? common_bytes(entry, &entries[i - 1]) : 0;
        for (; depth > common; depth--)
            out->nodes[path[depth - 1]].end = nodes;
        for (; depth < entry->length; depth++) {
            path[depth] = nodes;
            out->nodes[nodes++] = (struct grammar_trie_node){
                .token = out->token_count, .depth = (uint16_t)(depth + 1), .byte = (uint8_t)entry->bytes[depth]};
        }
        out->numbers[out->token_count] = (uint16_t)entry->number;
        out->tokens[out->token_count++] = entry->token;
    }
    for (; depth; depth--)
        out->nodes[path[depth - 1]].end = nodes;
    out->nodes[nodes] = (struct grammar_trie_node){.token = out->token_count};
}

bool grammar_trie_open(struct grammar_trie_entry *entries, uint32_t count, struct grammar_trie *out)
{
    size_t nodes = 0, longest = 0;
    uint32_t *path;

    *out = (struct grammar_trie){0};
    qsort(entries, count, sizeof *entries, compare_entries);
    for (uint32_t i = 0; i < count; i++) {
        nodes += entries[i].length - (i ? common_bytes(&entries[i], &entries[i - 1]) : 0);
        longest = MAX(longest, entries[i].length);
    }
    if (nodes >= UINT32_MAX || longest > UINT16_MAX)
        return false;
    path = malloc((longest + 1) * sizeof *path);
    out->nodes = malloc((nodes + 1) * sizeof *out->nodes);
    out->tokens = malloc(((size_t)count + 1) * sizeof *out->tokens);
    out->numbers = malloc(((size_t)count + 1) * sizeof *out->numbers);
    if (path && out->nodes && out->tokens && out->numbers) {
        out->node_count = (uint32_t)nodes;
        fill(entries, count, out, path);
    } else
        grammar_trie_close(out);
    free(path);
    return out->nodes != NULL;
}

void grammar_trie_close(struct grammar_trie *trie)
{
    free(trie->nodes);
    free(trie->tokens);
    free(trie->numbers);
    *trie = (struct grammar_trie){0};
}
