// main.c: the scheduler's program: the queue, placement, mini-batches, membership. One thread.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/mesh/member.h"
#include "common/rpc/rpc.h"
#include "common/service/service.h"
#include "services/scheduler/scheduler.h"

enum { SPIN_US = 20, SETTLING_MAX = 1 << 16 };

static enum status configure(struct service *service, void *state, struct error *error)
{
    struct scheduler *scheduler = state;
    struct scheduler_settings *s = &scheduler->settings;
    const char *admission = "auto", *placement = "auto", *micro_batch = "auto";
    const struct option options[] = {
        {"listen", OPTION_STRING, &s->listen, "ADDRESS", "address to which gateways, s-part and KV workers connect", 0, 0},
        RPC_SECURITY_OPTIONS(s->security),
        {"max-queue", OPTION_U32, &s->max_queue, "N", "sequences that may wait", 1, 1 << 20},
        {"batch-queue", OPTION_U32, &s->batch_queue, "N", "sequences of latency class batch that may wait", 1, 1 << 20},
        {"max-batch", OPTION_U32, &s->max_batch, "N", SCHED_RUNNING_HELP, 1, SCHED_RUNNING_MAX},
        {"mini-batches", OPTION_U32, &s->mini_batches, "N",
         "mini-batches in flight; 0: as many as are predicted to be fastest, up to three, or two for each of several s-parts", 0,
         SCHED_MINI_BATCHES_MAX},
        {"micro-batch", OPTION_CHOICE, &micro_batch, SCHED_MICRO_BATCH_NAMES, SCHED_MICRO_BATCH_HELP, 0, 0},
        {"chunk", OPTION_U32, &s->chunk, "TOKENS|auto", SCHED_CHUNK_HELP, 0, 65536},
        {"step-target-ms", OPTION_F64, &s->step_target_ms, "MS|auto", SCHED_STEP_TARGET_HELP, 0, 60000},
        {"admission", OPTION_CHOICE, &admission, SCHED_ADMISSION_NAMES, SCHED_ADMISSION_HELP, 0, 0},
        {"spacing", OPTION_U32, &s->spacing, "STEPS", SCHED_SPACING_HELP, 0, 65536},
        {"draft-tokens", OPTION_U32, &s->draft_tokens, "N", SCHED_DRAFT_TOKENS_HELP, 0, SCHED_DRAFT_TOKENS_MAX},
        {"placement", OPTION_CHOICE, &placement, SCHED_PLACEMENT_NAMES, SCHED_PLACEMENT_HELP, 0, 0},
        {"prefix-cache", OPTION_BOOL, &s->prefix_cache, NULL, SCHED_PREFIX_CACHE_HELP, 0, 0},
        {"trace", OPTION_WRITTEN_PATH, &s->trace, "FILE", TRACE_HELP, 0, 0},
        {"trace-append", OPTION_BOOL, &s->trace_append, NULL, TRACE_APPEND_HELP, 0, 0},
        {OTLP_OPTION, OPTION_STRING, &s->otlp_endpoint, "URL|none", OTLP_HELP, 0, 0},
        {"worker-timeout-ms", OPTION_U32, &s->worker_timeout_ms, "MS", "a service that has been silent this long counts as dead",
         100, 600000},
    };
    enum status status = service_options(service, options, ARRAY_COUNT(options), error);

    s->placement = sched_placement_named(placement);
    s->micro_batch = sched_micro_batch_named(micro_batch);
    if (!status)
        status = sched_admission_choose(admission, s->spacing, &s->admission, error);
    if (!status)
        status = otlp_check_endpoint(s->otlp_endpoint, error);
    const struct rpc_security_addresses addresses = {.listens = {s->listen}};
    return status ? status : rpc_security_check(&s->security, "scheduler", &addresses, error);
}

static bool ready(void *user, char *reason, size_t reason_bytes)
{
    snprintf(reason, reason_bytes, "%s", watch_reason(user));
    return !reason[0];
}

