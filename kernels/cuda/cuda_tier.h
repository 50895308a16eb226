// cuda_tier.h: weights that do not stay on the device, and the slots there that they pass through (cuda_tier.c has the picture).
//
// All functions are called from the backend's thread. Copies run on a stream of their own; a failure of the device ends the process.
#ifndef FD_KERNELS_CUDA_CUDA_TIER_H
#define FD_KERNELS_CUDA_CUDA_TIER_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/backend/weight_tiers.h"

#define CUDA_NO_SEGMENT UINT32_MAX

struct cuda_slot {
    unsigned char *data;       // device
    uint32_t segment;          // whose blob it holds, or will hold once `copied` has come
    cudaEvent_t begun, copied; // of its latest copy
};

struct cuda_blob {
    uint64_t bytes;
    unsigned char *device;  // where kernels read it
    unsigned char *host;    // pinned, where it stays; NULL: on the device
    struct cuda_slot *slot; // that it comes through; NULL: on the device
};

// A mini-batch on its way through the blobs.
struct cuda_visit {
    struct cuda_visit *next;
    uint32_t segment; // the next one; CUDA_NO_SEGMENT: no step is in flight
    cudaEvent_t used[WEIGHT_SLOTS_MAX];
};

struct cuda_tier {
    struct weight_tiers tiers;
    struct cuda_blob *blobs;                  // [tiers.segment_count]
    unsigned char *host;                      // pinned; the tier's
    struct cuda_slot slots[WEIGHT_SLOTS_MAX]; // [tiers.slots]
    struct cuda_visit *visits;                // of all open mini-batches
    cudaStream_t stream;
    uint64_t copies, copied_bytes; // since open
    double byte_us;                // what a byte takes; 0: not known yet
};

// tiers: in device memory always_bytes come first, which are the caller's, then slots, then the blobs that stay. device:
// weight_tiers_bytes() of memory, the caller's, for the tier's life. On failure the caller closes the tier.
enum status cuda_tier_open(const struct weight_tiers *tiers, const uint64_t *blob_bytes, uint64_t always_bytes,
                           unsigned char *device, struct cuda_tier *tier, struct error *error) MUST_CHECK;
void cuda_tier_close(struct cuda_tier *tier); // after all visits are closed; also one of zeros

// A mini-batch's part, which stays where it is until it is closed.
enum status cuda_visit_open(struct cuda_tier *tier, struct cuda_visit *visit) MUST_CHECK;
void cuda_visit_close(struct cuda_tier *tier, struct cuda_visit *visit); // also one of zeros

// Around what a segment queues on its mini-batch's stream: enter has the stream wait for the segment's weights, leave gives them up and
// asks for the next.
void cuda_tier_enter(struct cuda_tier *tier, struct cuda_visit *visit, uint32_t s, cudaStream_t stream);
void cuda_tier_leave(struct cuda_tier *tier, struct cuda_visit *visit, uint32_t s, cudaStream_t stream);
// A step begins, and is over or given up.
void cuda_tier_begin(struct cuda_visit *visit);
void cuda_tier_end(struct cuda_visit *visit);
// Who of several mini-batches goes first with its next segment s: the lowest. 0: its weights are there or on their way.
uint32_t cuda_tier_turn(const struct cuda_tier *tier, uint32_t s);

#endif
