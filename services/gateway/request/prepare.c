// prepare.c: from a parsed body to a request that can be started: ids, lengths, sampling parameters, a seed.
//
// Runs on the work pool, because a prompt of 8 MB takes a while to tokenize. Only the parts of the body that the answer needs are kept, so a
// request in flight costs its ids and a few hundred bytes.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/mesh/messages.h"
#include "services/gateway/request/request.h"
#include "services/gateway/request/request_internal.h"
#include "services/gateway/text/grammars.h"

// --- changes to a prompt between its tokenization and its use ----------------------------------------------------------
//
//   truncate_prompt_tokens: the last tokens stay, since an answer depends most on what comes right before it.
//   suffix: the model fills the gap between prompt and suffix. Models that are trained for that have tokens for the three parts, which
//   are known by their names.

// Returns whether the request asks for what a model of that context length can do; fills *error otherwise.
static bool prompt_edit_check(const struct api_request *api, uint32_t context, struct api_error *error)
{
    if (api->limits.truncate_prompt_tokens > (int64_t)context)
        return api_fail(error, 400, "invalid_value", "truncate_prompt_tokens",
                        "'truncate_prompt_tokens' is %lld, this model's maximum context length is %u tokens",
                        (long long)api->limits.truncate_prompt_tokens, context);
    return true;
}

// Drops tokens from the front until there are no more than the request allows. Returns whether it dropped any.
static bool prompt_edit_truncate(const struct api_request *api, uint32_t context, uint32_t *ids, uint32_t *count)
{
    const int64_t answer = MAX(api->limits.max_tokens, 1);
    int64_t most = api->limits.truncate_prompt_tokens;
    uint32_t dropped;

    if (most == 0)
        return false;
    if (most < 0)
        most = MAX((int64_t)context - answer, 1);
    if (*count <= most)
        return false;
    dropped = *count - (uint32_t)most;
    memmove(ids, ids + dropped, (size_t)most * sizeof *ids);
    *count = (uint32_t)most;
    return true;
}

// Names of the tokens before the prompt, before the suffix and before what is generated.
struct gap_tokens {
    const char *prefix, *suffix, *middle;
    bool suffix_first; // and then nothing comes before what is generated
};

static const struct gap_tokens known_gaps[] = {
    {.prefix = "<|fim_prefix|>", .suffix = "<|fim_suffix|>", .middle = "<|fim_middle|>"},
    {.prefix = "<fim_prefix>", .suffix = "<fim_suffix>", .middle = "<fim_middle>"},
    {.prefix = "<fim-prefix>", .suffix = "<fim-suffix>", .middle = "<fim-middle>"},
    {.prefix = "<\xEF\xBD\x9C"
               "fim\xE2\x96\x81"
               "begin\xEF\xBD\x9C>",
     .suffix = "<\xEF\xBD\x9C"
               "fim\xE2\x96\x81hole\xEF\xBD\x9C>",
     .middle = "<\xEF\xBD\x9C"
               "fim\xE2\x96\x81"
               "end\xEF\xBD\x9C>"},
    {.prefix = "\xE2\x96\x81<PRE>", .suffix = "\xE2\x96\x81<SUF>", .middle = "\xE2\x96\x81<MID>"},
    {.prefix = "<PRE>", .suffix = "<SUF>", .middle = "<MID>"},
    {.prefix = "[PREFIX]", .suffix = "[SUFFIX]", .suffix_first = true},
};

// Finds the token of that name. A name that is cut into several is none.
static bool find_token(const struct language *language, const char *name, uint32_t *id)
{
    uint32_t *ids = NULL, count = 0;
    struct error reason;
    bool found = language_encode(language, name, strlen(name), false, true, 8, &ids, &count, &reason) == STATUS_OK && count == 1;

    if (found)
        *id = ids[0];
    free(ids);
    return found;
}

