// mesh.c: see mesh.h.
//
// One channel. When it comes up a Watch stream is opened on it; the state is what that stream said last, and "away" as
// soon as channel or stream ends. The state is copied under a mutex for other threads.
//
//   channel down ──on_up──▶ watching ──MeshState──▶ up (ready or not; not ready after SILENT_US without another)
//        ▲                     │ stream ended: again after WATCH_AGAIN_US; SILENCES_MAX times SILENT_US without a state: dialed anew
//        └──────on_down────────┘
#include "services/gateway/mesh/mesh.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/kv/kv_type.h"
#include "common/mesh/messages.h"
#include "common/rpc/rpc.h"
#include "services/gateway/http/json_write.h"

// Values from the scheduler are written as numbers and escaped strings, so it is JSON whatever it says.

static void name_of(struct text *out, const char *name)
{
    text_format(out, out->bytes && out->data[out->bytes - 1] != '{' ? ",\"%s\":" : "\"%s\":", name);
}

static void add_count(struct text *out, const char *name, uint64_t value)
{
    name_of(out, name);
    text_format(out, "%llu", (unsigned long long)value);
}

static void add_number(struct text *out, const char *name, double value)
{
    name_of(out, name);
    text_format(out, "%.9g", isfinite(value) ? value : 0.0);
}

static void add_bool(struct text *out, const char *name, bool value)
{
    name_of(out, name);
    text_string(out, value ? "true" : "false");
}

static void add_string(struct text *out, const char *name, const char *value)
{
    name_of(out, name);
    text_json_string(out, value ? value : "");
}

static void add_counts(struct text *out, const char *name, const uint64_t *values, size_t count)
{
    name_of(out, name);
    text_string(out, "[");
    for (size_t i = 0; i < count; i++)
        text_format(out, i ? ",%llu" : "%llu", (unsigned long long)values[i]);
    text_string(out, "]");
}

// A list of objects, each written by add().
#define ADD_LIST(out, name, items, count, add) \
    do {                                       \
        name_of(out, name);                    \
        text_string(out, "[");                 \
        for (size_t i = 0; i < (count); i++) { \
            text_string(out, i ? ",{" : "{");  \
            add(out, (items)[i]);              \
            text_string(out, "}");             \
        }                                      \
        text_string(out, "]");                 \
    } while (0)

static void add_place(struct text *out, const Fastdecode__PlaceView *place)
{
    add_count(out, "index", place->index);
    add_string(out, "name", place->name);
    add_string(out, "kind", place->kind == FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL ? "local_pool" : "kv_worker");
    add_bool(out, "up", place->up);
    add_bool(out, "draining", place->draining);
    add_bool(out, "shares_cores", place->shares_cores);
    add_count(out, "pages_used", place->pages_used);
    add_count(out, "pages_cached", place->pages_cached);
    add_count(out, "pages_total", place->pages_total);
    add_count(out, "sequences", place->sequences);
    add_counts(out, "load_tokens", place->load_tokens, place->n_load_tokens);
    add_number(out, "token_us", place->token_us);
    add_count(out, "attend_us", place->attend_us);
    add_count(out, "tokens_read", place->tokens_read);
    add_count(out, "times_lost", place->times_lost);
    add_count(out, "silent_ms", place->silent_ms);
}

static void add_stage(struct text *out, const Fastdecode__StageView *stage)
{
    add_string(out, "name", stage->name);
    add_bool(out, "up", stage->up);
    add_count(out, "first_layer", stage->first_layer);
    add_count(out, "layer_count", stage->layer_count);
    add_string(out, "numeric_level", stage->numeric_level);
    add_count(out, "busy_us", stage->busy_us);
    add_count(out, "waiting_us", stage->waiting_us);
    add_count(out, "silent_ms", stage->silent_ms);
}

static void add_place_time(struct text *out, const Fastdecode__PlaceTime *time)
{
    add_count(out, "index", time->worker);
    add_count(out, "r_part_us", time->r_part_us);
    add_count(out, "attend_us", time->attend_us);
    add_count(out, "tokens_read", time->tokens_read);
}

