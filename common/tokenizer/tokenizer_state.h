// tokenizer_state.h: the tables of a tokenizer. They do not change once it is open.
#ifndef FD_TOKENIZER_TOKENIZER_STATE_H
#define FD_TOKENIZER_TOKENIZER_STATE_H

#include "common/tokenizer/merge_map.h"
#include "common/tokenizer/special.h"

enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_SPM };

struct tokenizer {
    enum tokenizer_kind kind;
    uint32_t vocab;
    uint32_t symbol_count; // the vocabulary, then characters that occur in pieces but are none ("llama")
    char *bytes;           // what tokens stand for, one after another
    uint32_t *offsets;     // [symbol_count + 1] into bytes
    uint8_t *types;        // [vocab] enum token_type
    uint8_t *flags;        // [vocab] enum token_flag
    uint8_t *whole;        // [vocab] 1: a word of exactly these bytes is this token ("gpt2")
    uint32_t byte_ids[256];
    struct text_map texts;
    struct merge_map merges;
    struct special_index raw, normalized; // looked for in the text as it is, and in what normalizing makes of the rest
    struct pretokenizer *pre;             // "gpt2"
    bool normalize;                       // to NFC first
    bool cut_at_spaces;                   // "llama": no piece has a space after another character
    bool spaces_first;                    // "llama": normalizing makes spaces U+2581; else cutting the text into words does
    bool add_bos, add_eos, add_space_prefix, has_bytes;
    bool prefix_at_start_only, prefix_unless_space;
    uint32_t bos, eos, unknown; // or TOKEN_NONE
    uint32_t end_ids[TOKENIZER_MAX_END_TOKENS];
    uint32_t end_count;
    uint32_t max_symbols;   // no token covers more bytes ("llama": characters)
    size_t max_token_bytes; // see tokenizer_max_token_bytes()
};

// The bytes that a symbol stands for.
static inline struct text_span token_span(const struct tokenizer *tokenizer, uint32_t symbol)
{
    return (struct text_span){tokenizer->bytes + tokenizer->offsets[symbol],
                              tokenizer->offsets[symbol + 1] - tokenizer->offsets[symbol]};
}

#endif
