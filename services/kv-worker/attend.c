// attend.c: one layer of one step: append k and v, attend, reply o.
//
// Rows are described with layer 0 and planned once for the step. Rows whose sequence is not held as far as it must be, or
// that there are no pages for, are lost: their o is zero, the reply names them, and the rest of the step goes on.
//
// A sequence that lies at several places may have an extent here. If it grows here, its rows begin it; otherwise it is only read, by
// rows without k and v. Both get partials (common/kv/kv_shape.h) instead of o.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/kv/kv_shape.h"
#include "common/mesh/tensors.h"
#include "common/rpc/wire.h"
#include "services/kv-worker/worker.h"

// Workers that share cores learn the model at the same moment: measuring together each would see the others' work as its own slowness
// (up to thirty times). They take turns, and one that hangs does not stop the others for long.
static enum status measure_in_turn(struct worker *worker, const struct kv_shape *shape, struct error *error)
{
    enum { WAIT_MS = 5000, AGAIN_MS = 10 };
    const struct timespec pause = {.tv_nsec = AGAIN_MS * 1000000L};
    const uint64_t until_us = clock_now_us() + WAIT_MS * UINT64_C(1000);
    int program = worker->settings.shares_cores ? open("/proc/self/exe", O_RDONLY | O_CLOEXEC) : -1;

    while (program >= 0 && flock(program, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK && clock_now_us() < until_us)
        nanosleep(&pause, NULL);
    enum status status = kv_measure(shape, MEASURE_BYTES, worker->pool, MEASURE_KV_US, &worker->attend.costs, error);
    if (program >= 0)
        close(program);
    return status;
}

struct memory_plan attend_memory_plan(const struct worker *worker, const struct kv_shape *shape, uint64_t *pages)
{
    const struct attend_batch *batch = NULL;
    const uint64_t batch_row_bytes = sizeof *batch->kept + sizeof *batch->lost + sizeof *batch->lost_reads +
                                     sizeof *batch->partial_count + sizeof *batch->sequences;
    const uint64_t row_bytes = sizeof *worker->scratch.rows + sizeof *worker->scratch.q + sizeof *worker->scratch.k +
                               sizeof *worker->scratch.v + sizeof *worker->scratch.o + sizeof *worker->scratch.out;
    const struct kv_plan plan =
        kv_store_plan(shape, worker->settings.kv_memory, WORKER_ROWS_MAX, thread_pool_threads(worker->pool), WORKER_BATCHES_MAX);

