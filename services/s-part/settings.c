// settings.c: the options of the s-part.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/kv/kv_shape.h"
#include "common/model/compute.h"
#include "common/model/pooling.h"
#include "common/sched/settings.h"
#include "common/trace/otlp.h"
#include "kernels/dispatch/kernels.h"
#include "services/s-part/s_part.h"

enum { CHUNK_ROWS = 512 };

static struct s_part_settings defaults(void)
{
    return (struct s_part_settings){
        .scheduler = "tcp://127.0.0.1:7400",
        .listen = "tcp://127.0.0.1:0",
        .name = "s-part",
        .device_timeout_s = 60,
        .compute = "auto",
        .quantize = "none",
        .pooling = "auto",
        .device_name = "cpu",
        .layers = "all",
        .numa = "auto",
        .cache_dir = "none",
        .otlp_endpoint = "none",
        .disk_reads = "auto",
        .weights_memory_text = "auto",
        .weights_host_memory_text = "auto",
        .calibrate = true,
        .kv_type_name = "f16",
        .sparse_attention = "off",
        .local_pool = 1ull << 30,
        .max_batch = 128,
    };
}

// "A:B": layers A, A + 1 … B - 1. "I/P": those of the I-th of P s-parts, which load.c finds.
static enum status parse_layers(struct s_part_settings *s, struct error *error)
{
    uint32_t first, end;
    char behind;

    if (!strcmp(s->layers, "all"))
        return STATUS_OK;
    const bool begins = s->layers[0] >= '0' && s->layers[0] <= '9';
    if (begins && sscanf(s->layers, "%6u:%6u%c", &first, &end, &behind) == 2 && first < end) {
        s->first_layer = first;
        s->layer_count = end - first;
    } else if (begins && sscanf(s->layers, "%6u/%6u%c", &first, &end, &behind) == 2 && first < end && end <= SCHED_STAGES_MAX) {
        s->stage = first;
        s->stages = end;
    } else {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--layers is '%s', want all, FIRST:END such as 0:19, or STAGE/STAGES such as 0/2 (at most %d)", s->layers,
                         SCHED_STAGES_MAX);
    }
    if (s->stages > 1 && !strcmp(s->name, "s-part")) {
        snprintf(s->own_name, sizeof s->own_name, "s-part-%u", s->stage);
        s->name = s->own_name;
    }
    return STATUS_OK;
}

// 0: auto.
static enum status parse_size(const char *option, const char *text, uint64_t *out, struct error *error)
{
    *out = 0;
    if (!strcmp(text, "auto") || (!options_parse_size(text, out) && *out))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT, "%s is '%s', want auto or bytes such as 12G", option, text);
}

// auto: f16 until load.c has the model and chooses.
static enum status parse_kv_type(struct s_part_settings *s, struct error *error)
{
    s->chooses_kv_type = !strcmp(s->kv_type_name, "auto");
    if (s->chooses_kv_type) {
        s->kv_type = KV_F16;
        return STATUS_OK;
    }
    return kv_type_parse(s->kv_type_name, &s->kv_type, error)
               ? error_set(error, STATUS_INVALID_ARGUMENT, "--kv-type is '%s', want auto, " KV_TYPE_NAMES, s->kv_type_name)
               : STATUS_OK;
}

// A GPU reads weights from its own memory, so `auto` interleaves for a CPU alone.
static enum status choose_binding(struct s_part_settings *s, struct error *error)
{
    const bool chooses = !strcmp(s->numa, "auto");
    struct numa_topology topology;
    uint32_t id;

    if (!strcmp(s->numa, "none") || (chooses && !strncmp(s->device_name, "cuda", 4)))
        return STATUS_OK;
    numa_read_own(&topology);
    if (chooses || !strcmp(s->numa, "interleave")) {
        numa_binding_interleave(&topology, chooses ? 2 : 1, &s->binding);
        return STATUS_OK;
    }
    enum status status = numa_parse_node("numa", s->numa, "auto, interleave, none", &id, error);
    return status ? status : numa_binding_node(&topology, "numa", id, &s->binding, error);
}