static void add_step(struct text *out, const Fastdecode__StepView *step)
{
    add_count(out, "step", step->step);
    add_count(out, "mini_batch", step->mini_batch);
    add_count(out, "sent_us", step->sent_us);
    add_count(out, "answered_us", step->answered_us);
    add_count(out, "decode_rows", step->decode_rows);
    add_count(out, "prompt_rows", step->prompt_rows);
    add_count(out, "total_us", step->total_us);
    add_count(out, "s_part_us", step->s_part_us);
    add_count(out, "r_part_us", step->r_part_us);
    ADD_LIST(out, "places", step->places, step->n_places, add_place_time);
}

static const char *event_name(Fastdecode__EventKind kind)
{
    static const char *const names[] = {"unknown", "started", "joined", "back", "drains", "drained", "left", "down"};
    return (size_t)kind < ARRAY_COUNT(names) ? names[kind] : names[0];
}

static void add_event(struct text *out, const Fastdecode__EventView *event)
{
    add_count(out, "number", event->number);
    add_count(out, "time_us", event->time_us);
    add_string(out, "kind", event_name(event->kind));
    add_string(out, "name", event->name);
    add_string(out, "why", event->why);
}

static void add_plan(struct text *out, const Fastdecode__PlanView *plan)
{
    add_count(out, "batch", plan->batch);
    add_count(out, "workers", plan->workers);
    add_count(out, "mini_batches", plan->mini_batches);
    add_count(out, "prompt_tokens", plan->prompt_tokens);
    add_count(out, "generated_tokens", plan->generated_tokens);
    add_number(out, "tokens_per_second", plan->tokens_per_second);
    add_number(out, "step_us", plan->step_us);
    add_number(out, "s_part_busy", plan->s_part_busy);
    add_number(out, "r_part_busy", plan->r_part_busy);
    add_number(out, "s_part_layer_us", plan->s_part_layer_us);
    add_number(out, "r_part_layer_us", plan->r_part_layer_us);
    add_string(out, "bound_by", plan->bound_by);
}

static void add_head(struct text *out, const Fastdecode__MeshView *view)
{
    char id[24];

    snprintf(id, sizeof id, "%llx", (unsigned long long)view->scheduler_incarnation);
    add_string(out, "scheduler_incarnation", id);
    add_count(out, "now_us", view->now_us);
    add_count(out, "wall_us", view->wall_us);
    add_count(out, "up_us", view->up_us);
    add_string(out, "model", view->model);
    add_count(out, "layers", view->layers);
    add_count(out, "page_tokens", view->page_tokens);
    add_string(out, "kv_type",
               view->kv_type && (int)view->kv_type < (int)KV_TYPE_END ? kv_type_name((enum kv_type)view->kv_type) : "");
    add_count(out, "mini_batches", view->mini_batches);
    add_counts(out, "load_limit_tokens", view->load_limit_tokens, view->n_load_limit_tokens);
    add_count(out, "running", view->running);
    add_count(out, "waiting", view->waiting);
    add_count(out, "running_batch", view->running_batch);
    add_count(out, "waiting_batch", view->waiting_batch);
    add_count(out, "max_queue", view->max_queue);
    add_count(out, "predicted_wait_ms", view->predicted_wait_ms);
    add_count(out, "steps_in_flight", view->steps_in_flight);
    add_count(out, "steps", view->steps);
    add_count(out, "steps_failed", view->steps_failed);
    add_count(out, "generated_tokens", view->generated_tokens);
    add_count(out, "prompt_rows", view->prompt_rows);
    add_count(out, "decode_rows", view->decode_rows);
    add_count(out, "wasted_rows", view->wasted_rows);
    add_count(out, "sequences_finished", view->sequences_finished);
    add_count(out, "sequences_rebuilt", view->sequences_rebuilt);
    add_count(out, "sequences_moved", view->sequences_moved);
    add_count(out, "sequences_preempted", view->sequences_preempted);
    add_count(out, "predicted_us", view->predicted_us);
    add_count(out, "measured_us", view->measured_us);
    add_number(out, "prediction_error_ratio", view->prediction_error_ratio);
}

