// offload.h: where weights, activations and KV lie when they do not fit the device, and the rate that follows: a linear program.
//
// FlexGen (arXiv 2303.06865, sections 4.2 and 4.3, appendix A.3) computes a *block* of sequences, gpu_batches of gpu_batch each,
// layer by layer, so that a layer's weights are loaded once for the block. A fraction each of weights, activations and KV lies on
// the device, on the host and on disk: w, h and c. For prompts of s tokens, n generated, l layers, a block of b sequences takes
//
//     T = l·T_pre + l·(n - 1)·T_gen        tokens/s = b·n / T
//
// where T_pre and T_gen are a layer's time for the prompts and for one token. Each is the longest of five lanes that work side by
// side:
//
//     copy in      (weights not on the device + activations not there) / rate, host to device
//     copy out     (KV of the prompts not on the device + activations not there) / rate, device to host
//     disk read    (weights on disk + KV on disk + activations on disk) / rate
//     disk write   (new KV on disk + activations on disk) / rate
//     compute      products, and attention where the KV lies: on the device, or on the host for what lies there or on disk
//
// For a given block all of this, and the peak memory of each tier, is linear in the nine fractions and the two times: eleven
// variables. Blocks are enumerated and one program is solved for each.
//
// This differs from the paper:
//  - A product of few rows takes as long as its weights take to be read from the device's memory; the published model has no such
//    term.
//  - With `copies_wait` (hardware.h) the model is the one that FlexGen's authors published as code: copy in adds to copy out
//    (prompts: with disk read; disk write), and one layer's weights are in flight. Without it two are: one is loaded while the
//    other is used.
//  - Scores of attention are not kept. KV memory is set aside for whole sequences.
//  - A slower tier is taken only if that gives OFFLOAD_GAIN times the rate: the model is right within a fifth. Among programs
//    with the same rate, the one with the least on disk is taken.
//  - With workers, KV and attention are delegated: instead of c, a fixed time for the rows' way and the workers' reading. With
//    two batches or more it runs beside the products.
//  - Unless `paper` is set, activations and KV stay on the device or go to workers: that is what this mesh does.
//  - A device without copy_in_gb_per_second is the host itself (a CPU): its memory and the disk are the two tiers.
//
// Worked number: OPT-30B on a T4, s = 512, n = 32, b = 48·3. A layer's weights are 1.233 GB, 18 % of them on the device. Prompts:
// 144·512 rows at 21.24 TFLOP/s and attention, 4.39 s. A token: products 41 ms and attention on the host 180 ms, and 73 ms for
// weights to arrive: 0.294 s. T = 48·4.39 + 48·31·0.294 = 649 s for 4,608 tokens: 7.1 a second (measured by the paper: 7.32).
//
// Plain values; nothing blocks. Allocates inside the solver.
#ifndef FD_PLAN_OFFLOAD_H
#define FD_PLAN_OFFLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/plan/hardware.h"
#include "common/plan/shape.h"

// Limits of the search; a request may ask for other blocks by gpu_batch and gpu_batches.
enum { OFFLOAD_BATCH_MAX = 256, OFFLOAD_BATCHES = 8, OFFLOAD_BATCHES_MAX = 64, OFFLOAD_BLOCK_TOKENS = 131072 };

#define OFFLOAD_GAIN 1.25
#define OFFLOAD_HOST_SHARE 0.75     // of the host's memory: the rest is for the system, buffers of copies and the program
#define OFFLOAD_COMPRESSED_BITS 4.5 // a value in groups of 64 with a 16-bit scale and minimum

enum offload_lane { OFFLOAD_COMPUTE, OFFLOAD_COPY_IN, OFFLOAD_COPY_OUT, OFFLOAD_DISK_READ, OFFLOAD_DISK_WRITE, OFFLOAD_LANES };

// A request: pointers are borrowed.
struct offload_request {
    const struct plan_shape *shape;
    const struct hardware *device;
    const struct hardware *worker, *link; // used with workers > 0
    enum kv_type kv_type;
    bool paper;    // activations and KV may leave the device, too, as FlexGen has them; this mesh moves weights alone
    bool compress; // weights and KV in OFFLOAD_COMPRESSED_BITS
    uint64_t host_bytes, disk_bytes; // 0: no such tier. For a device that is the host, host_bytes replaces its memory unless 0
    uint32_t prompt_tokens, generated_tokens; // both >= 1
    double disk_read_mb_per_second;           // 0: as the device's file says
    uint32_t workers;                         // 0: attention is at the device and its host
    uint32_t gpu_batch, gpu_batches;          // 0: chosen
    uint32_t block_tokens;                    // prompt tokens of a block at most, in the search
};

// Fractions, 0 to 1.
struct offload_split {
    double device, host, disk;
};

// Seconds of one layer.
struct offload_phase {
    double seconds;
    double lanes[OFFLOAD_LANES];
    enum offload_lane bound_by;
    bool attention; // more than half of the compute lane
};

struct offload_plan {
    uint32_t gpu_batch, gpu_batches;
    struct offload_split weights, activations, kv; // kv: all 0 with workers
    double tokens_per_second, block_seconds;
    struct offload_phase prompts, decode;
    bool decode_bound;                           // decode takes more of the block's time than the prompts
    double device_bytes, host_bytes, disk_bytes; // peaks
    double device_limit, host_limit, disk_limit; // what the plan may use of each
    double worker_bytes;                         // KV of the fullest worker
};

// Returns "compute", "attention", "copy in", "copy out", "disk read", "disk write": what most of the block's time is bound by.
const char *offload_bound_name(const struct offload_plan *plan);
const char *offload_phase_bound_name(const struct offload_phase *phase);

// Finds the best block and fractions. INVALID_ARGUMENT: a rate is missing. RESOURCE_EXHAUSTED: not even the smallest block fits;
// *error says what there is and what would do.
enum status offload_plan_make(const struct offload_request *request, struct offload_plan *out, struct error *error) MUST_CHECK;

#endif
