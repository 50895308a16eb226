// tokenizer.c: builds a tokenizer from its spec, and answers questions about its tokens.
//
// All token bytes lie decoded in one arena, one after another: bytes[offsets[id] .. offsets[id + 1]). 49,152 tokens of SmolLM2
// take 0.4 MB there, 0.2 MB of offsets, 0.5 MB for bytes → id and 2 MB for their 48,900 merges.
#include "common/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/tokenizer/tokenizer_state.h"

enum { MAX_ARENA_BYTES = 1 << 30, MAX_MERGES = 1 << 23 };

static const char *const end_names[] = {"<|im_end|>",      "<|eot_id|>", "<|eom_id|>",    "<|endoftext|>", "</s>",
                                        "<|end_of_text|>", "<|end|>",    "<end_of_turn>", "<|return|>",    "<|call|>"};
// In a vocabulary with the second, the first is between the messages of one answer (gpt-oss: what it thinks, then what it says).
static const char message_end[] = "<|end|>", last_message_end[] = "<|return|>";

static enum status check_id(int64_t id, const char *what, const struct tokenizer_spec *spec, struct error *error)
{
    if (id == -1 || (id >= 0 && id < spec->token_count))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: %s id %lld is none of the %u tokens", what, (long long)id,
                     spec->token_count);
}

static enum status check_spec(const struct tokenizer_spec *spec, struct error *error)
{
    if (!spec->model || (strcmp(spec->model, "gpt2") != 0 && strcmp(spec->model, "llama") != 0)) {
        char shown[64];
        return error_set(error, STATUS_UNIMPLEMENTED, "tokenizer: model %s is not supported; supported: gpt2, llama",
                         log_quote(shown, sizeof shown, spec->model ? spec->model : ""));
    }
    if (spec->token_count == 0 || spec->token_count > TOKENIZER_MAX_TOKENS)
        return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: %u tokens, supported: 1 to %d", spec->token_count,
                         TOKENIZER_MAX_TOKENS);
    if (spec->merge_count > MAX_MERGES)
        return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: %u merges, supported: up to %d", spec->merge_count,
                         MAX_MERGES);
    uint64_t total = 0;
    for (uint32_t id = 0; id < spec->token_count; id++) {
        if (spec->tokens[id].length > TOKENIZER_MAX_TOKEN_BYTES)
            return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: token %u has %zu bytes, supported: up to %d", id,
                             spec->tokens[id].length, TOKENIZER_MAX_TOKEN_BYTES);
        total += spec->tokens[id].length;
    }
    if (total > MAX_ARENA_BYTES)
        return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: the tokens have %llu bytes, supported: up to %d",
                         (unsigned long long)total, MAX_ARENA_BYTES);
    enum status status = check_id(spec->bos_id, "bos", spec, error);
    if (status == STATUS_OK)
        status = check_id(spec->eos_id, "eos", spec, error);
    if (status == STATUS_OK)
        status = check_id(spec->unknown_id, "unknown", spec, error);
    if (status == STATUS_OK)
        status = check_id(spec->eot_id, "eot", spec, error);
    for (uint32_t i = 0; status == STATUS_OK && i < spec->end_count; i++)
        status = check_id(spec->end_ids[i], "end", spec, error);
    return status;
}

// The type of a token: the file's, or a guess from the rest of the spec if the file has no types.
static enum status find_type(const struct tokenizer *tokenizer, const struct tokenizer_spec *spec, uint32_t id, uint8_t *out,
                             struct error *error)
{
    if (spec->types) {
        if (spec->types[id] < 0 || spec->types[id] > TOKEN_BYTE)
            return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: token %u has type %d, which is none", id, spec->types[id]);
        *out = spec->types[id] == 0 ? TOKEN_NORMAL : (uint8_t)spec->types[id];
        return STATUS_OK;
    }
    bool control = id == spec->bos_id || id == spec->eos_id || id == spec->eot_id;
    bool byte = tokenizer->kind == TOKENIZER_SPM && spm_byte_of(spec->tokens[id]) >= 0;
    *out = id == spec->unknown_id ? TOKEN_UNKNOWN : control ? TOKEN_CONTROL : byte ? TOKEN_BYTE : TOKEN_NORMAL;
    return STATUS_OK;
}

