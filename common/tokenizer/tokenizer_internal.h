/* tokenizer_internal.h: what the files of the tokenizer share. Not for others. */
#ifndef FD_TOKENIZER_INTERNAL_H
#define FD_TOKENIZER_INTERNAL_H

#include "common/tokenizer/tokenizer.h"

enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_SPM };

enum { TOKEN_NONE = UINT32_MAX }; /* fits no vocabulary */

struct pretokenizer; /* pretokenize.c */

/* Bytes → id. Open addressing, capacity a power of two, at most half full. The bytes lie in the tokenizer's arena. */
struct text_map {
    uint32_t *slots; /* [capacity] id, or TOKEN_NONE */
    uint32_t capacity;
};

/* (left, right) → what they merge to and how soon. Open addressing, at most half full. */
struct merge_slot {
    uint32_t left, right; /* left TOKEN_NONE: empty */
    uint32_t rank;        /* the lowest merges first */
    uint32_t result;
};
struct merge_map {
    struct merge_slot *slots;
    uint32_t capacity; /* power of two */
};

/* Special tokens in the order of their bytes. */
struct special_index {
    uint32_t *ids; /* [count] */
    uint32_t count;
    uint32_t first[257]; /* those that begin with byte b are ids[first[b] .. first[b + 1]) */
};

struct tokenizer {
    enum tokenizer_kind kind;
    uint32_t vocab;
    uint32_t symbol_count; /* vocab, then characters of pieces that are no pieces themselves ("llama") */
    char *bytes;           /* what tokens stand for, one after another */
    uint32_t *offsets;     /* [symbol_count + 1] into bytes */
    uint8_t *types;        /* [vocab] enum token_type */
    uint8_t *whole;        /* [vocab] 1: a word of just these bytes is this token, nothing need be merged ("gpt2") */
    uint32_t byte_ids[256];
    struct text_map texts;
    struct merge_map merges;
    struct special_index specials;
    struct pretokenizer *pre; /* "gpt2" */
    bool normalize;           /* to NFC first */
    bool cut_at_spaces;       /* "llama": no piece goes on with a space after another character */
    bool add_bos, add_eos, add_space_prefix, has_bytes;
    uint32_t bos, eos, unknown; /* or TOKEN_NONE */
    uint32_t end_ids[TOKENIZER_MAX_END_TOKENS];
    uint32_t end_count;
    uint32_t max_symbols;   /* no token covers more bytes ("llama": characters) */
    size_t max_token_bytes; /* see tokenizer_max_token_bytes() */
};

/* One call's output and scratch. */
struct merge_item {
    uint32_t rank, at, left, right;
};
struct encoder {
    const struct tokenizer *tokenizer;
    struct error *error;
    uint32_t *ids;
    uint32_t count, capacity, max_tokens;
    uint32_t *symbols; /* [symbol_capacity] ids of the word being merged; then their links */
    uint32_t *previous, *next;
    struct merge_item *heap; /* [2 * symbol_capacity] */
    size_t symbol_capacity, heap_capacity;
};

/* --- tokenizer.c ------------------------------------------------------------------------------------------------------ */
struct text_span token_span(const struct tokenizer *tokenizer, uint32_t symbol);

/* --- encode.c ---------------------------------------------------------------------------------------------------------- */
/* Appends an id. OUT_OF_RANGE: max_tokens are there already. */
MUST_CHECK enum status encoder_put(struct encoder *encoder, uint32_t id);

/* --- maps (merge_map.c) -------------------------------------------------------------------------------------------------- */
uint64_t text_map_bytes(uint32_t entries);
uint64_t merge_map_bytes(uint32_t entries);
MUST_CHECK bool text_map_init(struct text_map *map, uint32_t entries);
void text_map_free(struct text_map *map);
/* Keeps the entry that is there if there is one. */
void text_map_put(struct text_map *map, const struct tokenizer *tokenizer, uint32_t symbol);
uint32_t text_map_get(const struct text_map *map, const struct tokenizer *tokenizer, const char *bytes, size_t length);

