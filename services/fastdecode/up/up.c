// up.c: starts scheduler, s-part, kv-workers and gateway, waits until the gateway is ready, then watches them.
//
// Services find each other by ipc sockets in the run directory. The gateway writes the ports at which it listens to files there: the answer
// of another server that has the port is not taken for its own. Once they are told, a gateway that is started again gets the same ones.
#include "services/fastdecode/up/up.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/thread_pool.h"
#include "common/kv/kv_shape.h"
#include "common/rpc/security.h"
#include "common/sched/settings.h"
#include "common/trace/otlp.h"
#include "common/trace/trace.h"
#include "services/fastdecode/client/commands.h"
#include "services/fastdecode/up/supervise.h"
#include "services/fastdecode/up/up_settings.h"

#define ADMIN_PORT "9464"               // with --admin-listen auto, if the HTTP server is open to others (services/gateway/main.c)
enum { STOP_MS = 5000, PROBE_MS = 50 }; // STOP_MS: that a service has to end, the gateway after its drain

struct up {
    struct up_settings settings;
    struct supervisor supervisor;
    struct child *gateway, *scheduler;
    struct child *workers[UP_WORKERS_MAX];
    struct numa_worker nodes[NUMA_NODES_MAX]; // [kv_workers] if each has a node
    char program_dir[512];
    char host_port[128];
};

// Finds the folder of this program; the services lie beside it.
static enum status find_programs(struct up *up, struct error *error)
{
    ssize_t length = readlink("/proc/self/exe", up->program_dir, sizeof up->program_dir - 1);
    char *slash;

    if (length <= 0)
        return error_set(error, STATUS_INTERNAL, "/proc/self/exe: %s", strerror(errno));
    up->program_dir[length] = '\0';
    slash = strrchr(up->program_dir, '/');
    if (slash)
        *slash = '\0';
    return STATUS_OK;
}

static struct child *add(struct up *up, const char *name, const char *program)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    char path[600];
    snprintf(path, sizeof path, "%s/%s", up->program_dir, program);
    struct child *child = supervise_add(&up->supervisor, name, path);
    supervise_argument(child, "--log-level=%s", levels[log_threshold]);
    supervise_argument(child, "--log-file=%s/%s.log", up->supervisor.run_dir, name); // rotated there
    supervise_argument(child, "--log-max-size=%llu", (unsigned long long)up->settings.log_max_bytes);
    supervise_argument(child, "--log-keep=%u", up->settings.log_keep);
    if (up->settings.log_json)
        supervise_argument(child, "--log-json");
    if (up->settings.mesh_secret_file)
        supervise_argument(child, "--" RPC_SECRET_OPTION "=%s", up->settings.mesh_secret_file);
    supervise_argument(child, "--sandbox=%s", up->settings.sandbox);
    if (strcmp(up->settings.otlp_endpoint, "none"))
        supervise_argument(child, "--" OTLP_OPTION "=%s", up->settings.otlp_endpoint);
    if (up->settings.trace) {
        supervise_argument(child, "--trace=%s", up->settings.trace);
        supervise_argument(child, "--trace-append");
    }
    if (up->settings.tls)
        supervise_argument(child, "--tls=%s/%s", up->settings.tls, program);
    if (!strcmp(name, "scheduler"))
        return child;
    if (up->settings.tls)
        supervise_argument(child, "--scheduler=tls+tcp://127.0.0.1:%u", up->settings.scheduler_port);
    else
        supervise_argument(child, "--scheduler=ipc://%s/scheduler.sock", up->supervisor.run_dir);
    return child;
}

// A service that registers its address may have any.
static void add_listen(const struct up *up, struct child *child, const char *option, const char *name, const char *suffix)
{
    if (up->settings.tls)
        supervise_argument(child, "--%s=tls+tcp://127.0.0.1:0", option);
    else
        supervise_argument(child, "--%s=ipc://%s/%s%s.sock", option, up->supervisor.run_dir, name, suffix);
}

