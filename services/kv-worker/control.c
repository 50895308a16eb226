// control.c: the control thread: membership, Free, Held, Fetch. Whatever touches the store is posted to the tensor thread,
// and its outcome is posted back.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/mesh/messages.h"
#include "services/kv-worker/worker.h"

enum { OPEN_AGAIN_US = 1000000 };

// A job for the tensor thread, and its answer.
struct job {
    struct worker *worker;
    struct rpc_call *call; // NULL: it is for a registration
    uint64_t *sequences;   // to free, then those that are over; owned
    uint32_t count, ended_count;
    uint64_t over_before_step; // as in FreeRequest and RegisterReply
    uint64_t scheduler;        // incarnation of the one that it is registered with
    struct kv_held *held;      // what is held; owned
    uint32_t held_count;
    uint64_t pages_free, pages_total, steps_begun;
    struct kv_shape shape; // to open the store with; or of the store
    struct kv_costs costs; // of the store; token_us 0: not known
    bool failed, opened;   // opened: the store, with `shape`
    struct error error;
};

// NULL: no memory, and the call, if there is one, has been ended.
static struct job *new_job(struct worker *worker, struct rpc_call *call)
{
    struct job *job = calloc(1, sizeof *job);

    if (job)
        *job = (struct job){.worker = worker, .call = call};
    else if (call)
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory");
    else
        log_warn("NO-MEMORY", "what=\"a job for the tensor thread; registering again\"");
    return job;
}

static void free_job(struct job *job)
{
    free(job->sequences);
    free(job->held);
    free(job);
}

// --- Free ---

static void freed(void *arg)
{
    struct job *job = arg;
    Fastdecode__FreeReply reply = FASTDECODE__FREE_REPLY__INIT;
    reply.pages_free = job->pages_free;
    reply.steps_begun = job->steps_begun;
    rpc_call_reply(job->call, &reply.base);
    free_job(job);
}

static void do_free(void *arg)
{
    struct job *job = arg;
    struct kv_store *store = job->worker->attend.store;
    job->worker->attend.over_before_step = MAX(job->worker->attend.over_before_step, job->over_before_step);
    for (uint32_t i = 0; store && i < job->count; i++) {
        if (job->sequences[i] == 0) // nobody's, and how a batch marks what it has lost
            continue;
        handover_drop(&job->worker->handover, job->sequences[i]);
        attend_free(job->worker, job->sequences[i]);
    }
    for (uint32_t i = 0; i < job->count + job->ended_count; i++)
        attend_spans_end(&job->worker->attend.spans, job->sequences[i]);
    if (store) {
        job->pages_free = kv_store_pages_total(store) - kv_store_pages_used(store);
        attend_publish(job->worker);
    }
    job->steps_begun = job->worker->attend.steps_begun;
    rpc_loop_post(job->worker->control.loop, freed, job);
}

static void free_handler(struct rpc_call *call, void *user)
{
    struct worker *worker = user;
    Fastdecode__FreeRequest *request = rpc_call_unpack(call, &fastdecode__free_request__descriptor);
    if (!request || !member_caller_is(call, "scheduler", request->scheduler_incarnation, worker->control.scheduler_incarnation))
        return;
    struct job *job = new_job(worker, call);
    if (!job)
        return;
    job->count = (uint32_t)request->n_sequence;
    job->ended_count = (uint32_t)request->n_ended;
    job->over_before_step = request->over_before_step;
    job->sequences = malloc((request->n_sequence + request->n_ended + 1) * sizeof *job->sequences);
    if (!job->sequences) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory");
        free_job(job);
        return;
    }
    for (size_t i = 0; i < request->n_sequence; i++)
        job->sequences[i] = request->sequence[i];
    for (size_t i = 0; i < request->n_ended; i++)
        job->sequences[request->n_sequence + i] = request->ended[i];
    rpc_loop_post(worker->tensors.loop, do_free, job);
}

// --- Held, and what is told at registration ---

// RESOURCE_EXHAUSTED: no memory; nothing to close.
static enum status held_messages(const struct job *job, struct messages_held *out)
{
    if (job->failed || messages_held_open(job->held_count, out))
        return STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t i = 0; i < out->count; i++)
        messages_held_set(out, i, &job->held[i]);
    return STATUS_OK;
}

