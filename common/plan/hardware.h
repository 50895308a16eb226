// hardware.h: what a machine, a device and a link can do: small files of `name = value` lines, in deploy/hardware.
//
// One kind of file serves all three, since a host may be an S-part, a KV worker or both. Values that are not in it are 0. Rates are a
// vendor's or measured; a share says how much of the rate the kernels of this project (or of the source) reach. Both are in the file,
// each with its source in a comment. Nothing in the program knows a machine by name.
//
//     memory = 24G                 memory_gb_per_second = 600        f16_tflops = 125
//     measured_model = tiny.gguf   layer_us_at = 1:66.5 8:132 64:1004
//     numa_nodes = 0 1             numa_gb_per_second = 150 61, 60 149     a row for the CPUs of each node, a column for its memory
//
// Plain values, on any thread. Only reading and writing a file block. Texts live as long as the process.
#ifndef FD_PLAN_HARDWARE_H
#define FD_PLAN_HARDWARE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/kv/kv_shape.h"
#include "common/plan/cost.h"

// Measurements on one model (fastdecode plan --measure --model, or a mesh at its start). They replace rates and shares.
struct hardware_model {
    const char *name;          // the model's file; NULL: nothing was measured
    struct cost_curve layer;   // T(b)
    struct cost_curve head;    // head and greedy sampling
    struct cost_curve rest;    // the rest of a step by its rows: gateway, scheduler, clients, round trips; without points: step_us
    struct kv_costs attention; // one layer with f16 KV; token_us 0: not measured
};

// Copies between a device, its host and a disk, and what runs slower than the rates below while tensors are offloaded (offload.h).
struct hardware_offload {
    double copy_in_gb_per_second;        // host to device; 0: the device is the host
    double copy_out_gb_per_second;       // device to host, activations; 0: as in
    double copy_out_kv_gb_per_second;    // K and V of a prompt; 0: as copy_out
    double disk_read_gb_per_second;      // 0: not known
    double disk_write_gb_per_second;     // 0: as reading
    double disk_write_kv_gb_per_second;  // K and V of a prompt; 0: as disk_write
    double decode_tflops;                // products of one row a sequence; 0: as those of prompts
    double host_attention_gb_per_second; // of KV that the host attends to; 0: KV is copied to the device
    double host_attention_loss;          // share of it lost with each halving of a batch below 64
    double usable_share;                 // of the device's memory, for what the plan counts
    bool copies_wait;                    // copies to the device do not overlap with what else a layer does
};

// How fast the CPUs of one NUMA node read the memory of another one, and of their own.
enum { HARDWARE_NODES_MAX = 16 };
struct hardware_nodes {
    uint32_t count;                                               // at least 2; 0: one node, or not measured
    uint32_t id[HARDWARE_NODES_MAX];                              // as the machine numbers them
    double gb_per_second[HARDWARE_NODES_MAX][HARDWARE_NODES_MAX]; // [CPUs][memory]
};

struct hardware {
    const char *name;                         // "NVIDIA A10"
    uint64_t memory_bytes;                    // for weights and KV
    double memory_gb_per_second;              // reading, 1e9 bytes
    double f16_tflops, f32_tflops, int8_tops; // products; a multiply-add counts as two operations; 0: none in that type
    double prompt_attention_tflops;           // attention of prompts, beside their KV; 0: as products of floats
    double weights_share;                     // of memory_gb_per_second that a product of few rows reaches
    double products_share;                    // of the above operations that a product of many rows reaches
    double attention_share;                   // of memory_gb_per_second that decode attention reaches
    double layer_us, step_us;                 // added to each layer and each step, whatever its rows
    double link_gb_per_second;                // one way, 1e9 bytes
    double link_round_trip_us;                // latency: one layer of a mini-batch waits for it, and others are served meanwhile
    double link_exchange_us;                  // what one layer of a mini-batch occupies a worker for, beside attention and bytes
    double compute_capability;                // of a CUDA device, 8.6; 0: not known, or none
    double price_per_hour;                    // in any currency, the same for all; 0: not known
    double watts;                             // under load; 0: not known
    bool shares_cores;                        // as workers: they run on the S-part's cores, so their times add up
    struct hardware_model model;              // for the S-part, and as a worker
    struct hardware_offload offload;          // for the S-part
    struct hardware_nodes nodes;              // for workers
};

