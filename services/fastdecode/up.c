// up.c: starts scheduler, s-part, kv-workers and gateway, waits until the gateway is ready, then watches them.
//
// Services find each other by ipc sockets in the run directory. The gateway's port is picked once: a gateway that is
// started again gets the same one.
#include "services/fastdecode/up.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/options.h"
#include "common/base/thread_pool.h"
#include "common/disk/disk.h"
#include "common/kv/kv_sparse.h"
#include "common/kv/kv_type.h"
#include "common/model/compute.h"
#include "common/plan/split.h"
#include "common/rpc/secret.h"
#include "common/sched/sched_settings.h"
#include "common/service/service.h"
#include "common/trace/trace.h"
#include "services/fastdecode/find_model.h"
#include "services/fastdecode/http_probe.h"
#include "services/fastdecode/supervise.h"

enum { DRAIN_S = 10, STOP_GATEWAY_MS = 15000, STOP_OTHERS_MS = 5000, PROBE_MS = 50 };

struct up_settings {
    const char *batch_dir;
    const char *model, *host, *served_model_name, *api_key_file, *chat_template, *run_dir, *device, *compute, *quantize, *kv_type,
        *sparse_attention, *local_pool, *admission, *placement, *micro_batch, *kv_worker_isa, *trace, *mesh_secret_file, *tls;
    const char *models_dir;
    char model_path[4096]; // of what `model` says
    const char *split;     // and what it says, unless it is "auto":
    struct plan_range ranges[PLAN_STAGES_MAX];
    const char *cache_dir, *disk_reads, *weights_memory, *weights_host_memory;
    uint32_t port, scheduler_port, kv_workers, s_parts, mini_batches, chunk, spacing, draft_tokens, max_batch, context, threads,
        max_queue, batch_queue, worker_timeout_ms;
    uint64_t kv_memory;
    double request_timeout_s, step_target_ms;
    bool log_json, prefix_cache, calibrate, batch_invariant;
};

static const struct up_settings defaults = {
    .host = "127.0.0.1",
    .port = 8080,
    .kv_workers = 1,
    .s_parts = 1,
    .split = "auto",
    .models_dir = "models",
    .admission = "sls",
    .calibrate = true,
    .placement = "auto",
    .micro_batch = "auto",
    .prefix_cache = true,
    .max_batch = 128,
    .max_queue = 1024,
    .batch_queue = 1024,
    .draft_tokens = SCHED_DRAFT_TOKENS,
    .device = "cpu",
    .api_key_file = "none",
    .batch_dir = "none",
    .compute = "auto",
    .quantize = "none",
    .kv_type = "f16",
    .sparse_attention = "off",
    .local_pool = "auto",
    .cache_dir = "none",
    .disk_reads = "auto",
    .weights_memory = "auto",
    .weights_host_memory = "auto",
    .worker_timeout_ms = 2000,
};

struct up {
    struct up_settings settings;
    struct supervisor supervisor;
    struct child *gateway, *scheduler;
    struct child *workers[64];
    char program_dir[512];
    char host_port[128];
};

// A service that cannot read its model ends with the same code.
static enum status check_model(struct up_settings *s, struct error *error)
{
    enum status status = find_model(s->model, s->models_dir, s->model_path, sizeof s->model_path, error);
    s->model = s->model_path;
    if (s->tls && !strcmp(s->tls, "none"))
        s->tls = NULL;
    return status;
}

// A GPU's pool is f16 and has no sparse attention: another KV type, and that, have no place there.
static enum status check_kv_has_a_place(const struct up_settings *s, uint64_t pool_bytes, struct error *error)
{
    const enum sched_placement placement = sched_placement_named(s->placement);
    uint32_t sparse_percent;

    if (kv_sparse_parse(s->sparse_attention, &sparse_percent, error))
        return error->status;
    if (placement == SCHED_PLACE_WORKERS && s->kv_workers == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--placement workers with --kv-workers 0 leaves no place for KV");
    if (pool_bytes == 0 && (s->kv_workers == 0 || placement == SCHED_PLACE_LOCAL))
        return error_set(error, STATUS_INVALID_ARGUMENT, "--local-pool 0 with %s leaves no place for KV",
                         s->kv_workers ? "--placement local" : "--kv-workers 0");
    if (s->kv_workers || strncmp(s->device, "cuda", 4) || (!strcmp(s->kv_type, "f16") && !sparse_percent))
        return STATUS_OK;
    if (sparse_percent)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--sparse-attention on a GPU wants KV workers, its local pool has none: --kv-workers 1, or "
                         "--sparse-attention off");
    return error_set(error, STATUS_INVALID_ARGUMENT,
                     "--kv-type %s on a GPU wants KV workers, its local pool is f16: --kv-workers 1, or --kv-type f16", s->kv_type);
}

