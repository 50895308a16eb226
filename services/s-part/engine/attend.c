// attend.c: attention of a step's rows: the connections to KV workers, messages to them and their answers, and the local rows meanwhile.
//
// A connection is opened when a step first names its worker. A worker that does not answer, or answers wrongly, costs the step
// that worker's rows alone: they are lost, and the others go on.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/tensors.h"
#include "common/rpc/wire.h"
#include "services/s-part/engine/engine.h"

// A layer's attention that has not come by its timeout does not come: the worker beats, and its tensors do not get through. The wait is a
// multiple of what it is expected to take: a worker may be far slower than the machine here, and what was asked of it before comes first.
enum { ATTEND_FLOOR_MS = 3000, ATTEND_MARGIN = 100 };
// Without a calibration: of one decode row a thousand times what it takes; of a chunk what reference kernels take at a long context.
enum { ATTEND_UNKNOWN_MS = 10000, ATTEND_UNKNOWN_ROW_MS = 50 };

// Returns how long one layer is expected to take for a row that attends to `context` positions of the place.
static double expected_row_us(const struct mini_batch *batch, uint32_t row, uint32_t context)
{
    const struct kv_costs *costs = &batch->engine->links.costs;
    const bool decode = batch->plan.runs[batch->plan.row_run[row]].row_count == 1;

    return decode ? costs->row_us + context * costs->token_us : costs->prefill_row_us + context * costs->pair_us;
}

// Returns how long one layer of the place's rows is expected to take at a worker as fast as the machine here; 0: not known.
static uint64_t expected_us(const struct mini_batch *batch, const struct step_place *place)
{
    const struct kv_costs *costs = &batch->engine->links.costs;
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
        batch->attend.uses[p].expected_us = batch->attend.uses[p].link ? expected_us(batch, batch->attend.uses[p].place) : 0;
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
    if (batch->time.wait_from_ns)
        trace_span(batch->tracks.step, "wait", batch->time.wait_from_ns, {"step", batch->step.request->step},
                   {"layer", batch->segment - 1});
    batch->time.wait_from_ns = 0;
    batch->time.ready_ns = trace_clock(batch->tracks.step);
    batch->state = BATCH_READY;
    // In a pipeline the step that came first stays first: taking turns would let the next stage wait for both.
    if (batch->segment == 0 || !engine_is_stage(batch->engine))
        batch->ready_order = batch->engine->batches.ready_counter++;
    batch->time.r_part_us += clock_now_us() - batch->time.sent_us;
}

// --- links

enum { CONNECT_LIMIT_US = 1000000, ENVELOPE_BYTES = 64 << 10 };

// A place that is lost takes its rows with it while the step is in the layers. Before, the step has not begun there; behind, they are done.
static bool in_layers(const struct mini_batch *batch)
{
    return batch->state == BATCH_COMPUTING || batch->state == BATCH_WAITING || batch->state == BATCH_READY;
}

// Loses the rows of steps under way at a link that is down. Steps that wait for its connection go on by themselves (engine_begin_poll()).
static void lose_rows(const struct link *link)
{
    struct engine *engine = link->engine;

    for (uint32_t b = 0; link->down && b < engine->batches.count; b++) {
        struct mini_batch *batch = &engine->batches.of[b];
        for (uint32_t p = 0; in_layers(batch) && p < batch->plan.place_count; p++)
            if (batch->attend.uses[p].link == link)
                engine_lose_place(&batch->attend.uses[p]);
    }
}

static void on_link_up(void *user, const struct rpc_peer *peer)
{
    struct link *link = user;
    if (peer->incarnation != link->incarnation) { // started again behind our back: it holds nothing of what we think
        log_warn("LINK-OTHER", "worker=%u address=%s", link->worker, link->address);
        link->down = true;
    } else {
        link->down = false;
        link->was_up = true;
        link->engine->links.unreachable = (struct repeat){0};
        log_info("LINK-UP", "worker=%u address=%s", link->worker, link->address);
    }
    lose_rows(link);
}

static void on_link_down(void *user, const char *why)
{
    struct link *link = user;
    log_warn("LINK-DOWN", "worker=%u why=\"%s\"", link->worker, why);
    link->down = true;
    lose_rows(link);
}

// It has not come up in time.
static void on_link_late(void *arg)
{
    struct engine *engine = arg;
    for (uint32_t i = 0; i < ENGINE_LINKS_MAX; i++) {
        struct link *link = &engine->links.of[i];
        if (link->channel && !link->was_up && !link->down && clock_now_us() - link->opened_us >= CONNECT_LIMIT_US) {
            log_warn("LINK-LATE", "worker=%u address=%s", link->worker, link->address);
            link->down = true;
            lose_rows(link);
        }
    }
}

static enum status open_link(struct link *link, const Fastdecode__Place *place)
{
    struct engine *engine = link->engine;
    struct error error;

