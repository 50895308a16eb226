// json_text.c: see json_text.h.
//
// Reading: a number that jansson would refuse is replaced by a string that begins with a mark, and after parsing each such string by an
// object of one key, "\xFFnumber", whose value is the number's text. The mark is drawn anew for each text, so that nobody can write it
// beforehand, and jansson accepts no text that is not UTF-8: such an object only ever comes from here.
#include "common/json/json_text.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/random.h>

#include "common/base/text.h"

static const char kept_key[] = "\xFFnumber";
enum {
    MARK_BYTES = 32,
    NUMBER_BYTES_READ = 800, // a longer number is kept as text; a double has at most 767 digits that count
};

const char *json_text_kept(const json_t *value)
{
    if (!json_is_object(value) || json_object_size(value) != 1)
        return NULL;
    return json_string_value(json_object_get(value, kept_key));
}

bool json_text_is_object(const json_t *value) { return json_is_object(value) && !json_text_kept(value); }

bool json_text_is_number(const json_t *value) { return json_is_number(value) || json_text_kept(value); }

double json_text_number(const json_t *value)
{
    const char *kept = json_text_kept(value);

    return kept ? strtod(kept, NULL) : json_number_value(value);
}

// --- reading ------------------------------------------------------------------------------------------------------------
static size_t digits_at(const char *text, size_t bytes)
{
    size_t count = 0;

    while (count < bytes && text[count] >= '0' && text[count] <= '9')
        count++;
    return count;
}

// Returns the length of JSON's number at the beginning of text; 0: there is none. *is_integer: without fraction and exponent.
static size_t number_at(const char *text, size_t bytes, bool *is_integer)
{
    size_t at = bytes > 0 && text[0] == '-', digits = digits_at(text + at, bytes - at);

    *is_integer = true;
    if (digits == 0 || (digits > 1 && text[at] == '0'))
        return 0;
    at += digits;
    if (at < bytes && text[at] == '.') {
        digits = digits_at(text + at + 1, bytes - at - 1);
        if (digits == 0)
            return 0;
        at += 1 + digits;
        *is_integer = false;
    }
    if (at < bytes && (text[at] == 'e' || text[at] == 'E')) {
        const size_t sign = at + 1 < bytes && (text[at + 1] == '+' || text[at + 1] == '-');
        digits = digits_at(text + at + 1 + sign, bytes - at - 1 - sign);
        if (digits == 0)
            return 0;
        at += 1 + sign + digits;
        *is_integer = false;
    }
    return at;
}

static bool fits(const char *text, size_t bytes, bool is_integer)
{
    char number[NUMBER_BYTES_READ + 1];

    if (is_integer && bytes < 19) // digits of INT64_MAX
        return true;
    if (bytes > NUMBER_BYTES_READ)
        return false;
    memcpy(number, text, bytes);
    number[bytes] = '\0';
    errno = 0;
    if (is_integer)
        return strtoll(number, NULL, 10) != 0 && errno == 0;
    return isfinite(strtod(number, NULL));
}

// jansson reads a key where it wants one, so a number there must stay what it is.
static bool is_key(const char *text, size_t bytes)
{
    while (bytes > 0 && strchr(" \t\r\n", *text) && *text)
        text++, bytes--;
    return bytes > 0 && *text == ':';
}

struct reading {
    const char *text;
    size_t bytes;
    char mark[MARK_BYTES + 1]; // drawn once it is needed
    struct text replaced;      // the text with strings for numbers
    size_t copied;             // bytes of text that are in it
};

static void draw_mark(char mark[MARK_BYTES + 1])
{
    unsigned char random[MARK_BYTES / 2];
    size_t drawn = 0;

    while (drawn < sizeof random) {
        const ssize_t more = getrandom(random + drawn, sizeof random - drawn, 0);
        drawn += more > 0 ? (size_t)more : 0;
    }
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(mark + 2 * i, 3, "%02x", random[i]);
}

