// spans.c: traced sequences (common/trace): for each a span of its prefill and one of its decoding, put on record when it is over. A step
// costs a traced sequence two dozen additions, and any other one branch; nothing is allocated.
#include "services/s-part/engine/engine.h"

#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/rpc/wire.h"
#include "common/trace/otlp.h"
#include "common/trace/otlp_span.h"

_Static_assert((int)ATTEND_TRACE_BYTES == (int)OTLP_SEQUENCE_PREFILL, "workers are told the trace and the request's span");

static void put(struct engine *engine, const struct sequence *sequence, const char *name, const struct sequence_phase *phase)
{
    struct otlp_context context = {.sampled = true};
    struct otlp_span span;

    memcpy(context.trace_id, sequence->trace.trace_id, sizeof context.trace_id);
    otlp_new_span_id(engine->traces.otlp, context.span_id);
    otlp_span_init(&span, name, &context, phase->parent_id, phase->began_ns, phase->ended_ns);
    otlp_span_number(&span, "fastdecode.sequence", (int64_t)sequence->id);
    otlp_span_number(&span, "fastdecode.steps", phase->steps);
    otlp_span_number(&span, "fastdecode.rows", phase->rows);
    otlp_span_number(&span, "fastdecode.s_part_us", (int64_t)phase->s_part_us);
    otlp_span_number(&span, "fastdecode.r_part_us", (int64_t)phase->r_part_us);
    otlp_span_number(&span, "fastdecode.first_layer", engine->model.range.first);
    otlp_span_number(&span, "fastdecode.layers", engine->model.range.count);
    otlp_put(engine->traces.otlp, &span);
}

static void end(struct engine *engine, struct sequence *sequence)
{
    static const char *const names[SEQUENCE_PHASES] = {"prefill steps", "decode steps"};

    for (int i = 0; i < SEQUENCE_PHASES && sequence->trace.on; i++)
        if (sequence->trace.phases[i].steps)
            put(engine, sequence, names[i], &sequence->trace.phases[i]);
    sequence->trace.on = false;
}

void engine_spans_open(struct engine *engine, const Fastdecode__SequenceOpen *open)
{
    struct sequence *sequence = engine->traces.otlp ? sequence_table_find(engine->sequences, open->sequence) : NULL;
    const unsigned char *trace = open->trace.data;

    if (!sequence)
        return;
    if (sequence->trace.on && open->trace.len == OTLP_SEQUENCE_BYTES &&
        !memcmp(sequence->trace.phases[SEQUENCE_PREFILL].parent_id, trace + OTLP_SEQUENCE_PREFILL, OTLP_SPAN_ID_BYTES))
        return; // it is rebuilt, and its spans go on
    end(engine, sequence);
    sequence->trace = (struct sequence_trace){.on = open->trace.len == OTLP_SEQUENCE_BYTES};
    if (!sequence->trace.on)
        return;
    memcpy(sequence->trace.trace_id, trace, OTLP_TRACE_ID_BYTES);
    memcpy(sequence->trace.request_id, trace + OTLP_SEQUENCE_REQUEST, OTLP_SPAN_ID_BYTES);
    memcpy(sequence->trace.phases[SEQUENCE_PREFILL].parent_id, trace + OTLP_SEQUENCE_PREFILL, OTLP_SPAN_ID_BYTES);
    memcpy(sequence->trace.phases[SEQUENCE_DECODE].parent_id, trace + OTLP_SEQUENCE_DECODE, OTLP_SPAN_ID_BYTES);
}

static void count_run(const struct mini_batch *batch, const struct step_run *run, uint64_t now_ns)
{
    struct sequence_trace *trace = &run->sequence->trace;
    struct sequence_phase *phase = &trace->phases[trace->sampled ? SEQUENCE_DECODE : SEQUENCE_PREFILL];

    if (!phase->steps)
        phase->began_ns = batch->time.began_us * 1000;
    phase->ended_ns = now_ns;
    phase->steps++;
    phase->rows += run->row_count;
    phase->s_part_us += batch->time.s_part_us;
    phase->r_part_us += batch->time.r_part_us;
    trace->sampled |= run->run->sample;
}

void engine_spans_step(const struct mini_batch *batch)
{
    uint64_t now_ns = 0;

    for (uint32_t i = 0; batch->engine->traces.otlp && i < batch->plan.run_count; i++) {
        const struct step_run *run = &batch->plan.runs[i];
        if (!run->sequence || !run->sequence->trace.on || !run->row_count || run->lost)
            continue;
        if (!now_ns)
            now_ns = clock_now_ns();
        count_run(batch, run, now_ns);
    }
}

void engine_spans_end(struct engine *engine, uint64_t id)
{
    struct sequence *sequence = engine->traces.otlp ? sequence_table_find(engine->sequences, id) : NULL;

    if (sequence)
        end(engine, sequence);
}

void engine_spans_end_all(struct engine *engine)
{
    uint32_t cursor = 0;

    for (struct sequence *sequence; engine->traces.otlp && (sequence = sequence_table_next(engine->sequences, &cursor));)
        end(engine, sequence);
}

// --- what workers are told

// Returns the next traced sequence of a place, of its rows and then its reads; *at starts at 0. NULL: there are no more.
static const struct sequence *next_traced(const struct mini_batch *batch, const struct step_place *place, uint32_t *at,
                                          const struct sequence **last)
{
    const struct step_plan *plan = &batch->plan;

    while (*at < place->row_count + place->read_count) {
        const uint32_t item = (*at)++;
        const uint32_t row = item < place->row_count ? place->first_row + item
                                                     : plan->reads[place->first_read + item - place->row_count].row;
        const struct sequence *sequence = plan->runs[plan->row_run[row]].sequence;
        if (!sequence || !sequence->trace.on || sequence == *last)
            continue;
        return *last = sequence;
    }
    return NULL;
}

uint32_t engine_spans_count(const struct mini_batch *batch, const struct step_place *place)
{
    const struct sequence *last = NULL;
    uint32_t at = 0, count = 0;

    while (batch->engine->traces.otlp && next_traced(batch, place, &at, &last))
        count++;
    return count;
}

void engine_spans_tell(const struct mini_batch *batch, const struct step_place *place, const struct attend_request_parts *parts)
{
    const struct sequence *sequence, *last = NULL;
    uint32_t at = 0;

    for (uint32_t i = 0; parts->trace_sequence && (sequence = next_traced(batch, place, &at, &last)); i++) {
        unsigned char *context = parts->trace_context + i * (size_t)ATTEND_TRACE_BYTES;
        wire_store_u64(parts->trace_sequence + i * 8ull, sequence->id);
        memcpy(context, sequence->trace.trace_id, OTLP_TRACE_ID_BYTES);
        memcpy(context + OTLP_SEQUENCE_REQUEST, sequence->trace.request_id, OTLP_SPAN_ID_BYTES);
    }
}