// With --batch-invariant on a GPU: attention in its pool and in workers gives different bytes, so all KV must lie in places of one
// kind. If there is only one kind, this sets it.
static enum status fix_kind_of_place(struct up_settings *s, uint64_t pool_bytes, struct error *error)
{
    if (!s->batch_invariant || !strcmp(s->device, "cpu") || sched_placement_named(s->placement) != SCHED_PLACE_AUTO)
        return STATUS_OK;
    if (s->kv_workers && pool_bytes)
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "--batch-invariant on a GPU wants KV in one kind of place, and --placement auto takes both: --placement local "
            "(or --kv-workers 0), or --placement workers (or --local-pool 0)");
    s->placement = s->kv_workers ? "workers" : "local";
    return STATUS_OK;
}

static enum status check_places(struct up_settings *s, struct error *error)
{
    uint64_t pool_bytes = 1; // auto: some

    if (strcmp(s->local_pool, "auto") && options_parse_size(s->local_pool, &pool_bytes))
        return error_set(error, STATUS_INVALID_ARGUMENT, "--local-pool is '%s', want auto, 0 or bytes such as 2G", s->local_pool);
    enum status status = check_kv_has_a_place(s, pool_bytes, error);
    return status ? status : fix_kind_of_place(s, pool_bytes, error);
}

static enum status check(struct up_settings *s, struct error *error)
{
    enum status status = check_model(s, error);

    if (!status && strcmp(s->split, "auto"))
        status = plan_split_read(s->split, s->s_parts, 0, s->ranges, error);
    return status ? status : check_places(s, error);
}

