// weight_stream.h: weights that do not fit memory, read from a packed file while segments compute: which segments stay,
// which lie in slots and which is read next (pure), and the reading.
//
// It knows slots as memory that it is given (any memory that the disk can be read into: a device's pinned memory too) and segments as
// blobs of the file: segment s is blob 1 + s, or what a table says. Reads are asked for as soon as a slot is free, so that the disk goes on while the caller's
// thread computes; when one is there, the queue's on_done tells.
//
// One thread.
#ifndef FD_KERNELS_BACKEND_WEIGHT_STREAM_H
#define FD_KERNELS_BACKEND_WEIGHT_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/disk/disk.h"
#include "kernels/backend/packed_file.h"

// --- tiers: which segments' weights stay in memory, and which are read from the packed file each step, for a given amount of memory ---
//
// Weights that do not fit stream: they are read ahead into slots, one segment each, while the segments before it compute. Streamed segments
// are spread evenly among resident ones, so that the disk reads while those compute. Worked number: 32 segments of 110 MiB and 500 MiB
// that are always resident, in 2,400 MiB: 3 slots take 330 MiB, so 14 segments stay and 18 stream, more than every other one: 1,980 MiB a step.
//
// Pure: no clock, no I/O. Any thread.

enum { WEIGHT_SLOTS_MIN = 2, WEIGHT_SLOTS_MAX = 3 };

struct weight_tiers {
    uint32_t segment_count, streamed_count; // streamed_count 0: everything is resident
    uint32_t slots;
    uint64_t slot_bytes;     // of one: the largest streamed segment
    uint64_t resident_bytes; // without slots
    uint64_t streamed_bytes; // read each step
};

// Chooses for segments of the given sizes beside always_bytes that are resident in any case. memory_bytes: for all of it, slots included.
// As few segments as possible stream, through 3 slots, or 2 where 3 do not fit. RESOURCE_EXHAUSTED: not even two slots fit; the line
// says how much would do.
enum status weight_tiers_choose(const uint64_t *segment_bytes, uint32_t segment_count, uint64_t always_bytes, uint64_t memory_bytes,
                                struct weight_tiers *out, struct error *error) MUST_CHECK;

// Returns whether a segment streams; segment < segment_count.
static inline bool weight_tiers_streams(const struct weight_tiers *tiers, uint32_t segment)
{
    const uint64_t streamed = tiers->streamed_count, count = tiers->segment_count;
    return (segment + 1) * streamed / count > segment * streamed / count;
}

static inline uint64_t weight_tiers_bytes(const struct weight_tiers *tiers)
{
    return tiers->resident_bytes + tiers->slots * tiers->slot_bytes;
}

// --- the window: which of the streamed segments lie in slots, and which is read next ---
//
// The streamed segments are read round and round, in order. The slots hold a window of that circle, oldest first:
//
//     … 4  7 │ 9 12 15 │ 18 21 │ 2 4 7 …      3 slots; segments 9, 12, 15 are there or being read, 18 is next
//
// Several mini-batches ("users") pass through the segments, each at its own pace. The oldest segment is given up as soon as no user
// needs it next, and the window moves on to the first one that a user does. Thus users that are close together use each segment that is
// read (a zig-zag through the layers), and one that is elsewhere on the circle gets what it needs within one turn. A user behind its
// last streamed segment needs the first one next: its next step begins with it. Without users the window rests at the beginning.
//
// Pure and without allocation; one thread.

enum { WEIGHT_USERS_MAX = 32, WEIGHT_SEGMENTS_MAX = 2048 };
#define WEIGHT_NONE UINT32_MAX

struct weight_window {
    uint32_t slots, count;                  // slots; streamed segments, more than there are slots
    uint32_t segments[WEIGHT_SEGMENTS_MAX]; // [count] ascending
    uint32_t next_of[WEIGHT_SEGMENTS_MAX];  // by segment: index in `segments` of the first that is not before it; 0 behind the last
    uint32_t begin, length;                 // the window: indices begin, begin + 1, … of the circle, at most `slots` of them
    uint32_t first_slot;                    // where index begin lies; the next ones behind it, round and round
    uint32_t wanted[WEIGHT_USERS_MAX];      // by user: index that it needs next; WEIGHT_NONE: it is not in flight
};

// For tiers with streamed segments; segment_count at most WEIGHT_SEGMENTS_MAX (asserted).
void weight_window_init(struct weight_window *window, const struct weight_tiers *tiers);

// A user goes on with this segment next; WEIGHT_NONE: it is not in flight any more.
void weight_window_want(struct weight_window *window, uint32_t user, uint32_t segment);

// Gives up, oldest first, what no user needs next.
void weight_window_give_up(struct weight_window *window);

// Returns the slot that the next segment will be read into; WEIGHT_NONE: all are in use.
uint32_t weight_window_free_slot(const struct weight_window *window);

// Takes the next segment in and returns it. There must be a free slot (asserted).
uint32_t weight_window_take(struct weight_window *window);

// Gives up everything, whoever needs it: the window begins anew with `segment`, which streams (asserted).
void weight_window_seek(struct weight_window *window, uint32_t segment);

// Returns the slot of a streamed segment; WEIGHT_NONE: it is not in the window, or does not stream. *age: how far on the circle the first
// streamed segment that is not before it lies from the oldest one.
uint32_t weight_window_find(const struct weight_window *window, uint32_t segment, uint32_t *age);

// --- the stream ---

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
