// cuda_tier.h: which weights stay on the device, and the two slots that the others pass through (cuda_tier.c has the picture).
//
// All functions are called from the backend's thread. Copies run on a stream of their own; a failure of the device ends the process.
#ifndef FD_KERNELS_CUDA_CUDA_TIER_H
#define FD_KERNELS_CUDA_CUDA_TIER_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "common/base/status.h"

#define CUDA_NO_SEGMENT UINT32_MAX
enum { CUDA_SLOTS = 2 };

// What is where, before anything is loaded.
struct cuda_tier_plan {
    uint32_t count, streamed;          // blobs (one a segment); those that stay on the host
    uint64_t slot_bytes;               // the largest blob on the host
    uint64_t device_bytes, host_bytes; // of all blobs: resident ones and slots; pinned
};

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
    cudaEvent_t used[CUDA_SLOTS];
};

struct cuda_tier {
    struct cuda_tier_plan plan;
    struct cuda_blob *blobs; // [plan.count]
    unsigned char *host;     // pinned; the tier's
    struct cuda_slot slots[CUDA_SLOTS];
    struct cuda_visit *visits; // of all open mini-batches
    cudaStream_t stream;
    uint64_t copies, copied_bytes; // since open
    double byte_us;                // what a byte takes; 0: not known yet
};

// The plan that leaves as many blobs on the device as `room` bytes of it hold, evenly spread. If not even two slots fit, device_bytes of the
// result is more than the room.
void cuda_tier_plan(const uint64_t *blob_bytes /* [count] */, uint32_t count, uint64_t room, struct cuda_tier_plan *out);

// device: plan->device_bytes of device memory, the caller's, for the tier's life. On failure the caller closes it.
enum status cuda_tier_open(const struct cuda_tier_plan *plan, const uint64_t *blob_bytes, unsigned char *device,
                           struct cuda_tier *tier, struct error *error) MUST_CHECK;
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
