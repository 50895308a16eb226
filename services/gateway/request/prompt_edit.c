// prompt_edit.c: see prompt_edit.h.
#include "services/gateway/request/prompt_edit.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

bool prompt_edit_check(const struct api_request *api, uint32_t context, struct api_error *error)
{
    if (api->limits.truncate_prompt_tokens > (int64_t)context)
        return api_fail(error, 400, "invalid_value", "truncate_prompt_tokens",
                        "'truncate_prompt_tokens' is %lld, this model's maximum context length is %u tokens",
                        (long long)api->limits.truncate_prompt_tokens, context);
    return true;
}

bool prompt_edit_truncate(const struct api_request *api, uint32_t context, uint32_t *ids, uint32_t *count)
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
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", false},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", false},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", false},
    {"<\xEF\xBD\x9C"
     "fim\xE2\x96\x81"
     "begin\xEF\xBD\x9C>",
     "<\xEF\xBD\x9C"
     "fim\xE2\x96\x81hole\xEF\xBD\x9C>",
     "<\xEF\xBD\x9C"
     "fim\xE2\x96\x81"
     "end\xEF\xBD\x9C>",
     false},
    {"\xE2\x96\x81<PRE>", "\xE2\x96\x81<SUF>", "\xE2\x96\x81<MID>", false},
    {"<PRE>", "<SUF>", "<MID>", false},
    {"[PREFIX]", "[SUFFIX]", NULL, true},
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

struct id_list {
    uint32_t *ids; // of enough room
    uint32_t count;
};

static void add_ids(struct id_list *list, const uint32_t *ids, uint32_t count)
{
    if (count > 0)
        memcpy(list->ids + list->count, ids, count * sizeof *ids);
    list->count += count;
}

bool prompt_edit_add_suffix(const struct language *language, const char *suffix, uint32_t context, uint32_t **ids, uint32_t *count,
                            struct api_error *error)
{
    uint32_t gap[3] = {0}, *start = NULL, *end = NULL, start_count = 0, end_count = 0;
    struct id_list out = {0};
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
    if (status == STATUS_OK)
        out.ids = malloc(((size_t)start_count + *count + end_count + 3) * sizeof *out.ids);
    if (out.ids) {
        add_ids(&out, start, start_count);
        if (suffix_first) {
            add_ids(&out, &gap[1], 1);
            add_ids(&out, end, end_count);
        }
        add_ids(&out, &gap[0], 1);
        add_ids(&out, *ids, *count);
        if (!suffix_first) {
            add_ids(&out, &gap[1], 1);
            add_ids(&out, end, end_count);
            add_ids(&out, &gap[2], 1);
        }
        free(*ids);
        *ids = out.ids;
        *count = out.count;
    }
    free(start);
    free(end);
    return out.ids ||
           (status == STATUS_OK ? api_no_memory(error) : api_fail(error, 400, "invalid_value", "suffix", "%s", reason.text));
}