char *mesh_view_json(const Fastdecode__MeshView *view)
{
    struct text out = {0};

    text_string(&out, "{");
    add_head(&out, view);
    name_of(&out, "plan");
    if (view->plan) {
        text_string(&out, "{");
        add_plan(&out, view->plan);
        text_string(&out, "}");
    } else {
        text_string(&out, "null");
    }
    ADD_LIST(&out, "stages", view->stages, view->n_stages, add_stage);
    ADD_LIST(&out, "places", view->places, view->n_places, add_place);
    ADD_LIST(&out, "recent_steps", view->recent_steps, view->n_recent_steps, add_step);
    ADD_LIST(&out, "events", view->events, view->n_events, add_event);
    text_append(&out, "}", 2); // terminated
    if (!out.failed)
        return out.data;
    text_free(&out);
    return NULL;
}

typedef char *mesh_read_fn(struct rpc_message *message); // returns a text that the caller frees; NULL: there is none

// The scheduler says its state once a second at least.
enum {
    SILENT_US = 4000000,
    SILENCES_MAX = 3,
    WATCH_AGAIN_US = 200000,
    RUN_US = 1000000,
    DEADLINE_SLACK_MS = 2000,
    DRAIN_ROUNDS = 1000,
    EXPECT_TIMEOUT_MS = 1000
};

struct mesh_call {
    struct mesh *mesh;
    struct mesh_listener listener;
    struct rpc_handle handle;
    bool quiet; // cancelled: the listener is not called any more
};

struct mesh_asked {
    mesh_read_fn *read;
    mesh_text_fn *done;
    void *arg;
    char *text;
};

struct mesh {
    struct mesh_config config;
    pthread_t thread;
    bool has_thread;
    struct rpc_security security;
    struct rpc_loop *loop;
    // loop thread
    struct rpc_channel *channel;
    struct rpc_server *server;
    bool stop, closing;
    atomic_bool expecting;               // a call of Expect is under way
    uint64_t watch_timer, silence_timer; // 0: not set
    uint32_t silences;                   // how often SILENT_US have passed since the latest state
    // how starting went: written by the loop thread, read by mesh_start(), under mutex
    bool started;
    struct error start_error;
    pthread_cond_t start_done;

    pthread_mutex_t mutex;
    struct mesh_state state; // under mutex
};

// --- state --------------------------------------------------------------------------------------------------------
void mesh_state(struct mesh *mesh, struct mesh_state *out)
{
    pthread_mutex_lock(&mesh->mutex);
    *out = mesh->state;
    pthread_mutex_unlock(&mesh->mutex);
}

static void set_state(struct mesh *mesh, const struct mesh_state *state)
{
    bool turned;

    pthread_mutex_lock(&mesh->mutex);
    turned = mesh->state.ready != state->ready || mesh->state.up != state->up;
    mesh->state = *state;
    pthread_mutex_unlock(&mesh->mutex);
    if (turned)
        log_info("MESH-STATE", "up=%d ready=%d", state->up, state->ready);
    if (!mesh->closing)
        mesh->config.changed(mesh->config.arg);
}

static void set_away(struct mesh *mesh)
{
    struct mesh_state away = {0};
    set_state(mesh, &away);
}

static void on_silence(void *arg);

static void expect_state(struct mesh *mesh)
{
    if (mesh->silence_timer)
        rpc_loop_cancel_timer(mesh->loop, mesh->silence_timer);
    mesh->silence_timer = rpc_loop_timer(mesh->loop, SILENT_US, on_silence, mesh);
}