static void add_scheduler(struct up *up)
{
    const struct up_settings *s = &up->settings;
    struct child *child = up->scheduler = add(up, "scheduler", "scheduler");
    if (s->tls)
        supervise_argument(child, "--listen=tls+tcp://127.0.0.1:%u", s->scheduler_port);
    else
        supervise_argument(child, "--listen=ipc://%s/scheduler.sock", up->supervisor.run_dir);
    supervise_argument(child, "--max-queue=%u", s->max_queue);
    supervise_argument(child, "--batch-queue=%u", s->batch_queue);
    supervise_argument(child, "--max-batch=%u", s->max_batch);
    supervise_argument(child, "--mini-batches=%u", s->mini_batches); // 0: the scheduler chooses among those of the s-part
    supervise_argument(child, "--micro-batch=%s", s->micro_batch);
    supervise_argument(child, "--chunk=%u", s->chunk);
    supervise_argument(child, "--step-target-ms=%g", s->step_target_ms);
    supervise_argument(child, "--admission=%s", s->admission);
    supervise_argument(child, "--spacing=%u", s->spacing);
    supervise_argument(child, "--draft-tokens=%u", s->draft_tokens);
    supervise_argument(child, "--placement=%s", s->placement);
    supervise_argument(child, "--prefix-cache=%s", s->prefix_cache ? "on" : "off");
    supervise_argument(child, "--worker-timeout-ms=%u", s->worker_timeout_ms);
}

// More than one for each s-part if a GPU computes while workers attend on the host's cores; otherwise another only takes memory.
static uint32_t mini_batches_of_s_part(const struct up_settings *s)
{
    const bool overlap = strcmp(s->device, "cpu") && s->kv_workers && sched_placement_named(s->placement) != SCHED_PLACE_LOCAL;

    return s->mini_batches ? s->mini_batches : sched_mini_batches_most(s->s_parts, overlap);
}

// Returns what the weights of one of several s-parts may take. With `auto` each would count on all memory that is free when it starts.
static uint64_t weights_memory_each(const struct up_settings *s, uint64_t free_bytes)
{
    const uint64_t workers = !s->kv_workers ? 0 : s->kv_memory ? s->kv_memory * s->kv_workers : free_bytes / 4;
    const uint64_t pools = !strcmp(s->local_pool, "auto") ? free_bytes / 4 : 0;
    const uint64_t rest = free_bytes - MIN(free_bytes, workers + pools);

    return rest / 8 * 7 / s->s_parts; // an eighth for activations
}

