// commands.h: the commands of this folder, what `plan` and `sim` both take as options, and what `plan` has the others do.
#ifndef FD_FASTDECODE_PLAN_COMMANDS_H
#define FD_FASTDECODE_PLAN_COMMANDS_H

#include <jansson.h>
#include <stdint.h>

#include "common/base/options.h"
#include "common/plan/offload.h"
#include "common/plan/plan.h"
#include "common/sim/sim.h"
#include "kernels/quant/tensor_type.h"

// argv[0] is the command's name; each returns the exit status.
int plan_main(int argc, char **argv);
int sim_main(int argc, char **argv);

// --- the model and the hardware that options name ---

struct described {
    const char *model, *shape_name, *weights, *gpu, *worker, *link, *folder, *kv_type_name; // as given
    bool hypothetical, json;
    // described_read() fills:
    struct plan_shape shape;
    struct hardware s_parts[PLAN_MIX_KINDS], workers[PLAN_MIX_KINDS], link_hardware;
    uint32_t s_part_count, worker_count;
    uint32_t worker_nodes[PLAN_MIX_KINDS]; // NUMA nodes of a worker's host: each is a worker
};

#define DESCRIBED_DEFAULTS                                             \
    {                                                                  \
        .weights = "f16", .worker = "epyc-7452", .kv_type_name = "f16" \
    }

// Rows of an option table that fill a struct described.
#define DESCRIBED_OPTIONS(d)                                                                                                 \
    {"model", OPTION_STRING, &(d)->model, "FILE", "GGUF file whose shape is used; or --shape", 0, 0},                        \
        {"shape",                                                                                                            \
         OPTION_STRING,                                                                                                      \
         &(d)->shape_name,                                                                                                   \
         "NAME",                                                                                                             \
         "a model without its file: a name of deploy/shapes (llama-3.1-8b), or a config.json",                               \
         0,                                                                                                                  \
         0},                                                                                                                 \
        {"weights", OPTION_STRING, &(d)->weights, "TYPE", "of a --shape: " TENSOR_TYPES_SUPPORTED, 0, 0},                    \
        {"kv-type", OPTION_STRING, &(d)->kv_type_name, "TYPE", KV_TYPE_NAMES, 0, 0},                                         \
        {"gpu",                                                                                                              \
         OPTION_STRING,                                                                                                      \
         &(d)->gpu,                                                                                                          \
         "NAME|FILE",                                                                                                        \
         "hardware of the S-part: a name of deploy/hardware (rtx-4090, l4, cpu), or a file",                                 \
         0,                                                                                                                  \
         0},                                                                                                                 \
        {"worker",                                                                                                           \
         OPTION_STRING,                                                                                                      \
         &(d)->worker,                                                                                                       \
         "NAME|FILE",                                                                                                        \
         "hardware of the R-part: a name there (epyc-9654, xeon-8480), or a file",                                           \
         0,                                                                                                                  \
         0},                                                                                                                 \
        {"link",                                                                                                             \
         OPTION_STRING,                                                                                                      \
         &(d)->link,                                                                                                         \
         "NAME|FILE",                                                                                                        \
         "network between them: eth10, eth25, eth100, ib-ndr, cloud-16g, or a file; default: the worker file's, else eth25", \
         0,                                                                                                                  \
         0},                                                                                                                 \
        {"hypothetical", OPTION_BOOL, &(d)->hypothetical, NULL, "answer also for what this release cannot run", 0, 0},       \
        {"json", OPTION_BOOL, &(d)->json, NULL, "print one JSON object, of an error, too", 0, 0},                            \
    {                                                                                                                        \
        "hardware-dir", OPTION_STRING, &(d)->folder, "DIR",                                                                  \
            "folder in which names of hardware are looked up; default: deploy/hardware", 0, 0                                \
    }

// Reads what the options name and points the request at it (at the first of several kinds). --gpu and --worker may be comma lists.
// Blocks on the disk. An error names the option and what is accepted.
MUST_CHECK enum status described_read(struct described *described, struct plan_request *request, struct error *error);

// Refuses a sequence of so many tokens that the described model is not made for, unless --hypothetical is given.
MUST_CHECK enum status described_check_context(const struct described *described, uint64_t tokens, struct error *error);

// Returns an object that names what was described: model, gpu, worker, worker_nodes (the first of each), link, kv_type.
json_t *described_json(const struct described *described);

// Says why a command failed, as one line and, with --json, as an object {"error": {"status", "message"}}. Returns its exit status. A machine
// that is too small is one that was described.
int described_fail(const struct described *described, const char *program, const struct error *error);

// --- `fastdecode plan --offload`: weights, activations and KV on device, host and disk ---

// Plans what described_read() filled in and prints it. offload has the options; what they leave out is taken from the rest. requests: whose
// hours are said; 0: none. Statuses as of offload_plan_make().
enum status plan_offload(const struct described *described, const struct plan_request *load, struct offload_request *offload,
                         uint64_t requests, struct error *error) MUST_CHECK;

// Returns the hours that so many requests take.
static inline double plan_hours(const struct plan_request *load, uint64_t requests, double tokens_per_second)
{
    return (double)requests * load->generated_tokens / tokens_per_second / 3600;
}

// --- `fastdecode plan --measure`: a description of this machine for common/plan/hardware.h ---

struct measure_request {
    const char *device;     // for device_choose(); a GPU is described as an S-part, the CPU as an S-part or a worker
    const char *model_path; // a GGUF file to load and measure too, which takes two seconds more; NULL: none
    const char *path;       // file for the description; NULL: standard output
    uint32_t threads;       // 0: all CPUs
};

// Measures for about two seconds (of a CPU with n NUMA nodes n * n / 7 seconds more) and writes the description. If it describes a GPU, a
// line on stderr says which. On failure nothing is written and *error says why.
enum status measure_machine(const struct measure_request *request, struct error *error) MUST_CHECK;

// --- a simulation of a mesh that was planned ---

// Runs the scheduling core on what a plan describes: random arrivals of requests of the plan's lengths, so many a second. Takes up to about
// a second. Statuses as of sim_run(), and RESOURCE_EXHAUSTED: a place cannot hold a sequence.
MUST_CHECK enum status sim_plan(const struct described *described, const struct plan_request *request, const struct plan *plan,
                                double requests_per_second, struct sim_result *out, struct error *error);

#endif