static uint8_t find_flags(const struct tokenizer *tokenizer, const struct tokenizer_spec *spec, uint32_t id)
{
    if (spec->flags)
        return spec->flags[id];
    switch (tokenizer->types[id]) {
    case TOKEN_CONTROL:
    case TOKEN_UNKNOWN: return TOKEN_FLAG_ADDED;
    case TOKEN_USER_DEFINED: return tokenizer->kind == TOKENIZER_SPM ? TOKEN_FLAG_ADDED | TOKEN_FLAG_NORMALIZED : TOKEN_FLAG_ADDED;
    default: return 0;
    }
}

// Writes the bytes that a token stands for. *listed: plain text can become this token.
static size_t decode_token(struct tokenizer *tokenizer, uint32_t id, struct text_span text, char *out, bool *listed)
{
    size_t length = 0;
    uint8_t type = tokenizer->types[id];
    bool plain = type == TOKEN_NORMAL || type == TOKEN_UNUSED;
    *listed = true;
    if (tokenizer->kind == TOKENIZER_BPE && plain && bpe_decode_text(text, out, &length))
        return length;
    *listed = !plain && tokenizer->kind == TOKENIZER_BPE; // merges may name it
    int byte = type == TOKEN_BYTE ? spm_byte_of(text) : -1;
    if (byte >= 0) {
        out[0] = (char)byte;
        tokenizer->byte_ids[byte] = id;
        tokenizer->has_bytes = true;
        *listed = false;
        return 1;
    }
    if (tokenizer->kind == TOKENIZER_SPM && (plain || type == TOKEN_USER_DEFINED)) {
        *listed = type == TOKEN_NORMAL;
        for (size_t i = 0; i < text.length; length++) {
            bool mark = text.length - i >= 3 && memcmp(text.bytes + i, "\xe2\x96\x81", 3) == 0;
            out[length] = mark ? ' ' : text.bytes[i];
            i += mark ? 3 : 1;
        }
        return length;
    }
    if (text.length)
        memcpy(out, text.bytes, text.length);
    return text.length;
}

// The most text that these bytes can give when broken ones are replaced.
static size_t text_bytes(struct text_span span)
{
    size_t n = 0, broken;
    bool open;
    for (size_t i = 0; i < span.length;) {
        size_t bytes = clean_text_utf8_length(span.bytes + i, span.length - i, &broken, &open);
        n += bytes ? bytes : 3;
        i += bytes ? bytes : broken;
    }
    return n;
}

static enum status load_tokens(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, unsigned char *listed,
                               struct error *error)
{
    tokenizer->max_token_bytes = 4;
    tokenizer->max_symbols = 1;
    size_t used = 0;
    for (uint32_t id = 0; id < spec->token_count; id++) {
        bool is_listed;
        enum status status = find_type(tokenizer, spec, id, &tokenizer->types[id], error);
        if (status)
            return status;
        tokenizer->flags[id] = find_flags(tokenizer, spec, id);
        tokenizer->offsets[id] = (uint32_t)used;
        size_t length = decode_token(tokenizer, id, spec->tokens[id], tokenizer->bytes + used, &is_listed);
        struct text_span span = {tokenizer->bytes + used, length};
        listed[id] = is_listed && length > 0;
        tokenizer->max_token_bytes = MAX(tokenizer->max_token_bytes, MAX(length, text_bytes(span)));
        tokenizer->max_symbols = MAX(tokenizer->max_symbols, (uint32_t)length);
        used += length;
    }
    tokenizer->offsets[spec->token_count] = (uint32_t)used;
    return STATUS_OK;
}