static bool find_gap(const struct language *language, uint32_t ids[3], bool *suffix_first)
{
    for (size_t i = 0; i < ARRAY_COUNT(known_gaps); i++) {
        const struct gap_tokens *gap = &known_gaps[i];
        *suffix_first = gap->suffix_first;
        if (find_token(language, gap->prefix, &ids[0]) && find_token(language, gap->suffix, &ids[1]) &&
            (!gap->middle || find_token(language, gap->middle, &ids[2])))
            return true;
    }
    return false;
}

bool prompt_edit_can_fill(const struct language *language)
{
    uint32_t ids[3];
    bool suffix_first;

    return find_gap(language, ids, &suffix_first);
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

// Turns the ids of a prompt, without special tokens, into those of a gap to be filled. On failure fills *error and leaves *ids as it was.
static bool prompt_edit_add_suffix(const struct language *language, const char *suffix, uint32_t context, uint32_t **ids,
                                   uint32_t *count, struct api_error *error)
{
    uint32_t gap[3] = {0}, *start = NULL, *end = NULL, start_count = 0, end_count = 0;
    struct token_list out = {0};
    struct error reason;
    bool suffix_first;
    enum status status;

    if (!find_gap(language, gap, &suffix_first))
        return api_fail(error, 400, "unsupported_parameter", "suffix",
                        "'suffix' is not supported: this model has no tokens for filling in the middle");
    status = language_encode(language, suffix, strlen(suffix), false, true, context, &end, &end_count, &reason);
    if (status == STATUS_OUT_OF_RANGE)
        return api_fail(error, 400, "context_length_exceeded", "suffix",
                        "This model's maximum context length is %u tokens. However, your suffix resulted in at least %u tokens.",
                        context, end_count);
    if (status == STATUS_OK) // what a text begins with
        status = language_encode(language, "", 0, true, false, context, &start, &start_count, &reason);
    if (status == STATUS_OK) {
        add_tokens(&out, start, start_count);
        if (suffix_first) {
            add_tokens(&out, &gap[1], 1);
            add_tokens(&out, end, end_count);
        }
        add_tokens(&out, &gap[0], 1);
        add_tokens(&out, *ids, *count);
        if (!suffix_first) {
            add_tokens(&out, &gap[1], 1);
            add_tokens(&out, end, end_count);
            add_tokens(&out, &gap[2], 1);
        }
    }
    free(start);
    free(end);
    if (status != STATUS_OK)
        return api_fail(error, 400, "invalid_value", "suffix", "%s", reason.text);
    free(out.failed ? out.tokens : *ids);
    if (out.failed)
        return api_no_memory(error);
    *ids = out.tokens;
    *count = (uint32_t)out.count;
    return true;
}

// --- what a request says of sampling, as the message that the mesh takes: words become tokens ------------------------

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
    Fastdecode__Sampling *sampling = &request->draw.sampling;
    uint32_t i;

    if (api->draw.bias_count == 0)
        return true;
    request->draw.bias_items = calloc(api->draw.bias_count, sizeof *request->draw.bias_items);
    request->draw.bias = calloc(api->draw.bias_count, sizeof *request->draw.bias);
    if (!request->draw.bias_items || !request->draw.bias)
        return false;
    for (i = 0; i < api->draw.bias_count; i++) {
        fastdecode__token_bias__init(&request->draw.bias_items[i]);
        request->draw.bias_items[i].token = api->draw.bias[i].token;
        request->draw.bias_items[i].bias = api->draw.bias[i].bias;
        request->draw.bias[i] = &request->draw.bias_items[i];
    }
    sampling->n_bias = api->draw.bias_count;
    sampling->bias = request->draw.bias;
    return true;
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

    for (uint32_t i = 0; good && i < api->draw.bad_words.count; i++)
        good = add_bad_word(language, &api->draw.bad_words.strings[i], &lengths, &tokens, error);
    request->draw.sampling.bad_length = lengths.tokens;
    request->draw.sampling.n_bad_length = lengths.count;
    request->draw.sampling.bad_token = tokens.tokens;
    request->draw.sampling.n_bad_token = tokens.count;
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

    if (api->sampling.dry_multiplier == 0 || api->draw.dry_breakers.count == 0)
        return true;
    request->draw.sampling.dry_breakers.data = calloc(bytes, 1);
    if (!request->draw.sampling.dry_breakers.data)
        return api_no_memory(error);
    request->draw.sampling.dry_breakers.len = bytes;
    for (uint32_t i = 0; i < api->draw.dry_breakers.count; i++)
        if (!mark_breaker(language, &api->draw.dry_breakers.strings[i], request->draw.sampling.dry_breakers.data, error))
            return false;
    return true;
}

