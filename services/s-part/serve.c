// serve.c: the server, the turns of both threads, start and end.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/trace/otlp.h"
#include "services/s-part/s_part.h"

enum { SPIN_US = 50, TURN_US = 250000 }; // a turn without work is shorter than the time between heartbeats: it shows in the next

static void publish(struct engine *engine)
{
    struct backend_info info;
    engine->ops->info(engine->backend, &info);
    atomic_store_explicit(&engine->counters.pages_used, info.pages_used, memory_order_relaxed);
    atomic_store_explicit(&engine->counters.pages_peak, info.pages_peak, memory_order_relaxed);
    atomic_store_explicit(&engine->counters.kv_bytes_read, info.attend_bytes, memory_order_relaxed);
}

void s_part_turn_engine(struct s_part *s_part)
{
    struct engine *engine = &s_part->engine;

    watchdog_turn(&engine->watch.watchdog);
    atomic_fetch_add_explicit(&engine->counters.progress, 1, memory_order_relaxed);
    if (engine_advance(engine)) {
        rpc_loop_run(engine->loop, 0, 0);
    } else {
        publish(engine);
        rpc_loop_run(engine->loop, TURN_US, SPIN_US);
    }
}

void s_part_close_engine(struct s_part *s_part)
{
    struct engine *engine = &s_part->engine;

    handover_close_all(&engine->pool.handover);
    rpc_loop_run(engine->loop, 0, 0); // what that posted
    engine_stage_close(engine);
    link_close_all(engine); // what ends so looks at its step's request, which the server frees
    rpc_server_close(s_part->server.rpc);
    engine_close(engine);
}

static bool ready(void *user, char *reason, size_t reason_bytes)
{
    const struct s_part *s_part = user;
    if (member_is_registered(s_part->control.member))
        return true;
    snprintf(reason, reason_bytes, "not registered with the scheduler at %s", s_part->settings.scheduler);
    return false;
}

// Finds the addresses at which others are to connect. tensors: where the socket of --listen-tensors listens; NULL: there is none.
static enum status advertise(struct s_part *s_part, const char *listening, const char *tensors, struct error *error)
{
    const struct s_part_settings *s = &s_part->settings;
    const struct member_address address = {
        .given = s->advertise, .listening = listening, .scheduler = s->scheduler, .option = "advertise"};
    enum status status = member_advertise(&address, s_part->server.address, sizeof s_part->server.address, error);

    if (status)
        return status;
    const struct member_address tensor_address = {.given = s->advertise_tensors,
                                                  .listening = tensors ? tensors : s_part->server.address,
                                                  .scheduler = s->scheduler,
                                                  .option = "advertise-tensors"};
    return member_advertise(&tensor_address, s_part->server.tensor_address, sizeof s_part->server.tensor_address, error);
}

static enum status open_server(struct s_part *s_part, struct error *error)
{
    const struct s_part_settings *s = &s_part->settings;
    struct engine *engine = &s_part->engine;
    const struct rpc_method methods[] = {
        {.service = &fastdecode__spart__descriptor, .method = "Step", .handler = engine_step_handler, .user = engine},
        {.service = &fastdecode__spart__descriptor, .method = "Expect", .handler = engine_expect_handler, .user = engine},
        {.service = &fastdecode__spart__descriptor, .method = "Release", .handler = engine_release_handler, .user = engine},
        {.service = &fastdecode__spart__descriptor, .method = "Exclude", .handler = engine_exclude_handler, .user = engine},
        {.service = &fastdecode__spart__descriptor, .method = "Reach", .handler = engine_reach_handler, .user = engine},
        {.service = &fastdecode__spart__descriptor, .method = "Join", .handler = engine_join_handler, .user = engine},
        {.service = &fastdecode__spart__descriptor, .method = "Forward", .handler = engine_forward_handler, .user = engine},
        {.service = &fastdecode__kv_control__descriptor, .method = "Fetch", .handler = engine_fetch_handler, .user = engine},
        {.service = &fastdecode__kv_handover__descriptor,
         .method = "ReadPage",
         .handler = handover_read_page,
         .user = &engine->pool.handover},
    };
    const char *addresses[] = {s->listen, s->listen_tensors};
    const struct rpc_server_config config = {
        .addresses = addresses,
        .address_count = s->listen_tensors ? 2 : 1,
        .methods = methods,
        .method_count = ARRAY_COUNT(methods),
        .ready = ready,
        .user = s_part,
        .hello = {.service = "s-part", .incarnation = s_part->incarnation},
        // a stage's message has x of a whole step
        .max_message_bytes = engine->model.range.is_first
                                 ? 0
                                 : RPC_MESSAGE_BYTES_DEFAULT +
                                       forward_request_size_most(engine->batches.max_rows, engine->model.shape.hidden),
    };
    enum status status = rpc_server_open(engine->loop, &config, &s_part->server.rpc, error);
    if (status)
        return status;
    if ((status = advertise(s_part, rpc_server_address(s_part->server.rpc, 0),
                            s->listen_tensors ? rpc_server_address(s_part->server.rpc, 1) : NULL, error)))
        return status;
    log_info("S-PART", "name=%s listen=%s advertise=%s", s->name, rpc_server_address(s_part->server.rpc, 0),
             s_part->server.address);
    return STATUS_OK;
}

static enum status open_threads(struct s_part *s_part, struct error *error)
{
    const struct s_part_settings *s = &s_part->settings;

