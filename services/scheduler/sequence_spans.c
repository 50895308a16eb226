// sequence_spans.c: see sequence_spans.h.
#include "services/scheduler/sequence_spans.h"

#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

bool sequence_spans_begin(struct otlp *otlp, const struct rpc_call *call, uint32_t known_tokens, struct sequence_spans *spans)
{
    const char *parent = rpc_call_trace_id(call);
    struct otlp_context request;
    size_t state_length;
    const char *state = rpc_call_trace_state(call, &state_length);

    if (!otlp_context_parse(parent, strlen(parent), &request) || !request.sampled)
        return false;
    memset(spans, 0, sizeof *spans);
    spans->request = request;
    memcpy(spans->wire, request.trace_id, sizeof request.trace_id);
    memcpy(spans->wire + OTLP_SEQUENCE_REQUEST, request.span_id, sizeof request.span_id);
    otlp_new_span_id(otlp, spans->wire + OTLP_SEQUENCE_PREFILL);
    otlp_new_span_id(otlp, spans->wire + OTLP_SEQUENCE_DECODE);
    if (otlp_state_is_valid(state, state_length))
        memcpy(spans->state, state, state_length);
    spans->known = known_tokens;
    spans->arrived_ns = clock_now_ns();
    return true;
}

static void add_event(struct sequence_spans *spans, const struct otlp_event *event)
{
    if (spans->event_count < OTLP_EVENTS_MAX)
        spans->events[spans->event_count++] = *event;
    else
        spans->events_dropped++;
}

static void note_place(struct sequence_spans *spans, uint32_t place) { spans->places[place / 64] |= UINT64_C(1) << place % 64; }

void sequence_spans_sent(struct sequence_spans *spans, const struct sched_run *run)
{
    note_place(spans, run->place);
    for (uint32_t i = 0; i < run->extent_count; i++)
        note_place(spans, run->extents[i].place);
    if (run->open && spans->opened)
        add_event(spans, &(struct otlp_event){
                             .name = "rebuild", .key = "fastdecode.position", .number = run->position, .at_ns = clock_now_ns()});
    spans->opened |= run->open;
    spans->paused = false;
    if (!spans->prefill_ns)
        spans->prefill_ns = clock_now_ns();
    if (!spans->sample_sent) {
        spans->prefill_steps++;
        spans->prefill_rows += run->count;
        spans->sample_sent = run->sample;
        return;
    }
    if (!spans->decode_ns)
        spans->decode_ns = clock_now_ns();
    spans->steps++;
    spans->drafted += run->drafts;
}

void sequence_spans_answered(struct sequence_spans *spans, uint32_t drafts_right)
{
    if (!spans->first_token_ns)
        spans->first_token_ns = clock_now_ns();
    spans->drafts_right += drafts_right;
}

void sequence_spans_paused(struct sequence_spans *spans)
{
    if (!spans->paused)
        add_event(spans, &(struct otlp_event){.name = "pause", .at_ns = clock_now_ns()});
    spans->paused = true;
}

void sequence_spans_moved(struct sequence_spans *spans, uint32_t to)
{
    note_place(spans, to);
    add_event(spans, &(struct otlp_event){.name = "move", .key = "fastdecode.place", .number = to, .at_ns = clock_now_ns()});
}

// --- the end

// Fills in what all spans have. id NULL: a new one. The request's span is the parent.
static void begin_span(struct otlp *otlp, const struct sequence_spans *spans, const char *name, const unsigned char *id,
                       uint64_t began_ns, uint64_t ended_ns, uint64_t sequence, struct otlp_span *out)
{
    struct otlp_context context = spans->request;

    if (id)
        memcpy(context.span_id, id, sizeof context.span_id);
    else
        otlp_new_span_id(otlp, context.span_id);
    otlp_span_init(out, name, &context, spans->request.span_id, began_ns, ended_ns);
    memcpy(out->state, spans->state, sizeof out->state);
    otlp_span_number(out, "fastdecode.sequence", (int64_t)sequence);
}

static void put_queue(struct otlp *otlp, const struct sequence_spans *spans, uint64_t sequence, uint64_t now_ns, const char *why,
                      bool failed)
{
    const bool ran = spans->prefill_ns > 0;
    struct otlp_span span;

    begin_span(otlp, spans, "queue", NULL, spans->arrived_ns, ran ? spans->prefill_ns : now_ns, sequence, &span);
    span.failed = !ran && failed;
    if (!ran)
        otlp_span_static(&span, "fastdecode.finish", why);
    otlp_put(otlp, &span);
}

static void add_events(const struct sequence_spans *spans, struct otlp_span *span)
{
    for (uint32_t i = 0; i < spans->event_count; i++)
        otlp_span_event(span, &spans->events[i]);
    span->events_dropped += spans->events_dropped;
}

static void put_prefill(struct otlp *otlp, const struct sequence_spans *spans, uint64_t sequence, uint64_t now_ns,
                        uint32_t cached_tokens, bool is_last, const char *why, bool failed)
{
    struct otlp_span span;

    begin_span(otlp, spans, "prefill", spans->wire + OTLP_SEQUENCE_PREFILL, spans->prefill_ns,
               spans->first_token_ns ? spans->first_token_ns : now_ns, sequence, &span);
    otlp_span_number(&span, "fastdecode.rows", spans->prefill_rows);
    otlp_span_number(&span, "fastdecode.steps", spans->prefill_steps);
    otlp_span_number(&span, "fastdecode.cached_tokens", cached_tokens);
    if (is_last) {
        otlp_span_static(&span, "fastdecode.finish", why);
        span.failed = failed;
        add_events(spans, &span);
    }
    otlp_put(otlp, &span);
}

static void put_decode(struct otlp *otlp, const struct sequence_spans *spans, uint64_t sequence, uint64_t now_ns, uint32_t tokens,
                       const char *why, bool failed)
{
    struct otlp_span span;

    begin_span(otlp, spans, "decode", spans->wire + OTLP_SEQUENCE_DECODE, spans->decode_ns, now_ns, sequence, &span);
    otlp_span_number(&span, "fastdecode.tokens", tokens - MIN(tokens, spans->known));
    otlp_span_number(&span, "fastdecode.steps", spans->steps);
    otlp_span_number(&span, "fastdecode.drafts", spans->drafted);
    otlp_span_number(&span, "fastdecode.drafts_right", spans->drafts_right);
    otlp_span_static(&span, "fastdecode.finish", why);
    span.failed = failed;
    add_events(spans, &span);
    otlp_put(otlp, &span);
}

void sequence_spans_end(struct otlp *otlp, struct sequence_spans *spans, uint64_t sequence, uint32_t tokens, uint32_t cached_tokens,
                        const char *why, bool failed)
{
    const uint64_t now_ns = clock_now_ns();

    put_queue(otlp, spans, sequence, now_ns, why, failed);
    if (spans->prefill_ns)
        put_prefill(otlp, spans, sequence, now_ns, cached_tokens, !spans->decode_ns, why, failed);
    if (spans->decode_ns)
        put_decode(otlp, spans, sequence, now_ns, tokens, why, failed);
}