MUST_CHECK bool merge_map_init(struct merge_map *map, uint32_t entries);
void merge_map_free(struct merge_map *map);
/* Keeps the entry of lower rank. */
void merge_map_put(struct merge_map *map, uint32_t left, uint32_t right, uint32_t rank, uint32_t result);
const struct merge_slot *merge_map_get(const struct merge_map *map, uint32_t left, uint32_t right); /* NULL: none */

/* --- bpe.c, bpe_open.c --------------------------------------------------------------------------------------------------- */
/* Room for a word of count symbols in encoder->symbols. `covered` of them will each be part of some token's text, the others may
 * give nothing: OUT_OF_RANGE at once where that alone makes more than max_tokens. */
MUST_CHECK enum status bpe_reserve(struct encoder *encoder, size_t count, size_t covered);
/* Merges encoder->symbols[0 .. count) in place; returns how many are left, or writes a status. */
MUST_CHECK enum status bpe_merge(struct encoder *encoder, size_t count, size_t *left);
/* Encodes one word of the pre-tokenizer. */
MUST_CHECK enum status bpe_encode_word(struct encoder *encoder, const char *bytes, size_t length);
/* Byte-level text of a token ("Ġa") to bytes (" a"), at most as long. False: some character stands for no byte. */
MUST_CHECK bool bpe_decode_text(struct text_span text, char *out, size_t *length);
/* Fills merges, byte_ids and whole. */
MUST_CHECK enum status bpe_open(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, struct error *error);

/* --- spm.c --------------------------------------------------------------------------------------------------------------- */
/* Appends a symbol for each character that occurs in pieces and is none; checks that pieces are UTF-8. */
MUST_CHECK enum status spm_add_characters(struct tokenizer *tokenizer, struct error *error);
/* Fills merges from pieces and scores. */
MUST_CHECK enum status spm_open(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, struct error *error);
/* Encodes valid UTF-8 between special tokens; space_first: put a space before it. */
MUST_CHECK enum status spm_encode(struct encoder *encoder, const char *text, size_t length, bool space_first);
/* "<0x0A>" → 10; -1: not of that form. */
int spm_byte_of(struct text_span text);

/* --- special.c ----------------------------------------------------------------------------------------------------------- */
MUST_CHECK bool special_init(struct special_index *index, const struct tokenizer *tokenizer);
void special_free(struct special_index *index);
/* The leftmost special token of text[from .. length), the longest there. False: none. */
MUST_CHECK bool special_find(const struct tokenizer *tokenizer, const char *text, size_t from, size_t length, size_t *at,
                             uint32_t *id);

/* --- pretokenize.c --------------------------------------------------------------------------------------------------------- */
/* NULL is "default". Says whether the rule wants NFC and words of the vocabulary taken without merging. */
MUST_CHECK enum status pretokenizer_open(const char *name, struct pretokenizer **out, bool *normalize, bool *ignore_merges,
                                         struct error *error);
void pretokenizer_close(struct pretokenizer *pre);
/* Cuts valid UTF-8 into words and encodes each. */
MUST_CHECK enum status pretokenizer_encode(const struct pretokenizer *pre, struct encoder *encoder, const char *text,
                                           size_t length);

/* --- pretokenize_text.c ------------------------------------------------------------------------------------------------------ */
/* The length of the character that bytes begin with, 1 to 4; else *broken is the length (1 to 3) of the broken sequence that one
 * U+FFFD stands for, and 0 is returned. *open: it is broken only because it ends too soon. length > 0. */
size_t utf8_length(const char *bytes, size_t length, size_t *broken, bool *open);
/* The same text in valid UTF-8, and in NFC if asked. *clean is `text` itself, or *owned, which the caller frees. */
MUST_CHECK enum status text_clean(const char *text, size_t length, bool nfc, const char **clean, size_t *clean_length, char **owned,
                                  struct error *error);

#endif
