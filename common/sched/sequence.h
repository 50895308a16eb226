// sequence.h: moves a sequence between its states (see the picture in slots.h). Private to common/sched.
#ifndef FD_SCHED_SEQUENCE_H
#define FD_SCHED_SEQUENCE_H

#include "common/sched/sched.h"
#include "common/sched/slots.h"

uint32_t sched_sequence_new(struct sched *s, const struct sched_arrive *arrive); // returns its slot, which is in no list yet
void sched_sequence_free(struct sched *s, uint32_t slot);

void sched_sequence_join(struct sched *s, uint32_t slot, uint32_t mini_batch); // as PREFILL or DECODE, depending on its positions
void sched_sequence_leave(struct sched *s, uint32_t slot);                     // its mini-batch

void sched_sequence_wait(struct sched *s, uint32_t slot);    // into the queue
void sched_sequence_rewind(struct sched *s, uint32_t slot);  // voids its rows in flight, which are planned again
void sched_sequence_requeue(struct sched *s, uint32_t slot); // gives up its pages; it waits to be rebuilt
void sched_sequence_rebuild(struct sched *s, uint32_t slot); // the same, because its KV is lost
void sched_sequence_lost(struct sched *s, uint32_t slot);    // its pages are gone: rebuilds it unless it was leaving

// The same for sequences that are split (extent.h). It keeps its extents before index `from`; without a `from`, all.
void sched_sequence_requeue_from(struct sched *s, uint32_t slot, uint32_t from);
void sched_sequence_rebuild_from(struct sched *s, uint32_t slot, uint32_t from);
void sched_sequence_extent_lost(struct sched *s, uint32_t extent); // the pages of that extent are gone
// Requeues the sequence that a place's holder belongs to, with what it has before that. The holder is an extent, or a sequence itself.
void sched_sequence_give_up(struct sched *s, uint32_t holder);
void sched_sequence_finish(struct sched *s, uint32_t slot, enum sched_reason reason);
void sched_sequence_released(struct sched *s, uint32_t slot); // call when its pages are free (or it never had any)

void sched_sequence_row_back(struct sched *s, uint32_t slot); // call when a step with rows of it is over
void sched_sequence_unpin(struct sched *s, uint32_t slot);

void sched_sequence_move(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch);
// The same for a holder of a place: a sequence, or an extent of one. The sequence pauses, and the rest of it stays where it is.
void sched_sequence_move_part(struct sched *s, uint32_t holder, uint32_t to, uint32_t pages);
void sched_sequence_relabel(struct sched *s, uint32_t slot, uint32_t mini_batch); // it stays where it is
void sched_sequence_move_off(struct sched *s, uint32_t slot);                     // ends the move; it goes on where it is
void sched_sequence_move_landed(struct sched *s, uint32_t slot); // call when its pages have arrived; does not change the state

#endif
