// sched_ids.c: see sched_ids.h.
#include "common/sched/sched_state.h"

// Ids are often consecutive or share their upper bits (incarnation): mix all bits into the low ones.
static uint32_t hash_id(uint64_t id)
{
    id ^= id >> 31;
    id *= UINT64_C(0x9e3779b97f4a7c15);
    id ^= id >> 29;
    id *= UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(id >> 32);
}

uint32_t sched_ids_find(const struct sched *s, uint64_t id)
{
    for (uint32_t i = hash_id(id) & s->ids.map_mask; s->ids.map[i] != NONE; i = (i + 1) & s->ids.map_mask) {
        if (s->seqs[s->ids.map[i]].id == id)
            return s->ids.map[i];
    }
    return NONE;
}

static void ids_insert(struct sched *s, uint64_t id, uint32_t slot)
{
    uint32_t i = hash_id(id) & s->ids.map_mask;
    while (s->ids.map[i] != NONE)
        i = (i + 1) & s->ids.map_mask;
    s->ids.map[i] = slot;
}

static void ids_erase(struct sched *s, uint64_t id)
{
    uint32_t i = hash_id(id) & s->ids.map_mask;
    while (s->seqs[s->ids.map[i]].id != id)
        i = (i + 1) & s->ids.map_mask;
    // Later entries of the same run move up, so that no search ends at a hole before its entry.
    for (uint32_t j = i;;) {
        j = (j + 1) & s->ids.map_mask;
        if (s->ids.map[j] == NONE)
            break;
        uint32_t home = hash_id(s->seqs[s->ids.map[j]].id) & s->ids.map_mask;
        if (((j - home) & s->ids.map_mask) >= ((j - i) & s->ids.map_mask)) {
            s->ids.map[i] = s->ids.map[j];
            i = j;
        }
    }
    s->ids.map[i] = NONE;
}

uint32_t sched_ids_take(struct sched *s, uint64_t id)
{
    uint32_t slot = s->ids.free_slots[--s->ids.free_count];
    ids_insert(s, id, slot);
    return slot;
}

void sched_ids_give_back(struct sched *s, uint32_t slot)
{
    ids_erase(s, s->seqs[slot].id);
    s->ids.free_slots[s->ids.free_count++] = slot;
}

uint32_t sched_ids_take_nameless(struct sched *s) { return s->ids.free_slots[--s->ids.free_count]; }

void sched_ids_give_back_nameless(struct sched *s, uint32_t slot) { s->ids.free_slots[s->ids.free_count++] = slot; }
