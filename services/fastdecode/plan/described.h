// described.h: the model and the hardware that `plan` and `sim` take as options, under the same names.
#ifndef FD_FASTDECODE_PLAN_DESCRIBED_H
#define FD_FASTDECODE_PLAN_DESCRIBED_H

#include "common/base/options.h"
#include "common/plan/plan.h"
#include "kernels/quant/tensor_type.h"

struct described {
    const char *model, *shape_name, *weights, *gpu, *worker, *link, *folder, *kv_type_name; // as given
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
#define DESCRIBED_OPTIONS(d)                                                                                                         \
    {"model", OPTION_STRING, &(d)->model, "FILE", "GGUF file whose shape is used; or --shape", 0, 0},                                \
        {"shape", OPTION_STRING, &(d)->shape_name, "NAME", SHAPE_NAMES, 0, 0},                                                       \
        {"weights", OPTION_STRING, &(d)->weights, "TYPE", "of a --shape: " TENSOR_TYPES_SUPPORTED, 0, 0},                            \
        {"kv-type", OPTION_STRING, &(d)->kv_type_name, "TYPE", KV_TYPE_NAMES, 0, 0},                                                 \
        {"gpu", OPTION_STRING, &(d)->gpu, "NAME|FILE", "hardware of the S-part: a10, h200, t4, cpu, or a file", 0, 0},               \
        {"worker", OPTION_STRING, &(d)->worker, "NAME|FILE", "hardware of the R-part: epyc-7452, cpu, or a file", 0, 0},             \
        {"link", OPTION_STRING, &(d)->link, "NAME|FILE", "network between them; default: the worker file's, else infiniband", 0, 0}, \
    {                                                                                                                                \
        "hardware-dir", OPTION_STRING, &(d)->folder, "DIR",                                                                          \
            "folder in which names of hardware are looked up; default: deploy/hardware", 0, 0                                        \
    }

// Reads what the options name and points the request at it (at the first of several kinds). --gpu and --worker may be comma lists.
// Blocks on the disk. An error names the option and what is accepted.
MUST_CHECK enum status described_read(struct described *described, struct plan_request *request, struct error *error);

// The exit status of a command that failed. A machine that is too small is one that was described.
int described_exit(const struct error *error);

#endif
