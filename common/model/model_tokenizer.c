// model_tokenizer.c: finds in the metadata what a tokenizer is built from, and checks that counts and ids fit together.
// What a kind of tokenizer needs beyond that (merges, scores) its own code checks.
#include <inttypes.h>

#include "common/base/log.h"
#include "common/model/model_state.h"

struct reader {
    const struct gguf *gguf;
    struct error *error;
    enum status status; // the first failure; later reads do nothing
};

static bool wanted(const struct reader *reader, const char *key) { return !reader->status && gguf_has(reader->gguf, key); }

static void read_string(struct reader *reader, const char *key, struct gguf_string *out)
{
    *out = (struct gguf_string){"", 0};
    if (wanted(reader, key))
        reader->status = gguf_get_string(reader->gguf, key, out, reader->error);
}

typedef enum status get_array_fn(const struct gguf *gguf, const char *key, struct gguf_array *out, struct error *error);

// count: how many elements there must be; UINT64_MAX: any number.
static void read_array(struct reader *reader, const char *key, get_array_fn *get, uint64_t count, struct gguf_array *out)
{
    if (!wanted(reader, key))
        return;
    reader->status = get(reader->gguf, key, out, reader->error);
    if (!reader->status && count != UINT64_MAX && out->count != count)
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT,
                                   "%s: key '%s' has %" PRIu64 " elements, there are %" PRIu64 " tokens", gguf_label(reader->gguf),
                                   key, out->count, count);
}

// An id that lies outside the vocabulary would be looked up later. One that only ends an answer is left out: it never comes.
static void read_token(struct reader *reader, const char *key, uint32_t vocab, bool ends, uint32_t *out)
{
    *out = MODEL_NO_TOKEN;
    if (!wanted(reader, key))
        return;
    uint32_t id = 0;
    reader->status = gguf_get_u32(reader->gguf, key, &id, reader->error);
    if (!reader->status && id != MODEL_NO_TOKEN && id >= vocab && ends) {
        log_warn("END-IGNORED", "file=\"%s\" key=%s id=%u reason=\"there are %u tokens\"", gguf_label(reader->gguf), key, id,
                 vocab);
        return;
    }
    if (!reader->status && id != MODEL_NO_TOKEN && id >= vocab)
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is %u, there are %u tokens",
                                   gguf_label(reader->gguf), key, id, vocab);
    *out = id;
}

static void read_flag(struct reader *reader, const char *key, bool *out, bool *known)
{
    *known = wanted(reader, key);
    if (*known)
        reader->status = gguf_get_bool(reader->gguf, key, out, reader->error);
}

static void read_tokens(struct reader *reader, uint32_t *vocab, struct gguf_array *tokens)
{
    static const char key[] = "tokenizer.ggml.tokens";
    const char *label = gguf_label(reader->gguf);

    if (!gguf_has(reader->gguf, key)) {
        reader->status =
            error_set(reader->error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is missing: expected an array of strings", label, key);
        return;
    }
    reader->status = gguf_get_strings(reader->gguf, key, tokens, reader->error);
    if (reader->status)
        return;
    if (tokens->count == 0 || tokens->count > MODEL_MAX_VOCAB)
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT,
                                   "%s: key '%s' has %" PRIu64 " elements, expected 1 to %d", label, key, tokens->count,
                                   MODEL_MAX_VOCAB);
    else if (*vocab != 0 && *vocab != tokens->count)
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT,
                                   "%s: key '%s' has %" PRIu64 " elements, vocab_size is %u", label, key, tokens->count, *vocab);
    else
        *vocab = (uint32_t)tokens->count;
}

enum status model_read_tokenizer(const struct gguf *gguf, uint32_t *vocab, struct model_tokenizer *tokenizer, struct error *error)
{
    struct reader reader = {.gguf = gguf, .error = error};
    bool known;

    *tokenizer = (struct model_tokenizer){0};
    read_tokens(&reader, vocab, &tokenizer->tokens);
    read_string(&reader, "tokenizer.ggml.model", &tokenizer->kind);
    read_string(&reader, "tokenizer.ggml.pre", &tokenizer->pre);
    read_string(&reader, "tokenizer.chat_template", &tokenizer->chat_template);
    read_array(&reader, "tokenizer.ggml.token_type", gguf_get_integers, *vocab, &tokenizer->token_types);
    read_array(&reader, "fastdecode.token_flags", gguf_get_integers, *vocab, &tokenizer->token_flags);
    read_array(&reader, "tokenizer.ggml.scores", gguf_get_floats, *vocab, &tokenizer->scores);
    read_array(&reader, "tokenizer.ggml.merges", gguf_get_strings, UINT64_MAX, &tokenizer->merges);
    read_array(&reader, "fastdecode.end_token_ids", gguf_get_integers, UINT64_MAX, &tokenizer->end_tokens);
    read_token(&reader, "tokenizer.ggml.bos_token_id", *vocab, false, &tokenizer->bos);
    read_token(&reader, "tokenizer.ggml.eos_token_id", *vocab, true, &tokenizer->eos);
    read_token(&reader, "tokenizer.ggml.eot_token_id", *vocab, true, &tokenizer->eot);
    read_token(&reader, "tokenizer.ggml.eom_token_id", *vocab, true, &tokenizer->eom);
    read_token(&reader, "tokenizer.ggml.unknown_token_id", *vocab, false, &tokenizer->unknown);
    read_token(&reader, "tokenizer.ggml.padding_token_id", *vocab, false, &tokenizer->padding);
    read_flag(&reader, "tokenizer.ggml.add_bos_token", &tokenizer->add_bos, &tokenizer->add_bos_known);
    read_flag(&reader, "tokenizer.ggml.add_eos_token", &tokenizer->add_eos, &tokenizer->add_eos_known);
    read_flag(&reader, "tokenizer.ggml.add_space_prefix", &tokenizer->add_space_prefix, &tokenizer->add_space_prefix_known);
    read_flag(&reader, "fastdecode.prefix_at_start_only", &tokenizer->prefix_at_start_only, &known);
    read_flag(&reader, "fastdecode.prefix_unless_space", &tokenizer->prefix_unless_space, &known);
    read_flag(&reader, "fastdecode.spaces_last", &tokenizer->spaces_last, &known);
    return reader.status;
}
