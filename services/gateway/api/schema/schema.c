// schema.c: see schema.h: the table of fields, and the rules between them.
#include "services/gateway/api/schema/schema.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"
#include "services/gateway/api/schema/schema_internal.h"

// --- fields that are refused, because they would change the answer and are not supported -----------------------------------------------

struct schema_refused {
    const char *name;
    unsigned endpoints;
    const char *neutral; // a string or number that means "off", or NULL
};

static bool is_neutral(const json_t *value, const char *neutral)
{
    char number[32];

    switch (json_typeof(value)) {
    case JSON_NULL:
    case JSON_FALSE: return true;
    case JSON_OBJECT: return json_object_size(value) == 0;
    case JSON_ARRAY: return json_array_size(value) == 0;
    case JSON_STRING: return json_string_length(value) == 0 || (neutral && schema_is_string(value, neutral));
    case JSON_INTEGER:
    case JSON_REAL:
        snprintf(number, sizeof number, "%g", json_number_value(value));
        return json_number_value(value) == 0 || (neutral && strcmp(number, neutral) == 0);
    default: return false;
    }
}

// The fields whose harmless value is not simply "empty".
static bool check_special(struct schema_run *run, const char *name, const json_t *value, bool *known)
{
    *known = true;
    if (strcmp(name, "modalities") == 0) {
        const json_t *first = json_array_get(value, 0);
        if (json_is_null(value) || (json_array_size(value) == 1 && schema_is_string(first, "text")))
            return true;
        return api_fail(run->error, 400, "unsupported_parameter", name, "'modalities' other than [\"text\"] are not supported");
    }
    if (strcmp(name, "tool_choice") == 0) { // of a completion
        if (json_is_null(value) || schema_is_string(value, "none") || schema_is_string(value, "auto"))
            return true;
        return api_fail(run->error, 400, "unsupported_parameter", name, "'tool_choice' is not supported");
    }
    if (strcmp(name, "skip_special_tokens") == 0 || strcmp(name, "spaces_between_special_tokens") == 0) {
        if (!json_is_false(value))
            return true;
        return api_fail(run->error, 400, "unsupported_parameter", name, "'%s' of false is not supported", name);
    }
    *known = false;
    return true;
}

// --- fields that other servers have beside OpenAI's, and OpenAI's that go with them ---------------------------------

#define TRUNCATION_MOST 1e9

static bool schema_read_prompt_logprobs(struct schema_run *run, const char *name, const json_t *value)
{
    if (json_is_false(value))
        return true;
    return schema_read_integer(run, name, value, 0, API_MAX_LOGPROBS, &run->out->shown.prompt_logprobs);
}

// 0 is what a client sends that means "no truncation"; an empty prompt could not be answered.
static bool schema_read_truncation(struct schema_run *run, const char *name, const json_t *value)
{
    return schema_read_integer(run, name, value, -1, TRUNCATION_MOST, &run->out->limits.truncate_prompt_tokens);
}

// Whether the client asked for it decides how it goes with continue_final_message.
static bool schema_read_generation_prompt(struct schema_run *run, const char *name, const json_t *value)
{
    if (!json_is_boolean(value))
        return schema_wrong_type(run->error, name, "a boolean", value);
    run->out->chat.add_generation_prompt = run->out->chat.generation_prompt_asked = json_is_true(value);
    return true;
}

// Lower goes first, and 0 is usual. There are two classes of requests, so every positive priority is the later one; none makes a request go
// before the others of its key's class.
static bool schema_read_priority(struct schema_run *run, const char *name, const json_t *value)
{
    int64_t priority;

    if (!schema_read_integer(run, name, value, INT32_MIN, INT32_MAX, &priority))
        return false;
    run->out->limits.yields = priority > 0;
    return true;
}

static bool read_switch(struct schema_run *run, const json_t *options, const char *key, const char *name, bool *out)
{
    const json_t *value = json_object_get(options, key);

    return !value || json_is_null(value) || schema_read_bool(run, name, value, out);
}

