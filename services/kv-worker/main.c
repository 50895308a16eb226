// main.c: the kv-worker's program: holds KV pages and attends over them.
//
// The first signal drains: other workers take the pages over. A second one ends without that, a third one at once.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/measure.h"
#include "common/base/memory.h"
#include "common/rpc/rpc.h"
#include "common/service/service.h"
#include "kernels/dispatch/kernels.h"
#include "services/kv-worker/worker.h"

enum { SPIN_US = 30, MEASURE_US = 100000 };
enum { TURN_US = 250000 }; // a turn without work is shorter than the time between heartbeats: it shows in the next

struct worker_program {
    struct worker worker; // first
    char name[96];        // the default of --name
};

// --- the tensor thread ---

static enum status advertise_tensors(struct worker *worker, const char *listening, struct error *error)
{
    const struct member_address address = {.given = worker->settings.advertise_tensors,
                                           .listening = listening,
                                           .scheduler = worker->settings.scheduler,
                                           .option = "advertise-tensors"};
    return member_advertise(&address, worker->tensor_address, sizeof worker->tensor_address, error);
}

static enum status open_tensors(struct worker *worker, struct error *error)
{
    const struct rpc_method methods[] = {
        {.service = &fastdecode__kv_worker__descriptor, .method = "Attend", .handler = attend_handler, .user = worker},
        {.service = &fastdecode__kv_handover__descriptor,
         .method = "ReadPage",
         .handler = handover_read_page,
         .user = &worker->handover},
    };
    const struct rpc_server_config config = {
        .addresses = &worker->settings.listen_tensors,
        .address_count = 1,
        .methods = methods,
        .hello = {.service = "kv-worker", .incarnation = worker->incarnation},
        .method_count = 2,
        .max_message_bytes = 1ull << 30,
    };
    enum status status = rpc_server_open(worker->tensors.loop, &config, &worker->tensors.server, error);

    if (status)
        return status;
    return advertise_tensors(worker, rpc_server_address(worker->tensors.server, 0), error);
}

static void *tensor_main(void *arg)
{
    struct worker *worker = arg;

    while (!atomic_load_explicit(&worker->stop, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&worker->counters.progress, 1, memory_order_relaxed);
        rpc_loop_run(worker->tensors.loop, TURN_US, SPIN_US);
    }
    handover_close_all(&worker->handover);
    rpc_server_close(worker->tensors.server);
    attend_close(worker);
    return NULL;
}

// --- start and end ---

// Finds the node. Its pages cannot spill over to another one, so they must fit there.
static enum status choose_binding(struct worker *worker, struct error *error)
{
    const struct worker_settings *s = &worker->settings;
    struct numa_topology topology;
    uint32_t id;

    if (!strcmp(s->numa_node, "none"))
        return STATUS_OK;
    enum status status = numa_parse_node("numa-node", s->numa_node, "none", &id, error);
    if (status)
        return status;
    numa_read_own(&topology);
    if ((status = numa_binding_node(&topology, "numa-node", id, &worker->binding, error)))
        return status;
    if (s->kv_memory <= worker->binding.total_bytes)
        return STATUS_OK;
    return error_set(error, STATUS_RESOURCE_EXHAUSTED,
                     "%.0f MiB of KV pages are asked for (--kv-memory), NUMA node %u has %.0f MiB", (double)s->kv_memory / 1048576,
                     id, (double)worker->binding.total_bytes / 1048576);
}