    *pages = plan.pages;
    return (struct memory_plan){
        .fixed_bytes = plan.fixed_bytes + WORKER_ROWS_MAX * (row_bytes + WORKER_BATCHES_MAX * batch_row_bytes),
        .start_bytes = worker->settings.calibrate ? MEASURE_BYTES : 0,
        .pool_bytes = worker->settings.kv_memory,
        .page_bytes = plan.page_bytes + (plan.pages ? plan.table_bytes / plan.pages : 0),
    };
}

// All that steps need, so that none of them allocates.
static enum status open_tables(struct worker *worker)
{
    worker->scratch.rows = calloc(WORKER_ROWS_MAX, sizeof *worker->scratch.rows);
    worker->scratch.q = calloc(WORKER_ROWS_MAX, sizeof *worker->scratch.q);
    worker->scratch.k = calloc(WORKER_ROWS_MAX, sizeof *worker->scratch.k);
    worker->scratch.v = calloc(WORKER_ROWS_MAX, sizeof *worker->scratch.v);
    worker->scratch.o = calloc(WORKER_ROWS_MAX, sizeof *worker->scratch.o);
    worker->scratch.out = calloc(WORKER_ROWS_MAX, sizeof *worker->scratch.out);
    bool ok = worker->scratch.rows && worker->scratch.q && worker->scratch.k && worker->scratch.v && worker->scratch.o &&
              worker->scratch.out && !attend_spans_open(&worker->attend.spans);
    for (uint32_t i = 0; ok && i < WORKER_BATCHES_MAX; i++) {
        struct attend_batch *batch = &worker->attend.batches[i];
        batch->kept = calloc(WORKER_ROWS_MAX, sizeof *batch->kept);
        batch->lost = calloc(WORKER_ROWS_MAX, sizeof *batch->lost);
        batch->lost_reads = calloc(WORKER_ROWS_MAX, sizeof *batch->lost_reads);
        batch->partial_count = calloc(WORKER_ROWS_MAX, sizeof *batch->partial_count);
        batch->sequences = calloc(WORKER_ROWS_MAX, sizeof *batch->sequences);
        ok = batch->kept && batch->lost && batch->lost_reads && batch->partial_count && batch->sequences &&
             !attend_spans_open_step(&worker->attend.spans, &batch->spans) && !kv_batch_open(worker->attend.store, &batch->kv);
    }
    return ok ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
}

// Nothing of the store is in memory yet: it comes to lie where it is bound to.
static void bind_pages(struct worker *worker)
{
    uint64_t bytes;
    void *memory = kv_store_memory(worker->attend.store, &bytes);

    if (worker->binding.memory != NUMA_ANY && numa_bind(&worker->binding, memory, bytes))
        log_info("NUMA-BOUND", "worker=%s numa_node=%s mib=%.1f", worker->settings.name, worker->settings.numa_node,
                 (double)bytes / 1048576);
}

enum status attend_open(struct worker *worker, const struct kv_shape *shape, struct error *error)
{
    uint64_t pages;
    const struct memory_plan memory = attend_memory_plan(worker, shape, &pages);
    char parts[64];
    enum status status;

    snprintf(parts, sizeof parts, "pages=%llu", (unsigned long long)pages);
    if ((status = memory_plan_check(&memory, parts, error)) ||
        (status = kv_store_open(shape, worker->settings.kv_memory, WORKER_ROWS_MAX, worker->pool, &worker->attend.store, error)))
        return status;
    bind_pages(worker);
    worker->attend.costs = (struct kv_costs){0};
    if (worker->settings.calibrate && measure_in_turn(worker, shape, error))
        log_warn("NOT-CALIBRATED", "why=\"%s\"", error->text); // what steps take is measured anyway
    else if (worker->settings.calibrate)
        log_info("CALIBRATED", "call_us=%.1f row_us=%.2f token_us=%.5f prefill_row_us=%.2f pair_us=%.5f",
                 worker->attend.costs.call_us, worker->attend.costs.row_us, worker->attend.costs.token_us,
                 worker->attend.costs.prefill_row_us, worker->attend.costs.pair_us);
    worker->attend.shape = *shape;
    worker->attend.q_width = shape->heads * shape->head_dim;
    worker->attend.kv_width = shape->kv_heads * shape->head_dim;
    worker->attend.partial_floats = (uint32_t)kv_partial_floats(shape->heads, shape->head_dim);
    if (open_tables(worker)) {
        attend_close(worker);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the tables of the KV worker");
    }
    attend_publish(worker);
    return STATUS_OK;
}

void attend_close(struct worker *worker)
{
    for (uint32_t i = 0; i < WORKER_BATCHES_MAX; i++) {
        kv_batch_close(worker->attend.batches[i].kv);
        attend_spans_close_step(&worker->attend.batches[i].spans);
        free(worker->attend.batches[i].kept);
        free(worker->attend.batches[i].lost);
        free(worker->attend.batches[i].lost_reads);
        free(worker->attend.batches[i].partial_count);
        free(worker->attend.batches[i].sequences);
    }
    memset(worker->attend.batches, 0, sizeof worker->attend.batches);
    attend_spans_close(&worker->attend.spans);
    kv_store_close(worker->attend.store);
    worker->attend.store = NULL;
    free(worker->scratch.rows);
    free(worker->scratch.q);
    free(worker->scratch.k);
    free(worker->scratch.v);
    free(worker->scratch.o);
    free(worker->scratch.out);
    worker->scratch.rows = NULL;
    worker->scratch.q = worker->scratch.k = worker->scratch.v = NULL;
    worker->scratch.o = worker->scratch.out = NULL;
    atomic_store_explicit(&worker->counters.pages_total, 0, memory_order_relaxed);
    atomic_store_explicit(&worker->counters.pages_used, 0, memory_order_relaxed);
}

void attend_publish(struct worker *worker)
{
    struct kv_stats stats;
    kv_store_stats(worker->attend.store, &stats);
    atomic_store_explicit(&worker->counters.pages_total, kv_store_pages_total(worker->attend.store), memory_order_relaxed);
    atomic_store_explicit(&worker->counters.pages_used, kv_store_pages_used(worker->attend.store), memory_order_relaxed);
    atomic_store_explicit(&worker->counters.pages_peak, stats.pages_peak, memory_order_relaxed);
    atomic_store_explicit(&worker->counters.kv_bytes_read, stats.bytes_read, memory_order_relaxed);
    atomic_store_explicit(&worker->counters.busy_us, stats.attend_ns / 1000, memory_order_relaxed);
    atomic_store_explicit(&worker->counters.rows_done, stats.rows, memory_order_relaxed);
}

static struct kv_row item_at(const struct attend_request *request, uint32_t item)
{
    const uint32_t read = item - request->row_count;

