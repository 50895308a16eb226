// plan_offload.h: `fastdecode plan --offload`: weights, activations and KV on device, host and disk (common/plan/offload.h).
#ifndef FD_FASTDECODE_PLAN_PLAN_OFFLOAD_H
#define FD_FASTDECODE_PLAN_PLAN_OFFLOAD_H

#include "common/plan/offload.h"
#include "services/fastdecode/plan/described.h"

struct plan_offload {
    struct offload_request request; // sizes, blocks and --compress as given; the rest is filled in from `described`
    bool wanted;                    // --offload
};

#define PLAN_OFFLOAD_DEFAULTS                        \
    {                                                \
        .request.block_tokens = OFFLOAD_BLOCK_TOKENS \
    }

// Rows of an option table that fill a struct plan_offload.
#define PLAN_OFFLOAD_OPTIONS(o)                                                                                                    \
    {"offload", OPTION_BOOL, &(o)->wanted, NULL, "plan for weights and KV that do not fit the device (a linear program)", 0, 0},   \
        {"host-memory",                                                                                                            \
         OPTION_SIZE,                                                                                                              \
         &(o)->request.host_bytes,                                                                                                 \
         "SIZE",                                                                                                                   \
         "with --offload: of the device's host, three quarters of which are used; 0: none",                                        \
         0,                                                                                                                        \
         0},                                                                                                                       \
        {"disk-memory", OPTION_SIZE, &(o)->request.disk_bytes, "SIZE", "with --offload: free space on disk; 0: none", 0, 0},       \
        {"disk-read-mbs",                                                                                                          \
         OPTION_F64,                                                                                                               \
         &(o)->request.disk_read_mb_per_second,                                                                                    \
         "N",                                                                                                                      \
         "with --offload: what the disk reads, 1e6 bytes a second; 0: as the GPU's file says",                                     \
         0,                                                                                                                        \
         1e6},                                                                                                                     \
        {"compress", OPTION_BOOL, &(o)->request.compress, NULL, "with --offload: weights and KV in 4 bits and a half", 0, 0},      \
        {"gpu-batch", OPTION_U32, &(o)->request.gpu_batch, "N", "with --offload: sequences computed at once; 0: chosen", 0, 4096}, \
        {"gpu-batches",                                                                                                            \
         OPTION_U32,                                                                                                               \
         &(o)->request.gpu_batches,                                                                                                \
         "N",                                                                                                                      \
         "with --offload: such batches that share each load of a layer's weights; 0: up to 8, chosen",                             \
         0,                                                                                                                        \
         OFFLOAD_BATCHES_MAX},                                                                                                     \
    {                                                                                                                              \
        "block-tokens", OPTION_U32, &(o)->request.block_tokens, "N", "with --offload: prompt tokens of all batches at most", 1,    \
            1 << 30                                                                                                                \
    }

// Plans and prints; one JSON object with `json`. workers_text: --workers, of which auto is none.
enum status plan_offload_run(struct plan_offload *offload, const struct described *described, const struct plan_request *plan,
                             const char *workers_text, bool json, struct error *error) MUST_CHECK;

#endif
