// text.c: a growing buffer of bytes. Memory doubles, so that a text of n bytes costs O(n).
#include "common/base/text.h"

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

void text_trim(struct text *text)
{
    char *data = text->bytes > 0 && text->bytes < text->capacity ? realloc(text->data, text->bytes) : NULL;

    if (!data)
        return;
    text->data = data;
    text->capacity = text->bytes;
}

void text_consume(struct text *text, size_t bytes)
{
    assert_always(bytes <= text->bytes);
    if (bytes == 0)
        return;
    memmove(text->data, text->data + bytes, text->bytes - bytes);
    text->bytes -= bytes;
}
