// split.c: where the parts of a sequence go that no place can hold whole.
//
// All places of a split sequence read at the same time, and its step waits for the slowest. So a long prompt is dealt out in ranges of
// extent_tokens, each to the place that will have read first, which also uses the memory bandwidth of all. Among these places the one with
// most room left gets the tail, because that grows.
//
// Example: ranges of 512 tokens, four workers with room for four ranges each, of which one reads half as fast as the others. A prompt of
// 5,000 tokens has ten ranges: the fast ones take three each and the slow one takes one. The tail grows for a range or three, then goes on
// elsewhere. A tail grows by whole ranges where it can, so that it is full at a boundary and nothing is computed again when it is frozen.
#include "common/sched/split.h"

#include "common/sched/choice.h"
#include "common/sched/sequence.h"
#include "common/sched/state.h"

enum { PARTS_MAX = SCHED_EXTENTS_MAX + 1 };

// The part of a sequence that one place may take.
struct part {
    uint32_t place;
    uint32_t room, ranges; // ranges of extent_tokens: that it has pages for; that it gets
    double us, range_us;   // when it has read what it reads; for one range more
};

static uint32_t unit_pages(const struct sched *s) { return s->config.extent_tokens / s->config.page_tokens; }

// Returns the pages of a place that a part may have beside `others`, of which a few are left for those to grow; evicting: kept sequences
// may be evicted.
static uint32_t free_pages(const struct sched_place *place, bool evicting, uint32_t others)
{
    uint32_t spare = place->pages_total - place->pages_used + (evicting ? place->pages_idle : 0);
    return spare - (others > 0 ? MIN(spare, sched_place_spared(place)) : 0);
}

// Returns whether a place may hold a part of a sequence behind its first `extents` extents, which are not there.
static bool may_hold(const struct sched *s, uint32_t slot, uint32_t index, uint32_t extents)
{
    const struct sched_place *place = &s->places.of[index];
    return place->takes_extents && sched_place_permitted(s, place) && !sched_extent_uses(s, slot, index, extents);
}

static uint32_t parts_most(const struct sched *s, uint32_t slot)
{
    uint32_t unused = s->config.max_extents - s->extents.count, left = SCHED_EXTENTS_MAX - s->cold[slot].extent.count;
    return MIN(left, unused) + 1;
}

// Keeps the `most` parts with most room, largest first; returns how many there are.
static uint32_t keep_largest(struct part *parts, uint32_t count, uint32_t most, struct part part)
{
    uint32_t at = count < most ? count : most;
    for (; at > 0 && parts[at - 1].room < part.room; at--) {
        if (at < most)
            parts[at] = parts[at - 1];
    }
    if (at == most)
        return count;
    parts[at] = part;
    return MIN(count + 1, most);
}

// Lists the places that can take a part now; returns how many.
static uint32_t list_parts(const struct sched *s, uint32_t slot, uint32_t mini_batch, bool evicting, struct part *parts)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        uint32_t room = sched_place_takes(s, place) && may_hold(s, slot, i, SCHED_EXTENTS_MAX)
                            ? free_pages(place, evicting, place->count) / unit_pages(s)
                            : 0;
        if (room == 0)
            continue;
        enum sched_class class = s->seqs[slot].class;
        count = keep_largest(parts, count, parts_most(s, slot),
                             (struct part){.place = i,
                                           .room = room,
                                           .us = sched_speed_answer_us(s, place, class, mini_batch, 0),
                                           .range_us = s->config.extent_tokens * sched_speed_token_us(s, place)});
    }
    return count;
}

// Deals out so many ranges. False: there is no room for all.
static bool deal_ranges(struct part *parts, uint32_t count, uint32_t ranges)
{
    uint64_t room = 0;
    for (uint32_t i = 0; i < count; i++)
        room += parts[i].room;
    if (room < ranges)
        return false;
    for (; ranges > 0; ranges--) {
        struct part *best = NULL;
        for (uint32_t i = 0; i < count; i++) {
            struct part *part = &parts[i];
            if (part->ranges < part->room && (best == NULL || part->us + part->range_us < best->us + best->range_us))
                best = part;
        }
        best->ranges++;
        best->us += best->range_us;
    }
    return true;
}