static bool schema_read_stream_options(struct schema_run *run, const char *name, const json_t *value)
{
    struct api_request *out = run->out;

    if (!json_text_is_object(value))
        return schema_wrong_type(run->error, name, "an object", value);
    return read_switch(run, value, "include_usage", "stream_options.include_usage", &out->shown.include_usage) &&
           read_switch(run, value, "continuous_usage_stats", "stream_options.continuous_usage_stats", &out->shown.continuous_usage);
}

static bool check_best_of(struct schema_run *run)
{
    struct api_request *out = run->out;

    if (out->limits.best_of <= 1) // not given, or a client's way to say so
        out->limits.best_of = out->limits.n;
    if (out->limits.best_of < out->limits.n)
        return api_fail(run->error, 400, "invalid_value", "best_of", "'best_of' is %lld, which is less than 'n', %lld",
                        (long long)out->limits.best_of, (long long)out->limits.n);
    if (out->limits.best_of > out->limits.n && out->shown.stream)
        return api_fail(run->error, 400, "invalid_value", "best_of",
                        "'best_of' above 'n' is not possible with 'stream' true: which choice is the best is known at the end");
    if ((out->kind & SCHEMA_ANSWERS) && out->limits.best_of * MAX(out->prompt_count, 1) > API_MAX_CHOICES)
        return api_fail(run->error, 400, "invalid_value", "best_of",
                        "prompts times 'best_of' is %lld, at most %d are allowed in one request",
                        (long long)(out->limits.best_of * out->prompt_count), API_MAX_CHOICES);
    return true;
}

static bool check_final_message(struct schema_run *run)
{
    struct api_request *out = run->out;
    const struct api_chat_message *last = out->message_count ? &out->messages[out->message_count - 1] : NULL;

    if (!out->chat.continue_final_message)
        return true;
    if (!last)
        return api_fail(run->error, 400, "invalid_value", "continue_final_message", "'continue_final_message' needs 'messages'");
    if (out->chat.generation_prompt_asked)
        return api_fail(run->error, 400, "invalid_value", "continue_final_message",
                        "'continue_final_message' and 'add_generation_prompt' cannot both be true");
    if (json_object_get(json_array_get(out->chat.conversation, out->message_count - 1), "tool_calls"))
        return api_fail(run->error, 400, "invalid_value", "continue_final_message",
                        "'continue_final_message' needs a last message without 'tool_calls'");
    out->chat.add_generation_prompt = false;
    return true;
}

// Rules between these fields and others, once all are read.
static bool schema_check_extensions(struct schema_run *run)
{
    struct api_request *out = run->out;

    if (out->shown.continuous_usage && !out->shown.stream)
        return api_fail(run->error, 400, "invalid_value", "stream_options", "'stream_options' is only allowed with 'stream' true");
    if (out->shown.prompt_logprobs >= 0 && out->shown.stream)
        return api_fail(run->error, 400, "invalid_value", "prompt_logprobs",
                        "'prompt_logprobs' is not possible with 'stream' true");
    if (out->suffix && out->suffix[0] == '\0')
        out->suffix = NULL;
    if (out->suffix && out->shown.echo)
        return api_fail(run->error, 400, "invalid_value", "suffix", "'suffix' is not possible with 'echo' true");
    return check_best_of(run) && check_final_message(run);
}

static bool read_top_k(struct schema_run *run, const char *name, const json_t *value)
{
    int64_t top_k;

    if (!schema_read_integer(run, name, value, -1, 1e9, &top_k))
        return false;
    run->out->sampling.top_k = (uint32_t)MAX(top_k, 0); // -1 is "off" too
    return true;
}

// "flex" asks for the latency class batch. The other tiers are names of prices.
static bool read_service_tier(struct schema_run *run, const char *name, const json_t *value)
{
    const char *tier;

    if (!schema_read_string(run, name, value, 0, &tier))
        return false;
    run->out->limits.flex = strcmp(tier, "flex") == 0;
    return true;
}

