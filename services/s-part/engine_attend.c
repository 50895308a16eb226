// engine_attend.c: attention of a step's rows: messages to the workers and their answers, and the local rows meanwhile.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/tensors.h"
#include "common/rpc/wire.h"
#include "services/s-part/engine_spans.h"
#include "services/s-part/engine_state.h"

// A layer's attention that has not come by its timeout does not come: the worker beats, and its tensors do not get through. The wait is a
// multiple of what it is expected to take: a worker may be far slower than the machine here, and what was asked of it before comes first.
enum { ATTEND_FLOOR_MS = 3000, ATTEND_MARGIN = 100 };
// Without a calibration: of one decode row a thousand times what it takes; of a chunk what reference kernels take at a long context.
enum { ATTEND_UNKNOWN_MS = 10000, ATTEND_UNKNOWN_ROW_MS = 50 };

// What one layer is expected to take of a row that attends to `context` positions of the place.
static double expected_row_us(const struct mini_batch *batch, uint32_t row, uint32_t context)
{
    const struct kv_costs *costs = &batch->engine->attend_costs;
    const bool decode = batch->plan.runs[batch->plan.row_run[row]].row_count == 1;

    return decode ? costs->row_us + context * costs->token_us : costs->prefill_row_us + context * costs->pair_us;
}

// What one layer of the place's rows is expected to take at a worker as fast as the machine here; 0: not known.
static uint64_t expected_us(const struct mini_batch *batch, const struct step_place *place)
{
    const struct kv_costs *costs = &batch->engine->attend_costs;
    double us = costs->call_us;

    for (uint32_t row = place->first_row; row < place->first_row + place->row_count; row++)
        us += expected_row_us(batch, row, batch->plan.rows[row].position + 1 - batch->plan.rows[row].first);
    for (uint32_t i = place->first_read; i < place->first_read + place->read_count; i++) {
        const struct step_read *read = &batch->plan.reads[i];
        us += expected_row_us(batch, read->row, read->end - read->first);
    }
    return costs->token_us > 0 ? (uint64_t)us : 0;
}

void engine_expect(struct mini_batch *batch)
{
    for (uint32_t p = 0; p < batch->plan.place_count; p++)
        batch->uses[p].expected_us = batch->uses[p].link ? expected_us(batch, batch->uses[p].place) : 0;
}

static uint32_t timeout_ms(const struct link_use *use)
{
    const uint64_t us = use->link->expected_us + use->expected_us;

    if (!use->expected_us)
        return ATTEND_UNKNOWN_MS + (use->place->row_count + use->place->read_count) * ATTEND_UNKNOWN_ROW_MS;
    return (uint32_t)MIN(ATTEND_FLOOR_MS + us * ATTEND_MARGIN / 1000, (uint64_t)UINT32_MAX);
}

// Loses the run of a row of the place, or of one of its reads.
static void lose_row(void *user, uint32_t index, bool is_read)
{
    const struct link_use *use = user;
    struct step_plan *plan = &use->batch->plan;
    const struct step_read *read = is_read ? &plan->reads[use->place->first_read + index] : NULL;
    struct step_run *run = &plan->runs[plan->row_run[read ? read->row : use->place->first_row + index]];

    step_plan_lose(run, read ? read->extent : (uint32_t)run->run->n_extents - 1);
}

void engine_lose_place(struct link_use *use)
{
    if (use->dead)
        return;
    use->dead = true;
    for (uint32_t row = 0; row < use->place->row_count; row++)
        lose_row(use, row, false);
    for (uint32_t read = 0; read < use->place->read_count; read++)
        lose_row(use, read, true);
}

void engine_make_ready(struct mini_batch *batch)
{
    if (batch->wait_from_ns)
        trace_span(batch->track, "wait", batch->wait_from_ns, {"step", batch->request->step}, {"layer", batch->segment - 1});
    batch->wait_from_ns = 0;
    batch->ready_ns = trace_clock(batch->track);
    batch->state = BATCH_READY;
    // In a pipeline the step that came first stays first: taking turns would let the next stage wait for both.
    if (batch->segment == 0 || !engine_is_stage(batch->engine))
        batch->ready_order = batch->engine->ready_counter++;
    batch->r_part_us += clock_now_us() - batch->sent_us;
}

// --- attention at the workers ---