static enum status configure(struct service *service, void *state, struct error *error)
{
    struct worker_program *program = state;
    struct worker *worker = &program->worker;
    struct worker_settings *s = &worker->settings;
    const struct option options[] = {
        {"name", OPTION_STRING, &s->name, "NAME", "name of this worker, the same after a restart; default: kv-worker-HOST", 0, 0},
        {"scheduler", OPTION_STRING, &s->scheduler, "ADDRESS", "address of the scheduler", 0, 0},
        {"listen", OPTION_STRING, &s->listen, "ADDRESS", "address of the control socket", 0, 0},
        {"listen-tensors", OPTION_STRING, &s->listen_tensors, "ADDRESS", "address of the tensor socket", 0, 0},
        {"advertise", OPTION_STRING, &s->advertise, "ADDRESS",
         "address at which the scheduler reaches the control socket; default: found", 0, 0},
        {"advertise-tensors", OPTION_STRING, &s->advertise_tensors, "ADDRESS",
         "address at which the s-part and other workers reach the tensor socket; default: found", 0, 0},
        RPC_SECURITY_OPTIONS(s->security),
        {"kv-memory", OPTION_SIZE, &s->kv_memory, "SIZE", "memory for KV pages", 1 << 20, 1e15},
        {"threads", OPTION_U32, &s->threads, "N", "attention threads; 0: one per usable CPU, each pinned", 0, 1024},
        {"numa-node", OPTION_STRING, &s->numa_node, "N|none",
         "NUMA node of all threads and pages; none: any that this process may use", 0, 0},
        {"shares-cores", OPTION_BOOL, &s->shares_cores, NULL, "this worker runs on the same cores as the s-part", 0, 0},
        {"calibrate", OPTION_BOOL, &s->calibrate, NULL, "measure at start how long attention takes (0.2 s)", 0, 0},
        {"trace", OPTION_WRITTEN_PATH, &s->trace, "FILE", TRACE_HELP, 0, 0},
        {"trace-append", OPTION_BOOL, &s->trace_append, NULL, TRACE_APPEND_HELP, 0, 0},
        {OTLP_OPTION, OPTION_STRING, &s->otlp_endpoint, "URL|none", OTLP_HELP, 0, 0},
        {"isa", OPTION_STRING, &s->isa, "LEVEL", KERNELS_ISA_HELP, 0, 0},
    };
    enum status status = service_options(service, options, ARRAY_COUNT(options), error);

    if (!status && !s->name) {
        char host[64] = "";
        gethostname(host, sizeof host - 1);
        int length = snprintf(program->name, sizeof program->name, "kv-worker-%s", host);
        s->name = length < MEMBER_NAME_BYTES ? program->name : program->name + strlen("kv-worker-"); // the host tells workers apart
    }
    if (!status)
        status = member_check_name(s->name, error);
    const struct rpc_security_addresses addresses = {.listens = {s->listen, s->listen_tensors}, .dials = s->scheduler};
    if (!status)
        status = rpc_security_check(&s->security, "kv-worker", &addresses, error);
    if (!status)
        status = otlp_check_endpoint(s->otlp_endpoint, error);
    if (!status)
        status = choose_binding(worker, error);
    return status ? status : kernels_init(s->isa, error);
}

static enum status check_memory(const struct worker *worker, struct error *error)
{
    const struct memory_plan memory = {.start_bytes = worker->settings.calibrate ? MEASURE_BYTES : 0,
                                       .pool_bytes = worker->settings.kv_memory};
    char parts[64] = "";

    if (worker->binding.memory != NUMA_ANY)
        snprintf(parts, sizeof parts, "numa_node=%s node_mib=%.1f", worker->settings.numa_node,
                 (double)worker->binding.total_bytes / 1048576);
    return memory_plan_check(&memory, parts, error);
}

static enum status check(void *state, struct error *error)
{
    struct worker *worker = state;
    enum status status = check_memory(worker, error);

    if (!status)
        status = control_advertise(worker, worker->settings.listen, error);
    return status ? status : advertise_tensors(worker, worker->settings.listen_tensors, error);
}

static enum status start(void *state, struct error *error)
{
    struct worker *worker = state;
    const struct trace_config trace = {
        .path = worker->settings.trace, .append = worker->settings.trace_append, .process = worker->settings.name, .order = 4};
    const struct otlp_config traces = {
        .endpoint = worker->settings.otlp_endpoint, .service = "fastdecode-kv-worker", .instance = worker->settings.name};
    enum status status = check_memory(worker, error);

