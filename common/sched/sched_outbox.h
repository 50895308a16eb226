// sched_outbox.h: the sequences for which actions are to be emitted. Private to common/sched.
//
// The outbox is a queue of sequences, not of messages: each has flags for the actions still to be emitted. So its size is bounded
// by max_sequences, and actions that do not fit into this call simply stay queued. sched.c empties it.
#ifndef FD_SCHED_SCHED_OUTBOX_H
#define FD_SCHED_SCHED_OUTBOX_H

#include "common/sched/sched.h"

struct sched;

// A sequence's part.
struct sched_outbox_link {
    uint32_t next;
    bool queued, finished, release, kept, move; // actions to be emitted
    bool last_said;                             // its last RELEASE was emitted
};

struct sched_outbox {
    uint32_t head, tail;
    struct sched_action *actions; // actions of the call in progress
    size_t count, capacity;
};

// Adds an action to this call's. NULL: there is no room.
struct sched_action *sched_outbox_action(struct sched *s, enum sched_action_kind kind);
void sched_outbox_add(struct sched *s, uint32_t slot);     // queues a sequence that has an action to be emitted
void sched_outbox_release(struct sched *s, uint32_t slot); // queues its RELEASE
void sched_outbox_remove(struct sched *s, uint32_t slot);  // takes it out of the queue, with its flags as they are; O(outbox)

#endif