    if (item >= request->row_count)
        return (struct kv_row){.sequence = wire_load_u64(request->read_sequence + read * 8ull),
                               .position = wire_load_u32(request->read_end + read * 4ull) - 1,
                               .first = wire_load_u32(request->read_first + read * 4ull),
                               .reads = true};
    return (struct kv_row){.sequence = wire_load_u64(request->row_sequence + item * 8ull),
                           .position = wire_load_u32(request->row_position + item * 4ull),
                           .first = request->row_first ? wire_load_u32(request->row_first + item * 4ull) : 0,
                           .sparse = request->row_sparse && request->row_sparse[item]};
}

static void lose_item(struct attend_batch *batch, uint32_t item)
{
    if (item < batch->row_count)
        batch->lost[batch->lost_count++] = item;
    else
        batch->lost_reads[batch->lost_read_count++] = item - batch->row_count;
}

static void lose_sequence(struct attend_batch *batch, const struct attend_request *request, uint64_t sequence)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < batch->kept_count; i++) {
        uint32_t item = batch->kept[i];
        if (item_at(request, item).sequence == sequence)
            lose_item(batch, item);
        else
            batch->kept[kept++] = item;
    }
    batch->kept_count = kept;
}

static enum status check_row(const struct worker *worker, const struct kv_row *row, const struct kv_row *before, uint32_t index,
                             struct error *error)
{
    if (row->sequence == 0 || row->position >= worker->attend.shape.max_context)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: row %u is position %u of sequence %llx, the context is %u",
                         index, row->position, (unsigned long long)row->sequence, worker->attend.shape.max_context);
    if (row->sequence < before->sequence ||
        (row->sequence == before->sequence && (row->position <= before->position || row->first != before->first)))
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: row %u is not sorted by sequence and position", index);
    if (row->first % KV_EXTENT_TOKENS || row->first > row->position || (row->first && row->sparse))
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: row %u at position %u%s, held from %u on", index,
                         row->position, row->sparse ? ", sparse" : "", row->first);
    return STATUS_OK;
}

static enum status check_read(const struct worker *worker, const struct kv_row *read, const struct kv_row *before, uint32_t index,
                              struct error *error)
{
    const uint32_t end = read->position + 1; // 0 as it was sent: 0

    if (read->sequence == 0 || read->first % KV_EXTENT_TOKENS || end % KV_EXTENT_TOKENS || read->first >= end ||
        end > worker->attend.shape.max_context)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "AttendRequest: read %u of positions %u to %u of sequence %llx, the context is %u", index, read->first,
                         end, (unsigned long long)read->sequence, worker->attend.shape.max_context);
    if (before->reads &&
        (read->sequence < before->sequence ||
         (read->sequence == before->sequence && (read->first != before->first || read->position != before->position))))
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: read %u is not sorted, or of another extent", index);
    return STATUS_OK;
}

