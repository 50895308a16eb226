// membership.c: what the scheduler is told of the s-part: the registration, with what the local pool holds, and heartbeats.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/mesh/messages.h"
#include "common/trace/otlp.h"
#include "services/s-part/s_part.h"

enum { END_TOKENS_MAX = 16 };

// A list of what the local pool holds, on its way from the engine's loop to the control loop.
struct held_list {
    struct s_part *s_part;
    struct kv_held *items;
    uint32_t count;
};

static uint32_t end_tokens(const struct model_tokenizer *t, uint32_t *tokens)
{
    const uint32_t candidates[] = {t->eos, t->eot, t->eom};
    uint32_t count = 0;
    for (size_t i = 0; i < ARRAY_COUNT(candidates); i++) {
        bool known = candidates[i] == MODEL_NO_TOKEN;
        for (uint32_t k = 0; k < count; k++)
            known |= tokens[k] == candidates[i];
        if (!known)
            tokens[count++] = candidates[i];
    }
    return count;
}

// Whether the local pool has pages, in the form in which workers take and give them.
static bool pages_are_workers(const struct s_part *s_part)
{
    const struct kv_shape kv = load_kv_shape(s_part);
    uint64_t bytes = engine_page_bytes(&s_part->engine);
    return bytes && bytes == kv_page_bytes(&kv);
}

// The messages of a registration: they point at each other, and at `held`.
struct registration {
    Fastdecode__RegisterRequest request;
    Fastdecode__ModelInfo info;
    struct kv_shape shape;
    Fastdecode__KvShape kv; // borrows it
    uint32_t ends[END_TOKENS_MAX];
    Fastdecode__SamplingFeature features[FEATURES_MAX];
    char name[256];
};

static void fill_model(const struct s_part *s_part, struct registration *r)
{
    const struct model *model = s_part->loaded.model;

    r->shape = load_kv_shape(s_part);
    messages_from_kv_shape(&r->shape, &r->kv);
    fastdecode__model_info__init(&r->info);
    snprintf(r->name, sizeof r->name, "%.*s", (int)MIN(model->name.length, sizeof r->name - 1), model->name.data);
    r->info.name = r->name;
    r->info.vocab = model->shape.vocab;
    r->info.context_tokens = s_part->settings.context;
    r->info.n_end_token = end_tokens(&model->tokenizer, r->ends);
    r->info.end_token = r->ends;
    r->info.fingerprint = model->fingerprint;
    r->info.kv = &r->kv;
}

static void fill_registration(struct s_part *s_part, struct registration *r)
{
    Fastdecode__RegisterRequest *request = &r->request;
    const uint32_t features = FEATURES_OURS & ~(s_part->loaded.pooling.kind == MODEL_POOL_NONE ? (uint32_t)FEATURES_POOLING : 0u);

    fill_model(s_part, r);
    fastdecode__register_request__init(request);
    request->kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_S_PART;
    request->control_address = s_part->server.address;
    request->tensor_address = s_part->server.tensor_address;
    request->pool_kv = pages_are_workers(s_part) ? &r->kv : NULL;
    request->model = &r->info;
    request->kv_bytes = s_part->settings.local_pool;
    request->pages_total = s_part->loaded.plan.pool_pages;
    request->numeric_level = s_part->loaded.level;
    request->one_kind_of_place = s_part->settings.batch_invariant && s_part->loaded.plan.pool_on_device;
    request->rows_alike = s_part->loaded.plan.rows_alike;
    // sparse rows choose among all of their context; the part of a window that lies elsewhere is not known; partials have no sinks
    request->takes_extents = s_part->settings.sparse_percent == 0 && s_part->loaded.model->shape.window == 0 &&
                             !s_part->loaded.model->sinks_made;
    request->pool_takes_extents = request->takes_extents && s_part->engine.ops->pool_reads != NULL;
    request->on_device = s_part->loaded.device.ops != &backend_cpu;
    request->max_rows = s_part->settings.max_rows;
    request->mini_batches = s_part->settings.mini_batches;
    request->takes_aside = s_part_takes_aside(s_part);
    request->threads = thread_pool_threads(s_part->pool);
    request->first_layer = s_part->settings.first_layer;
    request->layer_count = s_part->settings.layer_count;
    request->sampling_feature = r->features;
    request->n_sampling_feature = features_list(features, r->features);
    if (s_part->loaded.calibration.done) {
        request->calibration = &s_part->loaded.calibration.message;
        request->kv_costs = &s_part->loaded.calibration.kv_message;
    }
}

static void free_list(struct held_list *list)
{
    free(list->items);
    free(list);
}

