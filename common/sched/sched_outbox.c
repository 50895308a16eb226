// sched_outbox.c: see sched_outbox.h.
#include "common/sched/sched_state.h"

void sched_outbox_add(struct sched *s, uint32_t slot)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    if (cold->out.queued)
        return;
    cold->out.queued = true;
    cold->out.next = NONE;
    *(s->outbox.tail == NONE ? &s->outbox.head : &s->cold[s->outbox.tail].out.next) = slot;
    s->outbox.tail = slot;
}

void sched_outbox_release(struct sched *s, uint32_t slot)
{
    s->cold[slot].out.release = true;
    sched_outbox_add(s, slot);
}

void sched_outbox_remove(struct sched *s, uint32_t slot)
{
    uint32_t before = NONE;
    if (!s->cold[slot].out.queued)
        return;
    for (uint32_t at = s->outbox.head; at != slot; at = s->cold[at].out.next)
        before = at;
    *(before == NONE ? &s->outbox.head : &s->cold[before].out.next) = s->cold[slot].out.next;
    if (s->outbox.tail == slot)
        s->outbox.tail = before;
    s->cold[slot].out.queued = false;
}

struct sched_action *sched_outbox_action(struct sched *s, enum sched_action_kind kind)
{
    if (s->outbox.count == s->outbox.capacity)
        return NULL;
    struct sched_action *a = &s->outbox.actions[s->outbox.count++];
    *a = (struct sched_action){.kind = kind};
    return a;
}