// Checks all items before anything changes: a refused request leaves no pages and no plan behind.
static enum status check_items(const struct worker *worker, const struct attend_request *request, struct error *error)
{
    struct kv_row before = {0};
    uint64_t partials = 0;

    for (uint32_t i = 0; i < request->row_count + request->read_count; i++) {
        const struct kv_row item = item_at(request, i);
        enum status status = item.reads ? check_read(worker, &item, &before, i - request->row_count, error)
                                        : check_row(worker, &item, &before, i, error);
        if (status)
            return status;
        partials += item.reads || item.first ? kv_partial_count(item.first, item.position + 1) : 0;
        before = item;
    }
    if (partials * worker->attend.partial_floats * sizeof(float) > ATTEND_PARTIAL_BYTES_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %llu partials, %u MiB are allowed",
                         (unsigned long long)partials, ATTEND_PARTIAL_BYTES_MAX >> 20);
    for (uint32_t i = 0; i < request->share_count; i++)
        if (wire_load_u64(request->share_sequence + i * 8ull) == 0)
            return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: share %u is for no sequence", i);
    return STATUS_OK;
}

// Returns what is held of a row's sequence. One whose first held position comes anew begins there, whatever was held of it.
static struct kv_held held_for(struct worker *worker, const struct kv_row *row)
{
    struct kv_held held = {.sequence = row->sequence};
    struct error error;
    bool known = kv_store_find(worker->attend.store, row->sequence, &held);

    if (held.first == row->first || row->reads || row->position != row->first)
        return held;
    if (known)
        attend_free(worker, row->sequence);
    held = (struct kv_held){.sequence = row->sequence};
    if (kv_store_begin(worker->attend.store, row->sequence, row->first, &error) &&
        repeat_is_due(&worker->attend.not_begun, clock_now_us(), ""))
        log_warn("KV-NOT-BEGUN", "why=\"%s\" times=%u", error.text, worker->attend.not_begun.count);
    (void)kv_store_find(worker->attend.store, row->sequence, &held);
    return held;
}

// Whether a run of rows, whose last one is `last`, can run: reserves its pages. `held` includes the run, if no position is missing.
static bool reserve_run(struct worker *worker, const struct kv_row *last, const struct kv_held *held)
{
    struct error error;

    if (last->first != held->first || (last->reads ? last->position >= held->positions : last->position > held->positions)) {
        log_info("KV-NOT-HELD", "sequence=%llx position=%u first=%u held=%u held_from=%u", (unsigned long long)last->sequence,
                 last->position, last->first, held->positions, held->first);
        return false;
    }
    if (last->reads || !kv_store_reserve(worker->attend.store, last->sequence, last->position + 1, &error))
        return true;
    if (repeat_is_due(&worker->attend.not_reserved, clock_now_us(), ""))
        log_warn("KV-NOT-RESERVED", "sequence=%llx position=%u pages_used=%u times=%u", (unsigned long long)last->sequence,
                 last->position, kv_store_pages_used(worker->attend.store), worker->attend.not_reserved.count);
    return false;
}

// Reserves pages for the sequences of the request. Sequences that get none, or whose earlier positions are not held, are lost.
static void reserve(struct worker *worker, struct attend_batch *batch, const struct attend_request *request)
{
    for (uint32_t i = 0; i < batch->kept_count;) {
        struct kv_row row = item_at(request, batch->kept[i]);
        struct kv_held held = held_for(worker, &row);
        uint32_t end = i;

        for (; end < batch->kept_count; end++) {
            const struct kv_row next = item_at(request, batch->kept[end]);
            if (next.sequence != row.sequence || next.reads != row.reads)
                break;
            row = next;
            if (row.reads)
                continue;
            if (row.position > held.positions)
                break;
            held.positions = MAX(held.positions, row.position + 1);
        }
        if (reserve_run(worker, &row, &held))
            i = end;
        else
            lose_sequence(batch, request, row.sequence); // later rows move up to i
    }
}