static bool read_seed(struct schema_run *run, const char *name, const json_t *value)
{
    run->out->draw.has_seed = true;
    if (json_is_integer(value)) {
        run->out->draw.seed = json_integer_value(value); // all 64 bits
        return true;
    }
    return schema_read_integer(run, name, value, -9e18, 9e18, &run->out->draw.seed); // 42.0
}

// In completions it is the number of alternatives of a token, where true means one; in chats it is a switch.
static bool read_logprobs(struct schema_run *run, const char *name, const json_t *value)
{
    struct api_request *out = run->out;

    if (out->kind == API_CHAT)
        return schema_read_bool(run, name, value, &out->shown.logprobs);
    if (json_is_false(value))
        return true;
    out->shown.logprobs = true;
    out->shown.top_logprobs = 1;
    return json_is_true(value) || schema_read_integer(run, name, value, 0, API_MAX_LOGPROBS, &out->shown.top_logprobs);
}

// --- the table of fields ---------------------------------------------------------------------------------------------
#define ALL (SCHEMA_ANSWERS | API_TOKENIZE | API_DETOKENIZE | API_POOLS)

// The member of the request that a field is read into; its type says how.
#define TYPE_OF(member) \
    _Generic(((struct api_request *)NULL)->member, bool: API_FIELD_BOOL, int64_t: API_FIELD_INTEGER, float: API_FIELD_NUMBER, const char *: API_FIELD_STRING)

// Rows of the table. A number is at least `least`, or above it, and at most `most`.
#define MEMBER(field, where, member, least, most)                                                                                 \
    {                                                                                                                             \
        .name = field, .endpoints = where, .type = TYPE_OF(member), .offset = offsetof(struct api_request, member), .min = least, \
        .max = most                                                                                                               \
    }
#define ABOVE(field, where, member, least, most)                                                                                  \
    {                                                                                                                             \
        .name = field, .endpoints = where, .type = TYPE_OF(member), .offset = offsetof(struct api_request, member), .min = least, \
        .max = most, .above_min = true                                                                                            \
    }
#define READER(field, where, reader)                                                \
    {                                                                               \
        .name = field, .endpoints = where, .type = API_FIELD_CUSTOM, .read = reader \
    }
#define IGNORED(field, where)                                       \
    {                                                               \
        .name = field, .endpoints = where, .type = API_FIELD_IGNORE \
    }

struct field {
    const char *name;
    unsigned endpoints;
    enum api_field_type type;
    size_t offset;
    double min, max;
    bool above_min; // min itself is not allowed
    schema_read_fn *read;
};