// Each of several s-parts has its share of the cores and of the memory.
static void add_s_part(struct up *up, uint32_t index, uint64_t free_bytes)
{
    const struct up_settings *s = &up->settings;
    const uint32_t threads = s->threads ? s->threads : cpu_count_usable();
    char name[32] = "s-part";

    if (s->s_parts > 1)
        snprintf(name, sizeof name, "s-part-%u", index);
    struct child *child = add(up, name, "s-part");
    add_listen(up, child, "listen", name, "");
    if (s->s_parts > 1) {
        supervise_argument(child, "--name=%s", name);
        if (strcmp(s->split, "auto"))
            supervise_argument(child, "--layers=%u:%u", s->ranges[index].first, s->ranges[index].end);
        else
            supervise_argument(child, "--layers=%u/%u", index, s->s_parts);
    }
    supervise_argument(child, "--model=%s", s->model);
    supervise_argument(child, "--device=%s", s->device);
    supervise_argument(child, "--cache-dir=%s", s->cache_dir);
    supervise_argument(child, "--disk-reads=%s", s->disk_reads);
    if (s->s_parts > 1 && strncmp(s->device, "cuda", 4) && !strcmp(s->weights_memory, "auto"))
        supervise_argument(child, "--weights-memory=%llu", (unsigned long long)weights_memory_each(s, free_bytes));
    else
        supervise_argument(child, "--weights-memory=%s", s->weights_memory);
    supervise_argument(child, "--weights-host-memory=%s", s->weights_host_memory);
    supervise_argument(child, "--compute=%s", s->compute);
    supervise_argument(child, "--quantize=%s", s->quantize);
    supervise_argument(child, "--pooling=%s", s->pooling);
    supervise_argument(child, "--batch-invariant=%s", s->batch_invariant ? "on" : "off");
    supervise_argument(child, "--kv-type=%s", s->kv_type);
    supervise_argument(child, "--" KV_SPARSE_OPTION "=%s", s->sparse_attention);
    supervise_argument(child, "--context=%u", s->context);
    supervise_argument(child, "--max-batch=%u", s->max_batch);
    supervise_argument(child, "--mini-batches=%u", mini_batches_of_s_part(s));
    supervise_argument(child, "--threads=%u", s->s_parts > 1 ? MAX(threads / s->s_parts, 1u) : s->threads);
    if (strcmp(s->numa, "auto"))
        supervise_argument(child, "--numa=%s", s->numa);
    supervise_argument(child, "--calibrate=%s", s->calibrate ? "on" : "off");
    supervise_argument(child, "--pool-fills-device=%s", !strcmp(s->local_pool, "auto") ? "on" : "off");
    if (!strcmp(s->local_pool, "auto"))
        supervise_argument(child, "--local-pool=%llu", (unsigned long long)(free_bytes / 4 / s->s_parts));
    else
        supervise_argument(child, "--local-pool=%s", s->local_pool);
}

static void add_worker(struct up *up, uint32_t index, uint64_t free_bytes)
{
    const struct up_settings *s = &up->settings;
    uint32_t threads = MAX((s->threads ? s->threads : cpu_count_usable()) / s->kv_workers, 1u);
    uint64_t bytes = s->kv_memory ? s->kv_memory : free_bytes / 4 / s->kv_workers;
    char name[32];
    snprintf(name, sizeof name, "kv-worker-%u", index);
    struct child *child = up->workers[index] = add(up, name, "kv-worker");
    supervise_argument(child, "--name=%s", name);
    add_listen(up, child, "listen", name, "");
    add_listen(up, child, "listen-tensors", name, "-t");
    if (s->worker_a_node) {
        const struct numa_worker *mine = &up->nodes[index];
        supervise_argument(child, "--numa-node=%u", s->topology.nodes[mine->node].id);
        threads = mine->threads;
        bytes = mine->bytes;
    }
    // All workers of a mini-batch attend at the same time: as many threads as cores in total.
    supervise_argument(child, "--threads=%u", threads);
    if (strncmp(s->device, "cuda", 4)) // with auto the s-part corrects this if it finds a GPU
        supervise_argument(child, "--shares-cores");
    supervise_argument(child, "--calibrate=%s", s->calibrate ? "on" : "off");
    supervise_argument(child, "--kv-memory=%llu", (unsigned long long)bytes);
    if (s->kv_worker_isa) { // the index-th of a comma list; the last one repeats
        const char *item = s->kv_worker_isa;
        for (uint32_t skip = index; skip && strchr(item, ','); skip--)
            item = strchr(item, ',') + 1;
        supervise_argument(child, "--isa=%.*s", (int)strcspn(item, ","), item);
    }
}

// Divides threads and memory for pages among the workers, each of which has a NUMA node.
static void share_nodes(struct up *up, uint64_t free_bytes)
{
    const struct up_settings *s = &up->settings;
    uint32_t count = numa_share(&s->topology, s->threads ? s->threads : cpu_count_usable(), free_bytes / 4, up->nodes);

    assert_always(count == s->kv_workers);
    for (uint32_t i = 0; s->kv_memory && i < count; i++)
        up->nodes[i].bytes = s->kv_memory;
}

