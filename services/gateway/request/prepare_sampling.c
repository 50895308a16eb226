// prepare_sampling.c: what a request says of sampling, as the message that the mesh takes: words become tokens.
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/gateway/text/grammars.h"
#include "services/gateway/request/request_internal.h"

enum { BAD_WORD_TOKENS_MAX = API_MAX_STOP_BYTES + 8, BAD_TOKENS_MAX = 1 << 14 };

static uint64_t draw_seed(void)
{
    uint64_t seed;

    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = clock_now_ns() * 0x9E3779B97F4A7C15u;
    return seed;
}

static bool set_bias(const struct api_request *api, struct request *request)
{
    Fastdecode__Sampling *sampling = &request->sampling;
    uint32_t i;

    if (api->bias_count == 0)
        return true;
    request->bias_items = calloc(api->bias_count, sizeof *request->bias_items);
    request->bias = calloc(api->bias_count, sizeof *request->bias);
    if (!request->bias_items || !request->bias)
        return false;
    for (i = 0; i < api->bias_count; i++) {
        fastdecode__token_bias__init(&request->bias_items[i]);
        request->bias_items[i].token = api->bias[i].token;
        request->bias_items[i].bias = api->bias[i].bias;
        request->bias[i] = &request->bias_items[i];
    }
    sampling->n_bias = api->bias_count;
    sampling->bias = request->bias;
    return true;
}

// A growing list of tokens.
struct token_list {
    uint32_t *tokens;
    size_t count, capacity;
    bool failed;
};

static void add_tokens(struct token_list *list, const uint32_t *tokens, uint32_t count)
{
    if (list->count + count > list->capacity) {
        size_t capacity = MAX(list->capacity * 2, list->count + count + 64);
        uint32_t *grown = realloc(list->tokens, capacity * sizeof *grown);
        list->failed |= !grown;
        if (!grown)
            return;
        list->tokens = grown;
        list->capacity = capacity;
    }
    if (count)
        memcpy(list->tokens + list->count, tokens, count * sizeof *tokens);
    list->count += count;
}

static bool encode_word(const struct language *language, const char *text, size_t bytes, uint32_t **ids, uint32_t *count,
                        struct api_error *error)
{
    struct error reason;

    if (!language_encode(language, text, bytes, false, false, BAD_WORD_TOKENS_MAX, ids, count, &reason))
        return true;
    return api_fail(error, reason.status == STATUS_RESOURCE_EXHAUSTED ? 500 : 400, "invalid_value", "bad_words", "%s", reason.text);
}

// Whether the tokens end with those of `other`: then a ban of those bans these, too.
static bool ends_with(const uint32_t *tokens, uint32_t count, const uint32_t *other, uint32_t other_count)
{
    return other_count && count >= other_count && !memcmp(tokens + (count - other_count), other, other_count * sizeof *other);
}

// A word is banned as it begins a text, and behind a space.
static bool add_bad_word(const struct language *language, const struct stop_string *word, struct token_list *lengths,
                         struct token_list *tokens, struct api_error *error)
{
    char spaced[API_MAX_STOP_BYTES + 2] = " ";
    size_t skip = strspn(word->data, " ");
    uint32_t *plain, *behind, plain_count, behind_count;

    if (skip >= word->bytes)
        skip = 0;
    if (!encode_word(language, word->data + skip, word->bytes - skip, &plain, &plain_count, error))
        return false;
    memcpy(spaced + 1, word->data + skip, word->bytes - skip);
    if (!encode_word(language, spaced, word->bytes - skip + 1, &behind, &behind_count, error)) {
        free(plain);
        return false;
    }
    if (plain_count) {
        add_tokens(lengths, &plain_count, 1);
        add_tokens(tokens, plain, plain_count);
    }
    if (behind_count && !ends_with(behind, behind_count, plain, plain_count)) {
        add_tokens(lengths, &behind_count, 1);
        add_tokens(tokens, behind, behind_count);
    }
    free(plain);
    free(behind);
    return true;
}

static bool set_bad_words(const struct api_request *api, const struct language *language, struct request *request,
                          struct api_error *error)
{
    struct token_list lengths = {0}, tokens = {0};
    bool good = true;

    for (uint32_t i = 0; good && i < api->bad_words.count; i++)
        good = add_bad_word(language, &api->bad_words.strings[i], &lengths, &tokens, error);
    request->sampling.bad_length = lengths.tokens;
    request->sampling.n_bad_length = lengths.count;
    request->sampling.bad_token = tokens.tokens;
    request->sampling.n_bad_token = tokens.count;
    if (good && (lengths.failed || tokens.failed))
        return api_no_memory(error);
    if (good && tokens.count > BAD_TOKENS_MAX)
        return api_fail(error, 400, "invalid_value", "bad_words", "'bad_words' have %zu tokens, at most %d are allowed",
                        tokens.count, BAD_TOKENS_MAX);
    return good;
}

static bool has_bytes(const char *data, size_t bytes, const struct stop_string *wanted)
{
    return bytes >= wanted->bytes && memmem(data, bytes, wanted->data, wanted->bytes);
}