// Shares pages as the request asks. If that fails, reserve() finds the positions not held, and their rows are lost.
static void share(struct worker *worker, const struct attend_request *request)
{
    struct error error;

    for (uint32_t i = 0; i < request->share_count; i++)
        if (kv_store_share(worker->attend.store, wire_load_u64(request->share_from + i * 8ull),
                           wire_load_u32(request->share_positions + i * 4ull), wire_load_u64(request->share_sequence + i * 8ull),
                           &error) &&
            repeat_is_due(&worker->attend.not_shared, clock_now_us(), ""))
            log_warn("NOT-SHARED", "why=\"%s\" times=%u", error.text, worker->attend.not_shared.count);
}

static enum status plan(struct worker *worker, struct attend_batch *batch, const struct attend_request *request,
                        struct error *error)
{
    uint32_t bad = 0;
    enum status status;

    worker->attend.steps_begun++;
    batch->planned = false;
    batch->step = request->step;
    batch->row_count = request->row_count;
    batch->read_count = request->read_count;
    batch->kept_count = request->row_count + request->read_count;
    batch->lost_count = batch->lost_read_count = batch->o_count = batch->partial_total = 0;
    for (uint32_t i = 0; i < batch->kept_count; i++) {
        const struct kv_row item = item_at(request, i);
        batch->kept[i] = i;
        batch->partial_count[i] = item.reads || item.first ? kv_partial_count(item.first, item.position + 1) : 0;
        batch->partial_total += batch->partial_count[i];
        batch->o_count += batch->partial_count[i] == 0;
    }
    share(worker, request);
    reserve(worker, batch, request);
    for (;;) {
        for (uint32_t i = 0; i < batch->kept_count; i++)
            worker->scratch.rows[i] = item_at(request, batch->kept[i]);
        status = kv_batch_plan(batch->kv, worker->scratch.rows, batch->kept_count, &bad, error);
        if (status != STATUS_FAILED_PRECONDITION)
            break;
        log_info("KV-NOT-HELD", "sequence=%llx position=%u", (unsigned long long)worker->scratch.rows[bad].sequence,
                 worker->scratch.rows[bad].position);
        lose_sequence(batch, request, worker->scratch.rows[bad].sequence);
    }
    for (uint32_t i = 0; i < batch->kept_count; i++)
        batch->sequences[i] = worker->scratch.rows[i].sequence;
    batch->planned = status == STATUS_OK;
    return status;
}

void attend_free(struct worker *worker, uint64_t sequence)
{
    for (uint32_t m = 0; m < WORKER_BATCHES_MAX; m++) {
        struct attend_batch *batch = &worker->attend.batches[m];
        for (uint32_t i = 0; batch->planned && i < batch->kept_count; i++) {
            if (batch->sequences[i] != sequence)
                continue;
            lose_item(batch, batch->kept[i]);
            batch->sequences[i] = 0;
        }
    }
    kv_store_free(worker->attend.store, sequence);
}

static size_t result_floats(const struct worker *worker, const struct attend_batch *batch, uint32_t item)
{
    return batch->partial_count[item] ? batch->partial_count[item] * (size_t)worker->attend.partial_floats : worker->attend.q_width;
}

// Finds where the results of items go, if some of them get partials.
static void find_results(struct worker *worker, const struct attend_batch *batch, const struct attend_reply_parts *parts)
{
    float *o = parts->o, *partials = parts->partials;

    for (uint32_t item = 0; batch->partial_total && item < batch->row_count + batch->read_count; item++) {
        float **from = batch->partial_count[item] ? &partials : &o;
        worker->scratch.out[item] = *from;
        *from += result_floats(worker, batch, item);
    }
}