static void log_nodes(const struct up *up)
{
    char cpus[NUMA_LIST_BYTES];

    for (uint32_t i = 0; up->settings.worker_a_node && i < up->settings.kv_workers; i++) {
        const struct numa_worker *mine = &up->nodes[i];
        const struct numa_node *node = &up->settings.topology.nodes[mine->node];
        log_info("NUMA-WORKER", "worker=kv-worker-%u numa_node=%u cpus=%s threads=%u kv_mib=%.1f node_free_mib=%.1f", i, node->id,
                 numa_list(&node->cpus, cpus, sizeof cpus), mine->threads, (double)mine->bytes / 1048576,
                 (double)node->free_bytes / 1048576);
    }
}

static void add_gateway(struct up *up)
{
    const struct up_settings *s = &up->settings;
    struct child *child = up->gateway = add(up, "gateway", "gateway");
    supervise_argument(child, "--listen=ipc://%s/gateway.sock", up->supervisor.run_dir);
    supervise_argument(child, "--pooling=%s", s->pooling);
    supervise_argument(child, "--host=%s", s->host);
    supervise_argument(child, "--port=%u", s->port);
    supervise_argument(child, "--port-file=%s/gateway" SUPERVISE_PORT_FILE, up->supervisor.run_dir);
    supervise_argument(child, "--admin-port-file=%s/gateway-admin" SUPERVISE_PORT_FILE, up->supervisor.run_dir);
    supervise_argument(child, "--model=%s", s->model);
    supervise_argument(child, "--context=%u", s->context);
    supervise_argument(child, "--drain-timeout=%g", s->drain_timeout_s);
    supervise_argument(child, "--drain-notice=0"); // no load balancer is in front of it
    if (s->served_model_name)
        supervise_argument(child, "--served-model-name=%s", s->served_model_name);
    supervise_argument(child, "--api-key-file=%s", s->api_key_file);
    supervise_argument(child, "--admin-listen=%s", s->admin_listen);
    supervise_argument(child, "--admin-key-file=%s", s->admin_key_file);
    supervise_argument(child, "--audit=%s", s->audit);
    if (s->tls_cert)
        supervise_argument(child, "--tls-cert=%s", s->tls_cert);
    if (s->tls_key)
        supervise_argument(child, "--tls-key=%s", s->tls_key);
    supervise_argument(child, "--batch-dir=%s", s->batch_dir);
    supervise_argument(child, "--" OTLP_RATIO_OPTION "=%.17g", s->trace_sample);
    if (s->chat_template)
        supervise_argument(child, "--chat-template=%s", s->chat_template);
    if (s->sampling)
        supervise_argument(child, "--sampling=%s", s->sampling);
    supervise_argument(child, "--tool-parser=%s", s->tool_parser);
    supervise_argument(child, "--reasoning-parser=%s", s->reasoning_parser);
    if (s->request_timeout_s > 0)
        supervise_argument(child, "--request-timeout=%g", s->request_timeout_s);
}

// Picks a free port of this machine for the scheduler, which keeps it when it is started again.
static enum status pick_port(uint32_t *port, struct error *error)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || getsockname(fd, (struct sockaddr *)&address, &length)) {
        error_set(error, STATUS_UNAVAILABLE, "127.0.0.1: no free port: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return error->status;
    }
    *port = ntohs(address.sin_port);
    close(fd);
    return STATUS_OK;
}

// Returns the port in a file that the gateway has written since it was started; 0: it does not listen, or has no such port.
static uint32_t port_of_gateway(const struct up *up, const char *name)
{
    char path[160];
    uint32_t port = 0;

    snprintf(path, sizeof path, "%s/%s" SUPERVISE_PORT_FILE, up->supervisor.run_dir, name);
    FILE *file = up->gateway->pid ? fopen(path, "re") : NULL;
    if (file && fscanf(file, "%5u", &port) != 1)
        port = 0;
    if (file)
        fclose(file);
    return port;
}

// Every start of the mesh has a secret of its own, unless one was given.
static enum status make_secret(struct up *up, struct error *error)
{
    static char path[160];