static void on_reply(void *user, struct rpc_message *message)
{
    struct link_use *use = user;
    struct mini_batch *batch = use->batch;
    struct attend_reply reply;
    struct error error;
    size_t length;
    const unsigned char *payload = rpc_message_payload(message, &length);

    const struct attend_reply_form form = {.row_count = use->place->row_count,
                                           .read_count = use->place->read_count,
                                           .o_count = use->place->o_count,
                                           .partial_count = use->place->partial_count,
                                           .q_width = batch->engine->q_width,
                                           .partial_floats = batch->engine->partial_floats};

    enum status status = attend_reply_parse(payload, length, &form, lose_row, use, &reply, &error);
    const uint32_t layer = batch->engine->range.first + batch->segment - 1;
    if (!status && (reply.step != batch->request->step || reply.layer != layer))
        status = error_set(&error, STATUS_INVALID_ARGUMENT,
                           "AttendReply: of step %llu, layer %u; step %llu, layer %u was asked for", (unsigned long long)reply.step,
                           reply.layer, (unsigned long long)batch->request->step, layer);
    if (status) {
        if (repeat_is_due(&use->link->failures, clock_now_us(), "a bad reply"))
            log_warn("ATTEND-BAD-REPLY", "worker=%u error=\"%s\" times=%u", use->link->worker, error.text,
                     use->link->failures.count);
        engine_lose_place(use);
        use->spoiled = true;
        return;
    }
    use->link->failures = (struct repeat){0};
    use->attend_us += reply.attend_us;
    use->reply = rpc_message_keep(message);
    use->o = reply.o;
    use->partials = (float *)reply.partials; // the message is ours: partials are folded where they lie
}

static void on_end(void *user, enum status status, const char *text)
{
    struct link_use *use = user;
    struct mini_batch *batch = use->batch;

    use->waiting = false;
    use->link->expected_us -= use->expected_us;
    use->r_part_us += (uint32_t)(clock_now_us() - use->sent_us);
    if (status) {
        if (status == STATUS_DEADLINE_EXCEEDED ||
            repeat_is_due(&use->link->failures, clock_now_us(), text)) // the former takes its time
            log_warn("ATTEND-FAILED", "worker=%u step=%llu status=%s why=\"%s\"", use->link->worker,
                     (unsigned long long)batch->request->step, status_name(status), text);
        engine_lose_place(use);
    }
    if (--batch->waiting == 0 && batch->state == BATCH_WAITING)
        engine_make_ready(batch);
    // Nothing comes through, though nobody has closed it: a new connection may. Who sends what is malformed loses it.
    if (status == STATUS_DEADLINE_EXCEEDED || use->spoiled)
        link_drop(use->link);
}

// Writes the shares of the place's runs.
static void put_shares(const struct step_plan *plan, const struct step_place *place, struct attend_request_parts *parts)
{
    uint32_t count = 0;

    for (uint32_t row = place->first_row; place->share_count && row < place->first_row + place->row_count;) {
        const struct step_run *run = &plan->runs[plan->row_run[row]];
        row += run->row_count;
        if (!run->run->share_from)
            continue;
        wire_store_u64(parts->share_sequence + count * 8ull, run->run->sequence);
        wire_store_u64(parts->share_from + count * 8ull, run->run->share_from);
        wire_store_u32(parts->share_positions + count * 4ull, run->run->share_positions);
        count++;
    }
    assert_always(count == place->share_count);
}

// Allocates the message of a place for the layer that the segment starts, and says where its rows' q, k, v go. With the model's first layer
// go the rows, which the worker keeps for the others, those of later stages too.
struct rpc_buffer *engine_prepare(struct mini_batch *batch, struct link_use *use, uint32_t segment)
{
    struct engine *engine = batch->engine;
    const uint32_t layer = engine->range.first + segment;
    const float *sinks = engine->layers ? engine->layers[layer].sink_scores : NULL;
    const struct step_place *place = use->place;
    struct attend_request_parts parts;
    const struct attend_request_form form = {
        .incarnation = engine->incarnation,
        .step = batch->request->step,
        .mini_batch = batch->index,
        .layer = layer,
        .row_count = place->row_count,
        .share_count = place->share_count,
        .has_sparse = engine->has_sparse,
        .has_first = place->o_count < place->row_count,
        .read_count = place->read_count,
        .q_width = engine->q_width,
        .kv_width = engine->kv_width,
        .sink_count = sinks ? engine->shape.heads : 0,
        .trace_count = layer == 0 ? engine_spans_count(batch, place) : 0,
    };
    unsigned char *payload;
    size_t size = attend_request_size(&form);
    struct rpc_buffer *buffer = rpc_request_buffer(use->link->channel, engine->attend_method, timeout_ms(use), size, &payload);

