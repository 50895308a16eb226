// extent.c: see extent.h.
#include "common/sched/extent.h"

#include <string.h>

#include "common/sched/state.h"

bool sched_extent_is(const struct sched *s, uint32_t slot) { return s->cold[slot].extent.owner != NONE; }

// --- looking --------------------------------------------------------------------------------------------------------

// Returns the slot that holds a position of a sequence: an extent's, or the sequence's own for its tail.
static uint32_t extent_at(const struct sched *s, uint32_t slot, uint32_t position)
{
    for (uint32_t at = s->cold[slot].extent.next; at != NONE; at = s->cold[at].extent.next) {
        if (position < s->cold[at].extent.end)
            return at;
    }
    return slot;
}

uint32_t sched_extent_index(const struct sched *s, uint32_t extent)
{
    uint32_t index = 0;
    for (uint32_t at = s->cold[s->cold[extent].extent.owner].extent.next; at != extent; at = s->cold[at].extent.next)
        index++;
    return index;
}

uint64_t sched_extent_room_end(const struct sched *s, uint32_t slot, uint32_t position)
{
    uint32_t at = extent_at(s, slot, position);
    const struct sched_extent_link *link = &s->cold[at].extent;
    return at == slot ? link->first + (uint64_t)s->seqs[slot].pages * s->config.page_tokens : link->end;
}

void sched_extent_describe(const struct sched *s, uint32_t slot, struct sched_extent *extents, struct sched_run *run)
{
    uint32_t part = extent_at(s, slot, run->position);
    run->place = s->seqs[part].place;
    run->first = s->cold[part].extent.first;
    run->extents = extents;
    for (uint32_t at = s->cold[slot].extent.next; at != NONE && at != part; at = s->cold[at].extent.next)
        extents[run->extent_count++] = (struct sched_extent){s->seqs[at].place, s->cold[at].extent.first};
}

static uint32_t partials_of(const struct sched *s, uint32_t first, uint32_t end)
{
    uint32_t unit = s->config.extent_tokens, span = MAX(s->config.span_ranges, 1u), ranges = (end - first + unit - 1) / unit;
    uint32_t single = MIN(ranges, (span - first / unit % span) % span); // before the first span that begins here
    return single + (ranges - single + span - 1) / span;
}

uint64_t sched_extent_partials(const struct sched *s, const struct sched_run *run)
{
    uint64_t count = run->extent_count > 0 ? partials_of(s, run->first, run->position + run->count) : 0;
    for (uint32_t i = 0; i < run->extent_count; i++)
        count += partials_of(s, run->extents[i].first, i + 1 < run->extent_count ? run->extents[i + 1].first : run->first);
    return count;
}

bool sched_extent_uses(const struct sched *s, uint32_t slot, uint32_t place, uint32_t extents)
{
    if (s->seqs[slot].place == place)
        return true;
    for (uint32_t at = s->cold[slot].extent.next; at != NONE && extents-- > 0; at = s->cold[at].extent.next) {
        if (s->seqs[at].place == place)
            return true;
    }
    return false;
}

bool sched_extent_blocks(const struct sched *s, const struct sched_seq *seq)
{
    for (uint32_t at = s->cold[seq - s->seqs].extent.next; at != NONE; at = s->cold[at].extent.next) {
        if (s->places.of[s->seqs[at].place].suspect_until_us > s->now_us)
            return true;
    }
    return false;
}

bool sched_extent_may_add(const struct sched *s, uint32_t slot)
{
    return s->cold[slot].extent.count < SCHED_EXTENTS_MAX && s->extents.count < s->config.max_extents;
}

void sched_extent_set_load(struct sched *s, uint32_t slot, uint32_t context)
{
    struct sched_seq *seq = &s->seqs[slot];
    for (uint32_t at = s->cold[slot].extent.next; at != NONE; at = s->cold[at].extent.next) {
        struct sched_seq *extent = &s->seqs[at];
        if (extent->load == 0)
            extent->mini_batch = seq->mini_batch;
        sched_place_set_load(s, extent, context > 0 ? s->cold[at].extent.end - s->cold[at].extent.first : 0);
    }
    if (seq->place != SCHED_SEQ_NO_PLACE)
        sched_place_set_load(s, seq, context - MIN(context, s->cold[slot].extent.first));
}

// --- making ---------------------------------------------------------------------------------------------------------

// Appends a slot that is in no place yet.
static uint32_t append_extent(struct sched *s, uint32_t slot, uint32_t end)
{
    uint32_t extent = sched_ids_take_nameless(s), last = slot;
    const struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[extent];
    struct sched_extent_link *owner = &s->cold[slot].extent;
    assert_always(sched_extent_may_add(s, slot) && end > owner->first && end % s->config.extent_tokens == 0);
    while (s->cold[last].extent.next != NONE)
        last = s->cold[last].extent.next;
    s->seqs[extent] = (struct sched_seq){.id = seq->id,
                                         .epoch = s->seqs[extent].epoch,
                                         .place = SCHED_SEQ_NO_PLACE,
                                         .class = seq->class,
                                         .mini_batch = seq->mini_batch,
                                         .state = SCHED_SEQ_EXTENT};
    memset(cold, 0, sizeof(*cold));
    cold->arrival = s->cold[slot].arrival;
    cold->move.to = cold->prefix.node = cold->prefix.source = NONE;
    cold->extent = (struct sched_extent_link){.owner = slot, .next = NONE, .leaving = NONE, .first = owner->first, .end = end};
    s->cold[last].extent.next = extent;
    owner->first = end;
    s->extents.owners += owner->count++ == 0;
    s->extents.count++;
    s->stats.frozen++;
    s->seqs[slot].split = true;
    return extent;
}

