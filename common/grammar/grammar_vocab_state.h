// grammar_vocab_state.h: the tables of a vocabulary.
#ifndef FD_GRAMMAR_GRAMMAR_VOCAB_STATE_H
#define FD_GRAMMAR_GRAMMAR_VOCAB_STATE_H

#include "common/grammar/grammar_vocab.h"

// A node is a byte of at least one token, after the bytes of the nodes above it. Nodes lie in depth-first order.
struct grammar_trie_node {
    uint32_t end;   // the node after its subtree
    uint32_t token; // the first of its tokens, in grammar_trie.tokens; the next node's are behind them
    uint16_t depth; // 1: the first byte
    uint8_t byte;
};

struct grammar_trie {
    uint32_t node_count, token_count;
    struct grammar_trie_node *nodes; // [node_count + 1]
    uint32_t *tokens;                // [token_count]
};

struct grammar_vocab {
    uint32_t token_count;
    uint32_t *starts; // [token_count + 1] where each token's bytes begin
    char *bytes;
    struct grammar_trie all;
};

#endif
