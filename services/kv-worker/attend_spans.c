// attend_spans.c: see attend_spans.h.
#include "services/kv-worker/attend_spans.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/rpc/wire.h"

enum status attend_spans_open(struct attend_spans *spans)
{
    if (!spans->otlp)
        return STATUS_OK;
    spans->spans = calloc(ATTEND_SPANS_MAX, sizeof *spans->spans);
    return spans->spans ? id_map_open(ATTEND_SPANS_MAX, &spans->slots) : STATUS_RESOURCE_EXHAUSTED;
}

enum status attend_spans_open_step(const struct attend_spans *spans, struct attend_step_spans *step)
{
    *step = (struct attend_step_spans){.traced = spans->otlp ? calloc(ATTEND_SPANS_MAX, sizeof *step->traced) : NULL};
    return step->traced || !spans->otlp ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
}

void attend_spans_close_step(struct attend_step_spans *step)
{
    free(step->traced);
    *step = (struct attend_step_spans){0};
}

// The table is full: ends the span that has been idle longest, if that is long. Its sequence is over most likely, and the scheduler could not say so.
static void make_room(struct attend_spans *spans)
{
    const uint64_t now_ns = clock_now_ns();
    uint32_t cursor = 0, slot, oldest = ID_MAP_NONE;

    if (now_ns < spans->full_until_ns)
        return;
    while ((slot = id_map_next(&spans->slots, &cursor)) != ID_MAP_NONE)
        if (oldest == ID_MAP_NONE || spans->spans[slot].ended_ns < spans->spans[oldest].ended_ns)
            oldest = slot;
    spans->full_until_ns = spans->spans[oldest].ended_ns + ATTEND_SPANS_IDLE_US * UINT64_C(1000);
    if (now_ns >= spans->full_until_ns)
        attend_spans_end(spans, spans->slots.ids[oldest]);
}

// Returns the slot of a traced sequence, a new one if need be; ID_MAP_NONE: there is no room.
static uint32_t slot_of(struct attend_spans *spans, uint64_t sequence, const unsigned char *context)
{
    uint32_t slot = id_map_find(&spans->slots, sequence);
    struct otlp_context request = {.sampled = true};

    memcpy(request.trace_id, context, sizeof request.trace_id);
    memcpy(request.span_id, context + sizeof request.trace_id, sizeof request.span_id);
    if (slot != ID_MAP_NONE && memcmp(&spans->spans[slot].request, &request, sizeof request) != 0) {
        attend_spans_end(spans, sequence); // another sequence of this id, after a scheduler was replaced
        slot = ID_MAP_NONE;
    }
    if (slot != ID_MAP_NONE || (slot = id_map_add(&spans->slots, sequence)) == ID_MAP_NONE)
        return slot;
    const uint64_t now_ns = clock_now_ns();
    spans->spans[slot] = (struct attend_span){.request = request, .began_ns = now_ns, .ended_ns = now_ns};
    return slot;
}

// Counts the items of a sequence from *at on, and moves *at behind them; to the end if there are none.
static uint32_t count_items(const unsigned char *sequences, uint32_t count, uint64_t sequence, uint32_t *at)
{
    while (*at < count && wire_load_u64(sequences + *at * 8ull) != sequence)
        ++*at;
    const uint32_t first = *at;
    while (*at < count && wire_load_u64(sequences + *at * 8ull) == sequence)
        ++*at;
    return *at - first;
}

void attend_spans_begin(struct attend_spans *spans, struct attend_step_spans *step, const struct attend_request *request)
{
    uint32_t row = 0, read = 0; // those that have rows are named first, in the rows' order; they have no reads

    if (spans->spans && request->trace_count && spans->slots.count == ATTEND_SPANS_MAX)
        make_room(spans); // for one a step
    step->traced_count = 0;
    step->busy_us = 0;
    for (uint32_t i = 0; spans->spans && i < request->trace_count; i++) {
        const uint64_t sequence = wire_load_u64(request->trace_sequence + i * 8ull);
        const uint32_t slot = sequence && step->traced_count < ATTEND_SPANS_MAX
                                  ? slot_of(spans, sequence, request->trace_context + i * (size_t)ATTEND_TRACE_BYTES)
                                  : ID_MAP_NONE;
        if (slot == ID_MAP_NONE)
            continue;
        const uint32_t rows = count_items(request->row_sequence, request->row_count, sequence, &row);
        step->traced[step->traced_count++] =
            (struct attend_traced){.slot = slot,
                                   .generation = spans->slots.generations[slot],
                                   .rows = rows,
                                   .reads = rows ? 0 : count_items(request->read_sequence, request->read_count, sequence, &read)};
    }
}

void attend_spans_step(struct attend_spans *spans, struct attend_step_spans *step)
{
    const uint64_t now_ns = step->traced_count ? clock_now_ns() : 0;

    for (uint32_t i = 0; i < step->traced_count; i++) {
        const struct attend_traced *traced = &step->traced[i];
        struct attend_span *span = &spans->spans[traced->slot];
        if (!id_map_is_current(&spans->slots, traced->slot, traced->generation)) // freed in mid-step
            continue;
        span->ended_ns = now_ns;
        span->steps++;
        span->rows += traced->rows;
        span->reads += traced->reads;
        span->busy_us += step->busy_us;
    }
    step->traced_count = 0;
}

static void put(struct attend_spans *spans, uint64_t sequence, const struct attend_span *span)
{
    struct otlp_context context = span->request;
    struct otlp_span out;

    otlp_new_span_id(spans->otlp, context.span_id);
    otlp_span_init(&out, "attention", &context, span->request.span_id, span->began_ns, span->ended_ns);
    otlp_span_number(&out, "fastdecode.sequence", (int64_t)sequence);
    otlp_span_number(&out, "fastdecode.steps", (int64_t)span->steps);
    otlp_span_number(&out, "fastdecode.rows", (int64_t)span->rows);
    otlp_span_number(&out, "fastdecode.reads", (int64_t)span->reads);
    otlp_span_number(&out, "fastdecode.r_part_us", (int64_t)span->busy_us);
    otlp_put(spans->otlp, &out);
}

void attend_spans_end(struct attend_spans *spans, uint64_t sequence)
{
    const uint32_t slot = spans->spans ? id_map_find(&spans->slots, sequence) : ID_MAP_NONE;

    if (slot == ID_MAP_NONE)
        return;
    put(spans, sequence, &spans->spans[slot]);
    id_map_remove(&spans->slots, sequence);
}

void attend_spans_close(struct attend_spans *spans)
{
    uint32_t cursor = 0, slot;

    while (spans->spans && (slot = id_map_next(&spans->slots, &cursor)) != ID_MAP_NONE)
        attend_spans_end(spans, spans->slots.ids[slot]);
    id_map_close(&spans->slots);
    free(spans->spans);
    spans->spans = NULL;
    spans->slots = (struct id_map){0};
}
