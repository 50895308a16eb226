// sched_move.h: sequences on their way to another place or mini-batch: what is reserved for them. Private to common/sched.
#ifndef FD_SCHED_SCHED_MOVE_H
#define FD_SCHED_SCHED_MOVE_H

#include <stdbool.h>
#include <stdint.h>

struct sched;

// A sequence's part.
struct sched_move_link {
    uint64_t id;          // of the MOVE that was emitted and not answered; 0: none
    uint32_t to;          // place, NONE
    uint32_t pages;       // reserved there
    uint32_t load;        // context that it will read there
    uint64_t stays_until; // steps emitted by then: it is not handed over again
    uint8_t batch;        // it will be in that mini-batch
    uint8_t failures;     // one after the other: each time it stays for longer
    bool relabels;        // it only changes its mini-batch: `to` is its own place, and no pages are reserved
    bool failed;          // the last one did
};

struct sched_moves {
    uint32_t *slots;             // [max_moves + TUNE_MOVE_RELABELS_MAX] in any order
    uint32_t count, relabelling; // of them, those that only change their mini-batch
    uint64_t next_id;
};

bool sched_move_is_free(const struct sched *s); // one more may be handed over
void sched_move_begin(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch);
void sched_move_forget(struct sched *s, uint32_t slot); // gives up what is reserved

#endif
