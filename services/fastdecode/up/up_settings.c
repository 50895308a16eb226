// up_settings.c: see up_settings.h.
#include "services/fastdecode/up/up_settings.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/memory.h"
#include "common/base/options.h"
#include "common/disk/disk.h"
#include "common/kv/kv_shape.h"
#include "common/kv/kv_type.h"
#include "common/model/compute.h"
#include "common/model/pooling.h"
#include "common/rpc/security.h"
#include "common/sched/settings.h"
#include "common/service/sandbox.h"
#include "common/trace/otlp.h"
#include "common/trace/trace.h"

// --- a model by its name in a folder of models -----------------------------------------------------------------------

enum { LISTED_BYTES = 400 };

struct search {
    const char *name;
    char best[256], listed[LISTED_BYTES]; // the one that has the name, or begins with it; all that there are
    bool exact;                           // best has the name, with .gguf or without
    uint32_t alike;                       // unless it does: how many begin with the name
};

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length > wanted && strcmp(text + length - wanted, end) == 0;
}

// Whether a folder's entry is a model: a GGUF file, the first of several, or a directory with config.json.
static bool is_model(const char *folder, const char *entry)
{
    const char *part = strstr(entry, "-of-");
    char path[4096];

    if (ends_with(entry, ".gguf"))
        return !part || part - entry < 6 || strncmp(part - 6, "-00001", 6) == 0;
    return (size_t)snprintf(path, sizeof path, "%s/%s/config.json", folder, entry) < sizeof path && access(path, R_OK) == 0;
}

static void look_at(struct search *search, const char *entry)
{
    size_t at = strlen(search->listed), length = search->name ? strlen(search->name) : 0;

    snprintf(search->listed + at, sizeof search->listed - at, "%s%s", at ? ", " : "", entry);
    if (!length || strncmp(entry, search->name, length))
        return;
    if (search->exact) // before all that begin with it; NAME comes before NAME.gguf
        return;
    search->exact = entry[length] == '\0' || strcmp(entry + length, ".gguf") == 0;
    search->alike++;
    snprintf(search->best, sizeof search->best, "%s", entry);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void look_through(struct search *search, const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, by_name);

    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.' && is_model(folder, entries[i]->d_name))
            look_at(search, entries[i]->d_name);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}

static enum status fail(const char *name, const char *folder, const struct search *search, int number, struct error *error)
{
    char there[LISTED_BYTES + 300] = "";

    if (search->listed[0])
        snprintf(there, sizeof there, "; in %.200s there are %s", folder, search->listed);
    if (!name)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--model FILE is missing (`make model` gets a small one)%s", there);
    if (!search->exact && search->alike > 1)
        error_set(error, STATUS_NOT_FOUND, "--model %s: several begin so%s", name, there);
    else
        error_set(error, STATUS_NOT_FOUND, "--model %s: %s%s", name, strerror(number), there);
    error->about_model = true;
    return error->status;
}

// Writes the path of what --model says: a file or directory that is there, else the one in `folder` that has the name, with .gguf or
// without, or that is the only one to begin with it; of a file in several parts the first. NOT_FOUND: there is none, or there are several,
// and *error says which models are in the folder (error->about_model). name: NULL: not given. The folder may be missing.
static enum status find_model(const char *name, const char *folder, char *out, size_t bytes, struct error *error)
{
    struct search search = {.name = name};
    int number;

    if (name && access(name, R_OK) == 0) {
        if ((size_t)snprintf(out, bytes, "%s", name) < bytes)
            return STATUS_OK;
        return error_set(error, STATUS_INVALID_ARGUMENT, "--model: the path is too long");
    }
    number = errno;
    if (!name || !strchr(name, '/'))
        look_through(&search, folder);
    bool found = search.exact || search.alike == 1;
    if (found && (size_t)snprintf(out, bytes, "%s/%s", folder, search.best) < bytes)
        return STATUS_OK;
    return fail(name, folder, &search, number, error);
}

// --- all settings ----------------------------------------------------------------------------------------------------
static const struct up_settings defaults = {
    .host = "127.0.0.1",
    .port = 8080,
    .kv_workers_text = "auto",
    .numa = "auto",
    .split = "auto",
    .models_dir = "models",
    .admission = "auto",
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
    .tool_parser = "auto",
    .reasoning_parser = "auto",
    .audit = "none",
    .admin_listen = "auto",
    .admin_key_file = "none",
    .batch_dir = "none",
    .compute = "auto",
    .quantize = "none",
    .pooling = "auto",
    .kv_type = "f16",
    .sparse_attention = "off",
    .local_pool = "auto",
    .cache_dir = "none",
    .disk_reads = "auto",
    .weights_memory = "auto",
    .weights_host_memory = "auto",
    .worker_timeout_ms = 2000,
    .drain_timeout_s = 10,
    .otlp_endpoint = "none",
    .trace_sample = 1,
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
    if (s->kv_workers || strncmp(s->device, "cuda", 4) ||
        ((!strcmp(s->kv_type, "f16") || !strcmp(s->kv_type, "auto")) && !sparse_percent))
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
    if (!status)
        status = fix_kind_of_place(s, pool_bytes, error);
    const uint64_t pools = strcmp(s->device, "cpu") ? 0 : s->s_parts; // a device may have the others
    const double asked = (double)s->kv_memory * s->kv_workers + (double)pool_bytes * (double)pools;
    const double total = (double)memory_total_bytes();
    if (!status && asked > total)
        status =
            error_set(error, STATUS_RESOURCE_EXHAUSTED,
                      "%.0f MiB of KV pages are asked for (--kv-memory of %u workers, --local-pool), there are %.0f MiB of memory",
                      asked / 1048576, s->kv_workers, total / 1048576);
    return status;
}

