// main.c: the scheduler's program: the queue, placement, mini-batches, membership. One thread.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/service/service.h"
#include "services/scheduler/scheduler.h"

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

static enum status check(void *state, struct error *error) { return scheduler_check_memory(state, error); }

static enum status start(void *state, struct error *error) { return scheduler_open(state, error); }

static enum status serve(struct service *service, void *state, struct error *error)
{
    (void)error;
    while (!service_stop_count(service))
        scheduler_turn(state, UINT64_MAX);
    return STATUS_OK;
}

static void wake(void *state) { rpc_loop_wake(((struct scheduler *)state)->host.loop); }

static void reload(void *state) { rpc_tls_reload(((struct scheduler *)state)->host.security.tls); }

static void finish(void *state) { scheduler_close(state); }

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
        .check = check,
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
