// cuda_tier.h: weights that do not stay on the device, and the slots there that they pass through (cuda_tier.c has the picture); of these,
// the ones that do not stay on the host either, and the pinned slots that they pass through before (cuda_disk.c).
//
// All functions are called from the backend's thread. Copies run on a stream of their own; a failure of the device, or of a read, ends the
// process.
#ifndef FD_KERNELS_CUDA_CUDA_TIER_H
#define FD_KERNELS_CUDA_CUDA_TIER_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/backend/weight_stream.h"

#define CUDA_NO_SEGMENT UINT32_MAX

struct cuda_slot {
    unsigned char *data;       // device
    uint32_t segment;          // whose blob it holds, or will hold once `copied` has come
    cudaEvent_t begun, copied; // of its latest copy
};

struct cuda_blob {
    uint64_t bytes;
    unsigned char *device;  // where kernels read it
    unsigned char *host;    // pinned, where it stays, with room for whole pages; NULL: on the device, or on disk
    struct cuda_slot *slot; // that it comes through; NULL: on the device
};

// A mini-batch on its way through the blobs.
struct cuda_visit {
    struct cuda_visit *next;
    uint32_t user;    // of the window of what comes from disk
    uint32_t segment; // the next one; CUDA_NO_SEGMENT: no step is in flight
    cudaEvent_t used[WEIGHT_SLOTS_MAX];
};

// The blobs from the host that come from disk; by their index among those from the host.
struct cuda_disk {
    struct weight_tiers tiers;   // pinned memory: slots, then blobs that stay there; what streams is on disk
    struct weight_window window; // of blobs in the device's slots; by their segments
    struct packed_file *file;    // NULL: none are on disk; and so:
    struct disk_queue *queue;
    struct weight_stream *stream;
    uint32_t copying[WEIGHT_SLOTS_MAX];   // index of the blob that is being copied from the pinned slot; WEIGHT_NONE: none
    cudaEvent_t copied[WEIGHT_SLOTS_MAX]; // of that copy
    uint32_t users;                       // of the window: a bit each
    uint32_t told[2];                     // what the stream's users were last said to need
    bool held;                            // the first segments are run again and again
};

struct cuda_tier {
    struct weight_tiers tiers;
    struct cuda_blob *blobs;                  // [tiers.segment_count]
    unsigned char *host;                      // pinned; the tier's
    struct cuda_slot slots[WEIGHT_SLOTS_MAX]; // [tiers.slots]
    struct cuda_visit *visits;                // of all open mini-batches
    cudaStream_t stream;
    uint64_t copies, copied_bytes; // since open
    double byte_us;                // what a byte takes over the link; 0: not known yet
    struct cuda_disk disk;
};

// tiers: in device memory always_bytes come first, which are the caller's, then slots, then the blobs that stay. host: what of the others
// stays in pinned memory. device: weight_tiers_bytes() of memory, the caller's, for the tier's life. On failure the caller closes the tier.
enum status cuda_tier_open(const struct weight_tiers *tiers, const struct weight_tiers *host, const uint64_t *blob_bytes,
                           uint64_t always_bytes, unsigned char *device, struct cuda_tier *tier, struct error *error) MUST_CHECK;
void cuda_tier_close(struct cuda_tier *tier); // after all visits are closed; also one of zeros

// A mini-batch's part, which stays where it is until it is closed.
enum status cuda_visit_open(struct cuda_tier *tier, struct cuda_visit *visit) MUST_CHECK;
void cuda_visit_close(struct cuda_tier *tier, struct cuda_visit *visit); // also one of zeros

// Around what a segment queues on its mini-batch's stream: enter has the stream wait for the segment's weights, leave gives them up and
// asks for the next. Enter blocks while they are being read from disk.
void cuda_tier_enter(struct cuda_tier *tier, struct cuda_visit *visit, uint32_t s, cudaStream_t stream);
void cuda_tier_leave(struct cuda_tier *tier, struct cuda_visit *visit, uint32_t s, cudaStream_t stream);
// A step begins, and is over or given up.
void cuda_tier_begin(struct cuda_visit *visit);
void cuda_tier_end(struct cuda_visit *visit);
// Copies what has been read. True: copies are under way whose end lets the next reads begin: ask again soon.
bool cuda_tier_advance(struct cuda_tier *tier);
// Ranks several mini-batches: which goes first with its next segment s: the lowest. 0: its weights are there or on their way. BACKEND_NOT_YET:
// they have to be read, or wait for a slot whose blob another mini-batch needs.
uint32_t cuda_tier_turn(struct cuda_tier *tier, uint32_t s);
void cuda_tier_hold(struct cuda_tier *tier, bool hold);
// The time that copying and reading all of a step's takes: the slower of both, as they go on side by side. 0: not known, or all stay.
double cuda_tier_step_us(const struct cuda_tier *tier);

// cuda_disk.c. open: the file, which becomes the tier's, holds a blob a segment; us_per_byte: of the disk, as far as is known.
struct disk_config;
enum status cuda_disk_open(struct cuda_tier *tier, struct packed_file *file, const struct disk_config *config, double us_per_byte,
                           struct error *error) MUST_CHECK;
void cuda_disk_close(struct cuda_tier *tier);
void cuda_disk_join(struct cuda_tier *tier, struct cuda_visit *visit);
void cuda_disk_leave(struct cuda_tier *tier, struct cuda_visit *visit);
// Moves the window on to what is needed, once copies that have ended are taken into account. True: some have not.
bool cuda_disk_advance(struct cuda_tier *tier);
// Takes the blob that is to be copied to the device next into the window, and returns its segment and where it is on the host.
// CUDA_NO_SEGMENT: none now.
uint32_t cuda_disk_take(struct cuda_tier *tier, const unsigned char **from);
// Has the window begin with segment s, whoever needs what is there, and returns where it is on the host. Blocks until it has been read.
const unsigned char *cuda_disk_seek(struct cuda_tier *tier, uint32_t s);
// The copy of segment s from that memory is queued on the tier's stream: until it is over, what was read stays.
void cuda_disk_copying(struct cuda_tier *tier, const unsigned char *memory, uint32_t s);

#endif
