// serve.c: the tensor socket, the turns of both threads, start and end.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/measure.h"
#include "kernels/dispatch/kernels.h"
#include "services/kv-worker/worker.h"

enum { SPIN_US = 30, MEASURE_US = 100000 };
enum { TURN_US = 250000 }; // a turn without work is shorter than the time between heartbeats: it shows in the next
enum { CONTROL_TURN_US = 1000000 };

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

void worker_turn_tensors(struct worker *worker)
{
    atomic_fetch_add_explicit(&worker->counters.progress, 1, memory_order_relaxed);
    rpc_loop_run(worker->tensors.loop, TURN_US, SPIN_US);
}

void worker_close_tensors(struct worker *worker)
{
    handover_close_all(&worker->handover);
    rpc_server_close(worker->tensors.server);
    attend_close(worker);
}

// --- the control thread ---

enum status worker_turn_control(struct worker *worker, struct error *error)
{
    enum status status = member_check(worker->control.member, error);

    if (!status)
        rpc_loop_run(worker->control.loop, CONTROL_TURN_US, 0);
    return status;
}

// --- start and end ---

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

enum status worker_check(struct worker *worker, struct error *error)
{
    enum status status = check_memory(worker, error);

    if (!status)
        status = control_advertise(worker, worker->settings.listen, error);
    return status ? status : advertise_tensors(worker, worker->settings.listen_tensors, error);
}

enum status worker_open(struct worker *worker, struct error *error)
{
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
    log_info("KV-WORKER", "name=%s control=%s tensors=%s threads=%u cpus=%s kernels=%s kv_memory=%llu read_gb_per_s=%.1f",
             worker->settings.name, worker->control_address, worker->tensor_address, thread_pool_threads(worker->pool),
             thread_pool_cpus(worker->pool), kernels_level_name(), (unsigned long long)worker->settings.kv_memory,
             worker->bytes_per_second / 1e9);
    return STATUS_OK;
}

void worker_close(struct worker *worker)
{
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