// The scheduler may be stopped, or its host gone. Running requests wait for it, new ones are refused after a while. One that stays silent is
// dialed anew: another may be there by now.
static void on_silence(void *arg)
{
    struct mesh *mesh = arg;
    struct mesh_state state;

    mesh->silence_timer = 0;
    if (!rpc_channel_is_up(mesh->channel))
        return; // on_up starts over
    expect_state(mesh);
    if (++mesh->silences >= SILENCES_MAX) {
        rpc_channel_reconnect(mesh->channel, "the scheduler says nothing");
        return;
    }
    mesh_state(mesh, &state);
    if (!state.up)
        return;
    log_warn("MESH-SILENT", "peer=%s seconds=%d", rpc_channel_address(mesh->channel), SILENT_US / 1000000);
    state.ready = false;
    snprintf(state.reason, sizeof state.reason, "the scheduler has been silent for %d s", SILENT_US / 1000000);
    set_state(mesh, &state);
}

static void on_state(void *user, struct rpc_message *message)
{
    struct mesh *mesh = user;
    const Fastdecode__MeshState *told = rpc_message_unpack(message, &fastdecode__mesh_state__descriptor);
    struct mesh_state state = {.up = true};

    mesh->silences = 0;
    expect_state(mesh);
    if (!told) {
        log_warn("MESH-STATE-BAD", "peer=%s", rpc_channel_address(mesh->channel));
        return;
    }
    state.ready = told->ready;
    snprintf(state.reason, sizeof state.reason, "%s", told->reason ? told->reason : "");
    state.running = told->running;
    state.waiting = told->waiting;
    state.max_queue = told->max_queue;
    state.predicted_wait_ms = told->predicted_wait_ms;
    state.waiting_batch = told->waiting_batch;
    state.max_queue_batch = told->max_queue_batch;
    state.predicted_wait_batch_ms = told->predicted_wait_batch_ms;
    state.features = features_read(told->sampling_feature, told->n_sampling_feature);
    state.kv_pages_used = told->kv_pages_used;
    state.kv_pages_total = told->kv_pages_total;
    if (told->model) {
        state.context_tokens = told->model->kv && told->model->kv->context_tokens ? told->model->kv->context_tokens
                                                                                  : told->model->context_tokens;
        state.vocab = told->model->vocab;
        state.fingerprint = told->model->fingerprint;
    }
    if (state.fingerprint && mesh->config.fingerprint && state.fingerprint != mesh->config.fingerprint) {
        if (state.ready)
            log_error("MESH-OTHER-MODEL", "fingerprint=%016llx mesh_fingerprint=%016llx",
                      (unsigned long long)mesh->config.fingerprint, (unsigned long long)state.fingerprint);
        state.ready = false;
        snprintf(state.reason, sizeof state.reason, "the mesh serves another model file than this gateway");
    }
    set_state(mesh, &state);
}

static void start_watch(void *arg);

static void watch_later(struct mesh *mesh)
{
    if (!mesh->closing && mesh->watch_timer == 0)
        mesh->watch_timer = rpc_loop_timer(mesh->loop, WATCH_AGAIN_US, start_watch, mesh);
}

static void on_watch_end(void *user, enum status status, const char *error)
{
    struct mesh *mesh = user;

    log_info("MESH-WATCH-END", "status=%s error=%s", status_name(status), error ? error : "");
    if (mesh->closing)
        return;
    set_away(mesh);
    if (rpc_channel_is_up(mesh->channel))
        watch_later(mesh);
}

static void start_watch(void *arg)
{
    static const struct rpc_callbacks callbacks = {.on_message = on_state, .on_end = on_watch_end, .streams = true};
    Fastdecode__WatchRequest request = FASTDECODE__WATCH_REQUEST__INIT;
    struct rpc_options options = {0};
    struct mesh *mesh = arg;
    struct error error;

    mesh->watch_timer = 0;
    if (!rpc_channel_is_up(mesh->channel))
        return; // on_up starts it
    if (rpc_call_start(mesh->channel, &fastdecode__generator__descriptor, "Watch", &request.base, &options, &callbacks, mesh, NULL,
                       &error) != STATUS_OK)
        watch_later(mesh);
}

static void on_up(void *user, const struct rpc_peer *peer)
{
    struct mesh *mesh = user;

    log_info("MESH-UP", "peer=%s incarnation=%llu", peer->service, (unsigned long long)peer->incarnation);
    mesh->silences = 0;
    expect_state(mesh);
    start_watch(mesh);
}