// Fills in how many s-parts there are, and with --split their layers. Stages that do not have exactly the model's layers would wait for each
// other for ever.
static enum status check_stages(struct up_settings *s, struct error *error)
{
    const bool splits = strcmp(s->split, "auto") != 0;
    enum status status = STATUS_OK;
    struct model *model;

    if (!splits && s->s_parts <= 1) {
        s->s_parts = 1;
        return STATUS_OK;
    }
    if (model_open(s->model, &model, error))
        return error->status;
    const uint32_t layers = model->shape.layers;
    model_close(model);
    if (splits)
        status = plan_split_read(s->split, layers, &s->s_parts, s->ranges, error);
    else if (s->s_parts > layers)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "--s-parts %u: the model has %u layers, each s-part needs one",
                           s->s_parts, layers);
    if (!status && s->s_parts > 1 && !strcmp(s->kv_type, "auto"))
        status = error_set(
            error, STATUS_INVALID_ARGUMENT,
            "--kv-type auto reads a text with all layers, and each of %u s-parts has some: name a type, such as f16 or int8",
            s->s_parts);
    return status;
}

// auto: one on each NUMA node that has CPUs and memory; on a machine with one node, one that is bound to nothing.
static enum status count_workers(struct up_settings *s, struct error *error)
{
    struct numa_worker nodes[NUMA_NODES_MAX];
    char *end;

    numa_read_own(&s->topology);
    if (!strcmp(s->kv_workers_text, "auto")) {
        s->kv_workers = MAX(numa_share(&s->topology, 0, 0, nodes), 1u);
        s->worker_a_node = s->kv_workers > 1;
        return STATUS_OK;
    }
    unsigned long count = strtoul(s->kv_workers_text, &end, 10);
    if (*s->kv_workers_text < '0' || *s->kv_workers_text > '9' || *end || count > UP_WORKERS_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--kv-workers is '%.64s', want auto or a whole number from 0 to %d",
                         s->kv_workers_text, UP_WORKERS_MAX);
    s->kv_workers = (uint32_t)count;
    return STATUS_OK;
}

static enum status check(struct up_settings *s, struct error *error)
{
    enum sched_admission admission;
    enum status status = sched_admission_choose(s->admission, s->spacing, &admission, error);

    if (status || (status = count_workers(s, error)) || (status = otlp_check_endpoint(s->otlp_endpoint, error)) ||
        (status = check_model(s, error)) || (status = check_stages(s, error)))
        return status;
    return check_places(s, error);
}

enum { OPTIONS_MAX = 64 };

// Options of what is served, and with which processes and memory. Returns how many options there are.
static uint32_t list_services(struct up_settings *s, struct option *out)
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
         "file of accepted API keys and their limits, one a line; each gateway counts for itself; none: no key is needed", 0, 0},
        {"tls-cert", OPTION_STRING, &s->tls_cert, "FILE", "certificate chain (PEM) for HTTPS", 0, 0},
        {"tls-key", OPTION_STRING, &s->tls_key, "FILE", "its private key (PEM)", 0, 0},
        {"admin-listen", OPTION_STRING, &s->admin_listen, "ADDRESS:PORT|auto|none",
         "separate address for /metrics and /mesh; none: they are at --port; auto: none if --host is loopback, else 127.0.0.1:9464",
         0, 0},
        {"admin-key-file", OPTION_STRING, &s->admin_key_file, "FILE|none|open",
         "keys for /metrics and /mesh; none: clients on this machine need no key and others are refused; open: nobody needs a key",
         0, 0},
        {"audit", OPTION_STRING, &s->audit, "FILE|none", "append a line of JSON a request: who, what, how much", 0, 0},
        {"batch-dir", OPTION_STRING, &s->batch_dir, "DIR|none", "folder for files and batches; none: no /v1/files and /v1/batches",
         0, 0},
        {"chat-template", OPTION_STRING, &s->chat_template, "FILE", "Jinja template instead of the model's own", 0, 0},
        {"sampling", OPTION_STRING, &s->sampling, "NAME=VALUE,...",
         "sampling defaults for requests that do not set them: temperature=0.7,top_p=0.9 and other numbers of docs/api.md; default: what the model's file recommends",
         0, 0},
        {"tool-parser", OPTION_STRING, &s->tool_parser, "auto|none|NAME",
         "format in which the model writes tool calls; auto: the one that the chat template shows (docs/tools.md lists the names)",
         0, 0},
        {"reasoning-parser", OPTION_STRING, &s->reasoning_parser, "auto|none|NAME",
         "format in which the model marks its reasoning; auto: the one that the chat template shows", 0, 0},
        {"s-parts", OPTION_U32, &s->s_parts, "N|auto",
         "s-part processes; several form a pipeline, each with some of the model's layers and of the cores; auto: as many as --split names, else one",
         0, SCHED_STAGES_MAX},
        {"split", OPTION_STRING, &s->split, "auto|LAYERS,LAYERS", PLAN_SPLIT_HELP "; auto: by the bytes of their weights", 0, 0},
        {"kv-workers", OPTION_STRING, &s->kv_workers_text, "N|auto",
         "KV worker processes; 0: all KV lies in the local pool; auto: one on each NUMA node, with its threads and pages there", 0,
         0},
        {"kv-memory", OPTION_SIZE, &s->kv_memory, "SIZE", "memory for the pages of each KV worker; 0: a share of the free memory",
         0, 0},
        {"numa", OPTION_STRING, &s->numa, "auto|interleave|NODE|none", NUMA_HELP, 0, 0},
        {"kv-type", OPTION_STRING, &s->kv_type, "TYPE", KV_TYPE_HELP, 0, 0},
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
        {"pooling", OPTION_CHOICE, &s->pooling, POOLING_NAMES, POOLING_HELP, 0, 0},
        {"batch-invariant", OPTION_BOOL, &s->batch_invariant, NULL, INVARIANT_HELP, 0, 0},
    };

    return options_append(out, 0, OPTIONS_MAX, options, ARRAY_COUNT(options));
}

