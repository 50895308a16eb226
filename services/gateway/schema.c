/* schema.c: see schema.h: the table of fields, numbers and switches, and what is refused. */
#include "services/gateway/schema.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "services/gateway/schema_internal.h"

enum read_kind { READ_CUSTOM, READ_BOOL, READ_INTEGER, READ_NUMBER, READ_STRING, READ_IGNORE };

#define ANSWERS (API_COMPLETION | API_CHAT)
#define ALL (ANSWERS | API_TOKENIZE | API_DETOKENIZE)
#define AT(member) offsetof(struct api_request, member)
/* the largest integer that a double holds exactly: JSON numbers beyond it are not the same everywhere */
#define INTEGER_MAX 9007199254740991.0

static bool read_logprobs(struct schema_run *run, const char *name, const json_t *value);
static bool read_stream_options(struct schema_run *run, const char *name, const json_t *value);
static bool read_seed(struct schema_run *run, const char *name, const json_t *value);
static bool read_top_k(struct schema_run *run, const char *name, const json_t *value);

struct field {
    const char *name;
    unsigned endpoints;
    enum read_kind kind;
    size_t offset;
    double min, max;
    bool above_min; /* min itself is not allowed */
    schema_read_fn *read;
};

static const struct field fields[] = {
    {"model", ALL, READ_STRING, AT(model), 0, 0, false, NULL},
    {"prompt", API_COMPLETION | API_TOKENIZE, READ_CUSTOM, 0, 0, 0, false, schema_read_prompt},
    {"messages", API_CHAT | API_TOKENIZE, READ_CUSTOM, 0, 0, 0, false, schema_read_messages},
    {"tokens", API_DETOKENIZE, READ_CUSTOM, 0, 0, 0, false, schema_read_tokens},
    {"max_tokens", ANSWERS, READ_INTEGER, AT(max_tokens), 0, 1e9, false, NULL},
    {"max_completion_tokens", ANSWERS, READ_INTEGER, AT(max_completion_tokens), 0, 1e9, false, NULL},
    {"temperature", ANSWERS, READ_NUMBER, AT(temperature), 0, 2, false, NULL},
    {"top_p", ANSWERS, READ_NUMBER, AT(top_p), 0, 1, true, NULL},
    {"min_p", ANSWERS, READ_NUMBER, AT(min_p), 0, 1, false, NULL},
    {"top_k", ANSWERS, READ_CUSTOM, 0, 0, 0, false, read_top_k},
    {"n", ANSWERS, READ_INTEGER, AT(n), 1, API_MAX_CHOICES, false, NULL},
    {"seed", ANSWERS, READ_CUSTOM, 0, 0, 0, false, read_seed},
    {"stop", ANSWERS, READ_CUSTOM, 0, 0, 0, false, schema_read_stop},
    {"stream", ANSWERS, READ_BOOL, AT(stream), 0, 0, false, NULL},
    {"stream_options", ANSWERS, READ_CUSTOM, 0, 0, 0, false, read_stream_options},
    {"logprobs", ANSWERS, READ_CUSTOM, 0, 0, 0, false, read_logprobs},
    {"top_logprobs", API_CHAT, READ_INTEGER, AT(top_logprobs), 0, API_MAX_LOGPROBS, false, NULL},
    {"echo", API_COMPLETION, READ_BOOL, AT(echo), 0, 0, false, NULL},
    {"presence_penalty", ANSWERS, READ_NUMBER, AT(presence_penalty), -2, 2, false, NULL},
    {"frequency_penalty", ANSWERS, READ_NUMBER, AT(frequency_penalty), -2, 2, false, NULL},
    {"repetition_penalty", ANSWERS, READ_NUMBER, AT(repetition_penalty), 0, 10, true, NULL},
    {"logit_bias", ANSWERS, READ_CUSTOM, 0, 0, 0, false, schema_read_bias},
    {"ignore_eos", ANSWERS, READ_BOOL, AT(ignore_eos), 0, 0, false, NULL},
    {"cache_salt", ANSWERS, READ_STRING, AT(cache_salt), 0, API_MAX_SALT_BYTES, false, NULL},
    {"add_special_tokens", API_TOKENIZE, READ_BOOL, AT(add_special_tokens), 0, 0, false, NULL},
    {"parse_special", API_TOKENIZE, READ_BOOL, AT(parse_special), 0, 0, false, NULL},
    {"add_generation_prompt", API_CHAT | API_TOKENIZE, READ_BOOL, AT(add_generation_prompt), 0, 0, false, NULL},
    {"return_token_strs", API_TOKENIZE, READ_BOOL, AT(return_token_strs), 0, 0, false, NULL},
    /* they name who asks or how it is billed, and leave the answer alone */
    {"user", ANSWERS, READ_IGNORE, 0, 0, 0, false, NULL},
    {"metadata", ANSWERS, READ_IGNORE, 0, 0, 0, false, NULL},
    {"store", ANSWERS, READ_IGNORE, 0, 0, 0, false, NULL},
    {"service_tier", ANSWERS, READ_IGNORE, 0, 0, 0, false, NULL},
    {"safety_identifier", ANSWERS, READ_IGNORE, 0, 0, 0, false, NULL},
    {"prompt_cache_key", ANSWERS, READ_IGNORE, 0, 0, 0, false, NULL},
    {"parallel_tool_calls", ANSWERS, READ_IGNORE, 0, 0, 0, false, NULL},
    {"prediction", ANSWERS, READ_IGNORE, 0, 0, 0, false, NULL},
};