static void on_down(void *user, const char *why)
{
    struct mesh *mesh = user;

    log_warn("MESH-DOWN", "why=%s", why ? why : "");
    if (!mesh->closing)
        set_away(mesh);
}

// --- calls --------------------------------------------------------------------------------------------------------
static void on_generate_message(void *user, struct rpc_message *message)
{
    struct mesh_call *call = user;
    const Fastdecode__GenerateEvent *event;

    if (call->quiet)
        return;
    event = rpc_message_unpack(message, &fastdecode__generate_event__descriptor);
    if (event) {
        call->listener.event(call->listener.arg, event);
        return;
    }
    log_error("MESH-EVENT-BAD", "peer=%s", rpc_channel_address(call->mesh->channel));
    rpc_cancel(call->mesh->channel, call->handle); // on_generate_end() follows, and the choice is submitted again
}

static void on_generate_end(void *user, enum status status, const char *error)
{
    struct mesh_call *call = user;

    if (!call->quiet && !call->mesh->closing)
        call->listener.end(call->listener.arg, status, error);
    free(call);
}

enum status mesh_generate(struct mesh *mesh, const Fastdecode__GenerateRequest *request, uint64_t timeout_us,
                          const struct mesh_trace *trace, const struct mesh_listener *listener, struct mesh_call **out)
{
    static const struct rpc_callbacks callbacks = {.on_message = on_generate_message, .on_end = on_generate_end, .streams = true};
    struct rpc_options options = {.request_id = request->request_id, .trace_id = trace->parent, .trace_state = trace->state};
    struct mesh_call *call = calloc(1, sizeof *call);
    struct error error;
    enum status status;

    *out = NULL;
    if (!call)
        return STATUS_RESOURCE_EXHAUSTED;
    // the scheduler keeps the deadline itself; this one is for when it hangs
    if (timeout_us)
        options.timeout_ms = (uint32_t)MIN(timeout_us / 1000 + DEADLINE_SLACK_MS, (uint64_t)UINT32_MAX);
    *call = (struct mesh_call){.mesh = mesh, .listener = *listener};
    status = rpc_call_start(mesh->channel, &fastdecode__generator__descriptor, "Generate", &request->base, &options, &callbacks,
                            call, &call->handle, &error);
    if (status != STATUS_OK) {
        log_debug("MESH-NO-CALL", "status=%s error=%s", status_name(status), error.text);
        free(call);
        return status;
    }
    *out = call;
    return STATUS_OK;
}

void mesh_cancel(struct mesh_call *call)
{
    struct mesh *mesh = call->mesh;

    call->quiet = true;
    rpc_cancel(mesh->channel, call->handle); // which ends and frees it
}

// --- questions ----------------------------------------------------------------------------------------------------
static void on_answer(void *user, struct rpc_message *message)
{
    struct mesh_asked *asked = user;

    if (!asked->text)
        asked->text = asked->read(message);
}

static void on_answer_end(void *user, enum status status, const char *error)
{
    struct mesh_asked *asked = user;

    if (status != STATUS_OK)
        log_debug("MESH-NO-ANSWER", "status=%s error=%s", status_name(status), error ? error : "");
    asked->done(asked->arg, status == STATUS_OK ? asked->text : NULL);
    free(asked->text);
    free(asked);
}

static void fail_answer(void *arg) { on_answer_end(arg, STATUS_UNAVAILABLE, NULL); }

// done() may be called before it returns.
static void ask(struct mesh *mesh, const ProtobufCServiceDescriptor *service, const char *method, const ProtobufCMessage *request,
                uint64_t timeout_us, mesh_read_fn *read, mesh_text_fn *done, void *arg)
{
    static const struct rpc_callbacks callbacks = {.on_message = on_answer, .on_end = on_answer_end};
    struct rpc_options options = {.timeout_ms = (uint32_t)(timeout_us / 1000)};
    struct mesh_asked *asked = calloc(1, sizeof *asked);
    struct error error;

    if (!asked) {
        done(arg, NULL);
        return;
    }
    *asked = (struct mesh_asked){.read = read, .done = done, .arg = arg};
    if (rpc_call_start(mesh->channel, service, method, request, &options, &callbacks, asked, NULL, &error) != STATUS_OK)
        rpc_loop_post(mesh->loop, fail_answer, asked);
}

