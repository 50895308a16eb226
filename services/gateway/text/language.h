// language.h: what the gateway needs of a model: tokenizer, chat template and context length, but no tensor.
//
// A language does not change once it is open; all threads share it.
#ifndef FD_GATEWAY_TEXT_LANGUAGE_H
#define FD_GATEWAY_TEXT_LANGUAGE_H

#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"
#include "services/gateway/api/schema/schema.h"
#include "services/gateway/text/chat_templates.h"

struct language;
struct language_stream;

struct language_config {
    const char *model_path;
    const char *chat_template_path; // NULL: the model's own
    const char *served_name;        // NULL: the file's stem
    uint32_t context_tokens;        // 0: the model's context length
    const char *pooling;            // a name of POOLING_NAMES; NULL: auto
    const char *tool_parser;        // a name of services/gateway/answer, "auto" (NULL, too) or "none"
    const char *reasoning_parser;   // likewise
    const char *sampling;           // "temperature=0.2,top_p=0.9": of requests that do not say; NULL, "": none is set
};

// How the model pools prompts.
struct language_pooling {
    struct model_pooling model;
    uint32_t hidden;   // values of a vector
    char *rank_prompt; // with "{query}" and "{document}"; NULL: they follow one another
};

// The model's file as clients are told of it.
struct language_facts {
    char architecture[32];
    const char *quantization; // static: the type that most bytes of the tensors have, "Q8_0"
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, experts, experts_used;
    uint64_t parameters, file_bytes;
};

// Reads the file's metadata. Blocks on the disk. The caller closes *out.
enum status language_open(const struct language_config *config, struct language **out, struct error *error) MUST_CHECK;
void language_close(struct language *language);

const char *language_name(const struct language *language); // the model's id in the API
bool language_is_named(const struct language *language, const char *name);
uint32_t language_vocab(const struct language *language);
// The vocabulary, and how requests sample that do not say: as configured, else as the model's makers recommend (language_read_sampling()), else
// as the API has it. Owned by the language.
const struct api_model *language_api_model(const struct language *language);
// Takes the defaults that the file names (general.sampling.*). What is out of range is left out with a warning.
void language_read_sampling(const struct gguf *gguf, struct api_model *out);
uint32_t language_context(const struct language *language);
const struct language_facts *language_facts(const struct language *language);
// Whether conversations can be had with it: it has a chat template.
bool language_chats(const struct language *language);
uint64_t language_fingerprint(const struct language *language);
// Returns the tokens that end an answer: those that the file names, and control tokens with the usual names. Owned by the language.
uint32_t *language_end_tokens(const struct language *language, uint32_t *count);

// Converts text to ids; the caller frees *ids. OUT_OF_RANGE: the text has more than max_tokens; *count is a lower bound of their
// number.
enum status language_encode(const struct language *language, const char *text, size_t bytes, bool add_special, bool parse_special,
                            uint32_t max_tokens, uint32_t **ids, uint32_t *count, struct error *error) MUST_CHECK;
// Converts a conversation to ids by the chat template, with its tools, documents and variables. Special tokens are recognized only in the
// template's own text. The conversation in *api is put into the form that the template takes. *reasoning_is_open: the prompt ends with what
// opens the model's reasoning.
// INVALID_ARGUMENT: the template rejects the conversation. FAILED_PRECONDITION: there is no template. NOT_FOUND: none of the name that the
// request gives. OUT_OF_RANGE as above.
enum status language_encode_chat(const struct language *language, struct api_request *api, uint32_t max_tokens, uint32_t **ids,
                                 uint32_t *count, bool *reasoning_is_open, struct error *error) MUST_CHECK;

// Returns the notation of the answers to a request; chat_template: NULL, or the template that it names. A template that knows no tools has them described, and its answers have calls in JSON.
struct language_notation language_notation(const struct language *language, const char *chat_template, bool with_tools);

const struct language_pooling *language_pooling(const struct language *language);
// Converts texts, which follow one another, to ids, as language_encode() does.
enum status language_encode_segments(const struct language *language, const struct text_segment *segments, uint32_t segment_count,
                                     bool add_special, uint32_t max_tokens, uint32_t **ids, uint32_t *count,
                                     struct error *error) MUST_CHECK;

// Returns a token's bytes (the name of a special token). Borrowed; not terminated.
const char *language_token(const struct language *language, uint32_t id, size_t *bytes);
// Returns whether a token ends an answer: one of language_end_tokens().
bool language_is_end(const struct language *language, uint32_t id);
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