    if (status)
        return status;
    numa_enter(&worker->binding); // before there are threads, which inherit it
    if ((status = trace_open(&trace, error)) || (status = otlp_open(&traces, &worker->attend.spans.otlp, error)))
        return status;
    worker->tensors.track = trace_track_open("R-part");
    worker->incarnation = member_incarnation();
    if (thread_pool_open(worker->settings.threads ? worker->settings.threads : cpu_count_usable(), &worker->pool) ||
        rpc_loop_open(&worker->control.loop) || rpc_loop_open(&worker->tensors.loop))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot start the loops and threads");
    if ((status = rpc_security_open(&worker->settings.security, "kv-worker", &worker->control.security, error)))
        return status;
    rpc_loop_set_security(worker->control.loop, &worker->control.security);
    rpc_loop_set_security(worker->tensors.loop, &worker->control.security);
    if (worker->settings.calibrate)
        worker->bytes_per_second = read_rate_measure(worker->pool, MEASURE_BYTES, 5, MEASURE_US);
    if ((status = open_tensors(worker, error)) || (status = control_open(worker, error)))
        return status;
    if (pthread_create(&worker->tensors.thread, NULL, tensor_main, worker))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot create the tensor thread");
    log_info("KV-WORKER", "name=%s control=%s tensors=%s threads=%u cpus=%s kernels=%s kv_memory=%llu read_gb_per_s=%.1f",
             worker->settings.name, worker->control_address, worker->tensor_address, thread_pool_threads(worker->pool),
             thread_pool_cpus(worker->pool), kernels_level_name(), (unsigned long long)worker->settings.kv_memory,
             worker->bytes_per_second / 1e9);
    return STATUS_OK;
}

static enum status serve(struct service *service, void *state, struct error *error)
{
    struct worker *worker = state;

    while (!worker->control.drained && service_stop_count(service) < 2) {
        enum status status = member_check(worker->control.member, error);
        if (status)
            return status;
        rpc_loop_run(worker->control.loop, 1000000, 0);
        if (service_stop_count(service) && !worker->control.draining)
            control_drain(worker);
    }
    return STATUS_OK;
}

static enum status probe(void *state, bool alive, struct error *error)
{
    const struct worker_settings *s = &((struct worker *)state)->settings;
    return rpc_probe_self(s->listen, &s->security, alive, error);
}

static void wake(void *state) { rpc_loop_wake(((struct worker *)state)->control.loop); }

static void reload(void *state) { rpc_tls_reload(((struct worker *)state)->control.security.tls); }

static void finish(void *state)
{
    struct worker *worker = state;

    atomic_store_explicit(&worker->stop, true, memory_order_relaxed);
    rpc_loop_wake(worker->tensors.loop);
    pthread_join(worker->tensors.thread, NULL);
    rpc_loop_run(worker->control.loop, 0, 0); // what the tensor thread posted last
    control_close(worker);
    rpc_loop_close(worker->tensors.loop);
    rpc_loop_close(worker->control.loop);
    rpc_security_close(&worker->control.security);
    thread_pool_close(worker->pool);
    otlp_close(worker->attend.spans.otlp);
    trace_close();
    log_info("END", "name=%s", worker->settings.name);
}

int main(int argc, char **argv)
{
    static const struct service_program program = {.name = "kv-worker",
                                                   .purpose = "holds the KV cache of sequences and attends over it",
                                                   .signals_handled = 2,
                                                   .configure = configure,
                                                   .probe = probe,
                                                   .check = check,
                                                   .start = start,
                                                   .serve = serve,
                                                   .wake = wake,
                                                   .reload = reload,
                                                   .close = finish};
    struct worker_program *state = calloc(1, sizeof *state);

    if (!state) {
        fprintf(stderr, "kv-worker: cannot allocate %zu bytes\n", sizeof *state);
        return EXIT_CODE_ENVIRONMENT;
    }
    state->worker.settings = (struct worker_settings){
        .scheduler = "tcp://127.0.0.1:7400",
        .otlp_endpoint = "none",
        .listen = "tcp://127.0.0.1:0",
        .listen_tensors = "tcp://127.0.0.1:0",
        .kv_memory = 1ull << 30,
        .numa_node = "none",
        .calibrate = true,
    };
    int code = service_run(&program, state, argc, argv);
    free(state);
    return code;
}