// Puts the part that will be the tail last: that with most room left.
static void tail_last(struct part *parts, uint32_t *count)
{
    uint32_t used = 0, tail = 0;
    for (uint32_t i = 0; i < *count; i++) {
        if (parts[i].ranges > 0)
            parts[used++] = parts[i];
    }
    *count = used;
    if (used == 0)
        return;
    for (uint32_t i = 1; i < used; i++)
        tail = parts[i].room - parts[i].ranges > parts[tail].room - parts[tail].ranges ? i : tail;
    struct part last = parts[tail];
    parts[tail] = parts[used - 1];
    parts[used - 1] = last;
}

// Returns whether places could hold a sequence of so many tokens, in addition to its first `extents` extents, if they were empty otherwise.
// back: those that are expected back count, too, and the core looks again when that is over.
static bool could_ever(struct sched *s, uint32_t slot, uint32_t tokens, uint32_t extents, bool back)
{
    struct part parts[PARTS_MAX];
    uint32_t count = 0, last = sched_extent_before(s, slot, extents),
             most = MIN((uint32_t)SCHED_EXTENTS_MAX, s->config.max_extents) + 1 - extents;
    uint64_t room = 0, wake_us = SCHED_NEVER, unit = s->config.extent_tokens;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        uint64_t until_us = place->down_since_us + TUNE_PLACE_RETURN_US;
        if (place->pages_total == 0 || !may_hold(s, slot, i, extents) || !(place->up || (back && until_us > s->now_us)))
            continue;
        wake_us = place->up ? wake_us : MIN(wake_us, until_us);
        count = keep_largest(parts, count, most, (struct part){.place = i, .room = place->pages_total / unit_pages(s)});
    }
    for (uint32_t i = 0; i < count; i++)
        room += parts[i].room * unit;
    if (last != NONE) // that place may take more
        room += s->cold[last].extent.end +
                (s->places.of[s->seqs[last].place].pages_total - s->seqs[last].pages) / unit_pages(s) * unit;
    if (room >= tokens && back)
        s->places.grace_wake_us = MIN(s->places.grace_wake_us, wake_us);
    return room >= tokens;
}

static uint32_t ranges_of(const struct sched *s, uint32_t tokens)
{
    return tokens / s->config.extent_tokens + (tokens % s->config.extent_tokens != 0);
}

// Returns how many ranges a sequence is expected to grow by.
static uint32_t growth_ranges(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    const struct sched_lengths *l = &s->load.of[seq->class].lengths;
    double most = seq->limit > seq->known ? seq->limit - seq->known : 0;
    return (uint32_t)((l->count > 0 ? MIN(l->tokens, most) : most) / s->config.extent_tokens) + 1;
}

// Takes ranges from the tail, parts[tail], until its place has room for so many more: when it is full there is no other place.
static void leave_room(struct part *parts, uint32_t tail, uint32_t ranges)
{
    while (parts[tail].ranges > 1 && parts[tail].room - parts[tail].ranges < ranges) {
        struct part *best = NULL;
        for (uint32_t i = 0; i < tail; i++) {
            if (parts[i].ranges < parts[i].room && (best == NULL || parts[i].us < best->us))
                best = &parts[i];
        }
        if (best == NULL)
            return;
        parts[tail].ranges--;
        best->ranges++;
        best->us += best->range_us;
    }
}

// Gives a sequence its new parts: parts[0] is more at the place of its last extent.
static void place_parts(struct sched *s, uint32_t slot, struct part *parts, uint32_t count)
{
    uint32_t unit = s->config.extent_tokens, others = count - 1;
    tail_last(parts + 1, &others);
    if (others > 0 && (others == count - 1 || others == parts_most(s, slot)))
        leave_room(parts, others, growth_ranges(s, slot));
    if (parts[0].ranges > 0) {
        struct sched_seq *seq = &s->seqs[slot];
        sched_extent_thaw(s, slot);
        uint32_t tokens = (s->cold[slot].extent.first + seq->pages * s->config.page_tokens) / unit *
                          unit; // whole ranges there so far
        s->places.of[seq->place].pages_used += parts[0].ranges * unit_pages(s);
        seq->pages += parts[0].ranges * unit_pages(s);
        if (others > 0)
            sched_extent_freeze(s, slot, tokens + parts[0].ranges * unit);
    }
    for (uint32_t i = 1; i < others; i++)
        sched_extent_add(s, slot, parts[i].place, s->cold[slot].extent.first + parts[i].ranges * unit,
                         parts[i].ranges * unit_pages(s));
    if (others > 0)
        sched_place_attach(s, slot, parts[others].place, parts[others].ranges * unit_pages(s));
}

