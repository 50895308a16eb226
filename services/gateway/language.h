// language.h: what the gateway needs of a model: tokenizer, chat template and context length, but no tensor.
//
// A language does not change once it is open; all threads share it.
#ifndef FD_GATEWAY_LANGUAGE_H
#define FD_GATEWAY_LANGUAGE_H

#include "services/gateway/schema.h"

struct language;
struct language_stream;

struct language_config {
    const char *model_path;
    const char *chat_template_path; // NULL: the model's own
    const char *served_name;        // NULL: the file's stem
    uint32_t context_tokens;        // 0: the model's context length
};

// Reads the file's metadata. Blocks on the disk. The caller closes *out.
enum status language_open(const struct language_config *config, struct language **out, struct error *error) MUST_CHECK;
void language_close(struct language *language);

const char *language_name(const struct language *language); // the model's id in the API
bool language_is_named(const struct language *language, const char *name);
uint32_t language_vocab(const struct language *language);
// The vocabulary, and the sampling that the model's makers recommend (general.sampling.* of the file). Owned by the language.
const struct api_model *language_api_model(const struct language *language);
uint32_t language_context(const struct language *language);
uint64_t language_fingerprint(const struct language *language);
// Returns the tokens that end an answer: those that the file names, and control tokens with the usual names. Owned by the language.
uint32_t *language_end_tokens(const struct language *language, uint32_t *count);

// Converts text to ids; the caller frees *ids. OUT_OF_RANGE: the text has more than max_tokens; *count is a lower bound of their
// number.
enum status language_encode(const struct language *language, const char *text, size_t bytes, bool add_special, bool parse_special,
                            uint32_t max_tokens, uint32_t **ids, uint32_t *count, struct error *error) MUST_CHECK;
// What comes after a conversation's messages.
enum language_turn {
    LANGUAGE_TURN_NONE,
    LANGUAGE_TURN_BEGIN,    // the start of the next answer
    LANGUAGE_TURN_CONTINUE, // the last message is not ended: it goes on where its content ends
};

static inline enum language_turn language_turn_of(const struct api_request *api)
{
    return api->continue_final_message ? LANGUAGE_TURN_CONTINUE : (enum language_turn)api->add_generation_prompt;
}

// Converts a conversation to ids by the chat template. Special tokens are recognized only in the template's own text.
// INVALID_ARGUMENT: the template rejects the conversation. FAILED_PRECONDITION: there is no template. OUT_OF_RANGE as above.
enum status language_encode_chat(const struct language *language, const struct api_chat_message *messages, uint32_t message_count,
                                 enum language_turn turn, uint32_t max_tokens, uint32_t **ids, uint32_t *count,
                                 struct error *error) MUST_CHECK;

// Returns a token's bytes (the name of a special token). Borrowed; not terminated.
const char *language_token(const struct language *language, uint32_t id, size_t *bytes);
// Returns whether a token is hidden from clients: a control token, or one that ends an answer.
bool language_is_special(const struct language *language, uint32_t id);

// Converts ids to text and appends it to *out; special tokens are left out unless show_special.
void language_decode(const struct language *language, const uint32_t *ids, uint32_t count, bool show_special, struct text *out);

// Opens a stream that turns one sequence's tokens into text, whole characters only. The caller closes it. Returns NULL when out of
// memory.
struct language_stream *language_stream_open(const struct language *language);
void language_stream_close(struct language_stream *stream);
void language_stream_push(struct language_stream *stream, uint32_t id, struct text *out);
// Ends the stream; the remainder of an incomplete character becomes U+FFFD.
void language_stream_finish(struct language_stream *stream, struct text *out);

#endif