// Makes the form of the answer a grammar for the s-part.
static bool set_grammar(const struct api_request *api, const struct language *language, struct request *request,
                        struct api_error *error)
{
    Fastdecode__Sampling *sampling = &request->draw.sampling;
    static const struct api_form none;
    const bool must_call = api->chat.tool_choice == API_TOOLS_REQUIRED || api->chat.tool_choice == API_TOOLS_NAMED;
    const struct wanted wanted = {.form = must_call ? &none : &api->form,
                                  .answer = {.family = request->reading.notation.family,
                                             .unit_markers = request->reading.notation.unit_markers,
                                             .reasoning = request->reading.notation.reasoning,
                                             .reasoning_is_open = request->reading.reasoning_is_open,
                                             .tools = request->reading.notation.family ? request->reading.tools : NULL,
                                             .only = api->chat.tool_name,
                                             .one_call = !api->chat.parallel_tool_calls || api->chat.tool_choice == API_TOOLS_NAMED,
                                             .open_objects = api->form.open_objects,
                                             .in_any_order = api->form.in_any_order}};
    const char *param = must_call ? "tools" : api->form.param;
    struct error reason;
    uint32_t end_count;

    if (must_call && !wanted.answer.tools)
        return api_fail(error, 400, "unsupported_parameter", "tool_choice",
                        "'tool_choice' cannot require a call: the server was started with --tool-parser none");
    if (grammars_get(request->owner->grammars, &wanted, &request->draw.grammar, &reason))
        return reason.status == STATUS_UNAVAILABLE
                   ? api_no_memory(error)
                   : api_fail(error, 400, reason.status == STATUS_UNIMPLEMENTED ? "unsupported_parameter" : "invalid_value", param,
                              "'%s': %s", param, reason.text);
    sampling->grammar.data = (uint8_t *)(uintptr_t)packed_grammar_bytes(request->draw.grammar, &sampling->grammar.len);
    sampling->ends_late = api->draw.ignore_eos;
    sampling->end_token = language_end_tokens(language, &end_count);
    sampling->n_end_token = end_count;
    return true;
}

// Fills in the request's sampling; takes over some of the lists in *api. On failure, too, they are freed with the request.
static bool request_set_sampling(struct api_request *api, const struct language *language, struct request *request,
                                 struct api_error *error)
{
    Fastdecode__Sampling *sampling = &request->draw.sampling;
    uint32_t end_count;

    *sampling = api->sampling;
    sampling->seed = api->draw.has_seed ? (uint64_t)api->draw.seed : draw_seed();
    sampling->logprobs = api->shown.logprobs || api->limits.best_of > api->limits.n;
    sampling->top_logprobs = (uint32_t)MAX(api->shown.top_logprobs, api->shown.prompt_logprobs);
    sampling->prompt_logprobs = (api->shown.echo && api->shown.logprobs) || api->shown.prompt_logprobs >= 0;
    sampling->stop_token = api->draw.stop_tokens.ids;
    sampling->n_stop_token = api->draw.stop_tokens.count;
    sampling->allowed_token = api->draw.allowed_tokens.ids;
    sampling->n_allowed_token = api->draw.allowed_tokens.count;
    api->draw.stop_tokens = api->draw.allowed_tokens = (struct api_ids){0};
    if (sampling->min_tokens) {
        sampling->end_token = language_end_tokens(language, &end_count);
        sampling->n_end_token = end_count;
    }
    if (!set_bias(api, request))
        return api_no_memory(error);
    if ((api->form.kind != API_FORM_NONE || api->chat.tool_choice == API_TOOLS_REQUIRED ||
         api->chat.tool_choice == API_TOOLS_NAMED) &&
        !set_grammar(api, language, request, error))
        return false;
    return set_bad_words(api, language, request, error) && set_breakers(api, language, request, error);
}

