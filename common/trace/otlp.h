// otlp.h: spans of sampled requests, sent to a collector of OpenTelemetry by OTLP over HTTP (proto/otlp_trace.proto).
//
//     any thread ── otlp_put() ──▶ queue of QUEUE_SPANS, full: dropped ──▶ exporter thread ── POST, at most BATCH_SPANS ──▶ collector
//
// Serving never waits for the collector: a span that finds the queue full, or that the collector does not take after a few tries, is
// dropped and counted, which the log says once a minute. Without an endpoint there is no struct otlp: callers test for NULL and do nothing.
//
// This is for whole requests over all services. For the time of each step see trace.h.
#ifndef FD_TRACE_OTLP_H
#define FD_TRACE_OTLP_H

#include "common/base/status.h"
#include "common/trace/otlp_span.h"

struct otlp;

#define OTLP_OPTION "otlp-endpoint"
#define OTLP_HELP \
    "send traces of requests to this address by OTLP over HTTP, such as http://127.0.0.1:4318; /v1/traces is appended; none: no traces"
#define OTLP_RATIO_OPTION "trace-sample"
#define OTLP_RATIO_HELP "with --otlp-endpoint: share of requests to trace; a request with a traceparent header decides for itself"

struct otlp_config {
    const char *endpoint; // NULL, "none": no traces
    const char *service;  // service.name: "fastdecode-s-part"
    const char *instance; // service.instance.id; NULL: host and process id
    uint32_t queue_spans; // a power of two; 0: 2,048
    uint32_t again_ms;    // before a first repetition, doubled each time; 0: 500
};

// Checks an endpoint as an option has it. INVALID_ARGUMENT: *error names what is wrong.
enum status otlp_check_endpoint(const char *endpoint, struct error *error) MUST_CHECK;

// Starts the exporter, whose thread inherits the mask of signals; strings are copied. *out is NULL without an endpoint. The collector need not
// be there yet.
enum status otlp_open(const struct otlp_config *config, struct otlp **out, struct error *error) MUST_CHECK;

// Sends what is queued, for at most two seconds, and ends the exporter. Nobody may put spans any more. NULL is allowed.
void otlp_close(struct otlp *otlp);

// Copies the span. Any thread; never blocks, allocates nothing.
void otlp_put(struct otlp *otlp, const struct otlp_span *span);

// Make new ids, never all zero. Any thread.
void otlp_new_trace_id(struct otlp *otlp, unsigned char out[OTLP_TRACE_ID_BYTES]);
void otlp_new_span_id(struct otlp *otlp, unsigned char out[OTLP_SPAN_ID_BYTES]);

// Spans since the start. Any thread; NULL is allowed.
struct otlp_counts {
    uint64_t exported, dropped;
};
struct otlp_counts otlp_counts(const struct otlp *otlp);

#endif