// Bytes → symbol: normal tokens first, so that they win over others of the same bytes.
static enum status index_tokens(struct tokenizer *tokenizer, const unsigned char *listed, struct error *error)
{
    if (!text_map_init(&tokenizer->texts, tokenizer->symbol_count))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for %u tokens", tokenizer->vocab);
    for (int normal = 1; normal >= 0; normal--)
        for (uint32_t id = 0; id < tokenizer->vocab; id++)
            if (listed[id] && (tokenizer->types[id] == TOKEN_NORMAL) == normal)
                text_map_put(&tokenizer->texts, tokenizer, id);
    for (uint32_t symbol = tokenizer->vocab; symbol < tokenizer->symbol_count; symbol++)
        text_map_put(&tokenizer->texts, tokenizer, symbol);
    return STATUS_OK;
}

static void add_end(struct tokenizer *tokenizer, int64_t id)
{
    if (id < 0 || tokenizer->end_count == TOKENIZER_MAX_END_TOKENS || tokenizer_is_end(tokenizer, (uint32_t)id))
        return;
    uint32_t at = tokenizer->end_count++;
    for (; at > 0 && tokenizer->end_ids[at - 1] > (uint32_t)id; at--)
        tokenizer->end_ids[at] = tokenizer->end_ids[at - 1];
    tokenizer->end_ids[at] = (uint32_t)id;
}

static bool is_control_named(const struct tokenizer *tokenizer, uint32_t id, const char *name)
{
    struct text_span span = token_span(tokenizer, id);
    return tokenizer->types[id] == TOKEN_CONTROL && span.length == strlen(name) && memcmp(span.bytes, name, span.length) == 0;
}

static void find_ends(struct tokenizer *tokenizer, const struct tokenizer_spec *spec)
{
    bool several_messages = false;

    for (uint32_t id = 0; id < tokenizer->vocab; id++)
        several_messages |= is_control_named(tokenizer, id, last_message_end);
    add_end(tokenizer, spec->eos_id);
    if (spec->eot_id >= 0 && !(several_messages && is_control_named(tokenizer, (uint32_t)spec->eot_id, message_end)))
        add_end(tokenizer, spec->eot_id);
    for (uint32_t i = 0; i < spec->end_count; i++)
        add_end(tokenizer, spec->end_ids[i]);
    for (uint32_t id = 0; id < tokenizer->vocab; id++)
        for (size_t i = 0; i < ARRAY_COUNT(end_names); i++)
            if (is_control_named(tokenizer, id, end_names[i]) && !(several_messages && strcmp(end_names[i], message_end) == 0))
                add_end(tokenizer, id);
}

uint64_t tokenizer_planned_bytes(const struct tokenizer_spec *spec)
{
    uint64_t total = sizeof(struct tokenizer), count = spec->token_count;
    for (uint32_t id = 0; id < count; id++)
        total += MAX(spec->tokens[id].length, 1);
    return total + count * 4 + (count + 1) * sizeof(uint32_t) + text_map_bytes(spec->token_count) +
           merge_map_bytes(spec->merge_count);
}

static enum status allocate(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, unsigned char **listed,
                            struct error *error)
{
    size_t total = 1, count = spec->token_count;
    for (uint32_t id = 0; id < count; id++)
        total += MAX(spec->tokens[id].length, 1);
    tokenizer->bytes = malloc(total);
    tokenizer->offsets = malloc((count + 1) * sizeof *tokenizer->offsets);
    tokenizer->types = malloc(count);
    tokenizer->flags = calloc(count, 1);
    tokenizer->whole = calloc(count, 1);
    *listed = malloc(count);
    if (tokenizer->bytes && tokenizer->offsets && tokenizer->types && tokenizer->flags && tokenizer->whole && *listed)
        return STATUS_OK;
    return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for %u tokens", spec->token_count);
}

// Opens what encoding needs beside the tokens.
static enum status open_encoder(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, const unsigned char *listed,
                                struct error *error)
{
    enum status status = STATUS_OK;