/* Parameters of this API and of its common extensions that would change the answer and are not built. A value that
 * changes nothing (null, false, 0, "", [], {} or `neutral`) is taken. */
static const struct {
    const char *name;
    unsigned endpoints;
    const char *neutral; /* a string or number that means "off", or NULL */
} refused[] = {
    {"tools", ANSWERS | API_TOKENIZE, NULL},
    {"functions", ANSWERS, NULL},
    {"function_call", ANSWERS, "none"},
    {"audio", ANSWERS, NULL},
    {"web_search_options", ANSWERS, NULL},
    {"reasoning_effort", ANSWERS, "none"},
    {"reasoning", ANSWERS, NULL},
    {"verbosity", ANSWERS, "medium"},
    {"best_of", ANSWERS, "1"},
    {"suffix", ANSWERS, NULL},
    {"guided_json", ANSWERS, NULL},
    {"guided_regex", ANSWERS, NULL},
    {"guided_choice", ANSWERS, NULL},
    {"guided_grammar", ANSWERS, NULL},
    {"structured_outputs", ANSWERS, NULL},
    {"grammar", ANSWERS, NULL},
    {"json_schema", ANSWERS, NULL},
    {"use_beam_search", ANSWERS, NULL},
    {"length_penalty", ANSWERS, "1"},
    {"min_tokens", ANSWERS, NULL},
    {"stop_token_ids", ANSWERS, NULL},
    {"bad_words", ANSWERS, NULL},
    {"allowed_token_ids", ANSWERS, NULL},
    {"logits_processors", ANSWERS, NULL},
    {"prompt_logprobs", ANSWERS, NULL},
    {"truncate_prompt_tokens", ANSWERS, NULL},
    {"include_stop_str_in_output", ANSWERS, NULL},
    {"typical_p", ANSWERS, "1"},
    {"mirostat", ANSWERS, NULL},
    {"dry_multiplier", ANSWERS, NULL},
    {"xtc_probability", ANSWERS, NULL},
    {"tfs_z", ANSWERS, "1"},
    {"continue_final_message", ANSWERS | API_TOKENIZE, NULL},
    {"chat_template", API_CHAT | API_TOKENIZE, NULL},
    {"chat_template_kwargs", API_CHAT | API_TOKENIZE, NULL},
    {"documents", API_CHAT, NULL},
    {"prompt_embeds", API_COMPLETION, NULL},
    {"return_token_ids", ANSWERS, NULL},
    {"return_tokens_as_token_ids", ANSWERS, NULL},
};