static void send_registration(struct job *job)
{
    struct worker *worker = job->worker;
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;
    Fastdecode__KvShape shape;
    Fastdecode__KvCosts costs;
    struct messages_held held;

    if (held_messages(job, &held)) {
        log_warn("NO-MEMORY", "what=\"the list of %u sequences held; registering again\"", job->held_count);
        return;
    }
    request.kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_KV_WORKER;
    request.control_address = worker->control_address;
    request.tensor_address = worker->tensor_address;
    request.kv_bytes = worker->settings.kv_memory;
    request.pages_total = job->pages_total;
    request.steps_begun = job->steps_begun;
    request.n_held = held.count;
    request.held = held.pointers;
    request.kv_bytes_per_second = worker->bytes_per_second;
    request.threads = thread_pool_threads(worker->pool);
    request.shares_cores = worker->settings.shares_cores;
    if (job->costs.token_us > 0) {
        messages_from_kv_costs(&job->costs, &costs);
        request.kv_costs = &costs;
    }
    if (request.pages_total) {
        messages_from_kv_shape(&job->shape, &shape);
        request.kv = &shape;
    }
    member_register(worker->control.member, &request);
    messages_held_close(&held);
}

static void held_listed(void *arg)
{
    struct job *job = arg;
    if (job->call) {
        Fastdecode__HeldReply reply = FASTDECODE__HELD_REPLY__INIT;
        struct messages_held held;
        if (held_messages(job, &held)) {
            rpc_call_fail(job->call, STATUS_RESOURCE_EXHAUSTED, "no memory for a list of %u sequences", job->held_count);
        } else {
            reply.n_held = held.count;
            reply.held = held.pointers;
            rpc_call_reply(job->call, &reply.base);
            messages_held_close(&held);
        }
    } else {
        job->worker->control.listing = false;
        send_registration(job);
    }
    free_job(job);
}

static void list_held(void *arg)
{
    struct job *job = arg;
    struct worker *worker = job->worker;
    uint32_t cursor = 0, capacity = 0;
    struct kv_held item;

    job->shape = worker->attend.shape;
    job->costs = worker->attend.costs;
    job->steps_begun = worker->attend.steps_begun;
    job->pages_total = worker->attend.store ? kv_store_pages_total(worker->attend.store) : 0;
    while (worker->attend.store && !job->failed && kv_store_next(worker->attend.store, &cursor, &item)) {
        if (job->held_count == capacity) {
            struct kv_held *grown = realloc(job->held, (capacity = capacity ? capacity * 2 : 64) * sizeof *grown);
            if (!grown) {
                job->failed = true; // a list with gaps would leave what it leaves out to nobody
                break;
            }
            job->held = grown;
        }
        job->held[job->held_count++] = item;
    }
    rpc_loop_post(worker->control.loop, held_listed, job);
}

static void held_handler(struct rpc_call *call, void *user)
{
    struct worker *worker = user;
    if (!rpc_call_unpack(call, &fastdecode__held_request__descriptor) ||
        !member_caller_is(call, "scheduler", rpc_call_peer(call)->incarnation, 0))
        return;
    struct job *job = new_job(worker, call);
    if (job)
        rpc_loop_post(worker->tensors.loop, list_held, job);
}

static void on_connect(void *user)
{
    struct worker *worker = user;
    struct job *job =
        worker->control.listing ? NULL : new_job(worker, NULL); // listing: the tensor thread has not come to it yet, or hangs

    if (!job)
        return; // it is asked for again, as long as the scheduler has not answered
    worker->control.listing = true;
    rpc_loop_post(worker->tensors.loop, list_held, job);
}

// --- the shape, once the scheduler knows it ---

// The reason that keeps it from being opened may go away (others take the memory), or come from the scheduler, whose next word may be another: the worker
// beats without pages, which the scheduler answers with the shape, and tries again.
static void note_failure(struct worker *worker, const struct error *error)
{
    worker->control.not_opened = *error;
    memory_note_address_space(&worker->control.not_opened);
    error = &worker->control.not_opened;
    worker->control.open_from_us = clock_now_us() + OPEN_AGAIN_US;
    if (repeat_is_due(&worker->control.open_failures, clock_now_us(), error->text))
        log_error("KV-STORE-NOT-OPENED", "error=\"%s\" times=%u what=\"trying again; it has no pages until then\"", error->text,
                  worker->control.open_failures.count);
}

static void store_opened(void *arg)
{
    struct job *job = arg;
    struct worker *worker = job->worker;

    if (job->failed) {
        note_failure(worker, &job->error);
    } else if (job->opened) {
        worker->control.not_opened.text[0] = '\0';
        worker->control.open_failures = (struct repeat){0};
        log_info("KV-STORE", "pages=%llu page_bytes=%llu kv_memory=%llu",
                 (unsigned long long)atomic_load_explicit(&worker->counters.pages_total, memory_order_relaxed),
                 (unsigned long long)kv_page_bytes(&job->shape), (unsigned long long)worker->settings.kv_memory);
        on_connect(worker); // register again, with pages
    }
    free_job(job);
}

