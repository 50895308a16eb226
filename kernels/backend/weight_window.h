// weight_window.h: which of the streamed segments lie in slots, and which is read next: the policy of weight_stream.h, without its I/O.
//
// The streamed segments are read round and round, in order. The slots hold a window of that circle, oldest first:
//
//     … 4  7 │ 9 12 15 │ 18 21 │ 2 4 7 …      3 slots; segments 9, 12, 15 are there or being read, 18 is next
//
// Several mini-batches ("users") pass through the segments, each at its own pace. The oldest segment is given up as soon as no user
// needs it next, and the window moves on to the first one that a user does. So users that are close together use each segment that is
// read (a zig-zag through the layers), and one that is elsewhere on the circle gets what it needs within one turn. A user behind its
// last streamed segment needs the first one next: its next step begins with it. Without users the window rests at the beginning.
//
// Pure and without allocation; one thread.
#ifndef FD_KERNELS_BACKEND_WEIGHT_WINDOW_H
#define FD_KERNELS_BACKEND_WEIGHT_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend/weight_tiers.h"

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

#endif
