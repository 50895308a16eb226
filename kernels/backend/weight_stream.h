// weight_stream.h: weights that do not fit memory, read from a packed file while segments compute: which segments, when and into which slot
// is weight_window.h's; here they are read.
//
// It knows slots as memory that it is given (any memory that the disk can be read into: a device's pinned memory too) and segments as
// blobs of the file: segment s is blob 1 + s, or what a table says. Reads are asked for as soon as a slot is free, so that the disk goes on while the caller's
// thread computes; when one is there, the queue's on_done tells.
//
// One thread.
#ifndef FD_KERNELS_BACKEND_WEIGHT_STREAM_H
#define FD_KERNELS_BACKEND_WEIGHT_STREAM_H

#include "common/disk/disk.h"
#include "kernels/backend/packed_file.h"
#include "kernels/backend/weight_window.h"

struct weight_stream_config {
    const struct packed_file *file;   // borrowed
    struct disk_queue *queue;         // borrowed
    const struct weight_tiers *tiers; // with streamed segments; borrowed
    const uint32_t *blobs;            // [segment_count] of the file; NULL: 1 + s. Borrowed
    unsigned char *memory;            // [slots][slot_bytes], aligned to PACKED_FILE_ALIGN; borrowed
    double us_per_byte;               // of the disk, as far as is known; reads correct it
};

struct weight_stream_counts {
    uint64_t segments, bytes; // asked for since the start
    uint64_t wait_us;         // that weight_stream_wait() has waited
    double step_us;           // that the disk takes to read all of a step, by its latest reads
};

struct weight_stream;

// *out is the caller's, to be closed. Begins to read.
enum status weight_stream_open(const struct weight_stream_config *config, struct weight_stream **out,
                               struct error *error) MUST_CHECK;
// Waits until nothing is written to the slots. NULL is allowed.
void weight_stream_close(struct weight_stream *stream);

// Says which segment a user (a mini-batch; below WEIGHT_USERS_MAX) needs next, the last one's number plus 1 when it has passed them all, or
// WEIGHT_NONE when its step is over; and goes on reading. What was handed out for segments before may be overwritten from here on.
void weight_stream_want(struct weight_stream *stream, uint32_t user, uint32_t segment);

// Returns the weights of a segment if they are there, else NULL; goes on reading where a read that has ended allows it. A read that
// failed is found by weight_stream_failed().
const unsigned char *weight_stream_get(struct weight_stream *stream, uint32_t segment);

// Blocks until they are there, whatever other users need. NULL: they cannot be read, and *error says why.
const unsigned char *weight_stream_wait(struct weight_stream *stream, uint32_t segment, struct error *error);

// The failure of any read so far; OK: none.
enum status weight_stream_failed(struct weight_stream *stream, struct error *error) MUST_CHECK;

// Returns how far the next streamed segment from `segment` on lies from the oldest one: who has the smallest number lets go of a slot first.
uint32_t weight_stream_age(const struct weight_stream *stream, uint32_t segment);

void weight_stream_count(const struct weight_stream *stream, struct weight_stream_counts *out);

#endif
