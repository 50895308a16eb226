// split.h: where the parts of a sequence go that no place can hold whole. Private to common/sched.
#ifndef FD_SCHED_SPLIT_H
#define FD_SCHED_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

struct sched;

enum sched_split {
    SCHED_SPLIT_PLACED, // it has extents and a tail, with pages for all known tokens
    SCHED_SPLIT_WAITS,  // the places that could hold it do not have the pages now
    SCHED_SPLIT_LESS,   // they could if it had fewer extents: *from of them
    SCHED_SPLIT_NEVER,  // all places together, those expected back included, cannot hold it
};

// Places a waiting sequence that has no place of its own, behind the extents that it may have.
enum sched_split sched_split_place(struct sched *s, uint32_t slot, uint32_t mini_batch, uint32_t *from);

// Returns the pages that the tail of a waiting sequence needs where it is, and a margin.
uint32_t sched_split_tail_pages(const struct sched *s, uint32_t slot);

// Makes an extent of what a waiting sequence has in its place, because no place can hold all of it. False: some place can, or what it has is
// too little.
bool sched_split_keep(struct sched *s, uint32_t slot);

// Gives a running sequence pages for its next row, where its own place has no page for it as far as it may: of a sequence that is split, or
// that no place can hold with one more page, the tail is frozen and goes on elsewhere. False: there is no page, or not yet.
bool sched_split_grow(struct sched *s, uint32_t slot);

// Freezes the tail of a sequence without rows in flight that has its place alone and lacks a page there. All behind the last boundary
// is computed anew at the next place. False: no place has room.
bool sched_split_go_on(struct sched *s, uint32_t slot);

// Returns the place that would read the part of a sequence soonest that a place's holder is, of those that have room for it; NONE: there is
// none. evicting: kept sequences may be evicted there. moves: it must accept moves.
uint32_t sched_split_room(const struct sched *s, uint32_t holder, bool evicting, bool moves);

#endif