static enum status check(struct s_part_settings *s, struct error *error)
{
    const struct rpc_security_addresses addresses = {.listens = {s->listen, s->listen_tensors}, .dials = s->scheduler};
    enum status status;

    if (!s->model_path)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--model FILE is missing");
    if ((status = member_check_name(s->name, error)) || (status = rpc_security_check(&s->security, "s-part", &addresses, error)) ||
        (status = parse_kv_type(s, error)) || (status = kv_sparse_parse(s->sparse_attention, &s->sparse_percent, error)) ||
        (status = parse_layers(s, error)) || (status = otlp_check_endpoint(s->otlp_endpoint, error)))
        return status;
    if (disk_method_parse(s->disk_reads, &s->disk))
        return error_set(error, STATUS_INVALID_ARGUMENT, "--disk-reads is '%s', want " DISK_METHOD_NAMES, s->disk_reads);
    if ((status = parse_size("--weights-memory", s->weights_memory_text, &s->weights_memory, error)) ||
        (status = parse_size("--weights-host-memory", s->weights_host_memory_text, &s->weights_host_memory, error)))
        return status;
    if ((status = choose_binding(s, error)))
        return status;
    if (!s->mini_batches)
        s->mini_batches = sched_mini_batches_most(s->stages, true);
    if (!s->max_rows)
        s->max_rows = MIN((uint32_t)SCHED_STEP_ROWS_MAX, (s->max_batch + CHUNK_ROWS + 15) / 16 * 16);
    return kernels_init(s->isa, error);
}

// A folder's neighbours are in the folder that it is in.
static enum status name_beside(struct service *service, struct s_part_settings *s, struct error *error)
{
    const char *slash = strrchr(s->model_path, '/');
    int length = snprintf(s->beside_model, sizeof s->beside_model, "%.*s/.fdw", slash ? (int)(slash - s->model_path) : 1,
                          slash ? s->model_path : ".");

    if (length < 0 || (size_t)length >= sizeof s->beside_model)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--model %s: the path is too long", s->model_path);
    service_name_file(service, s->beside_model, true);
    return STATUS_OK;
}