static const char *type_of_status(int status)
{
    switch (status) {
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 503: return "service_unavailable_error";
    default: return "invalid_request_error";
    }
}

bool api_fail(struct api_error *error, int status, const char *code, const char *param, const char *format, ...)
{
    va_list args;

    *error = (struct api_error){.status = status, .type = type_of_status(status), .code = code};
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return false;
}

const char *schema_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_NULL: return "null";
    default: return "a boolean";
    }
}

bool schema_wrong_type(struct schema_run *run, const char *name, const char *wanted, const json_t *value)
{
    return api_fail(run->error, 400, "invalid_type", name, "'%s' must be %s, not %s", name, wanted, schema_type_name(value));
}

static bool read_integer(struct schema_run *run, const char *name, const json_t *value, double min, double max, int64_t *out)
{
    double number;

    if (json_is_real(value) && json_real_value(value) == floor(json_real_value(value)))
        number = json_real_value(value); /* 16.0 */
    else if (json_is_integer(value))
        number = (double)json_integer_value(value);
    else
        return schema_wrong_type(run, name, "an integer", value);
    if (!(number >= min && number <= max))
        return api_fail(run->error, 400, "invalid_value", name, "'%s' must be an integer from %.0f to %.0f, not %.15g", name, min,
                        max, number);
    *out = (int64_t)number;
    return true;
}

static bool read_number(struct schema_run *run, const struct field *field, const json_t *value, double *out)
{
    double number;

    if (!json_is_number(value))
        return schema_wrong_type(run, field->name, "a number", value);
    number = json_number_value(value);
    if (!(number >= field->min && number <= field->max) || (field->above_min && number <= field->min))
        return api_fail(run->error, 400, "invalid_value", field->name, "'%s' must be a number %s %g and at most %g, not %g",
                        field->name, field->above_min ? "above" : "at least", field->min, field->max, number);
    *out = number;
    return true;
}

static bool read_top_k(struct schema_run *run, const char *name, const json_t *value)
{
    if (!read_integer(run, name, value, -1, 1e9, &run->out->top_k))
        return false;
    run->out->top_k = MAX(run->out->top_k, 0); /* -1 is "off" too */
    return true;
}

static bool read_seed(struct schema_run *run, const char *name, const json_t *value)
{
    if (!json_is_integer(value))
        return schema_wrong_type(run, name, "an integer", value);
    run->out->seed = json_integer_value(value);
    run->out->has_seed = true;
    return true;
}

/* completions: how many alternatives a token; chat: a switch. */
static bool read_logprobs(struct schema_run *run, const char *name, const json_t *value)
{
    struct api_request *out = run->out;

    if (out->kind == API_CHAT) {
        if (!json_is_boolean(value))
            return schema_wrong_type(run, name, "a boolean", value);
        out->logprobs = json_is_true(value);
        return true;
    }
    if (json_is_false(value))
        return true;
    out->logprobs = true;
    return read_integer(run, name, value, 0, API_MAX_LOGPROBS, &out->top_logprobs);
}

static bool read_stream_options(struct schema_run *run, const char *name, const json_t *value)
{
    const json_t *usage;

    if (!json_is_object(value))
        return schema_wrong_type(run, name, "an object", value);
    usage = json_object_get(value, "include_usage");
    if (!usage || json_is_null(usage))
        return true;
    if (!json_is_boolean(usage))
        return schema_wrong_type(run, "stream_options.include_usage", "a boolean", usage);
    run->out->include_usage = json_is_true(usage);
    return true;
}

