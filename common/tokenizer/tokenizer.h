// tokenizer.h: text to token ids and back, by the vocabulary of the model.
//
// Two kinds are known, by the names that model files use:
//   "gpt2"   byte-level BPE: a regular expression cuts the text into words, each word's bytes are merged by rank
//   "llama"  SentencePiece-style: spaces become U+2581, characters are merged by the score of the piece that they make, and a character
//            without a piece becomes byte tokens <0xNN>
// A tokenizer is built from a plain struct and knows no file format.
//
// Text that is not UTF-8 is read as Python's bytes.decode("utf-8", errors="replace") would: each maximal broken sequence
// becomes one U+FFFD. So decode(encode(x)) gives x for valid UTF-8, with three exceptions: "qwen2" normalizes to NFC first; bytes that a
// byte-level vocabulary lacks are lost (SmolLM2's has no token for 21 of them, 0x04 among others); so are characters that a "llama" vocabulary
// without byte tokens lacks.
//
// Time is nearly linear in the text's length for any text. Memory is about 44 bytes for each byte of the longest word; a word that must have
// more than max_tokens is refused before it is merged.
//
// Threads: a tokenizer does not change between open and close; all calls may be made on it from any thread at once.
// Nothing here blocks.
#ifndef FD_TOKENIZER_TOKENIZER_H
#define FD_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum {
    TOKENIZER_MAX_TOKENS = 1 << 22,      // in a vocabulary
    TOKENIZER_MAX_TOKEN_BYTES = 1 << 12, // a token's text
    TOKENIZER_MAX_END_TOKENS = 16,
};

// Kinds of tokens; the numbers are GGUF's.
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

// How a token is looked for in a text before that is cut into words. The first four are tokenizer.json's.
enum token_flag {
    TOKEN_FLAG_LSTRIP = 1,      // takes the white space before it
    TOKEN_FLAG_RSTRIP = 2,      // and after it
    TOKEN_FLAG_SINGLE_WORD = 4, // only if no letter, mark, digit or '_' is beside it
    TOKEN_FLAG_NORMALIZED = 8,  // in the normalized text, as normalized itself
    TOKEN_FLAG_PREFIXED = 16,   // whose normalized form begins with the space that goes before a text
    TOKEN_FLAG_ADDED = 32,      // it is looked for, whatever its type
};

// Borrowed bytes; not terminated.
struct text_span {
    const char *bytes;
    size_t length;
};

// The parts that a tokenizer is built from. tokenizer_open() copies everything that is pointed to.
struct tokenizer_spec {
    const char *model; // "gpt2" or "llama"
    const char *pre;   // for "gpt2": a name in bpe.c; "default" and NULL mean "gpt-2", with a warning
    uint32_t token_count;
    const struct text_span *tokens; // [token_count] as in the file: "Ġhello", "▁hello", "<0x0A>"
    const float *scores;            // [token_count] or NULL; "llama" needs them
    const int32_t *types;           // [token_count] enum token_type, or NULL: all normal
    const uint8_t *flags; // [token_count] enum token_flag, or NULL: control, unknown and user-defined tokens are ADDED, and
                          // user-defined ones of "llama" NORMALIZED, as in sentencepiece
    uint32_t merge_count;
    const struct text_span *merges;             // [merge_count] "left right", best first; "gpt2" only
    int64_t bos_id, eos_id, unknown_id, eot_id; // -1: none
    uint32_t end_count;
    const int64_t *end_ids;    // [end_count] further tokens that end an answer
    bool add_bos, add_eos;     // added by add_special of tokenizer_encode()
    bool add_space_prefix;     // "llama" only: a space before text at the start and after a special token
    bool prefix_at_start_only; // not after a special token
    bool prefix_unless_space;  // not before a text that begins with one
    bool spaces_last;          // "llama" only: tokens that are NORMALIZED are found before a space becomes U+2581
    bool decodes_only;         // not for tokenizer_encode(); opened in a fraction of the time; merges are not needed
};

struct tokenizer;

// Returns the bytes that the tokenizer will take, for the memory plan, without the spec's own arrays.
uint64_t tokenizer_planned_bytes(const struct tokenizer_spec *spec);

// Builds a tokenizer; the caller closes *out. INVALID_ARGUMENT: the tables do not fit together. UNIMPLEMENTED: the model or pre-tokenizer is
// unknown (the error names the known ones). RESOURCE_EXHAUSTED: no memory.
MUST_CHECK enum status tokenizer_open(const struct tokenizer_spec *spec, struct tokenizer **out, struct error *error);

