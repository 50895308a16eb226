// otlp_span.h: spans of requests and the trace that they belong to. Plain values; nothing allocates.
#ifndef FD_TRACE_OTLP_SPAN_H
#define FD_TRACE_OTLP_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// --- contexts -------------------------------------------------------------------------------------------------------

// Whose span this is: W3C trace context (w3.org/TR/trace-context), read from what strangers send.
//
//     traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//                  version, trace id, span id of the caller, flags (1: sampled)
enum {
    OTLP_TRACE_ID_BYTES = 16,
    OTLP_SPAN_ID_BYTES = 8,
    OTLP_PARENT_BYTES = 56, // of a traceparent of version 00, terminated
    OTLP_STATE_BYTES = 513, // of the longest tracestate that is passed on, terminated
    OTLP_STATE_MEMBERS_MAX = 32,
};

// A span of a trace, as others name it.
struct otlp_context {
    unsigned char trace_id[OTLP_TRACE_ID_BYTES]; // all zero: there is no trace
    unsigned char span_id[OTLP_SPAN_ID_BYTES];
    bool sampled;
};

// Reads a traceparent. False: it is malformed, or there is none, and *out is all zero. A later version than 00 may have more behind the flags.
bool otlp_context_parse(const char *text, size_t length, struct otlp_context *out);

// Writes a traceparent of version 00.
void otlp_context_format(const struct otlp_context *context, char out[OTLP_PARENT_BYTES]);

// Returns whether this is a tracestate that may be passed on: at most 512 bytes and 32 members key=value, no key twice.
bool otlp_state_is_valid(const char *text, size_t length);

// Returns whether a new trace of this id is one of the share `ratio`, 0 to 1, that is sampled. Every service that asks for the same trace and
// ratio gets the same answer.
bool otlp_is_in_ratio(const unsigned char trace_id[OTLP_TRACE_ID_BYTES], double ratio);

// The parts of SequenceOpen.trace, by which the scheduler tells an s-part that a sequence is traced: where each begins.
//
//     trace id | the request's span | the scheduler's span of the prefill | that of decoding
//     \____ what a KV worker is told ___/

enum {
    OTLP_SEQUENCE_REQUEST = OTLP_TRACE_ID_BYTES,
    OTLP_SEQUENCE_PREFILL = OTLP_SEQUENCE_REQUEST + OTLP_SPAN_ID_BYTES,
    OTLP_SEQUENCE_DECODE = OTLP_SEQUENCE_PREFILL + OTLP_SPAN_ID_BYTES,
    OTLP_SEQUENCE_BYTES = OTLP_SEQUENCE_DECODE + OTLP_SPAN_ID_BYTES,
};

// --- spans ----------------------------------------------------------------------------------------------------------

// A span that has ended is of fixed size, so that handing it to the exporter allocates nothing.
//
//     struct otlp_span span;
//     otlp_span_init(&span, "decode", &context, parent_id, began_ns, ended_ns);
//     otlp_span_number(&span, "fastdecode.tokens", 40);
//     otlp_put(otlp, &span);
//
// Keys, names of events and values of otlp_span_static() are static; other texts are copied. If there is no room, it is left out. Times are those
// of clock_now_ns(); the exporter turns them into wall time.

enum { OTLP_ATTRIBUTES_MAX = 16, OTLP_EVENTS_MAX = 8, OTLP_TEXT_BYTES = 384, OTLP_NAME_BYTES = 48, OTLP_LIST_MAX = 8 };

enum otlp_kind { OTLP_INTERNAL = 1, OTLP_SERVER = 2 };

enum otlp_type {
    OTLP_NUMBER,
    OTLP_TEXT,
    OTLP_LIST, // a list of texts, each terminated
};

struct otlp_attribute {
    const char *key;
    enum otlp_type type;
    union {
        int64_t number;      // OTLP_NUMBER
        const char *fixed;   // OTLP_TEXT that is static
        uint32_t text_index; // OTLP_TEXT, OTLP_LIST: of its first byte in the span's texts
    };
    bool copied;         // text_index counts, not fixed
    uint32_t item_count; // OTLP_LIST
};

struct otlp_event {
    const char *name, *key; // key NULL: it has no number
    int64_t number;
    uint64_t at_ns;
};

struct otlp_span {
    struct otlp_context context;
    unsigned char parent_id[OTLP_SPAN_ID_BYTES]; // all zero: a root
    enum otlp_kind kind;
    bool failed;
    uint64_t began_ns, ended_ns;
    uint32_t attribute_count, event_count, events_dropped, text_bytes;
    struct otlp_attribute attributes[OTLP_ATTRIBUTES_MAX];
    struct otlp_event events[OTLP_EVENTS_MAX];
    char name[OTLP_NAME_BYTES];
    char texts[OTLP_TEXT_BYTES];
    char state[OTLP_STATE_BYTES]; // tracestate; "": none
};

// Begins an internal span. parent_id NULL: it is a root.
void otlp_span_init(struct otlp_span *span, const char *name, const struct otlp_context *context, const unsigned char *parent_id,
                    uint64_t began_ns, uint64_t ended_ns);
void otlp_span_number(struct otlp_span *span, const char *key, int64_t number);
void otlp_span_static(struct otlp_span *span, const char *key, const char *value);
// The text is cut to what there is room for; bytes that are not printable ASCII become '?'.
void otlp_span_text(struct otlp_span *span, const char *key, const char *value);
void otlp_span_list(struct otlp_span *span, const char *key, const char *const *values, uint32_t count);
// Copies a text so, into a buffer.
void otlp_plain_text(char *out, size_t out_bytes, const char *text);
void otlp_span_event(struct otlp_span *span, const struct otlp_event *event);

#endif