static void request_free_sampling(struct request *request)
{
    free(request->draw.bias_items);
    free(request->draw.bias);
    free(request->draw.sampling.stop_token);
    free(request->draw.sampling.allowed_token);
    free(request->draw.sampling.bad_length);
    free(request->draw.sampling.bad_token);
    free(request->draw.sampling.dry_breakers.data);
    packed_grammar_let_go(request->draw.grammar);
}

// --- prompts, lengths, scores ----------------------------------------------------------------------------------------

// Makes an error for the client from a status of the tokenizer or the template.
static bool language_failed(struct api_error *error, const char *param, const struct error *reason)
{
    if (reason->status == STATUS_RESOURCE_EXHAUSTED || reason->status == STATUS_INTERNAL)
        return api_fail(error, 500, NULL, param, "%s", reason->text);
    return api_fail(error, 400, "invalid_value", param, "%s", reason->text);
}

static bool encode_prompt(const struct language *language, const struct api_request *api, uint32_t index, uint32_t context,
                          struct request_prompt *out, struct api_error *error)
{
    struct api_prompt *given = &api->prompts[index];
    struct error reason = {0};
    bool keep_text = api->shown.echo, is_cut;

    if (given->text) {
        enum status status = language_encode(language, given->text, given->bytes, !api->suffix, true,
                                             api->limits.truncate_prompt_tokens ? UINT32_MAX : context, &out->ids, &out->count,
                                             &reason);
        if (status == STATUS_OUT_OF_RANGE)
            return api_too_long(error, "prompt", context, "at least ", out->count);
        if (status != STATUS_OK)
            return language_failed(error, "prompt", &reason);
    } else {
        out->ids = given->ids;
        out->count = given->id_count;
        given->ids = NULL;
    }
    is_cut = prompt_edit_truncate(api, context, out->ids, &out->count);
    if (keep_text && given->text && !is_cut)
        text_append(&out->echo, given->text, given->bytes);
    else if (keep_text)
        language_decode(language, out->ids, out->count, true, &out->echo);
    if (api->suffix && !prompt_edit_add_suffix(language, api->suffix, context, &out->ids, &out->count, error))
        return false;
    if (out->echo.failed)
        return api_no_memory(error);
    if (out->count == 0)
        return api_fail(error, 400, "invalid_value", "prompt", "'prompt' has no tokens");
    return true;
}

static bool encode_all(const struct language *language, struct api_request *api, uint32_t context, struct request *request,
                       struct api_error *error)
{
    struct error reason = {0};
    enum status status;
    uint32_t i;

    request->prompt_count = api->kind == API_CHAT ? 1 : api->prompt_count;
    request->prompts = calloc(request->prompt_count, sizeof *request->prompts);
    if (!request->prompts) {
        request->prompt_count = 0;
        return api_no_memory(error);
    }
    if (api->kind == API_CHAT) {
        status = language_encode_chat(language, api, api->limits.truncate_prompt_tokens ? UINT32_MAX : context,
                                      &request->prompts[0].ids, &request->prompts[0].count, &request->reading.reasoning_is_open,
                                      &reason);
        if (status == STATUS_OUT_OF_RANGE)
            return api_too_long(error, "messages", context, "at least ", request->prompts[0].count);
        if (status != STATUS_OK)
            return language_failed(error, status == STATUS_NOT_FOUND ? "chat_template" : "messages", &reason);
        (void)prompt_edit_truncate(api, context, request->prompts[0].ids, &request->prompts[0].count);
        return request->prompts[0].count > 0 ||
               api_fail(error, 400, "invalid_value", "messages", "the chat template renders 'messages' as an empty prompt");
    }
    for (i = 0; i < request->prompt_count; i++)
        if (!encode_prompt(language, api, i, context, &request->prompts[i], error))
            return false;
    return true;
}