static const struct field fields[] = {
    MEMBER("model", ALL, model, 0, 0),
    READER("prompt", API_COMPLETION | API_TOKENIZE, schema_read_prompt),
    READER("messages", API_CHAT | API_TOKENIZE, schema_read_messages),
    READER("tokens", API_DETOKENIZE, schema_read_tokens),
    MEMBER("max_tokens", SCHEMA_ANSWERS, limits.max_tokens, 0, 1e9),
    MEMBER("max_completion_tokens", SCHEMA_ANSWERS, limits.max_completion_tokens, 0, 1e9),
    MEMBER("temperature", SCHEMA_ANSWERS, sampling.temperature, 0, 2),
    MEMBER("top_p", SCHEMA_ANSWERS, sampling.top_p, 0, 1),
    MEMBER("min_p", SCHEMA_ANSWERS, sampling.min_p, 0, 1),
    READER("top_k", SCHEMA_ANSWERS, read_top_k),
    MEMBER("n", SCHEMA_ANSWERS, limits.n, 1, API_MAX_CHOICES),
    READER("seed", SCHEMA_ANSWERS, read_seed),
    READER("stop", SCHEMA_ANSWERS, schema_read_stop),
    MEMBER("stream", SCHEMA_ANSWERS, shown.stream, 0, 0),
    READER("stream_options", SCHEMA_ANSWERS, schema_read_stream_options),
    READER("logprobs", SCHEMA_ANSWERS, read_logprobs),
    MEMBER("top_logprobs", API_CHAT, shown.top_logprobs, 0, API_MAX_LOGPROBS),
    MEMBER("echo", API_COMPLETION, shown.echo, 0, 0),
    MEMBER("presence_penalty", SCHEMA_ANSWERS, sampling.presence_penalty, -2, 2),
    MEMBER("frequency_penalty", SCHEMA_ANSWERS, sampling.frequency_penalty, -2, 2),
    ABOVE("repetition_penalty", SCHEMA_ANSWERS, sampling.repetition_penalty, 0, 10),
    READER("response_format", SCHEMA_ANSWERS, schema_read_response_format),
    READER("structured_outputs", SCHEMA_ANSWERS, schema_read_structured_outputs),
    READER("guided_json", SCHEMA_ANSWERS, schema_read_form_schema),
    READER("guided_regex", SCHEMA_ANSWERS, schema_read_form_regex),
    READER("guided_choice", SCHEMA_ANSWERS, schema_read_form_choice),
    READER("guided_grammar", SCHEMA_ANSWERS, schema_read_form_grammar),
    READER("guided_json_object", SCHEMA_ANSWERS, schema_read_form_object),
    READER("guided_whitespace_pattern", SCHEMA_ANSWERS, schema_read_form_space),
    IGNORED("guided_decoding_backend", SCHEMA_ANSWERS),
    READER("grammar", SCHEMA_ANSWERS, schema_read_form_grammar),
    READER("json_schema", SCHEMA_ANSWERS, schema_read_form_schema),
    MEMBER("min_tokens", SCHEMA_ANSWERS, limits.min_tokens, 0, 1e9),
    READER("stop_token_ids", SCHEMA_ANSWERS, schema_read_stop_tokens),
    READER("allowed_token_ids", SCHEMA_ANSWERS, schema_read_allowed_tokens),
    READER("bad_words", SCHEMA_ANSWERS, schema_read_bad_words),
    MEMBER("typical_p", SCHEMA_ANSWERS, sampling.typical_p, 0, 1),
    MEMBER("xtc_probability", SCHEMA_ANSWERS, sampling.xtc_probability, 0, 1),
    MEMBER("xtc_threshold", SCHEMA_ANSWERS, sampling.xtc_threshold, 0, 1),
    MEMBER("dry_multiplier", SCHEMA_ANSWERS, sampling.dry_multiplier, 0, 100),
    MEMBER("dry_base", SCHEMA_ANSWERS, sampling.dry_base, 1, 100),
    MEMBER("dry_allowed_length", SCHEMA_ANSWERS, draw.dry_allowed_length, 0, 1e9),
    MEMBER("dry_penalty_last_n", SCHEMA_ANSWERS, draw.dry_last_tokens, -1, 1e9),
    READER("dry_sequence_breakers", SCHEMA_ANSWERS, schema_read_dry_breakers),
    READER("logit_bias", SCHEMA_ANSWERS, schema_read_bias),
    READER("input", API_EMBED, schema_read_prompt),
    READER("encoding_format", API_EMBED, schema_read_encoding),
    MEMBER("dimensions", API_EMBED, pool.dimensions, 1, 1e9),
    READER("query", API_RERANK, schema_read_query),
    READER("documents", API_RERANK, schema_read_ranked),
    MEMBER("top_n", API_RERANK, pool.top_n, 1, 1e9),
    MEMBER("return_documents", API_RERANK, pool.return_documents, 0, 0),
    READER("service_tier", SCHEMA_ANSWERS | API_POOLS, read_service_tier),
    MEMBER("ignore_eos", SCHEMA_ANSWERS, draw.ignore_eos, 0, 0),
    MEMBER("cache_salt", SCHEMA_ANSWERS | API_POOLS, cache_salt, 0, API_MAX_SALT_BYTES),
    MEMBER("add_special_tokens", API_TOKENIZE, add_special_tokens, 0, 0),
    MEMBER("parse_special", API_TOKENIZE, parse_special, 0, 0),
    READER("add_generation_prompt", API_CHAT | API_TOKENIZE, schema_read_generation_prompt),
    MEMBER("continue_final_message", API_CHAT | API_TOKENIZE, chat.continue_final_message, 0, 0),
    READER("prompt_logprobs", SCHEMA_ANSWERS, schema_read_prompt_logprobs),
    READER("truncate_prompt_tokens", SCHEMA_ANSWERS, schema_read_truncation),
    MEMBER("include_stop_str_in_output", SCHEMA_ANSWERS, shown.include_stop_str_in_output, 0, 0),
    MEMBER("suffix", API_COMPLETION, suffix, 0, 0),
    MEMBER("best_of", SCHEMA_ANSWERS, limits.best_of, 0, API_MAX_CHOICES),
    MEMBER("return_token_ids", SCHEMA_ANSWERS, shown.return_token_ids, 0, 0),
    MEMBER("return_tokens_as_token_ids", SCHEMA_ANSWERS, shown.return_tokens_as_token_ids, 0, 0),
    READER("priority", SCHEMA_ANSWERS, schema_read_priority),
    READER("tools", API_CHAT | API_TOKENIZE, schema_read_tools),
    READER("tool_choice", API_CHAT | API_TOKENIZE, schema_read_tool_choice),
    MEMBER("parallel_tool_calls", API_CHAT, chat.parallel_tool_calls, 0, 0),
    READER("functions", API_CHAT, schema_read_functions),
    READER("function_call", API_CHAT, schema_read_functions),
    READER("chat_template_kwargs", API_CHAT | API_TOKENIZE, schema_read_template_variables),
    READER("reasoning_effort", API_CHAT | API_TOKENIZE, schema_read_reasoning_effort),
    READER("chat_template", API_CHAT | API_TOKENIZE, schema_read_chat_template),
    MEMBER("include_reasoning", API_CHAT, chat.include_reasoning, 0, 0),
    READER("documents", API_CHAT | API_TOKENIZE, schema_read_documents),
    MEMBER("return_token_strs", API_TOKENIZE, shown.return_token_strs, 0, 0),
    // these name who asks or how it is billed, and do not change the answer
    IGNORED("user", SCHEMA_ANSWERS | API_POOLS),
    IGNORED("metadata", SCHEMA_ANSWERS),
    IGNORED("store", SCHEMA_ANSWERS),
    IGNORED("safety_identifier", SCHEMA_ANSWERS),
    IGNORED("prompt_cache_key", SCHEMA_ANSWERS),
    IGNORED("prompt_cache_retention", SCHEMA_ANSWERS),
    IGNORED("parallel_tool_calls", API_COMPLETION),
    IGNORED("prediction", SCHEMA_ANSWERS),
};