// Lists the places as list_parts(), behind what the place of the last extent can take on top of it.
static uint32_t list_all(const struct sched *s, uint32_t slot, uint32_t mini_batch, bool evicting, struct part *parts)
{
    uint32_t last = sched_extent_before(s, slot, SCHED_EXTENTS_MAX);
    parts[0] = (struct part){.place = NONE};
    if (last != NONE && s->seqs[last].pins == 0 && sched_place_takes(s, &s->places.of[s->seqs[last].place])) {
        const struct sched_place *place = &s->places.of[s->seqs[last].place];
        double range_us = s->config.extent_tokens * sched_speed_token_us(s, place);
        uint32_t held = s->cold[last].extent.end - s->cold[last].extent.first;
        parts[0] = (struct part){.place = s->seqs[last].place,
                                 .room = free_pages(place, evicting, place->count - 1) / unit_pages(s),
                                 .us = sched_speed_answer_us(s, place, s->seqs[slot].class, mini_batch, held),
                                 .range_us = range_us};
    }
    return 1 + list_parts(s, slot, mini_batch, evicting, parts + 1);
}

static uint32_t margin_of(const struct sched *s, const struct sched_seq *seq)
{
    return MIN(seq->limit > seq->known ? seq->limit - seq->known : 0, TUNE_PLACE_MARGIN_PAGES * s->config.page_tokens);
}

uint32_t sched_split_tail_pages(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    uint32_t end = MAX(seq->known, seq->next_pos + 1) + margin_of(s, seq), unit = unit_pages(s);
    return (sched_place_pages(s, end - s->cold[slot].extent.first) + unit - 1) / unit * unit;
}

enum sched_split sched_split_place(struct sched *s, uint32_t slot, uint32_t mini_batch, uint32_t *from)
{
    const struct sched_seq *seq = &s->seqs[slot];
    if (s->config.extent_tokens == 0)
        return SCHED_SPLIT_NEVER;
    uint32_t known = MAX(seq->known, seq->next_pos + 1), first = s->cold[slot].extent.first, kept = s->cold[slot].extent.count;
    uint32_t margin = margin_of(s, seq);
    if (!could_ever(s, slot, known + margin, kept, false)) // it may be given up
        margin = 0;
    uint32_t ranges = ranges_of(s, known + margin - first), extents = kept;
    struct part parts[1 + PARTS_MAX];
    uint32_t count = list_all(s, slot, mini_batch, false, parts);
    if (deal_ranges(parts, count, ranges)) {
        place_parts(s, slot, parts, count);
        return SCHED_SPLIT_PLACED;
    }
    while (extents > 0 && !could_ever(s, slot, known, extents, false))
        extents--;
    if (extents < kept && could_ever(s, slot, known, extents, false)) { // those behind are in the way
        *from = extents;
        return SCHED_SPLIT_LESS;
    }
    if (!could_ever(s, slot, known, kept, false) && !could_ever(s, slot, known, kept, true))
        return SCHED_SPLIT_NEVER;
    count = list_all(s, slot, mini_batch, true, parts);
    if (deal_ranges(parts, count, ranges)) {
        for (uint32_t i = 0; i < count; i++) {
            const struct sched_place *place = parts[i].ranges > 0 ? &s->places.of[parts[i].place] : NULL;
            if (place != NULL)
                sched_prefix_make_room(s, parts[i].place, parts[i].ranges * unit_pages(s) + sched_place_spared(place));
        }
    }
    return SCHED_SPLIT_WAITS;
}

// Returns whether the tail can be frozen at its end, as far as the sequence itself is concerned.
static bool can_freeze(const struct sched *s, uint32_t slot, uint32_t end)
{
    const struct sched_seq *seq = &s->seqs[slot];
    return sched_extent_may_add(s, slot) && end > s->cold[slot].extent.first && seq->pins == 0 && !seq->sharing && !seq->gathering;
}

