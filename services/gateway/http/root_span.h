// root_span.h: the span of an HTTP request, which is the parent of all that other services do for it (common/trace).
//
// A request with a traceparent header belongs to its caller's trace and is sampled if the caller says so; others begin a trace of their own, a
// share of which is sampled. The answer names the span in a traceparent header, sampled or not.
#ifndef FD_GATEWAY_HTTP_ROOT_SPAN_H
#define FD_GATEWAY_HTTP_ROOT_SPAN_H

#include "common/trace/otlp.h"
#include "services/gateway/http/http.h"

// Does not change once it is opened; freed with its exchange.
struct root_span {
    struct otlp_context context;
    unsigned char parent_id[OTLP_SPAN_ID_BYTES]; // all zero: the trace begins here
    char text[OTLP_PARENT_BYTES];                // context, as a traceparent
    char state[OTLP_STATE_BYTES];                // tracestate; "": none
    char route[64];
    const char *operation; // what the model is asked for; static; NULL: nothing
    bool is_tls;
};

// Opens the span and adds the header. In the check callback, before the answer begins. ratio: the share of new traces that is sampled. Without
// memory the request goes on without a span.
void root_span_open(struct otlp *otlp, double ratio, struct exchange *exchange, const char *route, const char *operation,
                    bool is_tls);

// Puts the span on record, if it is sampled, when the request is over. model: the served model's name.
void root_span_end(struct otlp *otlp, struct exchange *exchange, int status, const char *model);

#endif