// Tokens that have a breaker's text in them; of a breaker that is in no token, the last of its own.
static bool mark_breaker(const struct language *language, const struct stop_string *breaker, uint8_t *bits, struct api_error *error)
{
    uint32_t vocab = language_vocab(language), *ids, count;
    bool found = false;

    for (uint32_t token = 0; token < vocab; token++) {
        size_t bytes;
        const char *data = language_token(language, token, &bytes);
        if (!has_bytes(data, bytes, breaker))
            continue;
        bits[token / 8] |= (uint8_t)(1 << token % 8);
        found = true;
    }
    if (found)
        return true;
    if (!encode_word(language, breaker->data, breaker->bytes, &ids, &count, error))
        return false;
    if (count)
        bits[ids[count - 1] / 8] |= (uint8_t)(1 << ids[count - 1] % 8);
    free(ids);
    return true;
}

static bool set_breakers(const struct api_request *api, const struct language *language, struct request *request,
                         struct api_error *error)
{
    size_t bytes = (language_vocab(language) + 7) / 8;

    if (api->sampling.dry_multiplier == 0 || api->dry_breakers.count == 0)
        return true;
    request->sampling.dry_breakers.data = calloc(bytes, 1);
    if (!request->sampling.dry_breakers.data)
        return api_no_memory(error);
    request->sampling.dry_breakers.len = bytes;
    for (uint32_t i = 0; i < api->dry_breakers.count; i++)
        if (!mark_breaker(language, &api->dry_breakers.strings[i], request->sampling.dry_breakers.data, error))
            return false;
    return true;
}

// What the answer must look like, as a grammar for the s-part.
static bool set_grammar(const struct api_request *api, const struct language *language, struct request *request,
                        struct api_error *error)
{
    Fastdecode__Sampling *sampling = &request->sampling;
    static const struct api_form none;
    const bool must_call = api->tool_choice == API_TOOLS_REQUIRED || api->tool_choice == API_TOOLS_NAMED;
    const struct wanted wanted = {.form = must_call ? &none : &api->form,
                                  .answer = {.family = request->notation.family,
                                             .unit_markers = request->notation.unit_markers,
                                             .reasoning = request->notation.reasoning,
                                             .reasoning_is_open = request->reasoning_is_open,
                                             .tools = request->notation.family ? request->tools : NULL,
                                             .only = api->tool_name,
                                             .one_call = !api->parallel_tool_calls || api->tool_choice == API_TOOLS_NAMED,
                                             .open_objects = api->form.open_objects,
                                             .in_any_order = api->form.in_any_order}};
    const char *param = must_call ? "tools" : api->form.param;
    struct error reason;
    uint32_t end_count;

    if (must_call && !wanted.answer.tools)
        return api_fail(error, 400, "unsupported_parameter", "tool_choice",
                        "'tool_choice' cannot require a call: the server was started with --tool-parser none");
    if (grammars_get(request->owner->grammars, &wanted, &request->grammar, &reason))
        return api_fail(error, 400, reason.status == STATUS_UNIMPLEMENTED ? "unsupported_parameter" : "invalid_value", param,
                        "'%s': %s", param, reason.text);
    sampling->grammar.data = (uint8_t *)(uintptr_t)packed_grammar_bytes(request->grammar, &sampling->grammar.len);
    sampling->ends_late = api->ignore_eos;
    sampling->end_token = language_end_tokens(language, &end_count);
    sampling->n_end_token = end_count;
    return true;
}

bool request_set_sampling(struct api_request *api, const struct language *language, struct request *request,
                          struct api_error *error)
{
    Fastdecode__Sampling *sampling = &request->sampling;
    uint32_t end_count;

    *sampling = api->sampling;
    sampling->seed = api->has_seed ? (uint64_t)api->seed : draw_seed();
    sampling->logprobs = api->logprobs || api->best_of > api->n;
    sampling->top_logprobs = (uint32_t)MAX(api->top_logprobs, api->prompt_logprobs);
    sampling->prompt_logprobs = (api->echo && api->logprobs) || api->prompt_logprobs >= 0;
    sampling->stop_token = api->stop_tokens.ids;
    sampling->n_stop_token = api->stop_tokens.count;
    sampling->allowed_token = api->allowed_tokens.ids;
    sampling->n_allowed_token = api->allowed_tokens.count;
    api->stop_tokens = api->allowed_tokens = (struct api_ids){0};
    if (sampling->min_tokens) {
        sampling->end_token = language_end_tokens(language, &end_count);
        sampling->n_end_token = end_count;
    }
    if (!set_bias(api, request))
        return api_no_memory(error);
    if ((api->form.kind != API_FORM_NONE || api->tool_choice == API_TOOLS_REQUIRED || api->tool_choice == API_TOOLS_NAMED) &&
        !set_grammar(api, language, request, error))
        return false;
    return set_bad_words(api, language, request, error) && set_breakers(api, language, request, error);
}

void request_free_sampling(struct request *request)
{
    free(request->bias_items);
    free(request->bias);
    free(request->sampling.stop_token);
    free(request->sampling.allowed_token);
    free(request->sampling.bad_length);
    free(request->sampling.bad_token);
    free(request->sampling.dry_breakers.data);
    packed_grammar_let_go(request->grammar);
}
