// sched_batch.c: see sched_batch.h.
#include "common/sched/sched_state.h"

void sched_batch_add_prefill(struct sched *s, uint32_t slot)
{
    struct sched_batch *b = &s->batches.of[s->seqs[slot].mini_batch];
    struct sched_seq_cold *c = &s->cold[slot];
    uint32_t after = b->prefill_tail;
    while (after != NONE && s->cold[after].arrival > c->arrival)
        after = s->cold[after].batch.prev;
    uint32_t before = after == NONE ? b->prefill_head : s->cold[after].batch.next;
    c->batch.prev = after;
    c->batch.next = before;
    *(after == NONE ? &b->prefill_head : &s->cold[after].batch.next) = slot;
    *(before == NONE ? &b->prefill_tail : &s->cold[before].batch.prev) = slot;
    b->prefill_count++;
}

void sched_batch_remove_prefill(struct sched *s, uint32_t slot)
{
    struct sched_batch *b = &s->batches.of[s->seqs[slot].mini_batch];
    uint32_t after = s->cold[slot].batch.prev, before = s->cold[slot].batch.next;
    *(after == NONE ? &b->prefill_head : &s->cold[after].batch.next) = before;
    *(before == NONE ? &b->prefill_tail : &s->cold[before].batch.prev) = after;
    b->prefill_count--;
}

void sched_batch_add_member(struct sched *s, uint32_t slot)
{
    struct sched_batch *b = &s->batches.of[s->seqs[slot].mini_batch];
    s->seqs[slot].member = b->member_count;
    b->members[b->member_count++] = slot;
}

void sched_batch_prefill_done(struct sched *s, uint32_t slot)
{
    sched_batch_remove_prefill(s, slot);
    s->seqs[slot].state = SCHED_SEQ_DECODE;
    sched_batch_add_member(s, slot);
}

void sched_batch_remove_member(struct sched *s, uint32_t slot)
{
    const struct sched_seq *q = &s->seqs[slot];
    struct sched_batch *b = &s->batches.of[q->mini_batch];
    uint32_t moved = b->members[--b->member_count];
    b->members[q->member] = moved;
    s->seqs[moved].member = q->member;
}

struct sched_flight *sched_batch_find_flight(struct sched *s, uint64_t id)
{
    for (uint32_t m = 0; m < s->config.mini_batches; m++) {
        struct sched_batch *b = &s->batches.of[m];
        for (uint32_t k = 0; k < b->in_flight_count; k++) {
            if (b->in_flight[k]->id == id)
                return b->in_flight[k];
        }
    }
    s->stats.ignored_events++;
    return NULL;
}

void sched_batch_retire_flight(struct sched *s, struct sched_flight *step)
{
    struct sched_batch *b = &s->batches.of[step->mini_batch];
    uint32_t k = 0;
    while (b->in_flight[k] != step)
        k++;
    for (; k + 1 < b->in_flight_count; k++)
        b->in_flight[k] = b->in_flight[k + 1];
    b->in_flight_count--;
    b->spare[b->spare_count++] = step;
}