static void on_expect_end(void *user, enum status status, const char *error)
{
    struct mesh *mesh = user;

    (void)status, (void)error; // an older scheduler does not know the call: nothing is lost
    atomic_store_explicit(&mesh->expecting, false, memory_order_relaxed); // relaxed: it guards nothing but itself
}

static void start_expect(void *arg)
{
    static const struct rpc_callbacks callbacks = {.on_end = on_expect_end};
    static const struct rpc_options options = {.timeout_ms = EXPECT_TIMEOUT_MS};
    const Fastdecode__ExpectRequest request = FASTDECODE__EXPECT_REQUEST__INIT;
    struct mesh *mesh = arg;
    struct error error;

    if (rpc_call_start(mesh->channel, &fastdecode__generator__descriptor, "Expect", &request.base, &options, &callbacks, mesh, NULL,
                       &error))
        on_expect_end(mesh, STATUS_UNAVAILABLE, NULL);
}

void mesh_expect(struct mesh *mesh)
{
    struct mesh_state state;

    mesh_state(mesh, &state);
    if (!state.up || state.running || state.waiting)
        return;
    if (!atomic_exchange_explicit(&mesh->expecting, true, memory_order_relaxed)) // relaxed: as above. One call at a time is enough
        rpc_loop_post(mesh->loop, start_expect, mesh);
}

static char *read_metrics(struct rpc_message *message)
{
    const Fastdecode__MetricsReply *reply = rpc_message_unpack(message, &fastdecode__metrics_reply__descriptor);

    return reply && reply->text ? strdup(reply->text) : NULL;
}

void mesh_metrics(struct mesh *mesh, uint64_t timeout_us, mesh_text_fn *done, void *arg)
{
    const Fastdecode__MetricsRequest request = FASTDECODE__METRICS_REQUEST__INIT;

    ask(mesh, &fastdecode__generator__descriptor, "Metrics", &request.base, timeout_us, read_metrics, done, arg);
}

static char *read_view(struct rpc_message *message)
{
    const Fastdecode__MeshView *view = rpc_message_unpack(message, &fastdecode__mesh_view__descriptor);

    return view ? mesh_view_json(view) : NULL;
}

void mesh_view(struct mesh *mesh, uint64_t timeout_us, mesh_text_fn *done, void *arg)
{
    const Fastdecode__ViewRequest request = FASTDECODE__VIEW_REQUEST__INIT;

    ask(mesh, &fastdecode__viewer__descriptor, "View", &request.base, timeout_us, read_view, done, arg);
}

void mesh_post(struct mesh *mesh, void (*fn)(void *arg), void *arg) { rpc_loop_post(mesh->loop, fn, arg); }

// --- the loop thread ----------------------------------------------------------------------------------------------
static bool is_ready(void *user, char *reason, size_t reason_bytes)
{
    struct mesh *mesh = user;
    struct mesh_state state;

    mesh_state(mesh, &state);
    snprintf(reason, reason_bytes, "%s", state.up ? state.reason : "the scheduler does not answer");
    return state.ready;
}

static enum status open_on_loop(struct mesh *mesh, struct error *error)
{
    struct rpc_hello hello = {.service = "gateway", .incarnation = clock_wall_us()};
    struct rpc_channel_config channel = {
        .address = mesh->config.scheduler,
        .peer = "the scheduler (--scheduler)",
        .hello = hello,
        .peer_roles = RPC_IS_SCHEDULER,
        .window = MIN(MAX(mesh->config.max_calls, 64u), (uint32_t)RPC_WINDOW_MAX),
        .on_up = on_up,
        .on_down = on_down,
        .user = mesh,
    };
    const char *addresses[] = {mesh->config.listen};
    struct rpc_server_config server = {.addresses = addresses, .address_count = 1, .hello = hello, .ready = is_ready, .user = mesh};
    enum status status = STATUS_OK;