// Prompt and answer must fit into the model's context.
static bool check_lengths(const struct api_request *api, uint32_t context, struct request *request, struct api_error *error)
{
    const char *param = api->kind == API_CHAT ? "messages" : "prompt";
    uint64_t wanted;
    uint32_t i, longest = 0;

    for (i = 0; i < request->prompt_count; i++)
        longest = MAX(longest, request->prompts[i].count);
    wanted = api->limits.max_tokens >= 0 ? (uint64_t)api->limits.max_tokens : 1;
    if (longest + (api->limits.max_tokens == 0 ? 0u : 1u) > context)
        return api_too_long(error, param, context, "", longest);
    if (longest + wanted > context && api->limits.caps)
        wanted = context - longest;
    if (longest + wanted > context) {
        (void)api_fail(error, 400, "context_length_exceeded", "max_tokens",
                       "This model's maximum context length is %u tokens. However, you requested %llu tokens (%u in the %s, "
                       "%llu in the completion). Please reduce the length of the %s or completion.",
                       context, (unsigned long long)(longest + wanted), longest, param, (unsigned long long)wanted, param);
        error->length = (struct api_length){.context = context, .prompt = longest, .answer = (uint32_t)wanted};
        return false;
    }
    if (api->limits.max_tokens >= 0)
        request->draw.max_tokens = (uint32_t)MIN(wanted, (uint64_t)api->limits.max_tokens);
    else if (api->kind == API_CHAT)
        request->draw.max_tokens = context - longest;
    else
        request->draw.max_tokens = MIN((uint32_t)API_DEFAULT_COMPLETION_TOKENS, context - longest);
    return true;
}

// Checks how large the answer may become, before anything is computed: every token of every choice counts, those of an echoed prompt too,
// each with its alternatives. One of them takes about 100 bytes on its way into an answer.
static bool check_budget(const struct api_request *api, uint32_t limit, struct request *request, struct api_error *error)
{
    uint64_t choices = (uint64_t)MAX(api->limits.best_of, api->limits.n),
             weight = choices * (1 + (uint64_t)api->shown.top_logprobs), tokens, wanted;
    uint32_t i;

    if (api->kind == API_CHAT && api->limits.max_tokens < 0) // the client did not ask for a length, so it gets what fits
        request->draw.max_tokens = (uint32_t)MIN(request->draw.max_tokens, MAX(limit / weight, 1));
    tokens = (uint64_t)request->draw.max_tokens * request->prompt_count;

    for (i = 0; api->shown.echo && i < request->prompt_count; i++)
        tokens += request->prompts[i].count;
    wanted = tokens * weight; // 2^24 tokens, 2^7 choices: no overflow
    for (i = 0; api->shown.prompt_logprobs >= 0 && i < request->prompt_count; i++)
        wanted += request->prompts[i].count * (uint64_t)api->limits.n * (1 + (uint64_t)api->shown.prompt_logprobs);
    if (wanted <= limit)
        return true;
    return api_fail(
        error, 400, "request_too_large", "n",
        "The answer may have %llu tokens, counting those of all choices and prompts with %lld alternatives each; at most "
        "%u are allowed in one request. Please reduce 'n', 'max_tokens' or the number of logprobs.",
        (unsigned long long)wanted, (long long)api->shown.top_logprobs, limit);
}

