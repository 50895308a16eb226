/* sched_batch.c: who is in a mini-batch. */
#include "common/sched/sched_state.h"

void prefill_link(struct sched *s, struct mini_batch *b, uint32_t slot)
{
    struct seq_cold *c = &s->cold[slot];
    uint32_t after = b->prefill_tail;
    while (after != NONE && s->cold[after].arrival > c->arrival)
        after = s->cold[after].prefill_prev;
    uint32_t before = after == NONE ? b->prefill_head : s->cold[after].prefill_next;
    c->prefill_prev = after;
    c->prefill_next = before;
    *(after == NONE ? &b->prefill_head : &s->cold[after].prefill_next) = slot;
    *(before == NONE ? &b->prefill_tail : &s->cold[before].prefill_prev) = slot;
    b->prefill_count++;
}

void prefill_unlink(struct sched *s, uint32_t slot)
{
    struct mini_batch *b = &s->mini_batches[s->seqs[slot].mini_batch];
    uint32_t after = s->cold[slot].prefill_prev, before = s->cold[slot].prefill_next;
    *(after == NONE ? &b->prefill_head : &s->cold[after].prefill_next) = before;
    *(before == NONE ? &b->prefill_tail : &s->cold[before].prefill_prev) = after;
    b->prefill_count--;
}

void member_add(struct sched *s, uint32_t slot)
{
    struct mini_batch *b = &s->mini_batches[s->seqs[slot].mini_batch];
    s->seqs[slot].member = b->member_count;
    b->members[b->member_count++] = slot;
}

void prefill_done(struct sched *s, uint32_t slot)
{
    prefill_unlink(s, slot);
    s->seqs[slot].state = SEQ_DECODE;
    member_add(s, slot);
}
