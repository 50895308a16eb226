// sampling.c: fields of the sampler that are lists (tokens that end, are allowed, or break repetitions; words that are banned), and the
// rules between them.
#include <float.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "services/gateway/api/schema/schema_internal.h"

static const char *const default_breakers[] = {"\n", ":", "\"", "*"}; // llama.cpp's

static bool read_tokens(struct schema_run *run, const char *name, const json_t *value, size_t most, struct api_ids *out)
{
    if (!json_is_array(value))
        return schema_wrong_type(run->error, name, "an array of token ids", value);
    if (json_array_size(value) > most)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu tokens, at most %zu are allowed", name,
                        json_array_size(value), most);
    return json_array_size(value) == 0 || schema_read_ids(run, name, value, out);
}

bool schema_read_stop_tokens(struct schema_run *run, const char *name, const json_t *value)
{
    return read_tokens(run, name, value, API_MAX_STOP_TOKENS, &run->out->draw.stop_tokens);
}

bool schema_read_allowed_tokens(struct schema_run *run, const char *name, const json_t *value)
{
    return read_tokens(run, name, value, run->vocab ? run->vocab : SIZE_MAX, &run->out->draw.allowed_tokens);
}

// A list of strings, none empty. They stay in the body.
static bool read_strings(struct schema_run *run, const char *name, const json_t *value, size_t most, struct api_strings *out)
{
    size_t count = json_array_size(value);

    if (!json_is_array(value))
        return schema_wrong_type(run->error, name, "an array of strings", value);
    if (count > most)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu strings, at most %zu are allowed", name, count, most);
    out->strings = calloc(MAX(count, 1), sizeof *out->strings);
    if (!out->strings)
        return api_no_memory(run->error);
    for (; out->count < count; out->count++)
        if (!schema_read_stop_string(run, name, json_array_get(value, out->count), "an array of strings",
                                     &out->strings[out->count]))
            return false;
    return true;
}

bool schema_read_bad_words(struct schema_run *run, const char *name, const json_t *value)
{
    return read_strings(run, name, value, API_MAX_BAD_WORDS, &run->out->draw.bad_words);
}

bool schema_read_dry_breakers(struct schema_run *run, const char *name, const json_t *value)
{
    return read_strings(run, name, value, API_MAX_DRY_BREAKERS, &run->out->draw.dry_breakers);
}

void schema_sampling_defaults(struct api_request *out)
{
    out->draw.dry_allowed_length = 2;
    out->draw.dry_last_tokens = -1;
}

bool schema_check_sampling(struct schema_run *run)
{
    struct api_request *out = run->out;
    Fastdecode__Sampling *sampling = &out->sampling;

    if (out->limits.max_tokens >= 0 && out->limits.min_tokens > out->limits.max_tokens)
        return api_fail(run->error, 400, "invalid_value", "min_tokens", "'min_tokens' is %lld, and 'max_tokens' %lld",
                        (long long)out->limits.min_tokens, (long long)out->limits.max_tokens);
    if (out->draw.dry_last_tokens == 0)
        sampling->dry_multiplier = 0;
    if (sampling->dry_multiplier > 0 && !out->draw.dry_breakers.strings) {
        out->draw.dry_breakers.strings = calloc(ARRAY_COUNT(default_breakers), sizeof *out->draw.dry_breakers.strings);
        if (!out->draw.dry_breakers.strings)
            return api_no_memory(run->error);
        for (size_t i = 0; i < ARRAY_COUNT(default_breakers); i++)
            out->draw.dry_breakers.strings[out->draw.dry_breakers.count++] = (struct stop_string){default_breakers[i], 1};
    }
    sampling->min_tokens = (uint32_t)out->limits.min_tokens;
    sampling->dry_allowed_length = (uint32_t)out->draw.dry_allowed_length;
    sampling->dry_last_tokens = (uint32_t)MAX(out->draw.dry_last_tokens, 0);
    if (sampling->top_p == 0)
        sampling->top_p = FLT_MIN; // the best token alone; to the mesh 0 is off
    if (sampling->typical_p == 1)
        sampling->typical_p = 0; // off, as for a mesh that does not know it
    return true;
}

void schema_free_sampling(struct api_request *request)
{
    free(request->draw.stop_tokens.ids);
    free(request->draw.allowed_tokens.ids);
    free(request->draw.bad_words.strings);
    free(request->draw.dry_breakers.strings);
    json_decref(request->form.owned);
}