static enum status parse(struct up_settings *s, int argc, char **argv, bool *check_only, struct error *error)
{
    const struct option options[] = {
        {"model", OPTION_STRING, &s->model, "FILE|NAME",
         "GGUF file, or directory of Hugging Face files, or the name of one in --models-dir (required)", 0, 0},
        {"models-dir", OPTION_STRING, &s->models_dir, "DIR", MODELS_DIR_HELP, 0, 0},
        {"host", OPTION_STRING, &s->host, "ADDRESS", "address on which the HTTP server listens", 0, 0},
        {"port", OPTION_U32, &s->port, "N", "port of the HTTP server; 0 picks a free one", 0, 65535},
        {"served-model-name", OPTION_STRING, &s->served_model_name, "NAME",
         "name of the model in the API; default: the file name without .gguf", 0, 0},
        {"api-key-file", OPTION_STRING, &s->api_key_file, "FILE|none",
         "file of accepted API keys, one a line; none: no key is needed", 0, 0},
        {"batch-dir", OPTION_STRING, &s->batch_dir, "DIR|none", "folder for files and batches; none: no /v1/files and /v1/batches",
         0, 0},
        {"chat-template", OPTION_STRING, &s->chat_template, "FILE", "Jinja template instead of the model's own", 0, 0},
        {"s-parts", OPTION_U32, &s->s_parts, "N",
         "s-part processes: several are a pipeline, each with a part of the model's layers and of the cores", 1, SCHED_STAGES_MAX},
        {"split", OPTION_STRING, &s->split, "auto|LAYERS,LAYERS", PLAN_SPLIT_HELP "; auto: by the bytes of their weights", 0, 0},
        {"kv-workers", OPTION_U32, &s->kv_workers, "N", "KV worker processes; 0: everything in the local pool", 0, 64},
        {"kv-memory", OPTION_SIZE, &s->kv_memory, "SIZE", "memory for the pages of each KV worker; 0: a share of what is free", 0,
         0},
        {"kv-type", OPTION_STRING, &s->kv_type, "TYPE", "element type of the KV cache: " KV_TYPE_NAMES, 0, 0},
        {KV_SPARSE_OPTION, OPTION_STRING, &s->sparse_attention, KV_SPARSE_NAMES, KV_SPARSE_HELP, 0, 0},
        {"kv-worker-isa", OPTION_STRING, &s->kv_worker_isa, "LIST", "instruction set of each worker in turn, such as avx2,avx512",
         0, 0},
        {"local-pool", OPTION_STRING, &s->local_pool, "SIZE", "memory for KV in the s-part, or in its GPU: auto, 0 or bytes", 0, 0},
        {"cache-dir", OPTION_STRING, &s->cache_dir, "DIR|none", CACHE_DIR_HELP, 0, 0},
        {"weights-memory", OPTION_STRING, &s->weights_memory, "SIZE|auto", WEIGHTS_MEMORY_HELP, 0, 0},
        {"weights-host-memory", OPTION_STRING, &s->weights_host_memory, "SIZE|auto", WEIGHTS_HOST_MEMORY_HELP, 0, 0},
        {"disk-reads", OPTION_CHOICE, &s->disk_reads, DISK_METHOD_NAMES, DISK_READS_HELP, 0, 0},
        {"device", OPTION_STRING, &s->device, "DEVICE", DEVICE_HELP, 0, 0},
        {"compute", OPTION_CHOICE, &s->compute, COMPUTE_NAMES, COMPUTE_HELP, 0, 0},
        {"quantize", OPTION_CHOICE, &s->quantize, QUANTIZE_NAMES, QUANTIZE_HELP, 0, 0},
        {"batch-invariant", OPTION_BOOL, &s->batch_invariant, NULL, INVARIANT_HELP, 0, 0},
        {"context", OPTION_U32, &s->context, "TOKENS", "longest sequence; 0: the model's", 0, 1 << 24},
        {"max-batch", OPTION_U32, &s->max_batch, "N", SCHED_RUNNING_HELP, 1, SCHED_RUNNING_MAX},
        {"mini-batches", OPTION_U32, &s->mini_batches, "N",
         "mini-batches in flight; two pay if workers have cores of their own. 0: one for each s-part; with a GPU and workers one or two, "
         "whichever is predicted to be faster",
         0, SCHED_MINI_BATCHES_MAX},
        {"micro-batch", OPTION_CHOICE, &s->micro_batch, SCHED_MICRO_BATCH_NAMES, SCHED_MICRO_BATCH_HELP, 0, 0},
        {"chunk", OPTION_U32, &s->chunk, "TOKENS|auto", SCHED_CHUNK_HELP, 0, 65536},
        {"step-target-ms", OPTION_F64, &s->step_target_ms, "MS|auto", SCHED_STEP_TARGET_HELP, 0, 60000},
        {"admission", OPTION_CHOICE, &s->admission, SCHED_ADMISSION_NAMES, SCHED_ADMISSION_HELP, 0, 0},
        {"draft-tokens", OPTION_U32, &s->draft_tokens, "N", SCHED_DRAFT_TOKENS_HELP, 0, SCHED_DRAFT_TOKENS_MAX},
        {"spacing", OPTION_U32, &s->spacing, "STEPS", SCHED_SPACING_HELP, 0, 65536},
        {"placement", OPTION_CHOICE, &s->placement, SCHED_PLACEMENT_NAMES, SCHED_PLACEMENT_HELP, 0, 0},
        {"prefix-cache", OPTION_BOOL, &s->prefix_cache, NULL, SCHED_PREFIX_CACHE_HELP, 0, 0},
        {"max-queue", OPTION_U32, &s->max_queue, "N", "requests that may wait; further ones get status 429", 1, 1 << 20},
        {"batch-queue", OPTION_U32, &s->batch_queue, "N", "the same for requests of latency class batch", 1, 1 << 20},
        {"request-timeout", OPTION_F64, &s->request_timeout_s, "SECONDS",
         "time limit of a request, which then ends with what it has; 0: none", 0, 1e6},
        {"threads", OPTION_U32, &s->threads, "N", "compute threads; 0: one per usable CPU, each pinned", 0, 1024},
        {"worker-timeout-ms", OPTION_U32, &s->worker_timeout_ms, "MS", "a service that is silent for this long is taken for dead",
         100, 600000},
        {"calibrate", OPTION_BOOL, &s->calibrate, NULL, "measure at start how long steps take (0.8 s)", 0, 0},
        {"trace", OPTION_STRING, &s->trace, "FILE", TRACE_HELP, 0, 0},
        {RPC_SECRET_OPTION, OPTION_STRING, &s->mesh_secret_file, "FILE|none",
         "file with the secret that the services share; default: a new one in the run folder", 0, 0},
        {"tls", OPTION_STRING, &s->tls, "DIR|none",
         "services talk over TLS, with the certificates in this folder, which fastdecode certs has made; none: by sockets in the run folder",
         0, 0},
        {"run-dir", OPTION_STRING, &s->run_dir, "DIR",
         "folder for pid files, logs and sockets, yours alone (mode 700); default: a new one under /tmp", 0, 0},
    };
    struct program program = {.name = "fastdecode up",
                              .purpose = "serves a model on this machine",
                              .options = options,
                              .option_count = ARRAY_COUNT(options)};
    enum status status = options_parse(&program, argc, argv, error);