static bool open_scores(const struct api_request *api, struct request *request)
{
    const bool echoed = api->shown.echo && api->shown.logprobs;
    size_t most = request->prompt_tops = (uint32_t)MAX(echoed ? api->shown.top_logprobs : 0, api->shown.prompt_logprobs);
    uint32_t i;

    for (i = 0; (echoed || api->shown.prompt_logprobs >= 0) && i < request->prompt_count; i++) {
        struct request_prompt *prompt = &request->prompts[i];
        prompt->scores = calloc(prompt->count, sizeof *prompt->scores);
        if (most > 0) {
            prompt->top_counts = calloc(prompt->count, sizeof *prompt->top_counts);
            prompt->tops = calloc(prompt->count * most, sizeof *prompt->tops);
        }
        if (!prompt->scores || (most > 0 && (!prompt->top_counts || !prompt->tops)))
            return false;
        prompt->scored_count = 1;
    }
    return true;
}

// Stop strings leave the body's tree.
static bool copy_stops(const struct api_request *api, struct request *request)
{
    size_t bytes = 0;
    uint32_t i;
    char *at;

    for (i = 0; i < api->draw.stop_count; i++)
        bytes += api->draw.stops[i].bytes;
    if (bytes == 0)
        return true;
    at = request->draw.stop_bytes = malloc(bytes);
    if (!at)
        return false;
    for (i = 0; i < api->draw.stop_count; i++) {
        memcpy(at, api->draw.stops[i].data, api->draw.stops[i].bytes);
        request->draw.stops[i] = (struct stop_string){at, api->draw.stops[i].bytes};
        at += api->draw.stops[i].bytes;
    }
    request->draw.stop_count = api->draw.stop_count;
    return true;
}

static bool make_choices(const struct language *language, uint32_t n, struct request *request)
{
    uint32_t i;

    request->choices = calloc((size_t)request->prompt_count * n, sizeof *request->choices);
    if (!request->choices)
        return false;
    for (i = 0; i < request->prompt_count * n; i++) {
        struct choice *choice = &request->choices[i];
        *choice = (struct choice){.request = request, .prompt = &request->prompts[i / n], .index = i, .number = i % n};
        request->choice_count++; // so that request_discard() frees it
        if (!choice_open(choice, language))
            return false;
    }
    return true;
}

bool request_prepare(struct requests *requests, struct exchange *exchange, struct api_request *api, struct dialect_run *run,
                     struct key *key, struct request **out, struct api_error *error)
{
    const struct language *language = requests->config.language;
    struct request *request = calloc(1, sizeof *request);
    struct mesh_state state;
    uint32_t context = language_context(language);
    bool ok;