    if (up->settings.mesh_secret_file)
        return STATUS_OK;
    snprintf(path, sizeof path, "%s/mesh-secret", up->supervisor.run_dir);
    up->settings.mesh_secret_file = path;
    return rpc_secret_create(path, error);
}

static void add_all(struct up *up)
{
    uint64_t free_bytes = memory_available_bytes();

    add_scheduler(up);
    for (uint32_t i = 0; i < up->settings.s_parts; i++)
        add_s_part(up, i, free_bytes);
    if (up->settings.worker_a_node)
        share_nodes(up, free_bytes);
    for (uint32_t i = 0; i < up->settings.kv_workers; i++)
        add_worker(up, i, free_bytes);
    add_gateway(up);
}

static enum status start_all(struct up *up, struct error *error)
{
    add_all(up);
    log_nodes(up);
    for (uint32_t i = 0; i < up->supervisor.child_count; i++)
        if (supervise_start(&up->supervisor, &up->supervisor.children[i], error))
            return error->status;
    return STATUS_OK;
}

// Ends the gateway first, so that requests end; then the scheduler, so that workers do not start to hand pages over; then the rest.
static void stop_all(struct up *up)
{
    struct supervisor *supervisor = &up->supervisor;

    if (up->gateway)
        supervise_stop(supervisor, up->gateway, (int)(up->settings.drain_timeout_s * 1000) + STOP_MS);
    supervisor->no_restarts = true; // until then, what dies may be needed for requests under way
    if (up->scheduler)
        supervise_stop(supervisor, up->scheduler, STOP_MS);
    for (uint32_t i = 0; i < supervisor->child_count; i++)
        supervise_stop(supervisor, &supervisor->children[i], STOP_MS);
}

// Prints where /metrics and /mesh are, unless that is the public address, and has a gateway that is started again stay there.
static void print_admin(const struct up *up, uint32_t port)
{
    const bool is_auto = !strcmp(up->settings.admin_listen, "auto");
    const char *listen = is_auto ? "127.0.0.1:" ADMIN_PORT : up->settings.admin_listen, *colon = strrchr(listen, ':');
    char address[300];

    if (!port || !colon)
        return;
    snprintf(address, sizeof address, "%.*s:%u", (int)(colon - listen), listen, port);
    printf("metrics: http://%s/metrics, and /mesh%s\n", address,
           is_auto && strcmp(address, listen) ? " (port " ADMIN_PORT " is taken; --admin-listen names another)" : "");
    supervise_argument(up->gateway, "--admin-listen=%s", address);
}

static void print_ready(struct up *up)
{
    const char *host = up->settings.host;
    char url[160];

    if (!strcmp(host, "0.0.0.0") || !strcmp(host, "::"))
        host = "127.0.0.1";
    snprintf(url, sizeof url, strchr(host, ':') ? "%s://[%s]:%u" : "%s://%s:%u", up->settings.tls_cert ? "https" : "http", host,
             up->settings.port);
    printf("READY %s\n", url);
    print_admin(up, port_of_gateway(up, "gateway-admin"));
    printf("logs: %s\ntry:\n  %s/fastdecode chat --url %s\n"
           "  curl %s/v1/chat/completions -H 'Content-Type: application/json' \\\n"
           "    -d '{\"model\": \"default\", \"temperature\": 0, \"messages\": [{\"role\": \"user\", \"content\": \"What is the "
           "capital of France?\"}]}'\n",
           up->supervisor.run_dir, up->program_dir, url, url);
    fflush(stdout);
}

