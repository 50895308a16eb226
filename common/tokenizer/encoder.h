// encoder.h: the output and the scratch memory of one call of tokenizer_encode().
#ifndef FD_TOKENIZER_ENCODER_H
#define FD_TOKENIZER_ENCODER_H

#include "common/tokenizer/tokenizer_state.h"

struct merge_item {
    uint32_t rank, at, left, right;
};
struct encoder {
    const struct tokenizer *tokenizer;
    struct error *error;
    uint32_t *ids;
    uint32_t count, capacity, max_tokens;
    uint32_t *symbols; // [symbol_capacity] ids of the word being merged; then their links
    uint32_t *previous, *next;
    struct merge_item *heap; // [2 * symbol_capacity]
    size_t symbol_capacity, heap_capacity;
};

// Appends an id. OUT_OF_RANGE: there are max_tokens already.
MUST_CHECK enum status encoder_put(struct encoder *encoder, uint32_t id);

#endif