void sched_extent_add(struct sched *s, uint32_t slot, uint32_t place, uint32_t end, uint32_t pages)
{
    sched_place_attach(s, append_extent(s, slot, end), place, pages);
}

void sched_extent_freeze(struct sched *s, uint32_t slot, uint32_t end)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t extent = append_extent(s, slot, end), load = seq->load;
    s->seqs[extent].held = seq->held; // rows below `end` may be in flight
    assert_always(seq->pins == 0 && !seq->sharing && !seq->gathering);
    if (load > 0)
        sched_place_set_load(s, seq, 0);
    sched_prefix_pass_on(s, slot, extent);
    sched_place_pass_on(s, slot, extent);
    if (load > 0)
        sched_place_set_load(s, &s->seqs[extent], end - s->cold[extent].extent.first);
}

uint32_t sched_extent_before(const struct sched *s, uint32_t slot, uint32_t extents)
{
    uint32_t last = NONE;
    for (uint32_t at = s->cold[slot].extent.next; at != NONE && extents-- > 0; at = s->cold[at].extent.next)
        last = at;
    return last;
}

static void give_slot_back(struct sched *s, uint32_t extent)
{
    s->extents.count--;
    s->seqs[extent].state = SCHED_SEQ_FREE;
    s->cold[extent].extent.owner = NONE;
    sched_ids_give_back_nameless(s, extent);
}

void sched_extent_thaw(struct sched *s, uint32_t slot)
{
    struct sched_extent_link *owner = &s->cold[slot].extent;
    uint32_t extent = sched_extent_before(s, slot, SCHED_EXTENTS_MAX), *at = &owner->next;
    assert_always(s->seqs[slot].place == SCHED_SEQ_NO_PLACE && s->seqs[extent].load == 0);
    sched_prefix_pass_on(s, extent, slot);
    sched_place_pass_on(s, extent, slot);
    while (*at != extent)
        at = &s->cold[*at].extent.next;
    *at = NONE;
    owner->first = s->cold[extent].extent.first;
    owner->count--;
    s->extents.owners -= owner->count == 0;
    s->seqs[slot].split = owner->count > 0;
    give_slot_back(s, extent);
}

// --- giving up ------------------------------------------------------------------------------------------------------

void sched_extent_cut(struct sched *s, uint32_t slot, uint32_t from)
{
    struct sched_extent_link *owner = &s->cold[slot].extent;
    if (from >= owner->count)
        return;
    uint32_t last = slot;
    for (uint32_t i = 0; i < from; i++)
        last = s->cold[last].extent.next;
    owner->first = from == 0 ? 0 : s->cold[last].extent.end;
    for (uint32_t at = s->cold[last].extent.next, next; at != NONE; at = next) {
        struct sched_extent_link *extent = &s->cold[at].extent;
        next = extent->next;
        extent->next = owner->leaving;
        owner->leaving = at;
        owner->leaving_count++;
        sched_place_set_load(s, &s->seqs[at], 0);
        s->seqs[at].state = SCHED_SEQ_DRAINING;
        uint32_t source = sched_prefix_stop(s, at);
        assert_always(source == NONE); // it has its pages long since
        sched_place_left(s, at);       // as one that moves it counts as leaving already
        sched_place_leaving(s, at, sched_prefix_own_pages(s, at));
    }
    s->cold[last].extent.next = NONE;
    owner->count = from;
    s->seqs[slot].split = from > 0;
    s->extents.owners -= from == 0;
}

bool sched_extent_pinned(const struct sched *s, uint32_t slot)
{
    for (uint32_t at = s->cold[slot].extent.leaving; at != NONE; at = s->cold[at].extent.next) {
        if (s->seqs[at].pins > 0)
            return true;
    }
    return false;
}

void sched_extent_settle(struct sched *s, uint32_t slot)
{
    if (s->cold[slot].extent.leaving != NONE)
        sched_outbox_remove(s, slot);                         // its own RELEASE is the last
    const struct sched_move_link *move = &s->cold[slot].move; // what is on its way is released when it has arrived
    for (uint32_t at = s->cold[slot].extent.leaving; at != NONE; at = s->cold[at].extent.next) {
        if (move->id != 0 && move->part == at)
            continue;
        if (s->seqs[at].state == SCHED_SEQ_DRAINING && s->seqs[at].place != SCHED_SEQ_NO_PLACE)
            sched_outbox_release(s, at);
    }
}

void sched_extent_leave_place(struct sched *s, uint32_t extent)
{
    sched_place_left(s, extent);
    sched_prefix_leave(s, extent);
    sched_place_detach(s, extent);
    sched_outbox_remove(s, extent);
    s->seqs[extent].state = SCHED_SEQ_DRAINING;
}

void sched_extent_free(struct sched *s, uint32_t extent)
{
    struct sched_extent_link *owner = &s->cold[s->cold[extent].extent.owner].extent;
    uint32_t *at = &owner->leaving;
    assert_always(s->seqs[extent].pins == 0 && s->seqs[extent].place == SCHED_SEQ_NO_PLACE);
    while (*at != extent)
        at = &s->cold[*at].extent.next;
    *at = s->cold[extent].extent.next;
    owner->leaving_count--;
    give_slot_back(s, extent);
}

uint32_t sched_extent_releasing(const struct sched *s, uint32_t slot, uint32_t place)
{
    for (uint32_t at = s->cold[slot].extent.leaving; at != NONE; at = s->cold[at].extent.next) {
        if (s->seqs[at].state == SCHED_SEQ_RELEASING && s->seqs[at].place == place)
            return at;
    }
    return NONE;
}
