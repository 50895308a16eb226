// otlp_encode.c: see otlp_encode.h.
#include "common/otlp/otlp_encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/options.h"
#include "otlp_trace.pb-c.h"

enum { RESOURCE_ATTRIBUTES = 4, NAME_BYTES = 256 };

// A key and its value; a list has values of its own.
struct pair {
    Fastdecode__Otlp__KeyValue key;
    Fastdecode__Otlp__Value value;
    Fastdecode__Otlp__Values list;
    Fastdecode__Otlp__Value items[OTLP_LIST_MAX], *item_pointers[OTLP_LIST_MAX];
};

struct span_message {
    Fastdecode__Otlp__Span span;
    Fastdecode__Otlp__Status status;
    struct pair attributes[OTLP_ATTRIBUTES_MAX];
    Fastdecode__Otlp__KeyValue *attribute_pointers[OTLP_ATTRIBUTES_MAX];
    Fastdecode__Otlp__Event events[OTLP_EVENTS_MAX], *event_pointers[OTLP_EVENTS_MAX];
    struct pair event_attributes[OTLP_EVENTS_MAX];
    Fastdecode__Otlp__KeyValue *event_attribute_pointers[OTLP_EVENTS_MAX];
};

struct otlp_encoder {
    char service[NAME_BYTES], instance[NAME_BYTES], host[NAME_BYTES];
    Fastdecode__Otlp__ExportRequest request;
    Fastdecode__Otlp__ResourceSpans resource_spans, *resource_pointer;
    Fastdecode__Otlp__Resource resource;
    Fastdecode__Otlp__ScopeSpans scope_spans, *scope_pointer;
    Fastdecode__Otlp__Scope scope;
    struct pair attributes[RESOURCE_ATTRIBUTES];
    Fastdecode__Otlp__KeyValue *attribute_pointers[RESOURCE_ATTRIBUTES];
    struct span_message messages[OTLP_BATCH_SPANS];
    Fastdecode__Otlp__Span *pointers[OTLP_BATCH_SPANS];
};

static void set_text(Fastdecode__Otlp__Value *value, const char *text)
{
    fastdecode__otlp__value__init(value);
    value->value_case = FASTDECODE__OTLP__VALUE__VALUE_STRING_VALUE;
    value->string_value = (char *)(uintptr_t)text;
}

static void set_number(Fastdecode__Otlp__Value *value, int64_t number)
{
    fastdecode__otlp__value__init(value);
    value->value_case = FASTDECODE__OTLP__VALUE__VALUE_INT_VALUE;
    value->int_value = number;
}

static void set_list(struct pair *pair, const char *text, uint32_t count)
{
    fastdecode__otlp__value__init(&pair->value);
    fastdecode__otlp__values__init(&pair->list);
    pair->value.value_case = FASTDECODE__OTLP__VALUE__VALUE_ARRAY_VALUE;
    pair->value.array_value = &pair->list;
    pair->list.n_values = count;
    pair->list.values = pair->item_pointers;
    for (uint32_t i = 0; i < count; i++, text += strlen(text) + 1) {
        set_text(&pair->items[i], text);
        pair->item_pointers[i] = &pair->items[i];
    }
}

static Fastdecode__Otlp__KeyValue *set_key(struct pair *pair, const char *key)
{
    fastdecode__otlp__key_value__init(&pair->key);
    pair->key.key = (char *)(uintptr_t)key;
    pair->key.value = &pair->value;
    return &pair->key;
}

static Fastdecode__Otlp__KeyValue *set_attribute(struct pair *pair, const struct otlp_span *span,
                                                 const struct otlp_attribute *attribute)
{
    const char *text = attribute->copied ? span->texts + attribute->text_index : attribute->fixed;

    switch (attribute->type) {
    case OTLP_NUMBER: set_number(&pair->value, attribute->number); break;
    case OTLP_BOOL:
        fastdecode__otlp__value__init(&pair->value);
        pair->value.value_case = FASTDECODE__OTLP__VALUE__VALUE_BOOL_VALUE;
        pair->value.bool_value = attribute->number != 0;
        break;
    case OTLP_TEXT: set_text(&pair->value, text); break;
    case OTLP_LIST: set_list(pair, text, attribute->item_count); break;
    }
    return set_key(pair, attribute->key);
}

static void set_events(struct span_message *message, const struct otlp_span *span, int64_t wall_offset_ns)
{
    for (uint32_t i = 0; i < span->event_count; i++) {
        Fastdecode__Otlp__Event *event = message->event_pointers[i] = &message->events[i];
        fastdecode__otlp__event__init(event);
        event->name = (char *)(uintptr_t)span->events[i].name;
        event->time_unix_nano = span->events[i].at_ns + (uint64_t)wall_offset_ns;
        if (!span->events[i].key)
            continue;
        set_number(&message->event_attributes[i].value, span->events[i].number);
        message->event_attribute_pointers[i] = set_key(&message->event_attributes[i], span->events[i].key);
        event->n_attributes = 1;
        event->attributes = &message->event_attribute_pointers[i];
    }
    message->span.n_events = span->event_count;
    message->span.events = message->event_pointers;
    message->span.dropped_events_count = span->events_dropped;
}

static ProtobufCBinaryData bytes_of(const unsigned char *bytes, size_t length)
{
    return (ProtobufCBinaryData){.len = length, .data = (uint8_t *)(uintptr_t)bytes};
}

