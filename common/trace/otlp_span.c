// otlp_span.c: see otlp_span.h.
#include "common/trace/otlp_span.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"

// --- traceparent ----------------------------------------------------------------------------------------------------

enum { TRACE_AT = 3, SPAN_AT = 36, FLAGS_AT = 53, END_AT = 55, KEY_BYTES_MAX = 256, VALUE_BYTES_MAX = 256 };

// Upper case is malformed.
static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Reads `bytes` bytes of two digits each. False: one is no digit.
static bool read_hex(const char *text, unsigned char *out, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        out[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

static bool is_zero(const unsigned char *bytes, size_t count)
{
    unsigned any = 0;

    for (size_t i = 0; i < count; i++)
        any |= bytes[i];
    return any == 0;
}

bool otlp_context_parse(const char *text, size_t length, struct otlp_context *out)
{
    struct otlp_context found = {0};
    unsigned char version, flags;

    *out = found;
    if (length < END_AT || !read_hex(text, &version, 1) || version == 0xff || (version == 0 && length != END_AT) ||
        (length > END_AT && text[END_AT] != '-'))
        return false;
    if (text[TRACE_AT - 1] != '-' || text[SPAN_AT - 1] != '-' || text[FLAGS_AT - 1] != '-' ||
        !read_hex(text + TRACE_AT, found.trace_id, sizeof found.trace_id) ||
        !read_hex(text + SPAN_AT, found.span_id, sizeof found.span_id) || !read_hex(text + FLAGS_AT, &flags, 1))
        return false;
    if (is_zero(found.trace_id, sizeof found.trace_id) || is_zero(found.span_id, sizeof found.span_id))
        return false;
    found.sampled = flags & 1;
    *out = found;
    return true;
}

static char *write_hex(char *out, const unsigned char *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < count; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    return out;
}

void otlp_context_format(const struct otlp_context *context, char out[OTLP_PARENT_BYTES])
{
    char *at = out;

    memcpy(at, "00-", TRACE_AT);
    at = write_hex(at + TRACE_AT, context->trace_id, sizeof context->trace_id);
    *at++ = '-';
    at = write_hex(at, context->span_id, sizeof context->span_id);
    memcpy(at, context->sampled ? "-01" : "-00", 4);
}

// --- tracestate -----------------------------------------------------------------------------------------------------

static bool is_key_byte(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c != '\0' && strchr("_-*/@", c)); }

// Checks a member, "key=value", without the spaces around it. *key_bytes: the length of its key.
static bool is_member(const char *text, size_t length, size_t *key_bytes)
{
    size_t key = 0;

    while (key < length && is_key_byte(text[key]))
        key++;
    const size_t value = length - key;
    if (key == 0 || key > KEY_BYTES_MAX || text[0] == '@' || strchr("_-*/", text[0]) || value < 2 || value - 1 > VALUE_BYTES_MAX ||
        text[key] != '=')
        return false;
    for (size_t i = key + 1; i < length; i++)
        if (text[i] < 0x20 || text[i] > 0x7e || text[i] == '=')
            return false;
    *key_bytes = key;
    return true;
}

static bool is_space(char c) { return c == ' ' || c == '\t'; }

bool otlp_state_is_valid(const char *text, size_t length)
{
    struct {
        const char *at;
        size_t bytes;
    } keys[OTLP_STATE_MEMBERS_MAX];
    uint32_t count = 0;

    if (length == 0 || length >= OTLP_STATE_BYTES) // text may be NULL
        return false;
    const char *end = text + length, *next;
    for (; text < end; text = next < end ? next + 1 : end) {
        const char *last = next = memchr(text, ',', (size_t)(end - text));
        size_t key_bytes;
        if (!next)
            last = next = end;
        while (text < last && is_space(*text))
            text++;
        while (text < last && is_space(last[-1]))
            last--;
        if (text == last) // an empty member is allowed
            continue;
        if (count == OTLP_STATE_MEMBERS_MAX || !is_member(text, (size_t)(last - text), &key_bytes))
            return false;
        for (uint32_t i = 0; i < count; i++)
            if (keys[i].bytes == key_bytes && !memcmp(keys[i].at, text, key_bytes))
                return false;
        keys[count].at = text;
        keys[count++].bytes = key_bytes;
    }
    return count > 0;
}

// The last seven bytes are the random ones (W3C Trace Context Level 2).
bool otlp_is_in_ratio(const unsigned char trace_id[OTLP_TRACE_ID_BYTES], double ratio)
{
    uint64_t value = 0;

    for (int i = OTLP_TRACE_ID_BYTES - 7; i < OTLP_TRACE_ID_BYTES; i++)
        value = value << 8 | trace_id[i];
    return value < (uint64_t)(ratio * (double)(UINT64_C(1) << 56)); // as a double the largest would be 1
}

// --- spans ----------------------------------------------------------------------------------------------------------

// Only what is read is set: a span is a kilobyte and a half, of which most have a fifth.
void otlp_span_init(struct otlp_span *span, const char *name, const struct otlp_context *context, const unsigned char *parent_id,
                    uint64_t began_ns, uint64_t ended_ns)
{
    static const unsigned char none[OTLP_SPAN_ID_BYTES];

    span->context = *context;
    memcpy(span->parent_id, parent_id ? parent_id : none, sizeof span->parent_id);
    span->kind = OTLP_INTERNAL;
    span->failed = false;
    span->began_ns = began_ns;
    span->ended_ns = MAX(began_ns, ended_ns);
    span->attribute_count = span->event_count = span->events_dropped = span->text_bytes = 0;
    snprintf(span->name, sizeof span->name, "%s", name);
    span->state[0] = '\0';
}

// Returns the next attribute; NULL: there are too many.
static struct otlp_attribute *next_attribute(struct otlp_span *span, const char *key, enum otlp_type type)
{
    if (span->attribute_count == OTLP_ATTRIBUTES_MAX)
        return NULL;
    struct otlp_attribute *attribute = &span->attributes[span->attribute_count++];
    *attribute = (struct otlp_attribute){.key = key, .type = type};
    return attribute;
}

void otlp_span_number(struct otlp_span *span, const char *key, int64_t number)
{
    struct otlp_attribute *attribute = next_attribute(span, key, OTLP_NUMBER);
    if (attribute)
        attribute->number = number;
}

void otlp_span_static(struct otlp_span *span, const char *key, const char *value)
{
    struct otlp_attribute *attribute = next_attribute(span, key, OTLP_TEXT);
    if (attribute)
        attribute->fixed = value;
}

// A string of protobuf must be UTF-8, and texts may come from strangers.
void otlp_plain_text(char *out, size_t out_bytes, const char *text)
{
    size_t i = 0;

    for (; text[i] && i + 1 < out_bytes; i++)
        out[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i];
    out[i] = '\0';
}

// Copies a text with its end. Returns false if there is no room for any of it.
static bool copy_text(struct otlp_span *span, const char *value)
{
    char *to = span->texts + span->text_bytes;

    if (OTLP_TEXT_BYTES - span->text_bytes < 2)
        return false;
    otlp_plain_text(to, OTLP_TEXT_BYTES - span->text_bytes, value);
    span->text_bytes += (uint32_t)strlen(to) + 1;
    return true;
}

void otlp_span_text(struct otlp_span *span, const char *key, const char *value)
{
    const uint32_t at = span->text_bytes;
    struct otlp_attribute *attribute = next_attribute(span, key, OTLP_TEXT);

    if (!attribute)
        return;
    if (!copy_text(span, value)) {
        span->attribute_count--;
        return;
    }
    attribute->copied = true;
    attribute->text_index = at;
}

void otlp_span_list(struct otlp_span *span, const char *key, const char *const *values, uint32_t count)
{
    const uint32_t at = span->text_bytes;
    struct otlp_attribute *attribute = next_attribute(span, key, OTLP_LIST);

    if (!attribute)
        return;
    attribute->copied = true;
    attribute->text_index = at;
    while (attribute->item_count < MIN(count, (uint32_t)OTLP_LIST_MAX) && copy_text(span, values[attribute->item_count]))
        attribute->item_count++;
}

void otlp_span_event(struct otlp_span *span, const struct otlp_event *event)
{
    if (span->event_count < OTLP_EVENTS_MAX)
        span->events[span->event_count++] = *event;
    else
        span->events_dropped++;
}