    if (tokenizer->kind == TOKENIZER_SPM)
        status = spm_add_characters(tokenizer, error);
    if (status == STATUS_OK)
        status = index_tokens(tokenizer, listed, error);
    if (status == STATUS_OK)
        status = tokenizer->kind == TOKENIZER_BPE ? bpe_open(tokenizer, spec, error) : spm_open(tokenizer, spec, error);
    if (status == STATUS_OK)
        status = special_init(&tokenizer->raw, tokenizer, spec, false, error);
    if (status == STATUS_OK)
        status = special_init(&tokenizer->normalized, tokenizer, spec, true, error);
    return status;
}

enum status tokenizer_open(const struct tokenizer_spec *spec, struct tokenizer **out, struct error *error)
{
    *out = NULL;
    enum status status = check_spec(spec, error);
    if (status)
        return status;
    unsigned char *listed = NULL;
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory");
    tokenizer->kind = strcmp(spec->model, "gpt2") == 0 ? TOKENIZER_BPE : TOKENIZER_SPM;
    tokenizer->vocab = tokenizer->symbol_count = spec->token_count;
    tokenizer->add_bos = spec->add_bos;
    tokenizer->add_eos = spec->add_eos;
    tokenizer->add_space_prefix = spec->add_space_prefix && tokenizer->kind == TOKENIZER_SPM;
    tokenizer->prefix_at_start_only = spec->prefix_at_start_only;
    tokenizer->prefix_unless_space = spec->prefix_unless_space;
    tokenizer->spaces_first = tokenizer->kind == TOKENIZER_SPM && !spec->spaces_last;
    tokenizer->bos = spec->bos_id < 0 ? TOKEN_NONE : (uint32_t)spec->bos_id;
    tokenizer->eos = spec->eos_id < 0 ? TOKEN_NONE : (uint32_t)spec->eos_id;
    tokenizer->unknown = spec->unknown_id < 0 ? TOKEN_NONE : (uint32_t)spec->unknown_id;
    memset(tokenizer->byte_ids, 0xff, sizeof tokenizer->byte_ids);
    status = allocate(tokenizer, spec, &listed, error);
    if (status == STATUS_OK)
        status = load_tokens(tokenizer, spec, listed, error);
    if (status == STATUS_OK && !spec->decodes_only)
        status = open_encoder(tokenizer, spec, listed, error);
    free(listed);
    if (status) {
        tokenizer_close(tokenizer);
        return status;
    }
    find_ends(tokenizer, spec);
    *out = tokenizer;
    return STATUS_OK;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    pretokenizer_close(tokenizer->pre);
    special_free(&tokenizer->normalized);
    special_free(&tokenizer->raw);
    merge_map_free(&tokenizer->merges);
    text_map_free(&tokenizer->texts);
    free(tokenizer->whole);
    free(tokenizer->flags);
    free(tokenizer->types);
    free(tokenizer->offsets);
    free(tokenizer->bytes);
    free(tokenizer);
}

uint32_t tokenizer_vocab(const struct tokenizer *tokenizer) { return tokenizer->vocab; }

struct text_span tokenizer_token_bytes(const struct tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->vocab ? token_span(tokenizer, id) : (struct text_span){"", 0};
}

size_t tokenizer_max_token_bytes(const struct tokenizer *tokenizer) { return tokenizer->max_token_bytes; }

bool tokenizer_is_control(const struct tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->vocab && (tokenizer->types[id] == TOKEN_CONTROL || tokenizer->types[id] == TOKEN_UNKNOWN);
}

bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t id)
{
    for (uint32_t i = 0; i < tokenizer->end_count; i++)
        if (tokenizer->end_ids[i] == id)
            return true;
    return false;
}

uint32_t tokenizer_end_tokens(const struct tokenizer *tokenizer, uint32_t *ids, uint32_t capacity)
{
    for (uint32_t i = 0; i < MIN(capacity, tokenizer->end_count); i++)
        ids[i] = tokenizer->end_ids[i];
    return tokenizer->end_count;
}
