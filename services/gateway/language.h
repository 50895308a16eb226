// language.h: the model as the gateway knows it: tokenizer, chat template, context length. No tensor.
//
// Open is immutable and shared by all threads.
#ifndef FD_GATEWAY_LANGUAGE_H
#define FD_GATEWAY_LANGUAGE_H

#include "services/gateway/schema.h"

struct language;
struct language_stream;

struct language_config {
    const char *model_path;
    const char *chat_template_path; // NULL: the model's own
    const char *served_name;        // NULL: the file's stem
    uint32_t context_tokens;        // 0: the model's
};

// Reads the file's metadata. Blocks on the disk. The caller closes *out.
enum status language_open(const struct language_config *config, struct language **out, struct error *error) MUST_CHECK;
void language_close(struct language *language);

const char *language_name(const struct language *language); // the model's id in the API
bool language_is_named(const struct language *language, const char *name);
uint32_t language_vocab(const struct language *language);
uint32_t language_context(const struct language *language);
uint64_t language_fingerprint(const struct language *language);
// Tokens that end an answer: those of the file, and control tokens with the usual names. Owned by the language.
uint32_t *language_end_tokens(const struct language *language, uint32_t *count);

// Text -> ids; the caller frees *ids. More than max_tokens: OUT_OF_RANGE, and *count is a lower bound of how many.
enum status language_encode(const struct language *language, const char *text, size_t bytes, bool add_special, bool parse_special,
                            uint32_t max_tokens, uint32_t **ids, uint32_t *count, struct error *error) MUST_CHECK;
// A conversation -> ids by the chat template; special tokens are recognized in the template's text alone.
// INVALID_ARGUMENT: the template refuses it. FAILED_PRECONDITION: there is no template. OUT_OF_RANGE as above.
enum status language_encode_chat(const struct language *language, const struct api_chat_message *messages, uint32_t message_count,
                                 bool add_generation_prompt, uint32_t max_tokens, uint32_t **ids, uint32_t *count,
                                 struct error *error) MUST_CHECK;

// A token's bytes, special ones too (their name). Borrowed; not terminated.
const char *language_token(const struct language *language, uint32_t id, size_t *bytes);
// A token that is not shown: a control token, or one that ends an answer.
bool language_is_special(const struct language *language, uint32_t id);

// Ids -> text, special tokens left out or shown. Appends to *out.
void language_decode(const struct language *language, const uint32_t *ids, uint32_t count, bool show_special, struct text *out);

// One sequence's text as it is generated: whole characters only. The caller closes it; NULL when out of memory.
struct language_stream *language_stream_open(const struct language *language);
void language_stream_close(struct language_stream *stream);
void language_stream_push(struct language_stream *stream, uint32_t id, struct text *out);
// What is left of a cut-off character becomes U+FFFD.
void language_stream_finish(struct language_stream *stream, struct text *out);

#endif