bool sched_split_keep(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t unit = s->config.extent_tokens, end = unit == 0 ? 0 : seq->held / unit * unit;
    if (unit == 0 || !can_freeze(s, slot, end) || (!seq->split && !sched_choice_none_can_hold(s, sched_place_pages(s, seq->known))))
        return false;
    sched_extent_freeze(s, slot, end);
    seq->held = seq->next_pos = end;
    return true;
}

// Returns the place where a part of a sequence is read soonest, among those with room for a range; NONE: there is none. It may have that
// room only once kept sequences are evicted.
static uint32_t next_place(const struct sched *s, uint32_t slot, bool evicting)
{
    struct part parts[PARTS_MAX];
    uint32_t count = list_parts(s, slot, s->seqs[slot].mini_batch, evicting, parts);
    if (!deal_ranges(parts, count, 1))
        return NONE;
    tail_last(parts, &count);
    return parts[0].place;
}

static bool go_on(struct sched *s, uint32_t slot, uint32_t end)
{
    uint32_t to = next_place(s, slot, false);
    if (to == NONE && (to = next_place(s, slot, true)) != NONE) { // its pages are free in a moment
        sched_prefix_make_room(s, to, unit_pages(s) + sched_place_spared(&s->places.of[to]));
        return false;
    }
    if (to == NONE)
        return false;
    sched_place_starve(s, &s->seqs[slot], false);
    sched_extent_freeze(s, slot, end);
    sched_place_attach(s, slot, to, unit_pages(s));
    return true;
}

// Returns whether no place that is there can hold it with one page more.
static bool is_too_large(const struct sched *s, const struct sched_seq *seq)
{
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (place->up && sched_place_permitted(s, place) && place->pages_total > seq->pages)
            return false;
    }
    return true;
}

bool sched_split_grow(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    const struct sched_place *place = sched_place_of(s, seq);
    if (!seq->split) {
        if (sched_prefix_grow(s, seq))
            return true;
        return s->config.extent_tokens > 0 && seq->next_pos % s->config.extent_tokens == 0 && is_too_large(s, seq) &&
               can_freeze(s, slot, seq->next_pos) && go_on(s, slot, seq->next_pos);
    }
    if (seq->next_pos % s->config.extent_tokens != 0)
        return sched_prefix_grow(s, seq);
    if (free_pages(place, false, place->count - 1) >= unit_pages(s)) {
        for (uint32_t i = 0; i < unit_pages(s); i++)
            assert_always(sched_prefix_grow(s, seq));
        return true;
    }
    if (can_freeze(s, slot, seq->next_pos) && go_on(s, slot, seq->next_pos))
        return true;
    return sched_prefix_grow(s, seq); // page by page, for as long as it lasts
}

bool sched_split_go_on(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t unit = s->config.extent_tokens, end = unit == 0 ? 0 : MIN(seq->held, seq->next_pos) / unit * unit;
    assert_always(seq->in_flight == 0 && sched_seq_runs(seq));
    if (unit == 0 || !can_freeze(s, slot, end) || next_place(s, slot, false) == NONE)
        return false;
    uint32_t mini_batch = seq->mini_batch;
    sched_sequence_leave(s, slot);
    bool went = go_on(s, slot, end);
    assert_always(went);
    seq->held = seq->next_pos = MIN(seq->held, end);
    seq->open = true;
    sched_sequence_join(s, slot, mini_batch);
    return true;
}

uint32_t sched_split_room(const struct sched *s, uint32_t holder, bool evicting, bool moves)
{
    uint32_t owner = sched_extent_is(s, holder) ? s->cold[holder].extent.owner : holder, best = NONE;
    const struct sched_seq *seq = &s->seqs[owner];
    double best_us = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (!sched_place_takes(s, place) || !may_hold(s, owner, i, SCHED_EXTENTS_MAX) || (moves && !place->accepts_moves) ||
            free_pages(place, evicting, place->count) < s->seqs[holder].pages)
            continue;
        double us = sched_speed_answer_us(s, place, seq->class, seq->mini_batch, s->seqs[holder].load);
        if (best != NONE && us >= best_us)
            continue;
        best = i;
        best_us = us;
    }
    return best;
}
