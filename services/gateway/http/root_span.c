// root_span.c: see root_span.h. Attributes are named by OpenTelemetry's conventions for HTTP and for generative AI; texts of prompts and answers
// and keys are none of them.
#include "services/gateway/http/root_span.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

// Takes the caller's context and tracestate; false: there is none. Of several headers of the name, the values joined by commas, as for any
// list; more than one traceparent is malformed then.
static bool take_parent(struct root_span *span, struct exchange *exchange)
{
    char text[OTLP_STATE_BYTES];
    size_t length = exchange_header_list(exchange, "traceparent", text, sizeof text);

    if (!otlp_context_parse(text, length, &span->context))
        return false;
    length = exchange_header_list(exchange, "tracestate", span->state, sizeof span->state);
    if (!otlp_state_is_valid(span->state, length))
        span->state[0] = '\0';
    return true;
}

void root_span_open(struct otlp *otlp, double ratio, struct exchange *exchange, const char *route, const char *operation,
                    bool is_tls)
{
    struct root_span *span = calloc(1, sizeof *span);

    if (!span)
        return;
    if (take_parent(span, exchange)) {
        memcpy(span->parent_id, span->context.span_id, sizeof span->parent_id);
    } else {
        otlp_new_trace_id(otlp, span->context.trace_id);
        span->context.sampled = otlp_is_in_ratio(span->context.trace_id, ratio);
    }
    otlp_new_span_id(otlp, span->context.span_id);
    otlp_context_format(&span->context, span->text);
    snprintf(span->route, sizeof span->route, "%s", route);
    span->operation = operation;
    span->is_tls = is_tls;
    exchange_add_header(exchange, "traceparent", span->text);
    exchange_set_span(exchange, span);
}

// Adds what the request had of the model.
static void add_model(struct otlp_span *out, const char *operation, const struct exchange_note *note, const char *model)
{
    if (!operation)
        return;
    otlp_span_static(out, "gen_ai.operation.name", operation);
    otlp_span_static(out, "gen_ai.provider.name", "fastdecode");
    otlp_span_text(out, "gen_ai.request.model", model);
    if (!note->uses_model)
        return;
    otlp_span_number(out, "gen_ai.usage.input_tokens", (int64_t)note->prompt_tokens);
    otlp_span_number(out, "gen_ai.usage.output_tokens", (int64_t)note->completion_tokens);
    if (note->finish_count)
        otlp_span_list(out, "gen_ai.response.finish_reasons", note->finishes, note->finish_count);
}

void root_span_end(struct otlp *otlp, struct exchange *exchange, int status, const char *model)
{
    const struct root_span *span = exchange_span(exchange);
    struct exchange_note note;
    struct otlp_span out;
    char name[OTLP_NAME_BYTES], code[16];

    if (!span || !span->context.sampled)
        return;
    exchange_note(exchange, &note);
    snprintf(name, sizeof name, "%s %s", exchange_method(exchange), span->route);
    otlp_span_init(&out, name, &span->context, span->parent_id, exchange_start_us(exchange) * 1000, clock_now_ns());
    out.kind = OTLP_SERVER;
    memcpy(out.state, span->state, sizeof out.state);
    otlp_span_text(&out, "http.request.method", exchange_method(exchange));
    otlp_span_text(&out, "http.route", span->route);
    otlp_span_static(&out, "url.scheme", span->is_tls ? "https" : "http");
    if (status)
        otlp_span_number(&out, "http.response.status_code", status);
    add_model(&out, span->operation, &note, model);
    otlp_span_text(&out, "fastdecode.request_id", exchange_request_id(exchange));
    out.failed = note.left_early || status >= 500;
    snprintf(code, sizeof code, "%d", status);
    if (out.failed)
        otlp_span_text(&out, "error.type", note.left_early ? "client_left" : code);
    otlp_span_text(&out, "url.path", exchange_path(exchange)); // last: it may be long
    otlp_put(otlp, &out);
}