static float *result_of(const struct worker *worker, const struct attend_batch *batch, const struct attend_reply_parts *parts,
                        size_t item)
{
    return batch->partial_total ? worker->scratch.out[item] : parts->o + item * worker->attend.q_width;
}

static void clear_result(const struct worker *worker, const struct attend_batch *batch, const struct attend_reply_parts *parts,
                         uint32_t item)
{
    memset(result_of(worker, batch, parts, item), 0, result_floats(worker, batch, item) * sizeof *parts->o);
}

// Points the planned rows to their q, k and v and to where their results go. Results of lost items are zero.
static void point(struct worker *worker, const struct attend_batch *batch, const struct attend_request *request,
                  const struct attend_reply_parts *parts)
{
    find_results(worker, batch, parts);
    for (uint32_t i = 0; i < batch->lost_count; i++)
        clear_result(worker, batch, parts, batch->lost[i]);
    for (uint32_t i = 0; i < batch->lost_read_count; i++)
        clear_result(worker, batch, parts, batch->row_count + batch->lost_reads[i]);
    for (uint32_t i = 0; i < batch->kept_count; i++) {
        const size_t item = batch->kept[i];
        const bool reads = item >= batch->row_count;
        worker->scratch.q[i] = reads ? request->read_q + (item - batch->row_count) * worker->attend.q_width
                                     : request->q + item * worker->attend.q_width;
        worker->scratch.k[i] = reads ? NULL : request->k + item * worker->attend.kv_width;
        worker->scratch.v[i] = reads ? NULL : request->v + item * worker->attend.kv_width;
        worker->scratch.o[i] = result_of(worker, batch, parts, item);
    }
}

static void attend(struct worker *worker, struct rpc_call *call, struct attend_batch *batch, const struct attend_request *request)
{
    const struct attend_reply_form form = {.step = request->step,
                                           .layer = request->layer,
                                           .o_count = batch->o_count,
                                           .partial_count = batch->partial_total,
                                           .q_width = worker->attend.q_width,
                                           .partial_floats = worker->attend.partial_floats,
                                           .lost_count = batch->lost_count,
                                           .lost = batch->lost,
                                           .lost_read_count = batch->lost_read_count,
                                           .lost_reads = batch->lost_reads};
    struct attend_reply_parts parts;
    size_t size = attend_reply_size(&form);
    uint64_t began_us = clock_now_us(), began_ns;
    unsigned char *payload;
    struct rpc_buffer *reply = rpc_reply_buffer(call, size, &payload);

    if (!reply) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory for a reply of %zu bytes", size);
        return;
    }
    attend_reply_begin(payload, size, &form, &parts);
    point(worker, batch, request, &parts);
    began_ns = trace_clock(worker->tensors.track);
    uint64_t cpu_ns = worker->tensors.track ? clock_thread_ns()
                                            : 0; // with shared cores this is the time that attention itself takes
    if (request->sink_count)
        memcpy(worker->attend.sinks, request->sinks, request->sink_count * sizeof *worker->attend.sinks);
    kv_batch_sinks(batch->kv,
                   request->sink_count ? worker->attend.sinks
                                       : NULL); // a request before, whose rows were all lost, may have left its own
    if (batch->kept_count)
        kv_batch_attend(batch->kv, request->layer, worker->scratch.q, worker->scratch.k, worker->scratch.v, worker->scratch.o);
    trace_span(worker->tensors.track, "attend", began_ns, {"step", request->step}, {"layer", request->layer},
               {"rows", batch->kept_count}, {"cpu_us", (clock_thread_ns() - cpu_ns) / 1000});
    const uint32_t attend_us = (uint32_t)(clock_now_us() - began_us);
    wire_store_u32(parts.attend_us, attend_us);
    attend_spans_layer(&batch->spans, attend_us);
    if (request->layer + 1 == worker->attend.shape.layers) // first: the answer may end the request
        attend_spans_step(&worker->attend.spans, &batch->spans);
    rpc_call_reply_buffer(call, reply);
    if (request->layer + 1 == worker->attend.shape.layers) {
        batch->planned = false;
        attend_publish(worker);
    }
}

