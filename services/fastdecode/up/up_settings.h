// up_settings.h: what `fastdecode up` is asked for.
#ifndef FD_FASTDECODE_UP_UP_SETTINGS_H
#define FD_FASTDECODE_UP_UP_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/numa.h"
#include "common/base/status.h"
#include "common/plan/split.h"

enum { UP_WORKERS_MAX = 64 };
_Static_assert((int)UP_WORKERS_MAX >= (int)NUMA_NODES_MAX, "a worker a node");

// As --help says it. Strings are argv's, of the environment or of the settings' file, or constants.
struct up_settings {
    const char *batch_dir;
    const char *tls_cert, *tls_key, *audit, *admin_listen, *admin_key_file;
    const char *model, *host, *served_model_name, *api_key_file, *chat_template, *sampling, *tool_parser, *reasoning_parser,
        *run_dir, *device, *compute, *quantize, *pooling, *kv_type, *sparse_attention, *local_pool, *admission, *placement,
        *micro_batch, *kv_worker_isa, *trace, *mesh_secret_file, *tls, *sandbox;
    const char *models_dir;
    char model_path[4096]; // of what `model` says
    const char *split;     // and what it says, unless it is "auto":
    struct plan_range ranges[PLAN_STAGES_MAX];
    const char *cache_dir, *disk_reads, *weights_memory, *weights_host_memory;
    const char *numa, *kv_workers_text;
    struct numa_topology topology; // of this machine
    bool worker_a_node;            // each KV worker has a NUMA node; there are several
    uint32_t port, scheduler_port, kv_workers, s_parts, mini_batches, chunk, spacing, draft_tokens, max_batch, context, threads,
        max_queue, batch_queue, worker_timeout_ms, log_keep;
    uint64_t kv_memory, log_max_bytes;
    const char *otlp_endpoint;
    double request_timeout_s, drain_timeout_s, step_target_ms, trace_sample;
    bool log_json, prefix_cache, calibrate, batch_invariant;
};

// Reads the settings and checks them together and against the model. With services it fills in what was left open: model_path, s_parts, with
// --split their ranges, kv_workers, and with --batch-invariant the placement. *error says what is wrong, and whether it is the model.
enum status up_settings_parse(struct up_settings *s, int argc, char **argv, bool *check_only, struct error *error) MUST_CHECK;

// --- a model by its name in a folder of models -----------------------------------------------------------------------

#define MODELS_DIR_HELP \
    "folder in which --model NAME is looked up: as NAME, NAME.gguf, or the only file whose name begins with NAME"

#endif
