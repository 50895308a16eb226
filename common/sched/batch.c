// batch.c: see batch.h.
#include "common/sched/state.h"

void sched_batch_add_prefill(struct sched *s, uint32_t slot)
{
    struct sched_group *group = sched_group_of(s, &s->seqs[slot]);
    struct sched_seq_cold *cold = &s->cold[slot];
    uint32_t after = group->prefill_tail;
    while (after != NONE && s->cold[after].arrival > cold->arrival)
        after = s->cold[after].batch.prev;
    uint32_t before = after == NONE ? group->prefill_head : s->cold[after].batch.next;
    cold->batch.prev = after;
    cold->batch.next = before;
    *(after == NONE ? &group->prefill_head : &s->cold[after].batch.next) = slot;
    *(before == NONE ? &group->prefill_tail : &s->cold[before].batch.prev) = slot;
    group->prefill_count++;
}

void sched_batch_remove_prefill(struct sched *s, uint32_t slot)
{
    struct sched_group *group = sched_group_of(s, &s->seqs[slot]);
    uint32_t after = s->cold[slot].batch.prev, before = s->cold[slot].batch.next;
    *(after == NONE ? &group->prefill_head : &s->cold[after].batch.next) = before;
    *(before == NONE ? &group->prefill_tail : &s->cold[before].batch.prev) = after;
    group->prefill_count--;
}

void sched_batch_add_member(struct sched *s, uint32_t slot)
{
    struct sched_group *group = sched_group_of(s, &s->seqs[slot]);
    s->seqs[slot].member = group->member_count;
    group->members[group->member_count++] = slot;
}

void sched_batch_prefill_done(struct sched *s, uint32_t slot)
{
    sched_batch_remove_prefill(s, slot);
    s->seqs[slot].state = SCHED_SEQ_DECODE;
    sched_batch_add_member(s, slot);
}

void sched_batch_remove_member(struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    struct sched_group *group = sched_group_of(s, &s->seqs[slot]);
    uint32_t moved = group->members[--group->member_count];
    group->members[seq->member] = moved;
    s->seqs[moved].member = seq->member;
}

uint32_t sched_batch_count_all(const struct sched *s) { return s->config.mini_batches + s->config.aside; }

struct sched_flight *sched_batch_find_flight(struct sched *s, uint64_t id)
{
    for (uint32_t m = 0; m < sched_batch_count_all(s); m++) {
        struct sched_batch *batch = &s->batches.of[m];
        for (uint32_t k = 0; k < batch->in_flight_count; k++) {
            if (batch->in_flight[k]->id == id)
                return batch->in_flight[k];
        }
    }
    s->stats.ignored_events++;
    return NULL;
}

void sched_batch_retire_flight(struct sched *s, struct sched_flight *step)
{
    struct sched_batch *batch = &s->batches.of[step->mini_batch];
    uint32_t k = 0;
    while (batch->in_flight[k] != step)
        k++;
    for (; k + 1 < batch->in_flight_count; k++)
        batch->in_flight[k] = batch->in_flight[k + 1];
    batch->in_flight_count--;
    batch->spare[batch->spare_count++] = step;
}