// Fields of this API and of its common extensions that would change the answer and are not supported. A value that changes nothing (null,
// false, 0, "", [], {} or `neutral`) is accepted.
static const struct schema_refused refused[] = {
    {.name = "tools", .endpoints = API_COMPLETION},
    {.name = "functions", .endpoints = API_COMPLETION},
    {.name = "function_call", .endpoints = API_COMPLETION, .neutral = "none"},
    {.name = "audio", .endpoints = SCHEMA_ANSWERS},
    {.name = "web_search_options", .endpoints = SCHEMA_ANSWERS},
    {.name = "reasoning_effort", .endpoints = API_COMPLETION, .neutral = "none"},
    {.name = "reasoning", .endpoints = SCHEMA_ANSWERS},
    {.name = "use_beam_search", .endpoints = SCHEMA_ANSWERS},
    {.name = "length_penalty", .endpoints = SCHEMA_ANSWERS, .neutral = "1"},
    {.name = "logits_processors", .endpoints = SCHEMA_ANSWERS},
    {.name = "truncate_prompt_tokens", .endpoints = API_POOLS},
    {.name = "mirostat", .endpoints = SCHEMA_ANSWERS},
    {.name = "tfs_z", .endpoints = SCHEMA_ANSWERS, .neutral = "1"},
    {.name = "task", .endpoints = API_EMBED},
    {.name = "input_type", .endpoints = API_EMBED},
    {.name = "late_chunking", .endpoints = API_EMBED},
    {.name = "instruction", .endpoints = API_RERANK},
    {.name = "rank_fields", .endpoints = API_RERANK},
    {.name = "prompt_embeds", .endpoints = API_COMPLETION},
};