enum status settings_parse(struct service *service, struct s_part_settings *s, struct error *error)
{
    const struct option options[] = {
        {"model", OPTION_READ_PATH, &s->model_path, "FILE", "GGUF file, or directory of Hugging Face files (required)", 0, 0},
        {"layers", OPTION_STRING, &s->layers, "all|FIRST:END|STAGE/STAGES",
         "layers of this s-part; several s-parts form a pipeline. FIRST:END: layers FIRST to END - 1; STAGE/STAGES: part STAGE (from 0) of STAGES parts with equal weight bytes",
         0, 0},
        {"scheduler", OPTION_STRING, &s->scheduler, "ADDRESS", "address of the scheduler", 0, 0},
        {"listen", OPTION_STRING, &s->listen, "ADDRESS", "address to which the scheduler sends steps", 0, 0},
        {"listen-tensors", OPTION_STRING, &s->listen_tensors, "ADDRESS",
         "address at which KV workers read pages of the local pool and the previous stage sends rows; default: that of --listen", 0,
         0},
        {"advertise", OPTION_STRING, &s->advertise, "ADDRESS", "address at which the scheduler reaches --listen; default: found", 0,
         0},
        {"advertise-tensors", OPTION_STRING, &s->advertise_tensors, "ADDRESS",
         "address at which they reach --listen-tensors; default: found", 0, 0},
        RPC_SECURITY_OPTIONS(s->security),
        {"name", OPTION_STRING, &s->name, "NAME", "name of this s-part, the same after a restart", 0, 0},
        {"device", OPTION_STRING, &s->device_name, "DEVICE", DEVICE_HELP, 0, 0},
        {"device-timeout", OPTION_U32, &s->device_timeout_s, "S",
         "end this process after so many seconds without progress in a step (longer on a CPU with slow layers)", 1, 86400},
        {"compute", OPTION_CHOICE, &s->compute, COMPUTE_NAMES, COMPUTE_HELP, 0, 0},
        {"quantize", OPTION_CHOICE, &s->quantize, QUANTIZE_NAMES, QUANTIZE_HELP, 0, 0},
        {"pooling", OPTION_CHOICE, &s->pooling, POOLING_NAMES, POOLING_HELP, 0, 0},
        {"cache-dir", OPTION_WRITTEN_PATH, &s->cache_dir, "DIR|none", CACHE_DIR_HELP, 0, 0},
        {"weights-memory", OPTION_STRING, &s->weights_memory_text, "SIZE|auto", WEIGHTS_MEMORY_HELP, 0, 0},
        {"weights-host-memory", OPTION_STRING, &s->weights_host_memory_text, "SIZE|auto", WEIGHTS_HOST_MEMORY_HELP, 0, 0},
        {"disk-reads", OPTION_CHOICE, &s->disk_reads, DISK_METHOD_NAMES, DISK_READS_HELP, 0, 0},
        {"batch-invariant", OPTION_BOOL, &s->batch_invariant, NULL, INVARIANT_HELP, 0, 0},
        {"kv-type", OPTION_STRING, &s->kv_type_name, "TYPE", KV_TYPE_HELP, 0, 0},
        {KV_SPARSE_OPTION, OPTION_STRING, &s->sparse_attention, KV_SPARSE_NAMES, KV_SPARSE_HELP, 0, 0},
        {"local-pool", OPTION_SIZE, &s->local_pool, "SIZE", "memory for KV in this process; 0: none", 0, 1e15},
        {"pool-fills-device", OPTION_BOOL, &s->pool_fills_device, NULL, "on a GPU: the local pool takes all memory that is left", 0,
         0},
        {"context", OPTION_U32, &s->context, "TOKENS", "longest sequence; 0: the model's", 0, 1 << 24},
        {"max-batch", OPTION_U32, &s->max_batch, "N", SCHED_RUNNING_HELP, 1, SCHED_RUNNING_MAX},
        {"max-rows", OPTION_U32, &s->max_rows, "N", "rows of a step; 0: max-batch + 512", 0, SCHED_STEP_ROWS_MAX},
        {"mini-batches", OPTION_U32, &s->mini_batches, "N",
         "mini-batches in flight; 0: three, or two for each of STAGES in --layers", 0, SCHED_MINI_BATCHES_MAX},
        {"threads", OPTION_U32, &s->threads, "N", "compute threads; 0: one per usable CPU, each pinned unless CPU time is limited",
         0, 1024},
        {"numa", OPTION_STRING, &s->numa, "auto|interleave|NODE|none", NUMA_HELP, 0, 0},
        {"calibrate", OPTION_BOOL, &s->calibrate, NULL, "measure at start how long steps take (0.8 s)", 0, 0},
        {"trace", OPTION_WRITTEN_PATH, &s->trace, "FILE", TRACE_HELP, 0, 0},
        {"trace-append", OPTION_BOOL, &s->trace_append, NULL, TRACE_APPEND_HELP, 0, 0},
        {OTLP_OPTION, OPTION_STRING, &s->otlp_endpoint, "URL|none", OTLP_HELP, 0, 0},
        {"isa", OPTION_STRING, &s->isa, "LEVEL", KERNELS_ISA_HELP, 0, 0},
    };
    *s = defaults();
    enum status status = service_options(service, options, ARRAY_COUNT(options), error);
    if (strcmp(s->device_name, "cpu"))
        service_uses_gpu(service);
    if (!status && s->model_path &&
        !strcmp(s->cache_dir, "none")) // converted weights that do not fit memory lie beside it (weights.c)
        status = name_beside(service, s, error);
    return status ? status : check(s, error);
}