// Frees. NULL is allowed.
void tokenizer_close(struct tokenizer *tokenizer);

// A piece of a text, which may contain special tokens (parse_special) or may not.
struct text_segment {
    const char *bytes;
    size_t length;
    bool parse_special;
};

// Encodes the segments, joined, as one text. Special (control and unknown) tokens are matched only where they lie in one
// segment that has parse_special; elsewhere, or across a boundary, their text is plain text. (Two neighbours that both
// have parse_special are one.) User-defined tokens are plain text and matched everywhere. At each place the longest token wins.
// add_special adds bos and eos as the spec says.
// On OK *ids is malloc'd (never NULL), the caller's to free. More than max_tokens: OUT_OF_RANGE, as soon as that is known,
// and *count is a lower bound of the number. Other failures: RESOURCE_EXHAUSTED (memory), INTERNAL (PCRE2). On failure
// *ids is NULL. Bytes that a byte-level vocabulary has no token for are left out.
MUST_CHECK enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_segment *segments,
                                        uint32_t segment_count, bool add_special, uint32_t max_tokens, uint32_t **ids,
                                        uint32_t *count, struct error *error);

uint32_t tokenizer_vocab(const struct tokenizer *tokenizer);

// Returns the bytes that a token stands for: "Ġ" is a space, <0x0A> a line feed, a special token its own text. They live as long as the tokenizer
// and may be part of a character. Length 0 for an id outside of the vocabulary.
struct text_span tokenizer_token_bytes(const struct tokenizer *tokenizer, uint32_t id);

// Returns the most bytes of text that one token gives, a broken byte counted as the three of U+FFFD; at least 4.
size_t tokenizer_max_token_bytes(const struct tokenizer *tokenizer);

// Returns whether it is a control token or the unknown one: not shown when special tokens are skipped. False for an id outside of the vocabulary.
bool tokenizer_is_control(const struct tokenizer *tokenizer, uint32_t id);

// Returns whether it ends an answer: one of tokenizer_end_tokens().
bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t id);

// Finds eos, eot, and the control tokens that usually end a turn, by name (<|im_end|>, <|eot_id|>, …). Writes at most capacity,
// returns how many there are (at most TOKENIZER_MAX_END_TOKENS), ascending, each once.
uint32_t tokenizer_end_tokens(const struct tokenizer *tokenizer, uint32_t *ids, uint32_t capacity);

// Turns tokens into text one at a time, for streams. It gives out whole characters and keeps the start of an unfinished one; bytes that are no
// character become U+FFFD. All outputs joined are what Python's
// b"".join(bytes of tokens).decode("utf-8", errors="replace") gives, wherever characters are cut into tokens.
// A plain value; one thread at a time. The tokenizer must outlive it.
struct detokenizer {
    const struct tokenizer *tokenizer;
    bool skip_special;        // control tokens give no text
    bool drop_space;          // the next text begins with the space that encoding put there
    uint8_t pending_bytes;    // < 4
    unsigned char pending[4]; // the start of a character
};

// skip_special: control tokens give no text. With "llama" and add_space_prefix the first space of the text is dropped; a
// caller that continues a text, rather than starting one, clears drop_space.
void detokenizer_init(struct detokenizer *detokenizer, const struct tokenizer *tokenizer, bool skip_special);

// Writes what token `id` completes; returns the bytes written. out_capacity must be at least
// tokenizer_max_token_bytes(tokenizer) + 8 (asserted). An id outside of the vocabulary gives nothing.
size_t detokenizer_push(struct detokenizer *detokenizer, uint32_t id, char *out, size_t out_capacity);

// Ends the text: writes U+FFFD for an unfinished character, else nothing. out_capacity must be at least 4 (asserted). Afterwards the
// detokenizer is as after init, but drops no space.
size_t detokenizer_flush(struct detokenizer *detokenizer, char *out, size_t out_capacity);

// --- clean_text.c: valid UTF-8 ------------------------------------------------------------------------------------------

// Returns the length, 1 to 4, of the character that bytes begin with. If there is none, returns 0, and *broken is the length (1 to 3) of the
// sequence that one U+FFFD replaces. *open: the sequence is only cut off. length > 0.
size_t clean_text_utf8_length(const char *bytes, size_t length, size_t *broken, bool *open);
// Gives the text as valid UTF-8, in NFC if nfc is set. *clean is `text` itself, or *owned, which the caller frees.
MUST_CHECK enum status clean_text(const char *text, size_t length, bool nfc, const char **clean, size_t *clean_length, char **owned,
                                  struct error *error);

#endif