static void open_store(void *arg)
{
    struct job *job = arg;
    struct worker *worker = job->worker;

    if (worker->attend.store && !kv_same_shape(&worker->attend.shape, &job->shape)) {
        log_warn("KV-SHAPE-CHANGED", "what=\"the model is another one: what is held is dropped\"");
        handover_drop_all(&worker->handover);
        attend_close(worker);
    }
    if (!worker->attend.store) {
        job->failed = attend_open(worker, &job->shape, &job->error) != STATUS_OK;
        job->opened = !job->failed;
    }
    rpc_loop_post(worker->control.loop, store_opened, job);
}

// On the tensor loop, behind what the scheduler before has asked for. Each counts steps from 1.
static void take_scheduler(void *arg)
{
    struct job *job = arg;
    struct attention *attend = &job->worker->attend;

    attend->over_before_step = attend->scheduler == job->scheduler ? MAX(attend->over_before_step, job->over_before_step)
                                                                   : job->over_before_step;
    attend->scheduler = job->scheduler;
    free_job(job);
}

static void tell_scheduler(struct worker *worker, const Fastdecode__RegisterReply *reply)
{
    struct job *job = new_job(worker, NULL);

    if (!job)
        return;
    job->scheduler = reply->scheduler_incarnation;
    job->over_before_step = reply->over_before_step;
    rpc_loop_post(worker->tensors.loop, take_scheduler, job);
}

static void on_registered(void *user, const Fastdecode__RegisterReply *reply)
{
    struct worker *worker = user;
    const Fastdecode__KvShape *kv = reply->kv;
    struct error error;

    tell_scheduler(worker, reply);
    worker->control.scheduler_incarnation = reply->scheduler_incarnation;
    if (!kv || atomic_load_explicit(&worker->counters.pages_total, memory_order_relaxed))
        log_info("REGISTERED", "scheduler=%s shape_known=%d", worker->settings.scheduler, kv != NULL);
    if (!kv || clock_now_us() < worker->control.open_from_us)
        return; // the scheduler has no s-part yet; it asks to register again when it has
    const struct kv_shape shape = messages_to_kv_shape(kv, WORKER_SEQUENCES_MAX);
    if (!kv_page_bytes(&shape)) {
        error_set(
            &error, STATUS_INVALID_ARGUMENT,
            "the scheduler names a shape that cannot be: layers %u, heads %u, KV heads %u of %u, page_tokens %u, type %d, context %u, "
            "sparse %u%%",
            kv->layers, kv->heads, kv->kv_heads, kv->head_dim, kv->page_tokens, (int)kv->type, kv->context_tokens,
            kv->sparse_percent);
        note_failure(worker, &error);
        return;
    }
    struct job *job = new_job(worker, NULL);
    if (!job)
        return;
    job->shape = shape;
    rpc_loop_post(worker->tensors.loop, open_store, job);
}

// On the tensor loop. The list of what is held, and with it the registration, comes behind.
static void take_incarnation(void *arg)
{
    struct worker *worker = arg;
    worker->handover.hello.incarnation = worker->incarnation;
    rpc_server_set_incarnation(worker->tensors.server, worker->incarnation);
}

static void on_incarnation(void *user, uint64_t incarnation)
{
    struct worker *worker = user;
    worker->incarnation = incarnation;
    rpc_server_set_incarnation(worker->control.server, incarnation);
    rpc_loop_post(worker->tensors.loop, take_incarnation, worker);
}

static void on_s_part(void *user, uint64_t incarnation)
{
    struct worker *worker = user;
    worker->control.told_incarnation = incarnation; // on_stages() comes next
}

static void on_stages(void *user, Fastdecode__Stage *const *stages, size_t count)
{
    struct worker *worker = user;
    attend_set_stages(worker, worker->control.told_incarnation, stages, count);
}