// One whose version or secret is another does not come as far as its name.
static void on_refused(void *user, const struct rpc_peer *peer, enum rpc_refusal reason, const char *why)
{
    struct scheduler *scheduler = user;
    const bool s_part = !strcmp(peer->service, "s-part");

    if (s_part || !strcmp(peer->service, "kv-worker"))
        registration_refused(scheduler, peer->service, s_part, (enum refusal_reason)reason, why);
    else
        refusals_count(&scheduler->refusals, peer->service, (enum refusal_reason)reason);
}

// Memory of a request beside its tokens: its log, its entries in the core's tables, its row of a step.
enum { REQUEST_BYTES = 1024 };

static enum status open_server(struct scheduler *scheduler, struct error *error)
{
    const struct rpc_method methods[] = {
        {.service = &fastdecode__generator__descriptor, .method = "Generate", .handler = generate_handler, .user = scheduler},
        {.service = &fastdecode__generator__descriptor, .method = "Expect", .handler = expect_handler, .user = scheduler},
        {.service = &fastdecode__generator__descriptor, .method = "Watch", .handler = watch_handler, .user = scheduler},
        {.service = &fastdecode__generator__descriptor, .method = "Metrics", .handler = metrics_handler, .user = scheduler},
        {.service = &fastdecode__viewer__descriptor, .method = "View", .handler = view_handler, .user = scheduler},
        {.service = &fastdecode__cluster__descriptor,
         .method = "RegisterMember",
         .handler = registration_handler,
         .user = scheduler},
        {.service = &fastdecode__cluster__descriptor,
         .method = "Heartbeat",
         .handler = members_heartbeat_handler,
         .user = scheduler},
        {.service = &fastdecode__cluster__descriptor, .method = "Drain", .handler = members_drain_handler, .user = scheduler},
    };
    const struct rpc_server_config config = {
        .addresses = &scheduler->settings.listen,
        .address_count = 1,
        .methods = methods,
        .method_count = ARRAY_COUNT(methods),
        .hello = {.service = "scheduler", .incarnation = scheduler->host.incarnation},
        .ready = ready,
        .on_refused = on_refused,
        .user = scheduler,
    };
    return rpc_server_open(scheduler->host.loop, &config, &scheduler->host.server, error);
}

static enum status check_memory(void *state, struct error *error)
{
    const struct scheduler *scheduler = state;
    const uint32_t requests = scheduler_requests_max(&scheduler->settings);
    const struct memory_plan memory = {.fixed_bytes = (uint64_t)requests * REQUEST_BYTES +
                                                      SETTLING_MAX * sizeof *scheduler->claims.settling};
    char parts[64];

    snprintf(parts, sizeof parts, "requests=%u", requests);
    return memory_plan_check(&memory, parts, error);
}

static enum status start(void *state, struct error *error)
{
    struct scheduler *scheduler = state;
    const uint32_t requests = scheduler_requests_max(&scheduler->settings);
    const struct trace_config trace = {
        .path = scheduler->settings.trace, .append = scheduler->settings.trace_append, .process = "scheduler", .order = 2};
    const struct otlp_config traces = {.endpoint = scheduler->settings.otlp_endpoint, .service = "fastdecode-scheduler"};
    enum status status = check_memory(scheduler, error);

    if (!status)
        status = trace_open(&trace, error);
    if (!status)
        status = otlp_open(&traces, &scheduler->host.otlp, error);
    if (status)
        return status;
    scheduler->host.track = trace_track_open("scheduler");
    scheduler->host.track_steps = trace_track_open("steps in flight");
    scheduler->host.incarnation = member_incarnation();
    scheduler->sequences.next_id = scheduler->host.incarnation + 1;
    scheduler->host.started_us = clock_now_us();
    view_note(&scheduler->view, FASTDECODE__EVENT_KIND__EVENT_KIND_STARTED, "scheduler", "");
    scheduler_init(scheduler);
    scheduler->claims.settling_capacity = SETTLING_MAX;
    scheduler->claims.settling = calloc(SETTLING_MAX, sizeof *scheduler->claims.settling);
    if (!scheduler->claims.settling || rpc_loop_open(&scheduler->host.loop) ||
        token_logs_open(requests + SETTLING_MAX, scheduler->host.otlp ? requests : 0, &scheduler->sequences.logs))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the queue of %u requests", requests);
    if ((status = rpc_security_open(&scheduler->settings.security, "scheduler", &scheduler->host.security, error)))
        return status;
    rpc_loop_set_security(scheduler->host.loop, &scheduler->host.security);
    if (!(status = open_server(scheduler, error)))
        log_info("SCHEDULER", "listen=%s incarnation=%llx", rpc_server_address(scheduler->host.server, 0),
                 (unsigned long long)scheduler->host.incarnation);
    return status;
}