    link->worker = place->worker;
    link->incarnation = place->incarnation;
    link->down = link->was_up = false;
    link->opened_us = clock_now_us();
    link->expected_us = 0;
    if (strcmp(link->address, place->tensor_address))
        link->failures = (struct repeat){0};
    snprintf(link->address, sizeof link->address, "%s", place->tensor_address);
    const struct rpc_channel_config config = {
        .address = link->address,
        .peer = "a KV worker (its --advertise-tensors)",
        .hello = {.service = "s-part", .incarnation = engine->incarnation},
        .peer_roles = RPC_IS_KV_WORKER,
        // a worker may make us take no more memory than that, which is others', too
        .max_message_bytes = attend_reply_size_most(engine->batches.max_rows, engine->model.q_width) + ENVELOPE_BYTES,
        .lent = true,
        .on_up = on_link_up,
        .on_down = on_link_down,
        .user = link,
    };
    if (rpc_channel_open(engine->loop, &config, &link->channel, &error)) {
        if (repeat_is_due(&engine->links.not_opened, clock_now_us(), error.text))
            log_warn("LINK-NOT-OPENED", "worker=%u error=\"%s\" times=%u", place->worker, error.text,
                     engine->links.not_opened.count);
        link->channel = NULL;
        link->down = true;
        return error.status;
    }
    rpc_loop_timer(engine->loop, CONNECT_LIMIT_US, on_link_late, engine);
    return STATUS_OK;
}

// Has steps that wait for the connection begin without its place: by then the entry may be another worker's.
static void forget_in_waiting(const struct link *link)
{
    struct engine *engine = link->engine;

    for (uint32_t b = 0; b < engine->batches.count; b++) {
        struct mini_batch *batch = &engine->batches.of[b];
        for (uint32_t p = 0; batch->state == BATCH_CONNECTING && p < batch->plan.place_count; p++) {
            struct link_use *use = &batch->attend.uses[p];
            Fastdecode__Place *place = batch->step.request->places[use->place->index];
            if (use->link != link)
                continue;
            use->link = NULL;
            if (place->tensor_address[0])
                place->tensor_address[0] = '\0';
        }
    }
}

void link_drop(struct link *link)
{
    struct rpc_channel *channel = link->channel;

    link->down = true;
    lose_rows(link);
    forget_in_waiting(link);
    link->channel = NULL; // before the close: the calls that it ends must not come upon a channel that is going
    rpc_channel_close(channel);
}

struct link *link_get(struct engine *engine, const Fastdecode__Place *place)
{
    struct link *free_link = NULL;

    for (uint32_t i = 0; i < ENGINE_LINKS_MAX; i++) {
        struct link *link = &engine->links.of[i];
        if (!link->channel) {
            free_link = free_link ? free_link : link;
            continue;
        }
        // By address: a scheduler that is started again numbers the workers anew. Under its number a worker may only be
        // replaced (a new port) once the old one is gone.
        bool same = !strcmp(link->address, place->tensor_address);
        if (!same && !(link->worker == place->worker && link->down))
            continue;
        if (same && link->incarnation == place->incarnation) {
            link->worker = place->worker;
            return link;
        }
        if (same && link->incarnation > place->incarnation && !link->down)
            return NULL; // the step is older than the worker
        link_drop(link); // steps that still use the old one lose its rows
        free_link = link;
        break;
    }
    if (!free_link)
        return NULL;
    free_link->engine = engine;
    return open_link(free_link, place) ? NULL : free_link;
}

void link_close_all(struct engine *engine)
{
    for (uint32_t i = 0; i < ENGINE_LINKS_MAX; i++) {
        rpc_channel_close(engine->links.of[i].channel);
        engine->links.of[i].channel = NULL;
    }
}

// --- attention at the workers

static void on_attend_reply(void *user, struct rpc_message *message)
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
                                           .q_width = batch->engine->model.q_width,
                                           .partial_floats = batch->engine->model.partial_floats};

    enum status status = attend_reply_parse(payload, length, &form, lose_row, use, &reply, &error);
    const uint32_t layer = batch->engine->model.range.first + batch->segment - 1;
    if (!status && (reply.step != batch->step.request->step || reply.layer != layer))
        status = error_set(&error, STATUS_INVALID_ARGUMENT,
                           "AttendReply: of step %llu, layer %u; step %llu, layer %u was asked for", (unsigned long long)reply.step,
                           reply.layer, (unsigned long long)batch->step.request->step, layer);
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