static bool read_field(struct schema_run *run, const struct field *field, const json_t *value)
{
    char *target = (char *)run->out + field->offset;

    switch (field->kind) {
    case READ_CUSTOM: return field->read(run, field->name, value);
    case READ_INTEGER: return read_integer(run, field->name, value, field->min, field->max, (int64_t *)(void *)target);
    case READ_NUMBER: return read_number(run, field, value, (double *)(void *)target);
    case READ_BOOL:
        if (!json_is_boolean(value))
            return schema_wrong_type(run, field->name, "a boolean", value);
        *(bool *)target = json_is_true(value);
        return true;
    case READ_STRING:
        if (!json_is_string(value))
            return schema_wrong_type(run, field->name, "a string", value);
        if (field->max > 0 && (double)json_string_length(value) > field->max)
            return api_fail(run->error, 400, "invalid_value", field->name, "'%s' has %zu bytes, the most is %.0f", field->name,
                            json_string_length(value), field->max);
        if (field->max > 0 && memchr(json_string_value(value), 0, json_string_length(value))) /* two would look the same */
            return api_fail(run->error, 400, "invalid_value", field->name, "'%s' has a zero byte", field->name);
        *(const char **)(void *)target = json_string_value(value);
        return true;
    default: return true;
    }
}

static bool is_neutral(const json_t *value, const char *neutral)
{
    char number[32];

    switch (json_typeof(value)) {
    case JSON_NULL:
    case JSON_FALSE: return true;
    case JSON_OBJECT: return json_object_size(value) == 0;
    case JSON_ARRAY: return json_array_size(value) == 0;
    case JSON_STRING: return json_string_length(value) == 0 || (neutral && strcmp(json_string_value(value), neutral) == 0);
    case JSON_INTEGER:
    case JSON_REAL:
        snprintf(number, sizeof number, "%g", json_number_value(value));
        return json_number_value(value) == 0 || (neutral && strcmp(number, neutral) == 0);
    default: return false;
    }
}