// How steps are made, limits, and what all services have. `before`: how many options are there already. Returns how many there are then.
static uint32_t list_steps(struct up_settings *s, struct option *out, uint32_t before)
{
    const struct option options[] = {
        {"context", OPTION_U32, &s->context, "TOKENS", "longest sequence; 0: the model's", 0, 1 << 24},
        {"max-batch", OPTION_U32, &s->max_batch, "N", SCHED_RUNNING_HELP, 1, SCHED_RUNNING_MAX},
        {"mini-batches", OPTION_U32, &s->mini_batches, "N",
         "mini-batches in flight; two pay if workers have cores of their own; 0: one for each s-part, or with a GPU and workers the predicted fastest number, up to three (two for each of several s-parts)",
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
        {"batch-queue", OPTION_U32, &s->batch_queue, "N", "batch-class requests that may wait", 1, 1 << 20},
        {"request-timeout", OPTION_F64, &s->request_timeout_s, "SECONDS",
         "time limit of a request, which then ends with the tokens it has; 0: none", 0, 1e6},
        {"drain-timeout", OPTION_F64, &s->drain_timeout_s, "S", "how long requests may take after SIGTERM", 0, 86400},
        {"threads", OPTION_U32, &s->threads, "N", "compute threads; 0: one per usable CPU, each pinned", 0, 1024},
        {"worker-timeout-ms", OPTION_U32, &s->worker_timeout_ms, "MS", "a service that has been silent this long counts as dead",
         100, 600000},
        {"calibrate", OPTION_BOOL, &s->calibrate, NULL, "measure at start how long steps take (0.8 s)", 0, 0},
        {"trace", OPTION_STRING, &s->trace, "FILE", TRACE_HELP, 0, 0},
        {OTLP_OPTION, OPTION_STRING, &s->otlp_endpoint, "URL|none", OTLP_HELP, 0, 0},
        {OTLP_RATIO_OPTION, OPTION_F64, &s->trace_sample, "RATIO", OTLP_RATIO_HELP, 0, 1},
        {RPC_SECRET_OPTION, OPTION_STRING, &s->mesh_secret_file, "FILE|none",
         "file with the secret that the services share; default: a new one in the run folder", 0, 0},
        {"tls", OPTION_STRING, &s->tls, "DIR|none",
         "services talk over TLS with the certificates in this folder (made by fastdecode certs); none: over sockets in the run folder",
         0, 0},
        {"sandbox", OPTION_CHOICE, &s->sandbox, SANDBOX_MODES, SANDBOX_HELP, 0, 0},
        {"run-dir", OPTION_STRING, &s->run_dir, "DIR",
         "folder for pid files, logs and sockets, yours alone (mode 700); default: a new one under /tmp", 0, 0},
    };

    return options_append(out, before, OPTIONS_MAX, options, ARRAY_COUNT(options));
}

enum status up_settings_parse(struct up_settings *s, int argc, char **argv, bool *check_only, struct error *error)
{
    struct option options[OPTIONS_MAX];
    struct program program = {.name = "fastdecode up",
                              .purpose = "serves a model on this machine",
                              .options = options,
                              .option_count = list_steps(s, options, list_services(s, options))};

    *s = defaults;
    s->sandbox = sandbox_default();
    enum status status = options_parse(&program, argc, argv, error);

    *check_only = program.check_only;
    s->log_json = program.log_json;
    s->log_max_bytes = program.log_max_bytes;
    s->log_keep = program.log_keep;
    options_forget_environment(&program); // services get flags: FD_THREADS means something else to a gateway
    return status ? status : check(s, error);
}