    *check_only = program.check_only;
    s->log_json = program.log_json;
    options_forget_environment(&program); // services get flags: FD_THREADS means something else to a gateway
    return status ? status : check(s, error);
}

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
    if (up->settings.log_json)
        supervise_argument(child, "--log-json");
    if (up->settings.mesh_secret_file)
        supervise_argument(child, "--" RPC_SECRET_OPTION "=%s", up->settings.mesh_secret_file);
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

// For each s-part two if a GPU computes while workers attend on the host's cores; otherwise one, for a second only takes memory.
static uint32_t mini_batches_of_s_part(const struct up_settings *s)
{
    const bool overlap = strcmp(s->device, "cpu") && s->kv_workers && sched_placement_named(s->placement) != SCHED_PLACE_LOCAL;

    return s->mini_batches ? s->mini_batches : s->s_parts * (overlap ? 2 : 1);
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
    supervise_argument(child, "--batch-invariant=%s", s->batch_invariant ? "on" : "off");
    supervise_argument(child, "--kv-type=%s", s->kv_type);
    supervise_argument(child, "--" KV_SPARSE_OPTION "=%s", s->sparse_attention);
    supervise_argument(child, "--context=%u", s->context);
    supervise_argument(child, "--max-batch=%u", s->max_batch);
    supervise_argument(child, "--mini-batches=%u", mini_batches_of_s_part(s));
    supervise_argument(child, "--threads=%u", s->s_parts > 1 ? MAX(threads / s->s_parts, 1u) : s->threads);
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
    char name[32];
    snprintf(name, sizeof name, "kv-worker-%u", index);
    struct child *child = up->workers[index] = add(up, name, "kv-worker");
    supervise_argument(child, "--name=%s", name);
    add_listen(up, child, "listen", name, "");
    add_listen(up, child, "listen-tensors", name, "-t");
    // All workers of a mini-batch attend at the same time: as many threads as cores in total.
    supervise_argument(child, "--threads=%u", MAX((s->threads ? s->threads : cpu_count_usable()) / s->kv_workers, 1u));
    if (strncmp(s->device, "cuda", 4)) // with auto the s-part corrects this if it finds a GPU
        supervise_argument(child, "--shares-cores");
    supervise_argument(child, "--calibrate=%s", s->calibrate ? "on" : "off");
    supervise_argument(child, "--kv-memory=%llu",
                       (unsigned long long)(s->kv_memory ? s->kv_memory : free_bytes / 4 / s->kv_workers));
    if (s->kv_worker_isa) { // the index-th of a comma list; the last one repeats
        const char *item = s->kv_worker_isa;
        for (uint32_t skip = index; skip && strchr(item, ','); skip--)
            item = strchr(item, ',') + 1;
        supervise_argument(child, "--isa=%.*s", (int)strcspn(item, ","), item);
    }
}

static void add_gateway(struct up *up)
{
    const struct up_settings *s = &up->settings;
    struct child *child = up->gateway = add(up, "gateway", "gateway");
    supervise_argument(child, "--listen=ipc://%s/gateway.sock", up->supervisor.run_dir);
    supervise_argument(child, "--host=%s", s->host);
    supervise_argument(child, "--port=%u", s->port);
    supervise_argument(child, "--model=%s", s->model);
    supervise_argument(child, "--context=%u", s->context);
    supervise_argument(child, "--drain-timeout=%d", DRAIN_S);
    supervise_argument(child, "--drain-notice=0"); // no load balancer is in front of it
    if (s->served_model_name)
        supervise_argument(child, "--served-model-name=%s", s->served_model_name);
    supervise_argument(child, "--api-key-file=%s", s->api_key_file);
    supervise_argument(child, "--batch-dir=%s", s->batch_dir);
    if (s->chat_template)
        supervise_argument(child, "--chat-template=%s", s->chat_template);
    if (s->request_timeout_s > 0)
        supervise_argument(child, "--request-timeout=%g", s->request_timeout_s);
}