    *out = NULL;
    *error = (struct api_error){0};
    mesh_state(requests->config.mesh, &state);
    if (state.context_tokens)
        context = MIN(context, state.context_tokens);
    if (!request) {
        api_request_free(api);
        dialect_run_close(run);
        return api_no_memory(error);
    }
    request->owner = requests;
    request->client.exchange = exchange_hold(exchange);
    request->kind = api->kind;
    request->draw.ignore_eos = api->draw.ignore_eos;
    request->shown = (struct request_shown){.stream = api->shown.stream,
                                            .echo = api->shown.echo,
                                            .logprobs = api->shown.logprobs,
                                            .top_logprobs = (uint32_t)api->shown.top_logprobs,
                                            .include_stop = api->shown.include_stop_str_in_output,
                                            .token_ids = api->shown.return_token_ids,
                                            .tokens_as_ids = api->shown.return_tokens_as_token_ids,
                                            .usage_in_chunks = api->shown.include_usage && api->shown.continuous_usage,
                                            .prompt_logprobs = api->shown.prompt_logprobs >= 0,
                                            .prompt_tops = (uint32_t)MAX(api->shown.prompt_logprobs, 0),
                                            .best_of = (uint32_t)api->limits.best_of,
                                            .n = (uint32_t)api->limits.n};
    request->latency_class = api->limits.flex || api->limits.yields || exchange_is_local(exchange)
                                 ? FASTDECODE__LATENCY_CLASS__LATENCY_CLASS_BATCH
                                 : FASTDECODE__LATENCY_CLASS__LATENCY_CLASS_INTERACTIVE;
    request->times.start_us = exchange_start_us(exchange);
    if (requests->config.request_timeout_s > 0 && !exchange_is_local(exchange)) // those have a completion window
        request->times.deadline_us = request->times.start_us + (uint64_t)(requests->config.request_timeout_s * 1e6);
    request->client.key = key;
    ok = !api->cache_salt || (request->client.cache_salt = strdup(api->cache_salt));
    request->run = run;
    run->service_tier = api->limits.flex ? "flex" : NULL;
    run->include_usage = api->shown.include_usage;
    if (!ok)
        (void)api_no_memory(error);
    request_set_notation(api, language, request); // required calls are sampled by its grammar
    if (api->kind & API_POOLS)
        ok = ok && request_prepare_pool(api, language, context, requests->config.max_request_tokens, request, error);
    else
        ok = ok && prompt_edit_check(api, context, error) && encode_all(language, api, context, request, error) &&
             check_lengths(api, context, request, error) &&
             check_budget(api, requests->config.max_request_tokens, request, error) &&
             request_set_sampling(api, language, request, error);
    request->draw.features = features_of(&request->draw.sampling);
    if (ok &&
        !(copy_stops(api, request) && open_scores(api, request) && make_choices(language, (uint32_t)api->limits.best_of, request)))
        ok = api_no_memory(error);
    api_request_free(api);
    if (!ok) {
        request_discard(request);
        return false;
    }
    if (key) {
        request->client.key_waiting = request_begun_count(request);
        atomic_fetch_add_explicit(&key->waiting[request_is_batch(request)], request->client.key_waiting - 1, memory_order_relaxed);
    }
    *out = request;
    return true;
}

bool request_take_grant(struct request *request, struct key_grant *grant, struct api_error *error)
{
    const uint64_t answers = (uint64_t)request->draw.max_tokens * request->choice_count;

    if (!key_take_tokens(grant, request_usage(request).prompt_tokens + answers, error))
        return false;
    request->client.grant = *grant;
    *grant = (struct key_grant){0};
    return true;
}

void request_settle(struct request *request)
{
    struct dialect_usage usage = request->times.submitted ? request_usage(request) : (struct dialect_usage){0};

    if (request->client.settled)
        return;
    request->client.settled = true;
    exchange_note_usage(request->client.exchange, usage.prompt_tokens, usage.completion_tokens);
    key_end(&request->client.grant, usage.prompt_tokens + usage.completion_tokens);
}

void request_stop_waiting(struct request *request)
{
    if (request->client.key)
        atomic_fetch_sub_explicit(&request->client.key->waiting[request_is_batch(request)], request->client.key_waiting,
                                  memory_order_relaxed);
    request->client.key_waiting = 0;
}

void request_discard(struct request *request)
{
    uint32_t i;

    if (!request)
        return;
    request_settle(request);
    for (i = 0; i < request->choice_count; i++)
        choice_close(&request->choices[i]);
    for (i = 0; i < request->prompt_count; i++) {
        free(request->prompts[i].ids);
        text_free(&request->prompts[i].echo);
        free(request->prompts[i].scores);
        free(request->prompts[i].top_counts);
        free(request->prompts[i].tops);
    }
    request_stop_waiting(request);
    free(request->choices);
    free(request->prompts);
    request_free_sampling(request);
    free(request->draw.stop_bytes);
    request_free_notation(request);
    free(request->client.cache_salt);
    dialect_run_close(request->run);
    exchange_release(request->client.exchange);
    free(request);
}
