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

// --- the scheduler's view as JSON: fields by their names in view.proto, in their order ---------------------------------
//
// Values from the scheduler are written as numbers and escaped strings, so it is JSON whatever it says.

// Returns the name of an enum's value, which may be one of a later version.
static const char *view_enum_name(const ProtobufCEnumDescriptor *kind, int value)
{
    static const char *const events[] = {"unknown", "started", "joined", "back", "drains", "drained", "left", "down"};

    if (kind == &fastdecode__event_kind__descriptor)
        return value >= 0 && (size_t)value < ARRAY_COUNT(events) ? events[value] : events[0];
    if (kind == &fastdecode__place_kind__descriptor)
        return value == FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL ? "local_pool" : "kv_worker";
    return value > 0 && value < (int)KV_TYPE_END ? kv_type_name((enum kv_type)value) : "";
}

static void view_add_message(struct text *out, const ProtobufCMessage *message);

static void view_add_value(struct text *out, const ProtobufCFieldDescriptor *field, const void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL: text_string(out, *(const protobuf_c_boolean *)at ? "true" : "false"); break;
    case PROTOBUF_C_TYPE_ENUM: text_json_string(out, view_enum_name(field->descriptor, *(const int *)at)); break;
    case PROTOBUF_C_TYPE_STRING: text_json_string(out, *(char *const *)at ? *(char *const *)at : ""); break;
    case PROTOBUF_C_TYPE_MESSAGE: view_add_message(out, *(ProtobufCMessage *const *)at); break;
    case PROTOBUF_C_TYPE_DOUBLE: text_format(out, "%.9g", isfinite(*(const double *)at) ? *(const double *)at : 0.0); break;
    case PROTOBUF_C_TYPE_UINT32: text_format(out, "%u", *(const uint32_t *)at); break;
    case PROTOBUF_C_TYPE_FIXED64: text_format(out, "\"%llx\"", (unsigned long long)*(const uint64_t *)at); break; // an id
    default: text_format(out, "%llu", (unsigned long long)*(const uint64_t *)at); break;
    }
}

static void view_add_field(struct text *out, const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const size_t item_bytes = field->type == PROTOBUF_C_TYPE_MESSAGE ? sizeof(void *) : sizeof(uint64_t);
    const char *base = (const char *)message;
    const void *at = base + field->offset, *count = base + field->quantifier_offset;

    text_format(out, "\"%s\":", field->name);
    if (field->label != PROTOBUF_C_LABEL_REPEATED) {
        view_add_value(out, field, at);
        return;
    }
    text_string(out, "[");
    for (size_t i = 0; i < *(const size_t *)count; i++) {
        text_string(out, i ? "," : "");
        view_add_value(out, field, *(char *const *)at + i * item_bytes);
    }
    text_string(out, "]");
}

static void view_add_message(struct text *out, const ProtobufCMessage *message)
{
    if (!message) {
        text_string(out, "null");
        return;
    }
    if (message->descriptor == &fastdecode__place_time__descriptor) { // of the steps' protocol, which names them otherwise
        const Fastdecode__PlaceTime *time = (const Fastdecode__PlaceTime *)message;
        text_format(out, "{\"index\":%u,\"r_part_us\":%u,\"attend_us\":%u,\"tokens_read\":%llu}", time->worker, time->r_part_us,
                    time->attend_us, (unsigned long long)time->tokens_read);
        return;
    }
    const unsigned count = message->descriptor->n_fields;
    const unsigned first = message->descriptor == &fastdecode__place_view__descriptor ? count - 1 : 0; // its index
    for (unsigned i = 0; i < count; i++) {
        text_string(out, i ? "," : "{");
        view_add_field(out, message, &message->descriptor->fields[(first + i) % count]);
    }
    text_string(out, "}");
}

char *mesh_view_json(const Fastdecode__MeshView *view)
{
    struct text out = {0};

    view_add_message(&out, &view->base);
    text_append(&out, "", 1); // terminated
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
    struct repeat other_model;           // the mesh serves another model than this gateway
    struct repeat losses;                // the scheduler is lost, or cannot be reached
    // how starting went: written by the loop thread, read by mesh_start(), under mutex
    bool started;
    struct error start_error;
    pthread_cond_t start_done;

    pthread_mutex_t mutex;
    struct mesh_state state; // under mutex
};

// --- state --------------------------------------------------------------------------------------------------------
static const struct mesh_state no_scheduler = {
    .reason = "the scheduler does not answer (MESH-DOWN or PEER-UNREACHABLE in this gateway's log says why)"};

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

static void set_away(struct mesh *mesh) { set_state(mesh, &no_scheduler); }

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
    char quoted[160];

    mesh->silences = 0;
    expect_state(mesh);
    if (!told) {
        log_warn("MESH-STATE-BAD", "peer=%s", rpc_channel_address(mesh->channel));
        return;
    }
    mesh->losses = (struct repeat){0};
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
        if (state.ready && repeat_is_due(&mesh->other_model, clock_now_us(), ""))
            log_error(
                "MESH-OTHER-MODEL",
                "scheduler=%s mesh_model=%s fingerprint=%016llx mesh_fingerprint=%016llx times=%u "
                "what=\"the mesh serves another model file than this gateway's --model: start one of them with the other's file\"",
                rpc_channel_address(mesh->channel), log_quote(quoted, sizeof quoted, told->model->name),
                (unsigned long long)mesh->config.fingerprint, (unsigned long long)state.fingerprint, mesh->other_model.count);
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

    if (repeat_is_due(&mesh->losses, clock_now_us(), why ? why : ""))
        log_warn("MESH-DOWN", "why=\"%s\" times=%u", why ? why : "", mesh->losses.count);
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
    snprintf(reason, reason_bytes, "%s", state.reason);
    return state.ready;
}

enum status mesh_begin(struct mesh *mesh, struct error *error)
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

void mesh_turn(struct mesh *mesh) { rpc_loop_run(mesh->loop, RUN_US, 0); }

void mesh_end(struct mesh *mesh)
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
    (void)!mesh_begin(mesh, &error);
    pthread_mutex_lock(&mesh->mutex);
    mesh->start_error = error;
    mesh->started = true;
    pthread_cond_signal(&mesh->start_done);
    pthread_mutex_unlock(&mesh->mutex);
    while (error.status == STATUS_OK && !mesh->stop)
        mesh_turn(mesh);
    mesh_end(mesh);
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
    mesh->state = no_scheduler;
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
