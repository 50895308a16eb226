// otlp_context.h: whose span this is: W3C trace context (w3.org/TR/trace-context), read from what strangers send.
//
//     traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//                  version, trace id, span id of the caller, flags (1: sampled)
//
// Plain values; nothing allocates.
#ifndef FD_OTLP_OTLP_CONTEXT_H
#define FD_OTLP_OTLP_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>

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

#endif
