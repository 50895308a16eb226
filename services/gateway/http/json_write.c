// json_write.c: see json_write.h.
#include "services/gateway/http/json_write.h"

#include <math.h>
#include <string.h>

#include "common/tokenizer/tokenizer.h"

size_t text_utf8_length(const char *data, size_t bytes)
{
    size_t broken;
    bool open;

    return bytes ? clean_text_utf8_length(data, bytes, &broken, &open) : 0;
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
    if (bytes > from) // without any bytes there may be no data
        text_append(text, data + from, bytes - from);
    text_append(text, "\"", 1);
}

void text_json_string(struct text *text, const char *string) { text_json(text, string, strlen(string)); }

void text_json_after(struct text *text, const char *before, const char *string)
{
    text_string(text, before);
    if (string)
        text_json_string(text, string);
    else
        text_string(text, "null");
}

void text_json_bytes_after(struct text *text, const char *before, const char *data, size_t bytes)
{
    text_string(text, before);
    text_json(text, data, bytes);
}

void text_json_float(struct text *text, float value)
{
    if (isfinite(value))
        text_format(text, "%.9g", (double)value);
    else
        text_string(text, "-9999.0");
}