// Returns 0 once it is asked to stop, or the exit code of a child that cannot start.
static int watch(struct up *up)
{
    bool ready = false;

    while (!up->supervisor.stop_asked) {
        struct child *hopeless = supervise_wait(&up->supervisor, ready ? 1000 : PROBE_MS);
        if (hopeless) {
            char line[1024];
            if (hopeless->exit_status > 128)
                snprintf(line, sizeof line, "signal %d killed it (9: often for memory)", hopeless->exit_status - 128);
            else
                supervise_last_line(&up->supervisor, hopeless, line, sizeof line);
            fprintf(stderr, "fastdecode up: %s cannot start: %s\n", hopeless->name, line);
            return hopeless->exit_status <= EXIT_CODE_MODEL ? hopeless->exit_status : EXIT_CODE_INTERNAL;
        }
        const uint32_t port = ready ? 0 : port_of_gateway(up, "gateway");
        if (port && http_probe_ready(up->settings.host, (uint16_t)port, up->settings.tls_cert != NULL)) {
            ready = up->supervisor.has_started = true;
            up->settings.port = port;
            supervise_argument(up->gateway, "--port=%u", port);
            print_ready(up);
        }
    }
    fprintf(stderr, "fastdecode up: ending; running requests may take %g s, a second signal ends at once\n",
            up->settings.drain_timeout_s);
    return 0;
}

static int fail(const struct error *error)
{
    fprintf(stderr, "fastdecode up: %s\n", error->text);
    return error_exit_code(error);
}

// Every program reads its own settings with --check: the first that refuses them says why, and its exit code is returned.
static int check_all(struct up *up)
{
    struct error error;

    if (up->settings.run_dir && supervise_check_run_dir(up->settings.run_dir, &error))
        return fail(&error);
    snprintf(up->supervisor.run_dir, sizeof up->supervisor.run_dir, "/tmp");
    add_all(up);
    for (uint32_t i = 0; i < up->supervisor.child_count; i++) {
        struct child *child = &up->supervisor.children[i];
        pid_t pid;
        int status;
        supervise_argument(child, "--check");
        supervise_argument(child, "--log-level=error"); // print the answer alone
        int failed = posix_spawn(&pid, child->arguments[0], NULL, NULL, child->arguments, environ);
        if (failed) {
            fprintf(stderr, "fastdecode up: cannot run %s: %s\n", child->arguments[0], strerror(failed));
            return EXIT_CODE_SETTINGS;
        }
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
            return EXIT_CODE_INTERNAL;
        if (WEXITSTATUS(status))
            return WEXITSTATUS(status);
    }
    return 0;
}

// Picks the scheduler's port if it needs one, opens the run folder and the trace.
static enum status prepare(struct up *up, struct error *error)
{
    static char made[] = "/tmp/fastdecode-XXXXXX";
    const struct trace_config trace = {.path = up->settings.trace, .process = "fastdecode up", .order = 9};
    enum status status;

    if (!up->settings.run_dir) {
        if (!mkdtemp(made))
            return error_set(error, STATUS_UNAVAILABLE, "%s: %s", made, strerror(errno));
        up->settings.run_dir = made;
    }
    if ((up->settings.tls && (status = pick_port(&up->settings.scheduler_port, error))) ||
        (status = supervise_open(&up->supervisor, up->settings.run_dir, error)))
        return status;
    status = make_secret(up, error);
    return status ? status : trace_open(&trace, error);
}

int up_main(int argc, char **argv)
{
    static struct up up; // 80 children with their arguments: too large for a stack
    struct error error = {0};
    bool check_only;
    int code;

    signal(SIGPIPE, SIG_IGN); // a reader of its output that has gone must not end the mesh
    if (up_settings_parse(&up.settings, argc, argv, &check_only, &error) || find_programs(&up, &error))
        return fail(&error);
    if (check_only)
        return check_all(&up);
    if (prepare(&up, &error))
        return fail(&error);
    code = start_all(&up, &error) ? fail(&error) : watch(&up);
    up.supervisor.no_restarts = code != 0;
    stop_all(&up);
    if (code)
        fprintf(stderr, "fastdecode up: the services' logs are in %s\n", up.supervisor.run_dir);
    trace_close(); // the services have written theirs
    supervise_close(&up.supervisor);
    return code;
}
