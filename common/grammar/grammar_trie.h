// grammar_trie.h: strings as a tree of bytes, in depth-first order, so that it is walked from the first node to the last.
#ifndef FD_GRAMMAR_GRAMMAR_TRIE_H
#define FD_GRAMMAR_GRAMMAR_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A string that belongs to a token, with a number that the caller gives it.
struct grammar_trie_entry {
    const char *bytes;
    uint32_t length, token, number;
};

// A node is a byte of at least one string, after the bytes of the nodes above it.
struct grammar_trie_node {
    uint32_t end;   // the node after its subtree
    uint32_t token; // the first of the tokens whose strings end here; they end where the next node's begin
    uint16_t depth; // 1: the first byte
    uint8_t byte;
};

struct grammar_trie {
    uint32_t node_count, token_count;
    struct grammar_trie_node *nodes; // [node_count + 1]
    uint32_t *tokens;                // [token_count]
    uint16_t *numbers;               // [token_count]; ascending at one node
};

// Builds the trie of strings of 1 to 65535 bytes, which it sorts. Returns false without memory; there is nothing to close then.
bool grammar_trie_open(struct grammar_trie_entry *entries, uint32_t count, struct grammar_trie *out);
void grammar_trie_close(struct grammar_trie *trie);

#endif