// The least compute capability that kernels/cuda is built for, and what is not left of a card's memory: the driver's context, which is an
// estimate, and the backend's reserve (kernels/cuda/cuda.c).
#define HARDWARE_CAPABILITY_LEAST 7.5
#define HARDWARE_GPU_CONTEXT (500ull << 20)
#define HARDWARE_GPU_RESERVE (HARDWARE_GPU_CONTEXT + (256ull << 20))

// Returns whether it is a device with memory of its own beside the host's.
static inline bool hardware_is_gpu(const struct hardware *h)
{
    return h->compute_capability != 0 || h->offload.copy_in_gb_per_second != 0;
}

// Returns what is left of its memory for weights, activations and KV.
static inline uint64_t hardware_usable_bytes(const struct hardware *h)
{
    uint64_t reserve = hardware_is_gpu(h) ? HARDWARE_GPU_RESERVE : 0;
    return h->memory_bytes > reserve ? h->memory_bytes - reserve : 0;
}

#define HARDWARE_SHARE_LEAST 0.001 // of a share in a file

// Returns part ÷ whole, between HARDWARE_SHARE_LEAST and 1: nothing is read faster than memory gives, but the two are measured one after
// the other, and where other programs come and go the quotient may be anything.
double hardware_share(double part, double whole);

// The folders in which shipped files are looked for if none is named: beside the program's build, installed, or in the current directory.
#define HARDWARE_FOLDERS "../../deploy/hardware, ../share/fastdecode/hardware (from the program), deploy/hardware"

// One kind of file that is shipped: `kind` stands for "hardware" in HARDWARE_FOLDERS.
struct shipped_files {
    const char *kind, *suffix, *option_name;                                           // "hardware", ".conf", "gpu"
    const char *folder;                                                                // to look in instead; or NULL
    bool (*suits)(const char *option_name, const char *folder, const char *file_name); // whether to list it; NULL: always
};

enum { SHIPPED_PATH_BYTES = 4096 };

// Finds `name`: a path (with a '/' or the suffix), or the name of a shipped file without its suffix. NOT_FOUND lists the names that exist.
enum status shipped_find(const struct shipped_files *files, const char *name, char path[SHIPPED_PATH_BYTES],
                         struct error *error) MUST_CHECK;

// Reads a file. `name` is its path (with a '/' or ".conf"), or a name that is looked for as NAME.conf in `folder`, or in
// HARDWARE_FOLDERS if that is NULL. option_name is the option that named it, for errors. NOT_FOUND lists the names that exist;
// INVALID_ARGUMENT names the line or the missing setting.
enum status hardware_read(const char *name, const char *folder, const char *option_name, struct hardware *out,
                          struct error *error) MUST_CHECK;

// Checks that it has what an S-part, a worker's host or a link needs. INVALID_ARGUMENT names what is missing.
enum status hardware_check_s_part(const struct hardware *hardware, const char *name, struct error *error) MUST_CHECK;
enum status hardware_check_worker(const struct hardware *hardware, const char *name, struct error *error) MUST_CHECK;
enum status hardware_check_link(const struct hardware *hardware, const char *name, struct error *error) MUST_CHECK;

// Makes a worker's host into one NUMA node of it, as `fastdecode up` starts a worker on each: an equal share of memory and price, and the
// rate at which a node reads its own memory, that of the slowest. Attention that was measured on all nodes at once takes as much longer.
// Returns how many nodes the host has; 1, and nothing is changed, if it says nothing of nodes or shares its cores with the S-part.
uint32_t hardware_take_node(struct hardware *hardware);

// Writes it in the form that hardware_read() takes. comment: lines without '#', or NULL.
void hardware_write(FILE *file, const struct hardware *hardware, const char *comment);

#endif