static uint64_t wait_us(const struct scheduler *scheduler)
{
    uint64_t now_us = clock_now_us(), wake_us = scheduler->core.sched ? sched_next_wake_us(scheduler->core.sched) : SCHED_NEVER;
    return wake_us <= now_us ? 0 : MIN((uint64_t)CHECK_EVERY_US, wake_us - now_us);
}

static void turn(struct scheduler *scheduler, uint64_t wait_at_most_us)
{
    rpc_loop_run(scheduler->host.loop, wait_at_most_us, scheduler->core.sched ? SPIN_US : 0);
    uint64_t now_us = clock_now_us();
    if (now_us - scheduler->host.checked_us > CHECK_EVERY_US)
        members_check(scheduler, now_us);
    if (scheduler->claims.settling_count)
        claims_settle(scheduler);
    scheduler_tick(scheduler);
    watch_publish(scheduler, now_us);
}

static enum status serve(struct service *service, void *state, struct error *error)
{
    struct scheduler *scheduler = state;
    (void)error;
    while (!service_stop_count(service))
        turn(scheduler, wait_us(scheduler));
    return STATUS_OK;
}

static void wake(void *state) { rpc_loop_wake(((struct scheduler *)state)->host.loop); }

static void reload(void *state) { rpc_tls_reload(((struct scheduler *)state)->host.security.tls); }

static void finish(void *state)
{
    struct scheduler *scheduler = state;

    members_close(scheduler);
    rpc_server_close(scheduler->host.server);
    while (rpc_loop_run(scheduler->host.loop, 0, 0)) {} // channels that are being closed
    rpc_loop_close(scheduler->host.loop);
    rpc_security_close(&scheduler->host.security);
    token_logs_close(scheduler->sequences.logs);
    scheduler_close_core(scheduler);
    free(scheduler->claims.settling);
    free(scheduler->claims.held);
    otlp_close(scheduler->host.otlp);
    trace_close();
    log_info("END", "incarnation=%llx", (unsigned long long)scheduler->host.incarnation);
}

static enum status probe(void *state, bool alive, struct error *error)
{
    const struct scheduler_settings *s = &((struct scheduler *)state)->settings;
    return rpc_probe_self(s->listen, &s->security, alive, error);
}

int main(int argc, char **argv)
{
    static const struct service_program program = {
        .name = "scheduler",
        .purpose = "queues, places and batches sequences, and keeps the list of the mesh's members",
        .configure = configure,
        .probe = probe,
        .check = check_memory,
        .start = start,
        .serve = serve,
        .wake = wake,
        .reload = reload,
        .close = finish};
    struct scheduler *scheduler = calloc(1, sizeof *scheduler); // large: events, places

    if (!scheduler) {
        fprintf(stderr, "scheduler: cannot allocate %zu bytes\n", sizeof *scheduler);
        return EXIT_CODE_ENVIRONMENT;
    }
    scheduler->settings = (struct scheduler_settings){
        .listen = "tcp://127.0.0.1:7400",
        .otlp_endpoint = "none",
        .max_queue = 1024,
        .batch_queue = 1024,
        .max_batch = 128,
        .prefix_cache = true,
        .draft_tokens = SCHED_DRAFT_TOKENS,
        .worker_timeout_ms = 2000,
    };
    int code = service_run(&program, scheduler, argc, argv);
    free(scheduler);
    return code;
}