static void set_span(struct span_message *message, const struct otlp_span *span, int64_t wall_offset_ns)
{
    static const unsigned char none[OTLP_SPAN_ID_BYTES];
    Fastdecode__Otlp__Span *out = &message->span;

    fastdecode__otlp__span__init(out);
    out->trace_id = bytes_of(span->context.trace_id, sizeof span->context.trace_id);
    out->span_id = bytes_of(span->context.span_id, sizeof span->context.span_id);
    if (memcmp(span->parent_id, none, sizeof none) != 0)
        out->parent_span_id = bytes_of(span->parent_id, sizeof span->parent_id);
    out->trace_state = (char *)(uintptr_t)span->state;
    out->name = (char *)(uintptr_t)span->name;
    out->kind = span->kind;
    out->start_time_unix_nano = span->began_ns + (uint64_t)wall_offset_ns;
    out->end_time_unix_nano = span->ended_ns + (uint64_t)wall_offset_ns;
    out->flags = span->context.sampled;
    for (uint32_t i = 0; i < span->attribute_count; i++)
        message->attribute_pointers[i] = set_attribute(&message->attributes[i], span, &span->attributes[i]);
    out->n_attributes = span->attribute_count;
    out->attributes = message->attribute_pointers;
    set_events(message, span, wall_offset_ns);
    if (span->failed) {
        fastdecode__otlp__status__init(&message->status);
        message->status.code = 2;
        out->status = &message->status;
    }
}

enum status otlp_encoder_open(const char *service, const char *instance, struct otlp_encoder **out)
{
    struct otlp_encoder *encoder = *out = calloc(1, sizeof *encoder);
    char host[NAME_BYTES] = "";

    if (!encoder)
        return STATUS_RESOURCE_EXHAUSTED;
    (void)!gethostname(host, sizeof host - 1);
    otlp_plain_text(encoder->host, sizeof encoder->host, host);
    otlp_plain_text(encoder->service, sizeof encoder->service, service);
    if (instance)
        otlp_plain_text(encoder->instance, sizeof encoder->instance, instance);
    else
        snprintf(encoder->instance, sizeof encoder->instance, "%.200s:%d", encoder->host, (int)getpid());
    const char *const attributes[RESOURCE_ATTRIBUTES][2] = {{"service.name", encoder->service},
                                                            {"service.version", FASTDECODE_VERSION},
                                                            {"service.instance.id", encoder->instance},
                                                            {"host.name", encoder->host}};
    fastdecode__otlp__export_request__init(&encoder->request);
    fastdecode__otlp__resource_spans__init(&encoder->resource_spans);
    fastdecode__otlp__resource__init(&encoder->resource);
    fastdecode__otlp__scope_spans__init(&encoder->scope_spans);
    fastdecode__otlp__scope__init(&encoder->scope);
    for (uint32_t i = 0; i < RESOURCE_ATTRIBUTES; i++) {
        set_text(&encoder->attributes[i].value, attributes[i][1]);
        encoder->attribute_pointers[i] = set_key(&encoder->attributes[i], attributes[i][0]);
    }
    encoder->resource.n_attributes = RESOURCE_ATTRIBUTES;
    encoder->resource.attributes = encoder->attribute_pointers;
    encoder->scope.name = (char *)"fastdecode";
    encoder->scope.version = (char *)FASTDECODE_VERSION;
    encoder->scope_spans.scope = &encoder->scope;
    encoder->scope_spans.spans = encoder->pointers;
    encoder->scope_pointer = &encoder->scope_spans;
    encoder->resource_spans.resource = &encoder->resource;
    encoder->resource_spans.n_scope_spans = 1;
    encoder->resource_spans.scope_spans = &encoder->scope_pointer;
    encoder->resource_pointer = &encoder->resource_spans;
    encoder->request.n_resource_spans = 1;
    encoder->request.resource_spans = &encoder->resource_pointer;
    return STATUS_OK;
}

void otlp_encoder_close(struct otlp_encoder *encoder) { free(encoder); }

void otlp_encode(struct otlp_encoder *encoder, const struct otlp_span *spans, uint32_t count, int64_t wall_offset_ns,
                 struct text *out)
{
    assert_always(count <= OTLP_BATCH_SPANS);
    text_clear(out);
    for (uint32_t i = 0; i < count; i++) {
        set_span(&encoder->messages[i], &spans[i], wall_offset_ns);
        encoder->pointers[i] = &encoder->messages[i].span;
    }
    encoder->scope_spans.n_spans = count;
    const size_t bytes = fastdecode__otlp__export_request__get_packed_size(&encoder->request);
    if (text_reserve(out, bytes))
        out->bytes = fastdecode__otlp__export_request__pack(&encoder->request, (uint8_t *)out->data);
}

uint64_t otlp_decode_rejected(const unsigned char *bytes, size_t length)
{
    Fastdecode__Otlp__ExportResponse *response = fastdecode__otlp__export_response__unpack(NULL, length, bytes);
    const int64_t rejected = response && response->partial_success ? response->partial_success->rejected_spans : 0;

    if (response)
        fastdecode__otlp__export_response__free_unpacked(response, NULL);
    return rejected > 0 ? (uint64_t)rejected : 0;
}