static void replace(struct reading *reading, size_t at, size_t count)
{
    struct text *out = &reading->replaced;

    if (!reading->mark[0])
        draw_mark(reading->mark);
    text_append(out, reading->text + reading->copied, at - reading->copied);
    text_append(out, "\"", 1);
    text_append(out, reading->mark, MARK_BYTES);
    text_append(out, reading->text + at, count);
    text_append(out, "\"", 1);
    reading->copied = at + count;
}

static void replace_numbers(struct reading *reading)
{
    const char *text = reading->text;
    bool in_string = false, is_integer;

    for (size_t i = 0, count; i < reading->bytes; i += count) {
        count = 1;
        if (in_string) {
            count += text[i] == '\\';
            in_string = text[i] != '"';
        } else if (text[i] == '"') {
            in_string = true;
        } else if (text[i] == '-' || (text[i] >= '0' && text[i] <= '9')) {
            const size_t number = number_at(text + i, reading->bytes - i, &is_integer);
            count = number ? number : 1;
            if (number && !fits(text + i, number, is_integer) && !is_key(text + i + number, reading->bytes - i - number))
                replace(reading, i, number);
        }
    }
    if (reading->mark[0])
        text_append(&reading->replaced, text + reading->copied, reading->bytes - reading->copied);
}

// Returns a new value for a string that stands for a number; NULL with *failed unset: it is no such string.
static json_t *number_of(const char *mark, const json_t *value, bool *failed)
{
    const char *text = json_string_value(value);
    json_t *kept;

    if (!text || json_string_length(value) <= MARK_BYTES || memcmp(text, mark, MARK_BYTES) != 0)
        return NULL;
    kept = json_object();
    if (kept && json_object_set_new_nocheck(kept, kept_key, json_string_nocheck(text + MARK_BYTES)) == 0)
        return kept;
    json_decref(kept);
    *failed = true;
    return NULL;
}

// Puts numbers where their strings are, in *value and below. Recurses as deep as the parser did.
static bool keep_numbers(const char *mark, json_t **value)
{
    bool failed = false;
    json_t *number = number_of(mark, *value, &failed), *item, *before;

    if (number) {
        json_decref(*value);
        *value = number;
        return true;
    }
    for (size_t i = 0; !failed && i < json_array_size(*value); i++) {
        item = before = json_incref(json_array_get(*value, i));
        failed = !keep_numbers(mark, &item) || (item != before && json_array_set(*value, i, item) != 0);
        json_decref(item);
    }
    for (void *at = json_object_iter(*value); !failed && at; at = json_object_iter_next(*value, at)) {
        item = before = json_incref(json_object_iter_value(at));
        failed = !keep_numbers(mark, &item) || (item != before && json_object_iter_set(*value, at, item) != 0);
        json_decref(item);
    }
    return !failed;
}

// Makes an error of the text with strings one of the given text. Its words stay: the library quotes no more than 20 bytes.
static void correct_error(const struct reading *reading, json_error_t *error)
{
    const char *from = reading->replaced.data, *end = from + (error->position > 0 ? error->position : 0), *found;

    while (from < end && (found = memmem(from, (size_t)(end - from), reading->mark, MARK_BYTES))) {
        error->position -= MARK_BYTES + 2;
        from = found + MARK_BYTES;
    }
}

json_t *json_text_read(const char *text, size_t bytes, size_t flags, json_error_t *error)
{
    struct reading reading = {.text = text, .bytes = bytes};
    json_error_t unused;
    json_t *value = NULL;

    replace_numbers(&reading);
    if (!reading.mark[0])
        return json_loadb(text, bytes, flags, error);
    error = error ? error : &unused;
    if (!reading.replaced.failed)
        value = json_loadb(reading.replaced.data, reading.replaced.bytes, flags, error);
    if (!value && !reading.replaced.failed)
        correct_error(&reading, error);
    if (reading.replaced.failed || (value && !keep_numbers(reading.mark, &value))) {
        *error = (json_error_t){.line = -1, .position = 0, .text = "out of memory"};
        json_decref(value);
        value = NULL;
    }
    text_free(&reading.replaced);
    return value;
}

