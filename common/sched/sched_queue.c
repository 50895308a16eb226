// sched_queue.c: see sched_queue.h.
#include "common/sched/sched_state.h"

// Waiting order: by class, which is the first bit of `arrival`; of a class, rebuilt ones first, then by arrival.
#define FRESH_KEY (UINT64_C(1) << 62)

void sched_queue_add(struct sched *s, uint32_t slot)
{
    const struct sched_seq_cold *cold = &s->cold[slot];
    sched_heap_push(&s->queue.waiting, slot, cold->arrival | (cold->rebuild ? 0 : FRESH_KEY));
    s->queue.count[s->seqs[slot].class]++;
    s->queue.known[s->seqs[slot].class] += s->seqs[slot].known;
    s->queue.fresh[s->seqs[slot].class] += !cold->rebuild;
}

void sched_queue_remove(struct sched *s, uint32_t slot)
{
    if (!sched_heap_has(&s->queue.waiting, slot))
        return;
    sched_heap_remove(&s->queue.waiting, slot);
    s->queue.count[s->seqs[slot].class]--;
    s->queue.known[s->seqs[slot].class] -= s->seqs[slot].known;
    s->queue.fresh[s->seqs[slot].class] -= !s->cold[slot].rebuild;
}