// Returns false if the field's value would change the answer. *known: the field is in the table or refused by a
// rule of its own.
static bool check_refused(struct schema_run *run, const char *name, const json_t *value, bool *known)
{
    size_t i;

    if ((run->out->kind & SCHEMA_ANSWERS) && (!check_special(run, name, value, known) || *known))
        return run->error->status == 0;
    *known = true;
    for (i = 0; i < ARRAY_COUNT(refused); i++) {
        if (!(refused[i].endpoints & run->out->kind) || strcmp(refused[i].name, name) != 0)
            continue;
        if (is_neutral(value, refused[i].neutral))
            return true;
        return api_fail(run->error, 400, "unsupported_parameter", name, "'%s' is not supported", name);
    }
    *known = false;
    return true;
}

static bool read_field(struct schema_run *run, const struct field *field, const json_t *value)
{
    char *target = (char *)run->out + field->offset;

    switch (field->type) {
    case API_FIELD_CUSTOM: return field->read(run, field->name, value);
    case API_FIELD_INTEGER: return schema_read_integer(run, field->name, value, field->min, field->max, (int64_t *)(void *)target);
    case API_FIELD_NUMBER:
        return schema_read_number(run, field->name, value, field->min, field->max, field->above_min, (float *)(void *)target);
    case API_FIELD_BOOL: return schema_read_bool(run, field->name, value, (bool *)target);
    case API_FIELD_STRING: return schema_read_string(run, field->name, value, (size_t)field->max, (const char **)(void *)target);
    default: return true;
    }
}

void api_ignored_add(struct api_ignored *ignored, const char *name)
{
    size_t length = strlen(ignored->names), begin = length, bytes = 0;
    char clean[40];

    for (; *name && bytes + 1 < sizeof clean; name++)
        if (isalnum((unsigned char)*name) || strchr("_-.", *name))
            clean[bytes++] = *name;
    clean[bytes] = '\0';
    if (bytes == 0 || length + 2 + bytes >= sizeof ignored->names)
        return;
    if (length > 0)
        begin += 2, memcpy(ignored->names + length, ", ", 2);
    memcpy(ignored->names + begin, clean, bytes + 1);
}

static bool read_object(struct schema_run *run, json_t *root)
{
    const char *name;
    json_t *value;

    json_object_foreach (root, name, value) {
        size_t i;
        bool known = false;

        for (i = 0; i < ARRAY_COUNT(fields); i++)
            if ((fields[i].endpoints & run->out->kind) && strcmp(fields[i].name, name) == 0)
                break;
        if (i < ARRAY_COUNT(fields)) {
            if (!json_is_null(value) && !read_field(run, &fields[i], value))
                return false;
            continue;
        }
        if (!check_refused(run, name, value, &known))
            return false;
        if (!known && !json_is_null(value))
            api_ignored_add(&run->out->ignored, name);
    }
    return true;
}

void api_each_field(enum api_kind kind, api_field_fn *each, void *arg)
{
    size_t i;

    for (i = 0; i < ARRAY_COUNT(fields); i++) {
        const struct field *row = &fields[i];
        const struct api_field field = {
            .name = row->name, .type = row->type, .min = row->min, .max = row->max, .above_min = row->above_min};
        if (row->endpoints & kind)
            each(arg, &field);
    }
    for (i = 0; i < ARRAY_COUNT(refused); i++) {
        const struct api_field field = {.name = refused[i].name, .type = API_FIELD_REFUSED};
        if (refused[i].endpoints & kind)
            each(arg, &field);
    }
}