// --- writing ------------------------------------------------------------------------------------------------------------
void json_text_real(double number, char out[JSON_REAL_BYTES])
{
    int precision = 0, exponent;

    do
        snprintf(out, JSON_REAL_BYTES, "%.*e", precision, number);
    while (strtod(out, NULL) != number && ++precision < 17);
    exponent = atoi(strchr(out, 'e') + 1);
    if (exponent >= -4 && exponent < 16)
        snprintf(out, JSON_REAL_BYTES, "%.*f", precision > exponent ? precision - exponent : 1, number);
}

static void append_string(struct text *out, const char *string, size_t bytes)
{
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    size_t from = 0;

    text_append(out, "\"", 1);
    for (size_t i = 0; i < bytes; i++) {
        const char *name = named;
        if ((unsigned char)string[i] >= 0x20 && string[i] != '"' && string[i] != '\\')
            continue;
        text_append(out, string + from, i - from);
        from = i + 1;
        while (*name && *name != string[i])
            name += 2;
        if (*name)
            text_format(out, "\\%c", name[1]);
        else
            text_format(out, "\\u%04x", (unsigned)string[i]);
    }
    text_append(out, string + from, bytes - from);
    text_append(out, "\"", 1);
}

static void append_object(struct text *out, json_t *value, bool spaced)
{
    const char *comma = "";

    text_append(out, "{", 1);
    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at)) {
        text_string(out, comma);
        append_string(out, json_object_iter_key(at), json_object_iter_key_len(at));
        text_string(out, spaced ? ": " : ":");
        json_text_append(out, json_object_iter_value(at), spaced);
        comma = spaced ? ", " : ",";
    }
    text_append(out, "}", 1);
}

static void append_array(struct text *out, const json_t *value, bool spaced)
{
    text_append(out, "[", 1);
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (i > 0)
            text_string(out, spaced ? ", " : ",");
        json_text_append(out, json_array_get(value, i), spaced);
    }
    text_append(out, "]", 1);
}

void json_text_append(struct text *out, const json_t *value, bool spaced)
{
    const char *kept = json_text_kept(value);
    char real[JSON_REAL_BYTES];

    switch (json_typeof(value)) {
    case JSON_OBJECT:
        if (kept)
            text_string(out, kept);
        else
            append_object(out, (json_t *)(uintptr_t)value, spaced);
        break;
    case JSON_ARRAY: append_array(out, value, spaced); break;
    case JSON_STRING: append_string(out, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: text_format(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); break;
    case JSON_REAL:
        json_text_real(json_real_value(value), real);
        text_string(out, real);
        break;
    case JSON_TRUE: text_string(out, "true"); break;
    case JSON_FALSE: text_string(out, "false"); break;
    case JSON_NULL: text_string(out, "null"); break;
    }
}

char *json_text_write(const json_t *value, bool spaced)
{
    struct text out = {0};

    json_text_append(&out, value, spaced);
    text_append(&out, "", 1);
    if (!out.failed)
        return out.data;
    text_free(&out);
    return NULL;
}

json_t *json_text_string(const json_t *value, bool spaced)
{
    struct text out = {0};
    json_t *string;

    json_text_append(&out, value, spaced);
    string = out.failed ? NULL : json_stringn_nocheck(out.data, out.bytes);
    text_free(&out);
    return string;
}

// --- limits -------------------------------------------------------------------------------------------------------------

enum json_excess json_check_limits(const char *text, size_t bytes, uint32_t depth_max, size_t values_max, size_t *at)
{
    size_t values = 0;

    return json_count_limits(text, bytes, depth_max, values_max, &values, at);
}

enum json_excess json_count_limits(const char *text, size_t bytes, uint32_t depth_max, size_t values_max, size_t *values,
                                   size_t *at)
{
    size_t i;
    uint32_t depth = 0;
    bool in_string = false;

    for (i = 0; i < bytes; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        in_string = c == '"';
        *values += c == ',' || c == '[' || c == '{';
        if (c == '[' || c == '{')
            depth++;
        else if ((c == ']' || c == '}') && depth > 0)
            depth--;
        *at = i;
        if (depth > depth_max)
            return JSON_TOO_DEEP;
        if (*values > values_max)
            return JSON_TOO_MANY;
    }
    return JSON_WITHIN;
}