static void fill_heartbeat(void *user, Fastdecode__HeartbeatRequest *heartbeat)
{
    struct worker *worker = user;
    heartbeat->compute_turns = atomic_load_explicit(&worker->counters.progress, memory_order_relaxed);
    heartbeat->pages_used = atomic_load_explicit(&worker->counters.pages_used, memory_order_relaxed);
    heartbeat->pages_peak = atomic_load_explicit(&worker->counters.pages_peak, memory_order_relaxed);
    heartbeat->kv_bytes_read = atomic_load_explicit(&worker->counters.kv_bytes_read, memory_order_relaxed);
    heartbeat->busy_us = atomic_load_explicit(&worker->counters.busy_us, memory_order_relaxed);
    heartbeat->rows = atomic_load_explicit(&worker->counters.rows_done, memory_order_relaxed);
    const struct otlp_counts spans = otlp_counts(worker->attend.spans.otlp);
    heartbeat->spans_exported = spans.exported;
    heartbeat->spans_dropped = spans.dropped;
    const struct rpc_tls_expiry expiry = rpc_tls_expiry(worker->control.security.tls);
    heartbeat->certificate_expires_s = expiry.certificate_s;
    heartbeat->ca_expires_s = expiry.ca_s;
    heartbeat->log_lines_lost = log_lines_lost();
}

// --- Fetch ---

static void fetch_handler(struct rpc_call *call, void *user)
{
    struct worker *worker = user;
    const Fastdecode__FetchRequest *request = rpc_call_unpack(call, &fastdecode__fetch_request__descriptor);

    if (request && member_caller_is(call, "scheduler", request->scheduler_incarnation, worker->control.scheduler_incarnation))
        handover_fetch(&worker->handover, call, request);
}

// --- start and end ---

static bool ready(void *user, char *reason, size_t reason_bytes)
{
    struct worker *worker = user;
    bool ok = atomic_load_explicit(&worker->counters.pages_total, memory_order_relaxed) &&
              member_is_registered(worker->control.member);
    if (!ok && worker->control.not_opened.text[0])
        snprintf(reason, reason_bytes, "its pages cannot be opened: %s", worker->control.not_opened.text);
    else if (!ok)
        snprintf(reason, reason_bytes, "not registered with the scheduler at %s, or it has no model yet",
                 worker->settings.scheduler);
    return ok;
}

enum status control_advertise(struct worker *worker, const char *listening, struct error *error)
{
    const struct member_address address = {.given = worker->settings.advertise,
                                           .listening = listening,
                                           .scheduler = worker->settings.scheduler,
                                           .option = "advertise"};
    return member_advertise(&address, worker->control_address, sizeof worker->control_address, error);
}

enum status control_open(struct worker *worker, struct error *error)
{
    const struct rpc_method methods[] = {
        {.service = &fastdecode__kv_control__descriptor, .method = "Free", .handler = free_handler, .user = worker},
        {.service = &fastdecode__kv_control__descriptor, .method = "Held", .handler = held_handler, .user = worker},
        {.service = &fastdecode__kv_control__descriptor, .method = "Fetch", .handler = fetch_handler, .user = worker},
    };
    const struct rpc_hello hello = {.service = "kv-worker", .incarnation = worker->incarnation};
    const struct rpc_server_config config = {
        .addresses = &worker->settings.listen,
        .address_count = 1,
        .hello = hello,
        .methods = methods,
        .method_count = sizeof methods / sizeof methods[0],
        .ready = ready,
        .user = worker,
    };
    worker->handover = (struct handover){.pages = &worker_pages,
                                         .user = worker,
                                         .control_loop = worker->control.loop,
                                         .tensor_loop = worker->tensors.loop,
                                         .hello = hello};
    enum status status = rpc_server_open(worker->control.loop, &config, &worker->control.server, error);

    if (status)
        return status;
    if ((status = control_advertise(worker, rpc_server_address(worker->control.server, 0), error)))
        return status;
    const struct member_config member = {
        .scheduler = worker->settings.scheduler,
        .hello = hello,
        .name = worker->settings.name,
        .on_connect = on_connect,
        .on_registered = on_registered,
        .on_incarnation = on_incarnation,
        .on_s_part = on_s_part,
        .on_stages = on_stages,
        .fill_heartbeat = fill_heartbeat,
        .user = worker,
    };
    return member_open(worker->control.loop, &member, &worker->control.member, error);
}

void control_close(struct worker *worker)
{
    member_close(worker->control.member);
    rpc_server_close(worker->control.server);
}

static void on_drained(void *user)
{
    struct worker *worker = user;
    worker->control.drained = true;
}

void control_drain(struct worker *worker)
{
    worker->control.draining = true;
    log_info("DRAINING", "pages_used=%llu",
             (unsigned long long)atomic_load_explicit(&worker->counters.pages_used, memory_order_relaxed));
    member_drain(worker->control.member, on_drained, worker);
}
