// extensions.c: fields that other servers have beside OpenAI's, and OpenAI's that go with them: readers, and rules between fields.
#include <string.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"
#include "services/gateway/api/schema/schema_internal.h"

#define TRUNCATION_MOST 1e9

bool schema_read_prompt_logprobs(struct schema_run *run, const char *name, const json_t *value)
{
    if (json_is_false(value))
        return true;
    return schema_read_integer(run, name, value, 0, API_MAX_LOGPROBS, &run->out->prompt_logprobs);
}

// 0 is what a client sends that means "no truncation"; an empty prompt could not be answered.
bool schema_read_truncation(struct schema_run *run, const char *name, const json_t *value)
{
    return schema_read_integer(run, name, value, -1, TRUNCATION_MOST, &run->out->truncate_prompt_tokens);
}

// Whether the client asked for it decides how it goes with continue_final_message.
bool schema_read_generation_prompt(struct schema_run *run, const char *name, const json_t *value)
{
    if (!json_is_boolean(value))
        return schema_wrong_type(run, name, "a boolean", value);
    run->out->add_generation_prompt = run->out->generation_prompt_asked = json_is_true(value);
    return true;
}

// Lower goes first, and 0 is usual. There are two classes of requests, so every positive priority is the later one; none makes a request go
// before the others of its key's class.
bool schema_read_priority(struct schema_run *run, const char *name, const json_t *value)
{
    int64_t priority;

    if (!schema_read_integer(run, name, value, INT32_MIN, INT32_MAX, &priority))
        return false;
    run->out->yields = priority > 0;
    return true;
}

static bool read_switch(struct schema_run *run, const json_t *options, const char *key, const char *name, bool *out)
{
    const json_t *value = json_object_get(options, key);

    if (!value || json_is_null(value))
        return true;
    if (!json_is_boolean(value))
        return schema_wrong_type(run, name, "a boolean", value);
    *out = json_is_true(value);
    return true;
}

bool schema_read_stream_options(struct schema_run *run, const char *name, const json_t *value)
{
    struct api_request *out = run->out;

    if (!json_text_is_object(value))
        return schema_wrong_type(run, name, "an object", value);
    return read_switch(run, value, "include_usage", "stream_options.include_usage", &out->include_usage) &&
           read_switch(run, value, "continuous_usage_stats", "stream_options.continuous_usage_stats", &out->continuous_usage);
}

static bool check_best_of(struct schema_run *run)
{
    struct api_request *out = run->out;

    if (out->best_of <= 1) // not given, or a client's way to say so
        out->best_of = out->n;
    if (out->best_of < out->n)
        return api_fail(run->error, 400, "invalid_value", "best_of", "'best_of' is %lld, which is less than 'n', %lld",
                        (long long)out->best_of, (long long)out->n);
    if (out->best_of > out->n && out->stream)
        return api_fail(run->error, 400, "invalid_value", "best_of",
                        "'best_of' above 'n' is not possible with 'stream' true: which choice is the best is known at the end");
    if ((out->kind & SCHEMA_ANSWERS) && out->best_of * MAX(out->prompt_count, 1) > API_MAX_CHOICES)
        return api_fail(run->error, 400, "invalid_value", "best_of",
                        "prompts times 'best_of' is %lld, at most %d are allowed in one request",
                        (long long)(out->best_of * out->prompt_count), API_MAX_CHOICES);
    return true;
}

static bool check_final_message(struct schema_run *run)
{
    struct api_request *out = run->out;
    const struct api_chat_message *last = out->message_count ? &out->messages[out->message_count - 1] : NULL;

    if (!out->continue_final_message)
        return true;
    if (!last)
        return api_fail(run->error, 400, "invalid_value", "continue_final_message", "'continue_final_message' needs 'messages'");
    if (out->generation_prompt_asked)
        return api_fail(run->error, 400, "invalid_value", "continue_final_message",
                        "'continue_final_message' and 'add_generation_prompt' cannot both be true");
    if (json_object_get(json_array_get(out->conversation, out->message_count - 1), "tool_calls"))
        return api_fail(run->error, 400, "invalid_value", "continue_final_message",
                        "'continue_final_message' needs a last message without 'tool_calls'");
    out->add_generation_prompt = false;
    return true;
}

bool schema_check_extensions(struct schema_run *run)
{
    struct api_request *out = run->out;

    if (out->continuous_usage && !out->stream)
        return api_fail(run->error, 400, "invalid_value", "stream_options", "'stream_options' is only allowed with 'stream' true");
    if (out->prompt_logprobs >= 0 && out->stream)
        return api_fail(run->error, 400, "invalid_value", "prompt_logprobs",
                        "'prompt_logprobs' is not possible with 'stream' true");
    if (out->suffix && out->suffix[0] == '\0')
        out->suffix = NULL;
    if (out->suffix && out->echo)
        return api_fail(run->error, 400, "invalid_value", "suffix", "'suffix' is not possible with 'echo' true");
    return check_best_of(run) && check_final_message(run);
}
