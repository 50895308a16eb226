// sched_move.c: see sched_move.h.
#include "common/sched/sched_state.h"

bool sched_move_is_free(const struct sched *s) { return s->moves.count - s->moves.relabelling < s->config.max_moves; }

void sched_move_begin(struct sched *s, uint32_t slot, uint32_t part, uint32_t to, uint32_t pages, uint32_t mini_batch)
{
    const struct sched_seq *seq = &s->seqs[slot];
    struct sched_move_link *m = &s->cold[slot].move;
    sched_place_reserve(s, to, pages);
    m->to = to;
    m->part = part;
    m->pages = pages;
    m->load = s->seqs[part].load;
    m->batch = (uint8_t)mini_batch;
    m->id = 0;
    m->relabels = to == seq->place;
    s->places.of[to].loads[seq->class][mini_batch].incoming += m->load;
    s->moves.relabelling += m->relabels;
    s->moves.slots[s->moves.count++] = slot;
}

void sched_move_forget(struct sched *s, uint32_t slot)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    if (cold->move.to == NONE)
        return;
    sched_place_unreserve(s, cold->move.to, cold->move.pages);
    s->places.of[cold->move.to].loads[s->seqs[slot].class][cold->move.batch].incoming -= cold->move.load;
    s->moves.relabelling -= cold->move.relabels;
    cold->move.to = NONE;
    cold->move.id = 0;
    cold->out.move = cold->move.relabels = false;
    for (uint32_t i = 0; i < s->moves.count; i++) {
        if (s->moves.slots[i] == slot) {
            s->moves.slots[i] = s->moves.slots[--s->moves.count];
            break;
        }
    }
}