// On the control loop.
static void send_registration(void *arg)
{
    struct held_list *list = arg;
    struct registration registration;
    struct messages_held held;

    list->s_part->control.listing = false;
    if (!list->items || messages_held_open(list->count, &held)) {
        log_warn("NO-MEMORY", "what=\"the list of %u sequences held; registering again\"", list->count);
        free_list(list);
        return;
    }
    for (uint32_t i = 0; i < held.count; i++)
        messages_held_set(&held, i, &list->items[i]);
    fill_registration(list->s_part, &registration);
    registration.request.n_held = held.count;
    registration.request.held = held.pointers;
    member_register(list->s_part->control.member, &registration.request);
    messages_held_close(&held);
    free_list(list);
}

// On the engine's loop.
static void list_held(void *arg)
{
    struct held_list *list = arg;
    const struct engine *engine = &list->s_part->engine;
    uint32_t listed = 0;

    list->count = engine->ops->pool_held(engine->backend, NULL, 0);
    list->items = calloc(list->count + 1u, sizeof *list->items);
    if (list->items)
        listed = engine->ops->pool_held(engine->backend, list->items, list->count);
    list->count = list->items ? MIN(list->count, listed) : list->count;
    rpc_loop_post(list->s_part->control.loop, send_registration, list);
}

static void on_connect(void *user)
{
    struct s_part *s_part = user;
    struct held_list *list;

    if (s_part->control.listing) // the engine's thread is busy and has not come to it yet
        return;
    list = calloc(1, sizeof *list);
    if (!list) {
        log_warn("NO-MEMORY", "what=\"the list of sequences held; registering again\"");
        return;
    }
    list->s_part = s_part;
    s_part->control.listing = true;
    rpc_loop_post(s_part->engine.loop, list_held, list);
}

// On the engine's loop. The list of what is held, and with it the registration, comes behind.
static void take_incarnation(void *arg)
{
    struct s_part *s_part = arg;
    s_part->engine.incarnation = s_part->incarnation;
    s_part->engine.pool.handover.hello.incarnation = s_part->incarnation;
    rpc_server_set_incarnation(s_part->server.rpc, s_part->incarnation);
}

static void on_incarnation(void *user, uint64_t incarnation)
{
    struct s_part *s_part = user;
    s_part->incarnation = incarnation;
    rpc_loop_post(s_part->engine.loop, take_incarnation, s_part);
}

static void on_registered(void *user, const Fastdecode__RegisterReply *reply)
{
    struct s_part *s_part = user;
    atomic_store_explicit(&s_part->engine.scheduler_incarnation, reply->scheduler_incarnation, memory_order_relaxed);
    rpc_loop_post(s_part->engine.loop, engine_forget_older, &s_part->engine);
    log_info("REGISTERED", "scheduler=%s", s_part->settings.scheduler);
}

static void fill_heartbeat(void *user, Fastdecode__HeartbeatRequest *heartbeat)
{
    const struct s_part *s_part = user;
    const struct engine *engine = &s_part->engine;

    heartbeat->compute_turns = atomic_load_explicit(&engine->counters.progress, memory_order_relaxed);
    heartbeat->pages_used = atomic_load_explicit(&engine->counters.pages_used, memory_order_relaxed);
    heartbeat->pages_peak = atomic_load_explicit(&engine->counters.pages_peak, memory_order_relaxed);
    heartbeat->kv_bytes_read = atomic_load_explicit(&engine->counters.kv_bytes_read, memory_order_relaxed);
    heartbeat->streamed_bytes = atomic_load_explicit(&engine->counters.streamed_bytes, memory_order_relaxed);
    heartbeat->streamed_segments = atomic_load_explicit(&engine->counters.streamed_segments, memory_order_relaxed);
    heartbeat->busy_us = atomic_load_explicit(&engine->counters.busy_us, memory_order_relaxed);
    const struct otlp_counts spans = otlp_counts(engine->traces.otlp);
    heartbeat->spans_exported = spans.exported;
    heartbeat->spans_dropped = spans.dropped;
    const struct rpc_tls_expiry expiry = rpc_tls_expiry(s_part->security.tls);
    heartbeat->certificate_expires_s = expiry.certificate_s;
    heartbeat->ca_expires_s = expiry.ca_s;
    heartbeat->log_lines_lost = log_lines_lost();
    heartbeat->rows = atomic_load_explicit(&engine->counters.rows_done, memory_order_relaxed);
}

enum status membership_open(struct s_part *s_part, struct error *error)
{
    const struct member_config config = {
        .scheduler = s_part->settings.scheduler,
        .hello = {.service = "s-part", .incarnation = s_part->incarnation},
        .name = s_part->settings.name,
        .on_connect = on_connect,
        .on_registered = on_registered,
        .on_incarnation = on_incarnation,
        .fill_heartbeat = fill_heartbeat,
        .user = s_part,
    };
    return member_open(s_part->control.loop, &config, &s_part->control.member, error);
}
