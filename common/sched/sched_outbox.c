/* sched_outbox.c: of whom there is something to say. */
#include "common/sched/sched_state.h"

void out_queue(struct sched *s, uint32_t slot)
{
    struct seq_cold *c = &s->cold[slot];
    if (c->out_queued)
        return;
    c->out_queued = true;
    c->out_next = NONE;
    *(s->out_tail == NONE ? &s->out_head : &s->cold[s->out_tail].out_next) = slot;
    s->out_tail = slot;
}

void out_release(struct sched *s, uint32_t slot)
{
    s->cold[slot].out_release = true;
    out_queue(s, slot);
}
