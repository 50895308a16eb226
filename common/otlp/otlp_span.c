// otlp_span.c: see otlp_span.h.
#include "common/otlp/otlp_span.h"

#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"

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

void otlp_span_bool(struct otlp_span *span, const char *key, bool value)
{
    struct otlp_attribute *attribute = next_attribute(span, key, OTLP_BOOL);
    if (attribute)
        attribute->number = value;
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