static void on_attend_end(void *user, enum status status, const char *text)
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
                     (unsigned long long)batch->step.request->step, status_name(status), text);
        engine_lose_place(use);
    }
    if (--batch->attend.waiting == 0 && batch->state == BATCH_WAITING)
        engine_make_ready(batch);
    // Nothing comes through, though nobody has closed it: a new connection may. One that sends malformed replies loses it.
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
    const uint32_t layer = engine->model.range.first + segment;
    const float *sinks = engine->model.layers ? engine->model.layers[layer].sink_scores : NULL;
    const struct step_place *place = use->place;
    struct attend_request_parts parts;
    const struct attend_request_form form = {
        .incarnation = engine->incarnation,
        .step = batch->step.request->step,
        .scheduler = batch->step.request->scheduler_incarnation,
        .mini_batch = batch->index,
        .layer = layer,
        .row_count = place->row_count,
        .share_count = place->share_count,
        .has_sparse = engine->model.has_sparse,
        .has_first = place->o_count < place->row_count,
        .read_count = place->read_count,
        .q_width = engine->model.q_width,
        .kv_width = engine->model.kv_width,
        .sink_count = sinks ? engine->model.shape.heads : 0,
        .trace_count = layer == 0 ? engine_spans_count(batch, place) : 0,
    };
    unsigned char *payload;
    size_t size = attend_request_size(&form);
    struct rpc_buffer *buffer =
        rpc_request_buffer(use->link->channel, engine->links.attend_method, timeout_ms(use), size, &payload);

    if (!buffer)
        return NULL;
    attend_request_begin(payload, size, &form, &parts);
    if (parts.sinks)
        memcpy(parts.sinks, sinks, engine->model.shape.heads * sizeof(float));
    if (layer == 0)
        put_shares(&batch->plan, place, &parts);
    for (uint32_t i = 0; i < place->row_count; i++) {
        uint32_t row = place->first_row + i;
        batch->attend.q[row] = parts.q + (size_t)i * engine->model.q_width;
        batch->attend.k[row] = parts.k + (size_t)i * engine->model.kv_width;
        batch->attend.v[row] = parts.v + (size_t)i * engine->model.kv_width;
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
        batch->attend.q[row] = batch->attend.k[row] = batch->attend.v[row] = NULL;
}

// o of the layer before, for the rows of workers.
void engine_point_to_replies(struct mini_batch *batch)
{
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        const struct link_use *use = &batch->attend.uses[p];
        const float *o = use->dead ? NULL : use->o;
        for (uint32_t i = 0; !use->local && i < use->place->row_count; i++) {
            const uint32_t row = use->place->first_row + i;
            batch->attend.o[row] = o ? o : batch->engine->links.zeros;
            if (o && !batch->plan.rows[row].first) // else it is folded below
                o += batch->engine->model.q_width;
        }
    }
    engine_fold_extents(batch);
}

void engine_free_replies(struct mini_batch *batch)
{
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        rpc_message_free(batch->attend.uses[p].reply);
        batch->attend.uses[p].reply = NULL;
        batch->attend.uses[p].o = NULL;
        batch->attend.uses[p].partials = NULL;
    }
}

void engine_send(struct mini_batch *batch)
{
    static const struct rpc_callbacks callbacks = {.on_message = on_attend_reply, .on_end = on_attend_end};

    batch->state = BATCH_WAITING;
    batch->time.sent_us = clock_now_us();
    engine_copy_reads(batch);
    batch->attend.waiting = 1; // until all are sent and the local rows are done: a failing send may call back at once
    for (uint32_t p = 0; p < batch->plan.place_count; p++) {
        struct link_use *use = &batch->attend.uses[p];
        struct rpc_buffer *request = use->request;
        use->request = NULL;
        if (use->dead) // lost while the segment was computed
            rpc_buffer_free(request);
        if (use->dead || !request)
            continue;
        use->sent_us = clock_now_us();
        use->waiting = true;
        use->link->expected_us += use->expected_us;
        batch->attend.waiting++;
        if (rpc_call_start_buffer(use->link->channel, request, &callbacks, use, NULL)) {
            use->waiting = false;
            use->link->expected_us -= use->expected_us;
            batch->attend.waiting--;
            engine_lose_place(use);
        }
    }
}

// Local rows, in place, while the others are away. A device is not waited for: what is queued behind comes in order, and its time is
// known at the end of the step. The rows that the segment has attended to itself are booked here.
void engine_attend_local(struct mini_batch *batch, uint32_t layer)
{
    struct engine *engine = batch->engine;
    uint64_t began_us = clock_now_us() - batch->time.attended_us, began_ns = trace_clock(engine->traces.local);

    batch->time.sent_us -= batch->time.attended_us;
    began_ns -= MIN(batch->time.attended_us * 1000ull, began_ns); // 0: nobody traces
    batch->time.attended_us = 0;

    for (uint32_t p = 0; p < batch->plan.place_count; p++)
        if (batch->attend.uses[p].local) {
            engine->ops->attend(batch->backend, layer);
            if (engine->ops->times)
                continue;
            batch->attend.uses[p].r_part_us += (uint32_t)(clock_now_us() - began_us);
            batch->attend.uses[p].attend_us = batch->attend.uses[p].r_part_us;
            trace_span(engine->traces.local, "attend", began_ns, {"step", batch->step.request->step}, {"layer", layer},
                       {"mini_batch", batch->index}, {"rows", batch->attend.uses[p].place->row_count});
        }
}
