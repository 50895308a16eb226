// text.c: see text.h. Memory doubles, so that a text of n bytes costs O(n).
#include "services/gateway/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

enum { FIRST_BYTES = 256, FORMAT_BYTES = 1024 };

void text_free(struct text *text)
{
    free(text->data);
    *text = (struct text){0};
}

void text_clear(struct text *text)
{
    text->bytes = 0;
    text->failed = false;
}

bool text_reserve(struct text *text, size_t bytes)
{
    size_t needed, capacity = text->capacity ? text->capacity : FIRST_BYTES;
    char *data;

    if (text->failed)
        return false;
    if (!checked_add_size(text->bytes, bytes, &needed) || needed > SIZE_MAX / 4) {
        text->failed = true;
        return false;
    }
    if (needed <= text->capacity)
        return true;
    while (capacity < needed)
        capacity *= 2;
    data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void text_append(struct text *text, const void *data, size_t bytes)
{
    if (bytes == 0 || !text_reserve(text, bytes))
        return;
    memcpy(text->data + text->bytes, data, bytes);
    text->bytes += bytes;
}

void text_string(struct text *text, const char *string) { text_append(text, string, strlen(string)); }

void text_format(struct text *text, const char *format, ...)
{
    char buffer[FORMAT_BYTES];
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(buffer, sizeof buffer, format, args);
    va_end(args);
    assert_always(length >= 0 && (size_t)length < sizeof buffer);
    text_append(text, buffer, (size_t)length);
}

void text_consume(struct text *text, size_t bytes)
{
    assert_always(bytes <= text->bytes);
    if (bytes == 0)
        return;
    memmove(text->data, text->data + bytes, text->bytes - bytes);
    text->bytes -= bytes;
}

size_t text_utf8_length(const char *data, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)data;
    size_t length, i;
    uint32_t code;

    if (bytes == 0)
        return 0;
    if (at[0] < 0x80)
        return 1;
    if (at[0] < 0xC2 || at[0] > 0xF4)
        return 0;
    length = at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : 4;
    if (length > bytes)
        return 0;
    code = at[0] & (0xFFu >> (length + 1));
    for (i = 1; i < length; i++) {
        if ((at[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3F);
    }
    if ((length == 3 && (code < 0x800 || (code >= 0xD800 && code <= 0xDFFF))) ||
        (length == 4 && (code < 0x10000 || code > 0x10FFFF)))
        return 0;
    return length;
}

size_t text_utf8_count(const char *data, size_t bytes)
{
    size_t count = 0, i = 0;

    for (; i < bytes; count++) {
        size_t length = text_utf8_length(data + i, bytes - i);
        i += length ? length : 1;
    }
    return count;
}

static void append_escaped(struct text *text, unsigned char byte)
{
    switch (byte) {
    case '"': text_append(text, "\\\"", 2); break;
    case '\\': text_append(text, "\\\\", 2); break;
    case '\n': text_append(text, "\\n", 2); break;
    case '\r': text_append(text, "\\r", 2); break;
    case '\t': text_append(text, "\\t", 2); break;
    default: text_format(text, "\\u%04x", byte); break;
    }
}

void text_json(struct text *text, const char *data, size_t bytes)
{
    size_t from = 0, i = 0;

    text_append(text, "\"", 1);
    while (i < bytes) {
        unsigned char byte = (unsigned char)data[i];
        size_t length = text_utf8_length(data + i, bytes - i);

        if (length && byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7F) {
            i += length;
            continue;
        }
        text_append(text, data + from, i - from);
        if (length)
            append_escaped(text, byte);
        else
            text_string(text, "\xEF\xBF\xBD");
        from = ++i;
    }
    text_append(text, data + from, bytes - from);
    text_append(text, "\"", 1);
}

void text_json_string(struct text *text, const char *string) { text_json(text, string, strlen(string)); }

void text_json_float(struct text *text, float value)
{
    if (isfinite(value))
        text_format(text, "%.9g", (double)value);
    else
        text_string(text, "-9999.0");
}
