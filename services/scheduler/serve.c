// serve.c: the scheduler's server, its turns, start and end.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/mesh/member.h"
#include "services/scheduler/scheduler.h"

enum { SPIN_US = 20, SETTLING_MAX = 1 << 16 };

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

enum status scheduler_check_memory(const struct scheduler *scheduler, struct error *error)
{
    const uint32_t requests = scheduler_requests_max(&scheduler->settings);
    const struct memory_plan memory = {.fixed_bytes = (uint64_t)requests * REQUEST_BYTES +
                                                      SETTLING_MAX * sizeof *scheduler->claims.settling};
    char parts[64];

    snprintf(parts, sizeof parts, "requests=%u", requests);
    return memory_plan_check(&memory, parts, error);
}

enum status scheduler_open(struct scheduler *scheduler, struct error *error)
{
    const uint32_t requests = scheduler_requests_max(&scheduler->settings);
    const struct trace_config trace = {
        .path = scheduler->settings.trace, .append = scheduler->settings.trace_append, .process = "scheduler", .order = 2};
    const struct otlp_config traces = {.endpoint = scheduler->settings.otlp_endpoint, .service = "fastdecode-scheduler"};
    enum status status = scheduler_check_memory(scheduler, error);

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

void scheduler_turn(struct scheduler *scheduler, uint64_t wait_at_most_us)
{
    rpc_loop_run(scheduler->host.loop, MIN(wait_us(scheduler), wait_at_most_us), scheduler->core.sched ? SPIN_US : 0);
    uint64_t now_us = clock_now_us();
    if (now_us - scheduler->host.checked_us > CHECK_EVERY_US)
        members_check(scheduler, now_us);
    if (scheduler->claims.settling_count || scheduler->claims.copy_count)
        claims_settle(scheduler);
    scheduler_tick(scheduler);
    watch_publish(scheduler, now_us);
}

void scheduler_close(struct scheduler *scheduler)
{
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