    if (!buffer)
        return NULL;
    attend_request_begin(payload, size, &form, &parts);
    if (parts.sinks)
        memcpy(parts.sinks, sinks, engine->shape.heads * sizeof(float));
    if (layer == 0)
        put_shares(&batch->plan, place, &parts);
    for (uint32_t i = 0; i < place->row_count; i++) {
        uint32_t row = place->first_row + i;
        batch->q[row] = parts.q + (size_t)i * engine->q_width;
        batch->k[row] = parts.k + (size_t)i * engine->kv_width;
        batch->v[row] = parts.v + (size_t)i * engine->kv_width;
        if (layer == 0) {
            wire_store_u64(parts.row_sequence + i * 8ull, batch->plan.rows[row].sequence);
            wire_store_u32(parts.row_position + i * 4ull, batch->plan.rows[row].position);
            if (parts.row_sparse)
                parts.row_sparse[i] = batch->plan.rows[row].sparse;
            if (parts.row_first)
                wire_store_u32(parts.row_first + i * 4ull, batch->plan.rows[row].first);
        }
    }
    engine_put_reads(batch, use, &parts);
    engine_spans_tell(batch, place, &parts);
    return buffer;
}

void engine_point_nowhere(struct mini_batch *batch, const struct step_place *place)
{
    for (uint32_t row = place->first_row; row < place->first_row + place->row_count; row++)
        batch->q[row] = batch->k[row] = batch->v[row] = NULL;
}

// o of the layer before, for the rows of workers.
void engine_point_to_replies(struct mini_batch *batch)
{
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        const struct link_use *use = &batch->uses[p];
        const float *o = use->dead ? NULL : use->o;
        for (uint32_t i = 0; !use->local && i < use->place->row_count; i++) {
            const uint32_t row = use->place->first_row + i;
            batch->o[row] = o ? o : batch->engine->zeros;
            if (o && !batch->plan.rows[row].first) // else it is folded below
                o += batch->engine->q_width;
        }
    }
    engine_fold_extents(batch);
}

void engine_free_replies(struct mini_batch *batch)
{
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        rpc_message_free(batch->uses[p].reply);
        batch->uses[p].reply = NULL;
        batch->uses[p].o = NULL;
        batch->uses[p].partials = NULL;
    }
}

void engine_send(struct mini_batch *batch)
{
    static const struct rpc_callbacks callbacks = {.on_message = on_reply, .on_end = on_end};

    batch->state = BATCH_WAITING;
    batch->sent_us = clock_now_us();
    engine_copy_reads(batch);
    batch->waiting = 1; // until all are sent and the local rows are done: a failing send may call back at once
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        struct link_use *use = &batch->uses[p];
        struct rpc_buffer *request = use->request;
        use->request = NULL;
        if (use->dead) // lost while the segment was computed
            rpc_buffer_free(request);
        if (use->dead || !request)
            continue;
        use->sent_us = clock_now_us();
        use->waiting = true;
        use->link->expected_us += use->expected_us;
        batch->waiting++;
        if (rpc_call_start_buffer(use->link->channel, request, &callbacks, use, NULL)) {
            use->waiting = false;
            use->link->expected_us -= use->expected_us;
            batch->waiting--;
            engine_lose_place(use);
        }
    }
}

// Local rows, in place, while the others are away. A device is not waited for: what is queued behind comes in order, and its time is
// known at the end of the step. What the segment has attended to itself is booked here.
void engine_attend_local(struct mini_batch *batch, uint32_t layer)
{
    struct engine *engine = batch->engine;
    uint64_t began_us = clock_now_us() - batch->attended_us, began_ns = trace_clock(engine->track_local);

    batch->sent_us -= batch->attended_us;
    began_ns -= MIN(batch->attended_us * 1000ull, began_ns); // 0: nobody traces
    batch->attended_us = 0;

    for (uint32_t p = 0; p < batch->plan.place_count; p++)
        if (batch->uses[p].local) {
            engine->ops->attend(batch->backend, layer);
            if (engine->ops->times)
                continue;
            batch->uses[p].r_part_us += (uint32_t)(clock_now_us() - began_us);
            batch->uses[p].attend_us = batch->uses[p].r_part_us;
            trace_span(engine->track_local, "attend", began_ns, {"step", batch->request->step}, {"layer", layer},
                       {"mini_batch", batch->index}, {"rows", batch->uses[p].place->row_count});
        }
}
