// frame.h: a message as it lies in memory and on the wire, the pool that such memory comes from, and taking messages out of a
// stream of bytes. Not included from outside the RPC runtime.
//
// A frame is 'F' 'D' 'R' '1', the envelope's length as u32 little-endian, and the envelope. It is written where it is sent
// from and read where it was received: what a reader expects to be large it receives straight into a frame of its own.
#ifndef FD_RPC_FRAME_H
#define FD_RPC_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { FRAME_HEAD = 8 };

struct frame {
    struct frame *next; // of the pool, or of a queue
    size_t length;      // of the envelope
    size_t capacity;    // of wire
    uint32_t size_class;
    bool lent;                         // it lies in memory that the process has lent
    bool at_once;                      // send it without waiting for other frames to join it
    _Alignas(16) unsigned char wire[]; // the head, then the envelope, at a multiple of 8 bytes
};

// Any thread. Returns a frame for an envelope of `length` bytes. Its head is written; the caller writes every other byte. lent: in memory
// that the process has lent, if there is room. NULL: no memory, or the length does not fit the head.
struct frame *frame_open(size_t length, bool lent);
// Any thread; NULL is allowed.
void frame_free(struct frame *frame);

static inline unsigned char *frame_bytes(struct frame *frame) { return frame->wire + FRAME_HEAD; }

// --- frames that wait for a peer ---

// Whoever owns it, or holds its lock. Zeroed, it is ready.
struct frame_queue {
    struct frame *first, *last;
    uint32_t count;
    size_t bytes; // of their envelopes
};

// Takes the frame. False: there are RPC_QUEUE_MAX frames, or it is not alone and they would have more than most_bytes; nothing was taken.
bool frame_queue_put(struct frame_queue *queue, struct frame *frame, size_t most_bytes) MUST_CHECK;
// Returns the first frame, which is the caller's from then on; NULL: there is none.
struct frame *frame_queue_take(struct frame_queue *queue);
// Frees what waits.
void frame_queue_clear(struct frame_queue *queue);

// --- from a stream ---

// One thread at a time. Zeroed, with max_message_bytes (and lent) set, it is ready.
struct frame_reader {
    struct frame *frame; // being filled; NULL: none
    size_t have;         // bytes of frame->wire
    size_t expected;     // size guess for the next message, from the previous ones; it decays
    uint64_t max_message_bytes;
    bool lent; // frames use memory that the process has lent, if there is room
};

// Returns how many bytes may be put at *at. 0: no memory.
size_t frame_reader_space(struct frame_reader *reader, void **at);
// Takes `count` bytes that were put there, and calls deliver(arg, frame), which takes the frame, for each complete message. False: the
// bytes are no frames, a message is too large, or there is no memory.
bool frame_reader_take(struct frame_reader *reader, size_t count, void (*deliver)(void *arg, struct frame *frame), void *arg);
void frame_reader_close(struct frame_reader *reader);

#endif
