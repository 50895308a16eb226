// main.c: the kv-worker's program: holds KV pages and attends over them.
//
// The first signal drains: other workers take the pages over. A second one ends without that, a third one at once.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/memory.h"
#include "common/rpc/rpc.h"
#include "common/service/service.h"
#include "kernels/dispatch/kernels.h"
#include "services/kv-worker/worker.h"

struct worker_program {
    struct worker worker; // first
    char name[96];        // the default of --name
    pthread_t tensor_thread;
    atomic_bool stop; // of the tensor thread; relaxed: its loop is woken after it is set
};

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

static enum status check(void *state, struct error *error) { return worker_check(state, error); }

static void *tensor_main(void *arg)
{
    struct worker_program *program = arg;

    while (!atomic_load_explicit(&program->stop, memory_order_relaxed))
        worker_turn_tensors(&program->worker);
    worker_close_tensors(&program->worker);
    return NULL;
}

static enum status start(void *state, struct error *error)
{
    struct worker_program *program = state;
    enum status status = worker_open(&program->worker, error);

    if (status)
        return status;
    if (pthread_create(&program->tensor_thread, NULL, tensor_main, program))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot create the tensor thread");
    return STATUS_OK;
}

static enum status serve(struct service *service, void *state, struct error *error)
{
    struct worker *worker = state;
    enum status status = STATUS_OK;

    while (!status && !worker->control.drained && service_stop_count(service) < 2) {
        status = worker_turn_control(worker, error);
        if (service_stop_count(service) && !worker->control.draining)
            control_drain(worker);
    }
    return status;
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
    struct worker_program *program = state;

    atomic_store_explicit(&program->stop, true, memory_order_relaxed);
    rpc_loop_wake(program->worker.tensors.loop);
    pthread_join(program->tensor_thread, NULL);
    worker_close(&program->worker);
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
