// files.c: the files of a directory, on the disk or in memory, JSON in them, and values of config.json; with a message for what is missing or
// wrong.
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json_text.h"
#include "common/model/hf/hf.h"
#include "common/model/hf/internal.h"

// --- JSON -----------------------------------------------------------------------------------------------------------

enum status hf_json_parse(const char *label, const void *bytes, uint64_t byte_count, json_type type, json_t **out,
                          struct error *error)
{
    size_t at = 0;
    json_error_t wrong;
    char shown[160];

    if (byte_count > HF_JSON_MAX_BYTES)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: %llu bytes of JSON, supported: up to %d", label,
                         (unsigned long long)byte_count, HF_JSON_MAX_BYTES);
    switch (json_check_limits(bytes, (size_t)byte_count, HF_JSON_MAX_DEPTH, HF_JSON_MAX_VALUES, &at)) {
    case JSON_WITHIN: break;
    case JSON_TOO_DEEP:
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: JSON at byte %zu: nested more than %d deep", label, at,
                         HF_JSON_MAX_DEPTH);
    case JSON_TOO_MANY:
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: JSON of more than %d values", label, HF_JSON_MAX_VALUES);
    }
    *out = json_loadb(bytes, (size_t)byte_count, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &wrong);
    if (!*out)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: JSON at byte %d: %s", label, wrong.position,
                         gguf_printable(shown, sizeof shown, (struct gguf_string){wrong.text, strlen(wrong.text)}));
    if (json_typeof(*out) != type) {
        json_decref(*out);
        *out = NULL;
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: not a JSON %s", label, type == JSON_OBJECT ? "object" : "array");
    }
    return STATUS_OK;
}

const json_t *hf_json_get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

bool hf_json_whole(const json_t *value, uint64_t *out)
{
    double number = json_real_value(value);

    if (!json_is_real(value) || !(number >= 0 && number <= 0x1p53) || number != (double)(uint64_t)number)
        return false;
    *out = (uint64_t)number;
    return true;
}

const char *hf_json_shown(char *buffer, size_t bytes, const json_t *value)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT: snprintf(buffer, bytes, "an object"); break;
    case JSON_ARRAY: snprintf(buffer, bytes, "an array"); break;
    case JSON_REAL:
    case JSON_INTEGER: snprintf(buffer, bytes, "%.15g", json_number_value(value)); break;
    case JSON_TRUE: snprintf(buffer, bytes, "true"); break;
    case JSON_FALSE: snprintf(buffer, bytes, "false"); break;
    case JSON_NULL: snprintf(buffer, bytes, "null"); break;
    case JSON_STRING: {
        buffer[0] = '\'';
        gguf_printable(buffer + 1, bytes - 2, (struct gguf_string){json_string_value(value), json_string_length(value)});
        strcat(buffer, "'");
        break;
    }
    }
    return buffer;
}

// --- files ----------------------------------------------------------------------------------------------------------

enum status hf_fail(struct hf *hf, enum status status, const char *file, const char *format, ...)
{
    char text[sizeof((struct error){0}.text)];
    va_list arguments;

    if (hf->status)
        return hf->status;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    hf->status = status;
    return error_set(hf->error, status, "%s%s%s: %s", hf->label, file ? "/" : "", file ? file : "", text);
}

void hf_file_label(const struct hf *hf, const char *name, char label[HF_LABEL_BYTES])
{
    char shown[HF_LABEL_BYTES - GGUF_LABEL_BYTES - 1];

    snprintf(label, HF_LABEL_BYTES, "%s/%s", hf->label,
             gguf_printable(shown, sizeof shown, (struct gguf_string){name, strlen(name)}));
}

static bool find_in_memory(const struct hf *hf, const char *name, struct mapped_file *out)
{
    for (uint32_t i = 0; i < hf->file_count; i++)
        if (strcmp(hf->files[i].name, name) == 0) {
            *out = (struct mapped_file){.bytes = hf->files[i].bytes, .byte_count = hf->files[i].byte_count};
            return true;
        }
    return false;
}

bool hf_file_open(struct hf *hf, const char *name, struct mapped_file *out)
{
    char label[HF_LABEL_BYTES], *path = NULL;

    *out = (struct mapped_file){0};
    if (hf->status)
        return false;
    if (!hf->path)
        return find_in_memory(hf, name, out);
    if (asprintf(&path, "%s/%s", hf->path, name) < 0) {
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, name, "no memory for its name");
        return false;
    }
    hf_file_label(hf, name, label);
    enum status status = mapped_file_open(path, label, strstr(name, ".json") ? "JSON" : "model's", out, hf->error);
    free(path);
    if (status && status != STATUS_NOT_FOUND)
        hf->status = status;
    return status == STATUS_OK;
}

// Puts a name without its ending into the sorted list, if it has that ending.
static void add_name(const char *name, const char *ending, char (*names)[HF_TEMPLATE_NAME_BYTES], uint32_t most, uint32_t *count)
{
    const size_t length = strlen(name), end = strlen(ending);
    char short_name[HF_TEMPLATE_NAME_BYTES];
    uint32_t at = *count;

    if (length <= end || length - end >= sizeof short_name || strcmp(name + length - end, ending) != 0)
        return;
    snprintf(short_name, sizeof short_name, "%.*s", (int)(length - end), name);
    for (; at > 0 && strcmp(names[at - 1], short_name) > 0; at--)
        if (at < most)
            memcpy(names[at], names[at - 1], sizeof short_name);
    if (at >= most)
        return;
    memcpy(names[at], short_name, sizeof short_name);
    *count += *count < most;
}

uint32_t hf_file_names(struct hf *hf, const char *folder, const char *ending, char (*names)[HF_TEMPLATE_NAME_BYTES], uint32_t most)
{
    const size_t bytes = strlen(folder);
    const struct dirent *entry;
    uint32_t count = 0;
    char *path = NULL;

    for (uint32_t i = 0; !hf->path && i < hf->file_count; i++)
        if (strncmp(hf->files[i].name, folder, bytes) == 0 && hf->files[i].name[bytes] == '/')
            add_name(hf->files[i].name + bytes + 1, ending, names, most, &count);
    if (!hf->path || asprintf(&path, "%s/%s", hf->path, folder) < 0)
        return count;
    DIR *listed = opendir(path);
    while (listed && (entry = readdir(listed)))
        add_name(entry->d_name, ending, names, most, &count);
    if (listed)
        closedir(listed);
    free(path);
    return count;
}

static json_t *read_json(struct hf *hf, const char *name, json_type type)
{
    char label[HF_LABEL_BYTES];
    struct mapped_file file;
    json_t *root = NULL;

    if (!hf_file_open(hf, name, &file))
        return NULL;
    hf_file_label(hf, name, label);
    hf->status = hf_json_parse(label, file.bytes, file.byte_count, type, &root, hf->error);
    mapped_file_close(&file);
    return root;
}

json_t *hf_file_json(struct hf *hf, const char *name) { return read_json(hf, name, JSON_OBJECT); }
json_t *hf_file_list(struct hf *hf, const char *name) { return read_json(hf, name, JSON_ARRAY); }

// --- values of config.json ------------------------------------------------------------------------------------------

// Reads values of config.json, with a line for each that is missing or not what it must be, and writes keys.

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
    fail_in(hf, "config.json", key, value, expected);
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
    fail_in(hf, "config.json", key, value, "a number");
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
        fail_in(hf, "config.json", key, value, "a string");
        return fallback;
    }
    return json_string_value(value);
}

// Returns whether this is one of the texts between '|'.
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
