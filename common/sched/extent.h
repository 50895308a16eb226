// extent.h: sequences that are split, because no place has pages for all of their context. Private to common/sched.
//
// Such a sequence has a tail, where it grows, and before it up to SCHED_EXTENTS_MAX extents, all at different places. They follow one
// another from position 0 on, and each begins at a multiple of config.extent_tokens:
//
//     positions   0 ········ 2048 ············ 5120 ···· 7100
//                 ├ extent 0 ┤├── extent 1 ───┤├─ tail ─┤ ▸
//     place           3              1             2           all three read for every row of the sequence
//
// An extent has a slot of its own, in state EXTENT with the id and the class of its sequence, its owner. So it is in its place's list of
// holders and in its ledger and load like a sequence that never has rows. It is not in the table of ids.
//
// Extents of a long prompt are there before its rows are: rows below the tail are written where their extent is. Giving up goes
// from some extent on to the sequence's end, so that what is left is its beginning. The slots of extents that are given up are in a list
// of their own, `leaving`, until their pages are free. No step in flight may use them then, so their RELEASE waits for their owner's rows.
#ifndef FD_SCHED_EXTENT_H
#define FD_SCHED_EXTENT_H

#include "common/sched/sched.h"

struct sched_seq;

// A sequence's part, and an extent's.
struct sched_extent_link {
    uint32_t owner;         // of an extent: its sequence; NONE: this is a sequence
    uint32_t next;          // of an extent: the one behind it; of a sequence: its first one. NONE: there is none
    uint32_t leaving;       // of a sequence: the list of those that are given up
    uint32_t first, end;    // an extent holds [first, end), a tail all from `first` on
    uint32_t count;         // of a sequence: extents, without those that are given up
    uint32_t leaving_count; // of a sequence
    bool lost;              // of a sequence: a part was lost while another was on its way to another place
    bool waits;             // of a sequence: its own pages are free, and those of extents that were given up not yet
};

struct sched_extents {
    uint32_t count;  // slots that are extents
    uint32_t owners; // sequences with extents, without those that are given up
};

// Returns whether the slot is an extent, and not a sequence.
bool sched_extent_is(const struct sched *s, uint32_t slot);

uint32_t sched_extent_index(const struct sched *s, uint32_t extent);

// Returns the first position behind those of the part of a split sequence that holds `position`: where its pages end.
uint64_t sched_extent_room_end(const struct sched *s, uint32_t slot, uint32_t position);

// Fills in where a run's rows are written, by its position, and where the positions before that are. Writes their places to extents, which
// has room for SCHED_EXTENTS_MAX.
void sched_extent_describe(const struct sched *s, uint32_t slot, struct sched_extent *extents, struct sched_run *run);

// Returns how many partial results one row of a run gets (config.span_ranges), as if it were the run's last.
uint64_t sched_extent_partials(const struct sched *s, const struct sched_run *run);

// Returns whether the tail or one of the first `extents` extents is at a place.
bool sched_extent_uses(const struct sched *s, uint32_t slot, uint32_t place, uint32_t extents);
bool sched_extent_blocks(const struct sched *s, const struct sched_seq *seq); // whether rows must wait for an extent's place
bool sched_extent_may_add(const struct sched *s, uint32_t slot);              // whether it may have one more
void sched_extent_set_load(struct sched *s, uint32_t slot, uint32_t context); // of all its places; 0: it reads nothing

// Append an extent that ends at `end` behind those that are there: with new pages at a place; or the tail, which leaves the sequence
// without a place. Nobody may be pinning the tail's pages.
void sched_extent_add(struct sched *s, uint32_t slot, uint32_t place, uint32_t end, uint32_t pages);
void sched_extent_freeze(struct sched *s, uint32_t slot, uint32_t end);

// Makes the last extent the tail of its sequence, which has no place of its own. Nobody may be pinning its pages.
void sched_extent_thaw(struct sched *s, uint32_t slot);
// Returns the last of the first `extents` extents; NONE: there is none.
uint32_t sched_extent_before(const struct sched *s, uint32_t slot, uint32_t extents);

// Gives up the extents from index `from` on. Their pages are free once sched_extent_settle() has said RELEASE, and that is answered.
void sched_extent_cut(struct sched *s, uint32_t slot, uint32_t from);
void sched_extent_settle(struct sched *s, uint32_t slot);       // call when no step in flight has rows of the sequence
bool sched_extent_pinned(const struct sched *s, uint32_t slot); // whether others are about to begin with pages that it gives up

// Free the pages of an extent that was given up, and then its slot, which nobody may be pinning.
void sched_extent_leave_place(struct sched *s, uint32_t extent);
void sched_extent_free(struct sched *s, uint32_t extent);

// Returns the extent of a sequence whose RELEASE at a place is not answered, or NONE.
uint32_t sched_extent_releasing(const struct sched *s, uint32_t slot, uint32_t place);

#endif
