// sched_move.h: what is reserved for sequences on their way to another place or mini-batch. Private to common/sched.
#ifndef FD_SCHED_SCHED_MOVE_H
#define FD_SCHED_SCHED_MOVE_H

#include <stdbool.h>
#include <stdint.h>

struct sched;

// A sequence's part.
struct sched_move_link {
    uint64_t id;          // id of the MOVE that is emitted and not answered; 0: none
    uint32_t to;          // the place it moves to, or NONE
    uint32_t part;        // the slot that moves there: its own, or one of its extents
    uint32_t pages;       // pages reserved there
    uint32_t load;        // context that it will read there
    uint64_t stays_until; // it is not handed over again before this number of steps has been emitted
    uint8_t batch;        // it will be in that mini-batch
    uint8_t failures;     // consecutive failed moves; after each it stays for longer
    bool relabels;        // it only changes its mini-batch: `to` is its own place, and no pages are reserved
    bool failed;          // the last move failed
};

struct sched_moves {
    uint32_t *slots;             // [max_moves + TUNE_MOVE_RELABELS_MAX] in any order
    uint32_t count, relabelling; // relabelling: how many of them only change their mini-batch
    uint64_t next_id;
};

bool sched_move_is_free(const struct sched *s); // returns whether one more may be handed over
void sched_move_begin(struct sched *s, uint32_t slot, uint32_t part, uint32_t to, uint32_t pages, uint32_t mini_batch);
void sched_move_forget(struct sched *s, uint32_t slot); // gives up what is reserved for it

#endif