// Rules between fields.
static bool check_together(struct schema_run *run)
{
    struct api_request *out = run->out;
    struct api_error *error = run->error;
    bool has_messages = out->messages != NULL, has_prompt = out->prompts != NULL;
    const char *most = out->limits.max_completion_tokens >= 0 ? "max_completion_tokens" : "max_tokens";

    if (out->limits.max_completion_tokens >= 0)
        out->limits.max_tokens = out->limits.max_completion_tokens; // the newer name counts if both are given
    if (!schema_check_tools(run) || !schema_apply_effort(run))
        return false;
    if (out->kind == API_CHAT && !has_messages)
        return api_missing(error, "messages");
    if (out->kind == API_COMPLETION && !has_prompt)
        return api_missing(error, "prompt");
    if (out->kind & API_POOLS)
        return schema_check_pool(run);
    if (out->kind == API_DETOKENIZE && !has_prompt)
        return api_missing(error, "tokens");
    if (out->kind == API_TOKENIZE && has_prompt == has_messages)
        return api_fail(error, 400, "missing_required_parameter", "prompt", "exactly one of 'prompt' and 'messages' is required");
    if (out->kind == API_CHAT && out->shown.top_logprobs > 0 && !out->shown.logprobs)
        return api_fail(error, 400, "invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
    if (out->shown.include_usage && !out->shown.stream)
        return api_fail(error, 400, "invalid_value", "stream_options", "'stream_options' is only allowed with 'stream' true");
    if (out->kind == API_CHAT && out->limits.max_tokens == 0 && out->shown.prompt_logprobs < 0) // a completion may be empty
        return api_fail(error, 400, "invalid_value", most, "'%s' must be at least 1 unless 'prompt_logprobs' is given", most);
    if ((out->kind & SCHEMA_ANSWERS) && out->limits.n * MAX(out->prompt_count, 1) > API_MAX_CHOICES)
        return api_fail(error, 400, "invalid_value", "n", "prompts times 'n' is %lld, at most %d are allowed in one request",
                        (long long)(out->limits.n * out->prompt_count), API_MAX_CHOICES);
    return schema_check_sampling(run) && schema_check_extensions(run);
}

// --- defaults ---

// Whether the field is a number of the sampler.
static bool is_of_sampler(const struct field *field)
{
    const size_t begin = offsetof(struct api_request, sampling);
    return field->read == read_top_k ||
           (field->type == API_FIELD_NUMBER && field->offset >= begin && field->offset < begin + sizeof(Fastdecode__Sampling));
}

static enum status no_such_number(const char *name, struct error *error)
{
    char names[320] = "";
    size_t bytes = 0;

    for (size_t i = 0; i < ARRAY_COUNT(fields); i++)
        if (is_of_sampler(&fields[i]) && bytes < sizeof names)
            bytes += (size_t)snprintf(names + bytes, sizeof names - bytes, "%s%s", bytes ? ", " : "", fields[i].name);
    return error_set(error, STATUS_NOT_FOUND, "there is no '%.64s', there are %s", name, names);
}

struct api_model api_model_of(uint32_t vocab)
{
    struct api_model model = {.vocab = vocab, .sampling = FASTDECODE__SAMPLING__INIT};

    model.sampling.temperature = model.sampling.top_p = model.sampling.repetition_penalty = 1;
    model.sampling.xtc_threshold = 0.1f;
    model.sampling.dry_base = 1.75f;
    return model;
}

enum status api_model_set(struct api_model *model, const char *name, double value, struct error *error)
{
    struct api_request request = {.kind = API_CHAT, .sampling = model->sampling};
    struct api_error reason = {0};
    struct schema_run run = {.out = &request, .error = &reason};
    size_t i = 0;

    while (i < ARRAY_COUNT(fields) && (!is_of_sampler(&fields[i]) || strcmp(fields[i].name, name) != 0))
        i++;
    if (i == ARRAY_COUNT(fields))
        return no_such_number(name, error);
    if (!isfinite(value))
        return error_set(error, STATUS_INVALID_ARGUMENT, "'%s' is not a number", name);
    const bool is_whole = fabs(value) < 1e15 && floor(value) == value;
    json_t *json = is_whole ? json_integer((json_int_t)value) : json_real(value);
    if (!json)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    const bool taken = read_field(&run, &fields[i], json);
    json_decref(json);
    if (!taken)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s", reason.message);
    model->sampling = request.sampling;
    return STATUS_OK;
}

// Sets one of "name=value", whose end is given.
static enum status set_one(struct api_model *model, const char *begin, const char *end, struct error *error)
{
    char item[96];
    const size_t bytes = MIN((size_t)(end - begin), sizeof item - 1);
    char *stopped;

    memcpy(item, begin, bytes);
    item[bytes] = '\0';
    char *value = strchr(item, '=');
    if (!value || value == item || (size_t)(end - begin) > bytes)
        return error_set(error, STATUS_INVALID_ARGUMENT, "'%s' is no NAME=VALUE such as temperature=0.7", item);
    *value++ = '\0';
    const double number = strtod(value, &stopped);
    if (!strchr("+-.0123456789", *value) || !*value || *stopped)
        return error_set(error, STATUS_INVALID_ARGUMENT, "'%s' is '%s', want a number", item, value);
    return api_model_set(model, item, number, error);
}

enum status api_model_set_all(struct api_model *model, const char *text, struct error *error)
{
    enum status status = STATUS_OK;

    for (const char *at = text; !status && *text; at++) {
        const char *end = at + strcspn(at, ",");
        status = set_one(model, at, end, error);
        at = end;
        if (!*end)
            break;
    }
    if (status)
        error_prefix(error, "--sampling %.100s", text);
    return status ? STATUS_INVALID_ARGUMENT : STATUS_OK;
}

static double default_of(const struct api_model *model, const struct field *field)
{
    return field->read == read_top_k ? model->sampling.top_k
                                     : *(const float *)(const void *)((const char *)&model->sampling + field->offset -
                                                                      offsetof(struct api_request, sampling));
}

bool api_model_next(const struct api_model *model, size_t *at, const char **name, double *value)
{
    const struct api_model own = api_model_of(model->vocab);

    for (; *at < ARRAY_COUNT(fields); ++*at) {
        const struct field *field = &fields[*at];
        if (!is_of_sampler(field) || default_of(model, field) == default_of(&own, field))
            continue;
        *name = field->name;
        *value = default_of(model, field);
        ++*at;
        return true;
    }
    return false;
}

bool api_request_read(enum api_kind kind, struct json_t *root, const struct api_model *model, struct api_request *out,
                      struct api_error *error)
{
    struct schema_run run = {.out = out, .error = error, .vocab = model->vocab};

    *error = (struct api_error){0};
    *out = (struct api_request){
        .kind = kind,
        .limits.max_tokens = -1,
        .limits.max_completion_tokens = -1,
        .limits.n = 1,
        .limits.best_of = 1,
        .add_special_tokens = kind != API_CHAT,
        .parse_special = true,
        .chat.add_generation_prompt = true,
        .shown.prompt_logprobs = -1,
        .pool.return_documents = true,
        .chat.parallel_tool_calls = true,
        .chat.include_reasoning = true,
    };
    out->sampling = model->sampling;
    schema_sampling_defaults(out);
    out->root = root;
    if (read_object(&run, root) && check_together(&run))
        return true;
    api_request_free(out);
    return false;
}

void api_request_free(struct api_request *request)
{
    uint32_t i;

    for (i = 0; i < request->prompt_count; i++)
        free(request->prompts[i].ids);
    for (i = 0; i < request->message_count; i++)
        free(request->messages[i].joined);
    free(request->prompts);
    free(request->messages);
    free(request->draw.bias);
    schema_free_chat(request);
    schema_free_sampling(request);
    json_decref(request->root);
    *request = (struct api_request){0};
}