static void set_layers(struct worker *worker, uint32_t first, uint32_t count, uint64_t incarnation)
{
    for (uint32_t layer = first; layer < WORKER_LAYERS_MAX && layer - first < count; layer++)
        atomic_store_explicit(&worker->attend.s_part_incarnation[layer], incarnation, memory_order_relaxed);
}

void attend_set_stages(struct worker *worker, uint64_t incarnation, Fastdecode__Stage *const *stages, size_t count)
{
    if (count == 0)
        set_layers(worker, 0, WORKER_LAYERS_MAX, incarnation);
    for (size_t i = 0; i < count; i++)
        set_layers(worker, stages[i]->first_layer, stages[i]->layer_count, stages[i]->incarnation);
}

void attend_handler(struct rpc_call *call, void *user)
{
    struct worker *worker = user;
    struct attend_request request;
    struct error error;
    size_t length;
    uint64_t began_ns = trace_clock(worker->tensors.track);
    const unsigned char *payload = rpc_message_payload(rpc_call_message(call), &length);

    if (!worker->attend.store) {
        rpc_call_fail(call, STATUS_UNAVAILABLE, "no model is known here yet");
        return;
    }
    if (attend_request_parse(payload, length, WORKER_ROWS_MAX, worker->attend.q_width, worker->attend.kv_width, &request, &error)) {
        rpc_call_fail(call, error.status, "%s", error.text);
        return;
    }
    atomic_ullong *newest = &worker->attend.s_part_incarnation[MIN(request.layer, (uint32_t)WORKER_LAYERS_MAX - 1)];
    if (!member_caller_is(call, "s-part", request.incarnation, atomic_load_explicit(newest, memory_order_relaxed)))
        return;
    if (request.mini_batch >= WORKER_BATCHES_MAX || request.layer >= worker->attend.shape.layers) {
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "AttendRequest: mini-batch %u of %d or layer %u of %u out of range",
                      request.mini_batch, WORKER_BATCHES_MAX, request.layer, worker->attend.shape.layers);
        return;
    }
    if (request.sink_count && request.sink_count != worker->attend.shape.heads) {
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "AttendRequest: %u sinks, there are %u heads", request.sink_count,
                      worker->attend.shape.heads);
        return;
    }
    if (request.layer == 0 && check_items(worker, &request, &error)) {
        rpc_call_fail(call, error.status, "%s", error.text);
        return;
    }
    atomic_store_explicit(newest, request.incarnation, memory_order_relaxed);
    if (request.layer == 0 && request.scheduler && request.scheduler < worker->attend.scheduler) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "step %llu is of a scheduler that has been replaced",
                      (unsigned long long)request.step);
        return;
    }
    if (request.layer == 0 && request.step < worker->attend.over_before_step &&
        (!request.scheduler || request.scheduler == worker->attend.scheduler)) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "step %llu is over: the scheduler waits for step %llu and later ones",
                      (unsigned long long)request.step, (unsigned long long)worker->attend.over_before_step);
        return;
    }
    struct attend_batch *batch = &worker->attend.batches[request.mini_batch];
    if (request.layer == 0 && plan(worker, batch, &request, &error)) {
        rpc_call_fail(call, error.status, "%s", error.text);
        return;
    }
    if (request.layer == 0)
        attend_spans_begin(&worker->attend.spans, &batch->spans, &request);
    if (!batch->planned || batch->step != request.step || batch->row_count != request.row_count ||
        batch->read_count != request.read_count) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "step %llu is not under way here", (unsigned long long)request.step);
        return;
    }
    attend(worker, call, batch, &request); // ends the call: afterwards only the copied fields of the request are there
    trace_span(worker->tensors.track, "call", began_ns, {"step", request.step}, {"layer", request.layer},
               {"mini_batch", request.mini_batch}, {"rows", request.row_count});
}
