// tokenizer_state.h: the tables of a tokenizer, which do not change once it is open, and its two kinds: byte-level BPE and SentencePiece-style.
#ifndef FD_TOKENIZER_TOKENIZER_STATE_H
#define FD_TOKENIZER_TOKENIZER_STATE_H

#include "common/tokenizer/merge_map.h"
#include "common/tokenizer/special.h"

enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_SPM };

struct tokenizer {
    enum tokenizer_kind kind;
    uint32_t vocab;
    uint32_t symbol_count; // the vocabulary, then characters that occur in pieces but are none ("llama")
    char *bytes;           // the bytes that tokens stand for, one after another
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

// Returns the bytes that a symbol stands for.
static inline struct text_span token_span(const struct tokenizer *tokenizer, uint32_t symbol)
{
    return (struct text_span){tokenizer->bytes + tokenizer->offsets[symbol],
                              tokenizer->offsets[symbol + 1] - tokenizer->offsets[symbol]};
}

struct merge_item {
    uint32_t rank, at, left, right;
};

// The output and the scratch memory of one call of tokenizer_encode().
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

// --- bpe.c --------------------------------------------------------------------------------------------------------------
// Appends an id. OUT_OF_RANGE: there are max_tokens already.
MUST_CHECK enum status encoder_put(struct encoder *encoder, uint32_t id);
// Makes room for a word of count symbols in encoder->symbols. `covered` of them will each be part of some token's text; the others may yield
// nothing. OUT_OF_RANGE if the covered ones alone make more than max_tokens.
MUST_CHECK enum status bpe_reserve(struct encoder *encoder, size_t count, size_t covered);
// Merges encoder->symbols[0 .. count) in place; returns how many are left, or writes a status.
MUST_CHECK enum status bpe_merge(struct encoder *encoder, size_t count, size_t *left);
// Decodes the byte-level text of a token ("Ġa") to bytes (" a"), which are no longer. False: a character stands for no byte.
MUST_CHECK bool bpe_decode_text(struct text_span text, char *out, size_t *length);
// Fills merges, byte_ids and whole.
MUST_CHECK enum status bpe_open(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, struct error *error);
void pretokenizer_close(struct pretokenizer *pre);
// Cuts valid UTF-8 into words and encodes each.
MUST_CHECK enum status pretokenizer_encode(const struct pretokenizer *pre, struct encoder *encoder, const char *text,
                                           size_t length);

// --- spm.c: the "llama" kind, which merges whole texts by score ---------------------------------------------------------
#define SPM_MARK "\xe2\x96\x81" // U+2581

// Appends a symbol for each character that occurs in pieces but is no piece itself. Checks that pieces are UTF-8.
MUST_CHECK enum status spm_add_characters(struct tokenizer *tokenizer, struct error *error);
// Fills merges from pieces and scores.
MUST_CHECK enum status spm_open(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, struct error *error);
// Writes a text in which a space stands for U+2581, at most as long. Returns its length.
size_t spm_mark_spaces(const char *text, size_t length, char *out);
// Encodes such a text, valid UTF-8.
MUST_CHECK enum status spm_encode(struct encoder *encoder, const char *text, size_t length);
// Returns 10 for "<0x0A>"; -1: not of that form.
int spm_byte_of(struct text_span text);

#endif