    if (mesh->config.listen)
        status = rpc_server_open(mesh->loop, &server, &mesh->server, error);
    if (status == STATUS_OK)
        status = rpc_channel_open(mesh->loop, &channel, &mesh->channel, error);
    return status;
}

static void close_on_loop(struct mesh *mesh)
{
    uint32_t i;

    // run what was posted before: it holds references
    for (i = 0; i < DRAIN_ROUNDS && rpc_loop_run(mesh->loop, 0, 0) > 0; i++)
        ;
    mesh->closing = true;
    if (mesh->watch_timer)
        rpc_loop_cancel_timer(mesh->loop, mesh->watch_timer);
    if (mesh->silence_timer)
        rpc_loop_cancel_timer(mesh->loop, mesh->silence_timer);
    rpc_channel_close(mesh->channel);
    if (mesh->server)
        rpc_server_close(mesh->server);
    while (rpc_loop_run(mesh->loop, 0, 0) > 0)
        ;
}

static void *mesh_run(void *arg)
{
    struct mesh *mesh = arg;
    struct error error = {0};

    rpc_loop_run(mesh->loop, 0, 0); // makes this thread the owner
    (void)!open_on_loop(mesh, &error);
    pthread_mutex_lock(&mesh->mutex);
    mesh->start_error = error;
    mesh->started = true;
    pthread_cond_signal(&mesh->start_done);
    pthread_mutex_unlock(&mesh->mutex);
    while (error.status == STATUS_OK && !mesh->stop)
        rpc_loop_run(mesh->loop, RUN_US, 0);
    close_on_loop(mesh);
    return NULL;
}

enum status mesh_open(const struct mesh_config *config, struct mesh **out, struct error *error)
{
    struct mesh *mesh = calloc(1, sizeof *mesh);
    enum status status;

    *out = NULL;
    if (!mesh)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    mesh->config = *config;
    if ((status = rpc_security_open(&config->security, "gateway", &mesh->security, error))) {
        free(mesh);
        return status;
    }
    if (rpc_loop_open(&mesh->loop) != STATUS_OK) {
        rpc_security_close(&mesh->security);
        free(mesh);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot open the RPC loop");
    }
    rpc_loop_set_security(mesh->loop, &mesh->security);
    pthread_mutex_init(&mesh->mutex, NULL);
    pthread_cond_init(&mesh->start_done, NULL);
    *out = mesh;
    return STATUS_OK;
}

enum status mesh_start(struct mesh *mesh, struct error *error)
{
    struct error reason;

    if (pthread_create(&mesh->thread, NULL, mesh_run, mesh) != 0)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot start the RPC thread");
    mesh->has_thread = true;
    pthread_mutex_lock(&mesh->mutex);
    while (!mesh->started)
        pthread_cond_wait(&mesh->start_done, &mesh->mutex);
    reason = mesh->start_error;
    pthread_mutex_unlock(&mesh->mutex);
    if (reason.status != STATUS_OK && error)
        *error = reason;
    return reason.status;
}

static void stop_on_loop(void *arg) { ((struct mesh *)arg)->stop = true; }

void mesh_reload(struct mesh *mesh) { rpc_tls_reload(mesh->security.tls); }

struct rpc_tls_expiry mesh_expiry(struct mesh *mesh) { return rpc_tls_expiry(mesh->security.tls); }

void mesh_close(struct mesh *mesh)
{
    if (!mesh)
        return;
    if (mesh->has_thread) {
        rpc_loop_post(mesh->loop, stop_on_loop, mesh);
        pthread_join(mesh->thread, NULL);
    }
    rpc_loop_close(mesh->loop);
    rpc_security_close(&mesh->security);
    pthread_cond_destroy(&mesh->start_done);
    pthread_mutex_destroy(&mesh->mutex);
    free(mesh);
}