// Picks a free port if *port is 0, so that a service that is started again keeps it.
static enum status pick_port(const char *host, uint32_t *port, struct error *error)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int fd;

    if (*port)
        return STATUS_OK;
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1)
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || getsockname(fd, (struct sockaddr *)&address, &length)) {
        error_set(error, STATUS_UNAVAILABLE, "%s: no free port: %s", host, strerror(errno));
        if (fd >= 0)
            close(fd);
        return error->status;
    }
    *port = ntohs(address.sin_port);
    close(fd);
    return STATUS_OK;
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
    for (uint32_t i = 0; i < up->settings.kv_workers; i++)
        add_worker(up, i, free_bytes);
    add_gateway(up);
}

static enum status start_all(struct up *up, struct error *error)
{
    add_all(up);
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
        supervise_stop(supervisor, up->gateway, STOP_GATEWAY_MS);
    if (up->scheduler)
        supervise_stop(supervisor, up->scheduler, STOP_OTHERS_MS);
    for (uint32_t i = 0; i < supervisor->child_count; i++)
        supervise_stop(supervisor, &supervisor->children[i], STOP_OTHERS_MS);
}

static void print_ready(const struct up *up)
{
    const char *host = up->settings.host;
    char url[160];

    if (!strcmp(host, "0.0.0.0") || !strcmp(host, "::"))
        host = "127.0.0.1";
    snprintf(url, sizeof url, strchr(host, ':') ? "http://[%s]:%u" : "http://%s:%u", host, up->settings.port);
    printf("READY %s\n", url);
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
            supervise_last_line(&up->supervisor, hopeless, line, sizeof line);
            fprintf(stderr, "fastdecode up: %s cannot start: %s\n", hopeless->name, line);
            return hopeless->exit_status <= SERVICE_EXIT_MODEL ? hopeless->exit_status : SERVICE_EXIT_INTERNAL;
        }
        if (!ready && http_probe_ready(up->settings.host, (uint16_t)up->settings.port)) {
            ready = up->supervisor.has_started = true;
            print_ready(up);
        }
    }
    fprintf(stderr, "fastdecode up: ending; running requests may take %d s, a second signal ends at once\n", DRAIN_S);
    return 0;
}

// Every program reads its own settings with --check: the first that refuses them says why, and its exit code is returned.
static int check_all(struct up *up)
{
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
            return SERVICE_EXIT_SETTINGS;
        }
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
            return SERVICE_EXIT_INTERNAL;
        if (WEXITSTATUS(status))
            return WEXITSTATUS(status);
    }
    return 0;
}

// Picks the port, opens the run folder and the trace.
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
    if ((status = pick_port(up->settings.host, &up->settings.port, error)) ||
        (up->settings.tls && (status = pick_port("127.0.0.1", &up->settings.scheduler_port, error))) ||
        (status = supervise_open(&up->supervisor, up->settings.run_dir, error)))
        return status;
    status = make_secret(up, error);
    return status ? status : trace_open(&trace, error);
}

static int fail(const struct error *error)
{
    fprintf(stderr, "fastdecode up: %s\n", error->text);
    return service_exit_of(error);
}

int up_main(int argc, char **argv)
{
    static struct up up; // 80 children with their arguments: too large for a stack
    struct error error = {0};
    bool check_only;
    int code;

    signal(SIGPIPE, SIG_IGN); // a reader of its output that has gone must not end the mesh
    up.settings = defaults;
    if (parse(&up.settings, argc, argv, &check_only, &error) || find_programs(&up, &error))
        return fail(&error);
    if (check_only)
        return check_all(&up);
    if (prepare(&up, &error))
        return fail(&error);
    code = start_all(&up, &error) ? fail(&error) : watch(&up);
    up.supervisor.no_restarts = code != 0;
    stop_all(&up);
    trace_close(); // the services have written theirs
    supervise_close(&up.supervisor);
    return code;
}