    if (thread_pool_open(s->threads ? s->threads : cpu_count_usable(), &s_part->pool))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory or threads to start with");
    thread_pool_spread(s_part->pool, s->binding.sets, s->binding.set_count);
    return STATUS_OK;
}

enum status s_part_check(struct s_part *s_part, struct error *error)
{
    struct backend_config config;
    enum status status = advertise(s_part, s_part->settings.listen, s_part->settings.listen_tensors, error);

    if (!status && !(status = open_threads(s_part, error))) // the plan has memory of each thread
        status = load_plan(s_part, &config, error);
    model_close(s_part->loaded.model);
    thread_pool_close(s_part->pool);
    return status;
}

// How long the engine may do without progress. A device is asked; a CPU does not look up before it has done what it has begun.
static uint64_t silence_limit_us(const struct s_part *s_part)
{
    enum { MARGIN = 20, UNKNOWN = 10 };
    const struct s_part_settings *s = &s_part->settings;
    const uint64_t set_us = s->device_timeout_s * 1000000ull;
    const uint64_t slowest_us = calibration_slowest_us(&s_part->loaded.calibration, s->max_rows, s->context);

    if (s_part->engine.ops->times)
        return set_us;
    return slowest_us ? MAX(set_us, MARGIN * slowest_us) : UNKNOWN * set_us;
}

enum status s_part_open(struct s_part *s_part, struct error *error)
{
    struct s_part_settings *s = &s_part->settings;
    const struct trace_config trace = {.path = s->trace, .append = s->trace_append, .process = s->name, .order = 3};
    struct engine *engine = &s_part->engine;
    enum status status = trace_open(&trace, error);

    const struct otlp_config traces = {.endpoint = s->otlp_endpoint, .service = "fastdecode-s-part", .instance = s->name};
    if (!status)
        status = otlp_open(&traces, &engine->traces.otlp, error);
    if (status)
        return status;
    s_part->incarnation = member_incarnation();
    numa_enter(&s->binding); // before there are threads, which inherit it, and before anything is loaded
    if ((status = open_threads(s_part, error)))
        return status;
    if (rpc_loop_open(&s_part->control.loop) || rpc_loop_open(&engine->loop))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory or threads to start with");
    if ((status = rpc_security_open(&s->security, "s-part", &s_part->security, error)))
        return status;
    rpc_loop_set_security(s_part->control.loop, &s_part->security);
    rpc_loop_set_security(engine->loop, &s_part->security);
    if ((status = load_model(s_part, error)))
        return status;
    engine->model.shape = s_part->loaded.model->shape;
    engine->model.layers = s_part->loaded.model->layers;
    engine->model.vocabulary = s_part->loaded.model;
    engine->head.pooler = s_part->loaded.pooler;
    engine->model.context_tokens = s->context;
    engine->batches.max_rows = s->max_rows;
    engine->model.range = (struct layer_range){.first = s->first_layer,
                                               .count = s->layer_count,
                                               .is_first = s->first_layer == 0,
                                               .is_last = s->first_layer + s->layer_count == engine->model.shape.layers};
    engine->model.has_sparse = s->sparse_percent > 0;
    engine->model.kv = load_kv_shape(s_part);
    engine->aside.taken = s_part_takes_aside(s_part);
    engine->batches.count = s->mini_batches + engine->aside.taken;
    engine->incarnation = s_part->incarnation;
    if ((status = engine_open(engine, error)))
        return status;
    load_measure(s_part);
    s_part->control.silence_limit_us = silence_limit_us(s_part);
    status = open_server(s_part, error);
    return status ? status : membership_open(s_part, error);
}

enum status s_part_turn_control(struct s_part *s_part, struct error *error)
{
    enum status status = member_check(s_part->control.member, error);
    uint64_t stuck_us;

    if (status)
        return status;
    rpc_loop_run(s_part->control.loop, WATCHDOG_LOOK_US, 0);
    if (!watchdog_bites(&s_part->engine.watch.watchdog, clock_now_us(), s_part->control.silence_limit_us, &stuck_us))
        return STATUS_OK;
    log_error("DEVICE-SILENT", "seconds=%.0f waits_for=%s what=\"this s-part ends, and goes on when it is started again\"",
              (double)stuck_us * 1e-6,
              atomic_load_explicit(&s_part->engine.watch.awaits_weights, memory_order_relaxed) ? "weights" : "computation");
    return error_set(error, STATUS_DEADLINE_EXCEEDED, "the device has been silent for %.0f s", (double)stuck_us * 1e-6);
}

void s_part_close(struct s_part *s_part)
{
    struct engine *engine = &s_part->engine;

    rpc_loop_run(s_part->control.loop, 0, 0); // what the engine's thread posted last
    member_close(s_part->control.member);
    rpc_loop_close(engine->loop);
    rpc_loop_close(s_part->control.loop);
    rpc_security_close(&s_part->security);
    if (rpc_take_memory_back())
        engine->ops->close(engine->backend);
    else
        log_error("MESSAGES-LEFT", "what=\"the device's memory is left to the end of the process\"");
    thread_pool_close(s_part->pool);
    pooler_close(s_part->loaded.pooler);
    model_close(s_part->loaded.model);
    otlp_close(engine->traces.otlp);
    trace_close();
    log_info("END", "name=%s", s_part->settings.name);
}