/* The fields whose harmless value is not simply "empty". */
static bool check_special(struct schema_run *run, const char *name, const json_t *value, bool *known)
{
    *known = true;
    if (strcmp(name, "response_format") == 0) {
        const char *type = json_string_value(json_object_get(value, "type"));
        if (json_is_null(value) || (type && strcmp(type, "text") == 0))
            return true;
        if (!json_is_object(value) || !type)
            return schema_wrong_type(run, name, "an object with a 'type'", value);
        return api_fail(run->error, 400, "unsupported_parameter", name,
                        "'response_format' of a type other than 'text' is not supported");
    }
    if (strcmp(name, "modalities") == 0) {
        const json_t *first = json_array_get(value, 0);
        if (json_is_null(value) ||
            (json_array_size(value) == 1 && json_is_string(first) && strcmp(json_string_value(first), "text") == 0))
            return true;
        return api_fail(run->error, 400, "unsupported_parameter", name, "'modalities' other than [\"text\"] are not supported");
    }
    if (strcmp(name, "tool_choice") == 0) {
        const char *choice = json_string_value(value);
        if (json_is_null(value) || (choice && (strcmp(choice, "none") == 0 || strcmp(choice, "auto") == 0)))
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

static bool check_refused(struct schema_run *run, const char *name, const json_t *value, bool *known)
{
    size_t i;

    if ((run->out->kind & ANSWERS) && (!check_special(run, name, value, known) || *known))
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

static bool read_object(struct schema_run *run, json_t *root)
{
    const char *name;
    json_t *value;
    uint32_t ignored = 0;

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
        if (!known && ignored++ < API_MAX_LOGGED_FIELDS) {
            char quoted[128];
            log_info("API-FIELD-IGNORED", "field=%s", log_quote(quoted, sizeof quoted, name));
        }
    }
    if (ignored > API_MAX_LOGGED_FIELDS) /* a body holds a million names, and each would be a line */
        log_info("API-FIELDS-IGNORED", "more=%u", ignored - API_MAX_LOGGED_FIELDS);
    return true;
}

/* Rules between fields. */
static bool check_together(struct schema_run *run)
{
    struct api_request *out = run->out;
    struct api_error *error = run->error;
    bool has_messages = out->messages != NULL, has_prompt = out->prompts != NULL;

    if (out->max_completion_tokens >= 0)
        out->max_tokens = out->max_completion_tokens; /* the newer name counts where both are given */
    if (out->kind == API_CHAT && !has_messages)
        return api_fail(error, 400, "missing_required_parameter", "messages", "'messages' is required");
    if (out->kind == API_COMPLETION && !has_prompt)
        return api_fail(error, 400, "missing_required_parameter", "prompt", "'prompt' is required");
    if (out->kind == API_DETOKENIZE && !has_prompt)
        return api_fail(error, 400, "missing_required_parameter", "tokens", "'tokens' is required");
    if (out->kind == API_TOKENIZE && has_prompt == has_messages)
        return api_fail(error, 400, "missing_required_parameter", "prompt", "exactly one of 'prompt' and 'messages' is required");
    if (out->kind == API_CHAT && out->top_logprobs > 0 && !out->logprobs)
        return api_fail(error, 400, "invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
    if (out->include_usage && !out->stream)
        return api_fail(error, 400, "invalid_value", "stream_options", "'stream_options' is only allowed with 'stream' true");
    if (out->max_tokens == 0 && !out->echo)
        return api_fail(error, 400, "invalid_value", "max_tokens", "'max_tokens' must be at least 1 unless 'echo' is true");
    if ((out->kind & ANSWERS) && out->n * MAX(out->prompt_count, 1) > API_MAX_CHOICES)
        return api_fail(error, 400, "invalid_value", "n", "prompts times 'n' is %lld, at most %d are allowed in one request",
                        (long long)(out->n * out->prompt_count), API_MAX_CHOICES);
    return true;
}

/* Limits of nesting and of the number of values, found before anything is allocated for them. */
static bool check_size(const char *body, size_t bytes, struct api_error *error)
{
    size_t i, values = 0;
    uint32_t depth = 0;
    bool in_string = false;

    for (i = 0; i < bytes; i++) {
        char c = body[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        in_string = c == '"';
        values += c == ',' || c == '[' || c == '{';
        if (c == '[' || c == '{')
            depth++;
        else if ((c == ']' || c == '}') && depth > 0)
            depth--;
        if (depth > API_MAX_DEPTH)
            return api_fail(error, 400, "invalid_json", NULL, "the body is nested deeper than %d at byte %zu", API_MAX_DEPTH, i);
        if (values > API_MAX_VALUES)
            return api_fail(error, 400, "invalid_json", NULL, "the body has more than %d values", API_MAX_VALUES);
    }
    return true;
}

static json_t *parse_json(const char *body, size_t bytes, struct api_error *error)
{
    json_error_t reason;
    json_t *root;

    if (bytes == 0) {
        api_fail(error, 400, "invalid_json", NULL, "the body is empty, want a JSON object");
        return NULL;
    }
    if (!check_size(body, bytes, error))
        return NULL;
    root = json_loadb(body, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &reason);
    if (!root) {
        /* the library quotes the body in some messages; cut off what is not plain text */
        char *at;
        for (at = reason.text; *at; at++)
            if ((unsigned char)*at < 0x20 || (unsigned char)*at >= 0x7F)
                *at = '?';
        api_fail(error, 400, "invalid_json", NULL, "the body is not valid JSON: %s (line %d, byte %d)", reason.text, reason.line,
                 reason.position);
        return NULL;
    }
    if (json_is_object(root))
        return root;
    api_fail(error, 400, "invalid_json", NULL, "the body must be a JSON object, not %s", schema_type_name(root));
    json_decref(root);
    return NULL;
}

bool api_request_parse(enum api_kind kind, const char *body, size_t bytes, uint32_t vocab, struct api_request *out,
                       struct api_error *error)
{
    struct schema_run run = {.out = out, .error = error, .vocab = vocab};
    json_t *root;

    *error = (struct api_error){0};
    *out = (struct api_request){
        .kind = kind,
        .max_tokens = -1,
        .max_completion_tokens = -1,
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .n = 1,
        .add_special_tokens = kind != API_CHAT,
        .parse_special = true,
        .add_generation_prompt = true,
    };
    root = parse_json(body, bytes, error);
    if (!root)
        return false;
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
    free(request->bias);
    if (request->root)
        json_decref(request->root);
    *request = (struct api_request){0};
}
