// hf_values.c: reads values of config.json, with a line for each that is missing or not what it must be, and writes keys.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/model/hf_state.h"

enum { SHOWN_BYTES = 72 };

void hf_refuse(struct hf *hf, const char *key, const json_t *value, const char *reason)
{
    char shown[SHOWN_BYTES];

    hf_fail(hf, STATUS_UNIMPLEMENTED, "config.json", "key '%s' is %s: %s", key, hf_json_shown(shown, sizeof shown, value), reason);
}

static void fail_in(struct hf *hf, const char *file, const char *key, const json_t *value, const char *expected)
{
    char shown[SHOWN_BYTES];

    if (value)
        hf_fail(hf, STATUS_INVALID_ARGUMENT, file, "key '%s' is %s, expected %s", key, hf_json_shown(shown, sizeof shown, value),
                expected);
    else
        hf_fail(hf, STATUS_INVALID_ARGUMENT, file, "key '%s' is missing: expected %s", key, expected);
}

static void fail_as(struct hf *hf, const char *key, const json_t *value, const char *expected)
{
    fail_in(hf, "config.json", key, value, expected);
}

uint32_t hf_u32(struct hf *hf, const json_t *object, const char *key, uint32_t minimum, uint32_t maximum)
{
    char expected[64];
    const json_t *value = hf_json_get(object, key);
    uint64_t number = 0;

    if (hf->status)
        return minimum;
    if (hf_json_whole(value, &number) && number >= minimum && number <= maximum)
        return (uint32_t)number;
    snprintf(expected, sizeof expected, "a whole number from %u to %u", minimum, maximum);
    fail_as(hf, key, value, expected);
    return minimum;
}

uint32_t hf_u32_or(struct hf *hf, const json_t *object, const char *key, uint32_t minimum, uint32_t maximum, uint32_t fallback)
{
    return hf_json_get(object, key) ? hf_u32(hf, object, key, minimum, maximum) : fallback;
}

double hf_number(struct hf *hf, const json_t *object, const char *key)
{
    const json_t *value = hf_json_get(object, key);

    if (hf->status)
        return 1;
    if (json_is_number(value) && isfinite(json_number_value(value)))
        return json_number_value(value);
    fail_as(hf, key, value, "a number");
    return 1;
}

double hf_number_or(struct hf *hf, const json_t *object, const char *key, double fallback)
{
    return hf_json_get(object, key) ? hf_number(hf, object, key) : fallback;
}

bool hf_flag_of(struct hf *hf, const json_t *object, const char *file, const char *key, bool fallback)
{
    const json_t *value = hf_json_get(object, key);

    if (hf->status || !value)
        return fallback;
    if (!json_is_boolean(value))
        fail_in(hf, file, key, value, "true or false");
    return json_is_true(value);
}

bool hf_flag_or(struct hf *hf, const json_t *object, const char *key, bool fallback)
{
    return hf_flag_of(hf, object, "config.json", key, fallback);
}

const char *hf_text_or(struct hf *hf, const json_t *object, const char *key, const char *fallback)
{
    const json_t *value = hf_json_get(object, key);

    if (hf->status || !value)
        return fallback;
    if (!json_is_string(value)) {
        fail_as(hf, key, value, "a string");
        return fallback;
    }
    return json_string_value(value);
}

// Is this one of the texts between '|'?
static bool is_one_of(const json_t *value, const char *texts)
{
    const char *text = json_string_value(value);

    for (const char *at = texts; text && at;) {
        const char *end = strchr(at, '|');
        size_t length = end ? (size_t)(end - at) : strlen(at);
        if (strlen(text) == length && memcmp(text, at, length) == 0)
            return true;
        at = end ? end + 1 : NULL;
    }
    return false;
}

static bool is_expected(const json_t *value, const struct hf_neutral *neutral)
{
    switch (neutral->expected) {
    case HF_FALSE: return json_is_false(value) || (json_is_real(value) && json_real_value(value) == 0);
    case HF_TRUE: return json_is_true(value);
    case HF_NOTHING:
        return (json_is_array(value) && json_array_size(value) == 0) || (json_is_object(value) && json_object_size(value) == 0);
    case HF_NUMBER: return json_is_number(value) && json_number_value(value) == neutral->number;
    case HF_TEXT: return is_one_of(value, neutral->text);
    }
    return false;
}

void hf_check_neutral(struct hf *hf, const struct hf_neutral *neutral)
{
    for (; neutral->key; neutral++) {
        const json_t *value = hf_json_get(hf->config.json, neutral->key);
        char reason[96];
        if (!value || is_expected(value, neutral))
            continue;
        switch (neutral->expected) {
        case HF_FALSE: snprintf(reason, sizeof reason, "only false is supported for %s", hf->arch->class_name); break;
        case HF_TRUE: snprintf(reason, sizeof reason, "only true is supported for %s", hf->arch->class_name); break;
        case HF_NOTHING: snprintf(reason, sizeof reason, "not supported for %s", hf->arch->class_name); break;
        case HF_NUMBER:
            snprintf(reason, sizeof reason, "only %g is supported for %s", neutral->number, hf->arch->class_name);
            break;
        case HF_TEXT: snprintf(reason, sizeof reason, "only %s is supported for %s", neutral->text, hf->arch->class_name); break;
        }
        hf_refuse(hf, neutral->key, value, reason);
    }
}

const json_t *hf_find_added(const json_t *tokenizer, const char *text)
{
    const json_t *list = hf_json_get(tokenizer, "added_tokens");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *content = json_string_value(hf_json_get(json_array_get(list, i), "content"));
        if (content && strcmp(content, text) == 0)
            return json_array_get(list, i);
    }
    return NULL;
}

bool hf_find_token(const struct hf *hf, const json_t *tokenizer, const char *text, uint32_t *id)
{
    const json_t *added = hf_find_added(tokenizer, text), *vocab = hf_json_get(hf_json_get(tokenizer, "model"), "vocab");
    uint64_t number;

    if (!hf_json_whole(added ? hf_json_get(added, "id") : hf_json_get(vocab, text), &number) || number >= hf->vocab)
        return false;
    *id = (uint32_t)number;
    return true;
}

static const char *full_key(const struct hf *hf, const char *suffix, char *key, size_t bytes)
{
    snprintf(key, bytes, "%s.%s", hf->arch->gguf, suffix);
    return key;
}

void hf_put_u32(struct hf *hf, const char *suffix, uint32_t value)
{
    char key[GGUF_MAX_NAME_BYTES];

    if (!hf->status)
        assembly_u32(&hf->assembly, full_key(hf, suffix, key, sizeof key), value);
}

void hf_put_bool(struct hf *hf, const char *suffix, bool value)
{
    char key[GGUF_MAX_NAME_BYTES];

    if (!hf->status)
        assembly_bool(&hf->assembly, full_key(hf, suffix, key, sizeof key), value);
}

void hf_put_f32(struct hf *hf, const char *suffix, double value)
{
    char key[GGUF_MAX_NAME_BYTES];

    if (!hf->status)
        assembly_f32(&hf->assembly, full_key(hf, suffix, key, sizeof key), (float)value);
}

void hf_put_string(struct hf *hf, const char *suffix, const char *value)
{
    char key[GGUF_MAX_NAME_BYTES];

    if (!hf->status)
        assembly_string(&hf->assembly, full_key(hf, suffix, key, sizeof key), value, strlen(value));
}
