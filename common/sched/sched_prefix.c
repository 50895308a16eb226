// sched_prefix.c: see sched_prefix.h.
#include "common/sched/sched_state.h"

// --- kept sequences, least recently used first ------------------------------------------------------------------

static uint32_t own_pages(const struct sched_seq *seq) { return seq->pages - seq->shared; }

// Those of class batch are the first to go, the latest of them first: the oldest one has what all have in common.
static void keep_last(struct sched *s, struct sched_place *place, uint32_t slot)
{
    sched_list_insert(s, &place->kept, s->seqs[slot].class == SCHED_CLASS_BATCH ? NONE : place->kept.tail, slot);
}

static void touch(struct sched *s, uint32_t slot)
{
    if (!s->cold[slot].prefix.keep)
        return;
    struct sched_place *place = sched_place_of(s, &s->seqs[slot]);
    sched_list_remove(s, &place->kept, slot);
    keep_last(s, place, slot);
}

// --- finding --------------------------------------------------------------------------------------------------------

static const struct sched_page_name *names_of(const struct sched *s, uint32_t slot, uint32_t *count)
{
    *count = 0;
    return s->config.page_names(s->config.user, s->seqs[slot].id, count);
}

// Returns the names of the pages that it may begin with: two tokens are left to compute.
static const struct sched_page_name *begin_names(const struct sched *s, uint32_t slot, uint32_t *count)
{
    const struct sched_seq *seq = &s->seqs[slot];
    *count = 0;
    if (s->config.page_names == NULL || seq->scoring || s->cold[slot].prefix.alone || seq->known < 2 || seq->split)
        return NULL;
    const struct sched_page_name *names = names_of(s, slot, count);
    *count = MIN(*count, (seq->known - 2) / s->config.page_tokens);
    if (s->config.ring_pages != 0 && sched_place_pages(s, seq->known) == s->config.ring_pages)
        *count = 0; // its first pages will be given back before it has read its prompt
    return names;
}

uint32_t sched_prefix_hits(struct sched *s, uint32_t slot, struct sched_prefix_hit *hits)
{
    const struct sched_prefix *t = &s->prefix;
    uint32_t names_count, count = 0;
    const struct sched_page_name *names = begin_names(s, slot, &names_count);
    if (names_count == 0 || t->count == 0)
        return 0;
    for (uint32_t node = sched_prefix_node_first(t, names); node != NONE && count < SCHED_PREFIX_HITS_MAX;
         node = sched_prefix_node_next(t, node)) {
        struct sched_prefix_hit *hit = &hits[count++];
        *hit = (struct sched_prefix_hit){t->nodes[node].place, 1};
        while (hit->pages < names_count && sched_prefix_node_find(t, &names[hit->pages], hit->place) != NONE)
            hit->pages++;
    }
    return count;
}

uint32_t sched_prefix_ready_pages(struct sched *s, uint32_t slot, uint32_t place)
{
    uint32_t count;
    const struct sched_page_name *names = begin_names(s, slot, &count);
    if (count == 0)
        return 0;
    struct sched_prefix_found found = sched_prefix_look(s, place, s->seqs[slot].class, names, count, 0);
    if (found.source != NONE)
        touch(s, found.source);
    return found.pages;
}

// --- holding --------------------------------------------------------------------------------------------------------

// Takes hold of one page more. The caller counts the page.
static void descend(struct sched *s, uint32_t slot, uint32_t node)
{
    struct sched_prefix_node *n = &s->prefix.nodes[node];
    sched_prefix_holder_unlink(s, slot);
    sched_prefix_holder_link(s, node, slot);
    n->refs++;
    n->stays++;
    s->stats.shared_pages += n->live > 0;
    if (n->live++ == 0 && n->refs > 1)
        s->places.of[n->place].pages_idle--;
    s->seqs[slot].shared++;
}

// Pins the sequence that gives it its first pages. Returns the one that was pinned before, which the caller unpins; NONE: none was.
static uint32_t pin(struct sched *s, uint32_t slot, uint32_t source)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    uint32_t before = cold->prefix.source;
    s->seqs[slot].sharing = true;
    if (before == source)
        return NONE;
    cold->prefix.source = source;
    s->seqs[source].pins++;
    touch(s, source);
    return before;
}

// Takes hold of shared pages as far as they are complete. True: the next one is being computed.
static bool gather(struct sched *s, uint32_t slot, const struct sched_page_name *names, uint32_t count, uint32_t *unpin)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t before = seq->shared;
    struct sched_prefix_found found = sched_prefix_look(s, seq->place, seq->class, names, count, before);
    *unpin = found.pages > before ? pin(s, slot, found.source) : NONE;
    while (seq->shared < found.pages)
        descend(s, slot, sched_prefix_node_find(&s->prefix, &names[seq->shared], seq->place));
    s->stats.shared_tokens += (seq->shared - before) * s->config.page_tokens;
    seq->held = seq->next_pos = seq->shared * s->config.page_tokens;
    s->cold[slot].prefix.cached = MAX(s->cold[slot].prefix.cached, seq->held);
    return found.coming;
}

// Names the pages that no sequence has computed or is computing: they are its to compute.
static void name_rest(struct sched *s, uint32_t slot, const struct sched_page_name *names, uint32_t count)
{
    struct sched_seq *seq = &s->seqs[slot];
    while (seq->shared < count && sched_prefix_node_find(&s->prefix, &names[seq->shared], seq->place) == NONE) {
        uint32_t node = sched_prefix_node_add(&s->prefix, &names[seq->shared], seq->place, s->cold[slot].prefix.node, seq->shared);
        if (node == NONE)
            break;
        descend(s, slot, node);
    }
}

void sched_prefix_begin(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t count;
    const struct sched_page_name *names = begin_names(s, slot, &count);
    uint32_t unpin;
    seq->gathering = gather(s, slot, names, count, &unpin);
    assert_always(unpin == NONE);
    seq->pages += seq->shared; // counted already
    if (!seq->gathering)
        name_rest(s, slot, names, count);
}

bool sched_prefix_gather(struct sched *s, uint32_t slot, uint32_t *unpin)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t count, before = seq->shared;
    const struct sched_page_name *names = begin_names(s, slot, &count);
    seq->gathering = gather(s, slot, names, count, unpin);
    s->places.of[seq->place].pages_used -= seq->shared - before; // it was placed with own pages for these
    sched_group_of(s, seq)->prefill_rows -= (seq->shared - before) * s->config.page_tokens;
    if (!seq->gathering)
        name_rest(s, slot, names, count);
    return !seq->gathering;
}

uint32_t sched_prefix_take_source(struct sched *s, uint32_t slot)
{
    uint32_t source = s->cold[slot].prefix.source;
    s->cold[slot].prefix.source = NONE; // the step has the pin now
    return source;
}

// Gives its last named page up.
static void ascend(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    bool idle = s->cold[slot].prefix.idle;
    uint32_t node = s->cold[slot].prefix.node;
    struct sched_prefix_node *n = &s->prefix.nodes[node];
    struct sched_place *place = &s->places.of[n->place];
    sched_prefix_holder_unlink(s, slot);
    sched_prefix_holder_link(s, n->parent, slot);
    seq->shared--;
    n->live -= !idle;
    n->stays -= !s->cold[slot].prefix.stopped;
    s->stats.shared_pages -= n->live > 0 && !idle;
    if (--n->refs > 0) { // others hold it
        seq->pages--;
        place->pages_idle += n->live == 0 && !idle;
        return;
    }
    place->pages_idle -= idle;
    sched_prefix_node_remove(&s->prefix, node);
}

static void stay(struct sched *s, uint32_t slot, bool stays)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    if (cold->prefix.stopped == !stays)
        return;
    cold->prefix.stopped = !stays;
    for (uint32_t node = cold->prefix.node; node != NONE; node = s->prefix.nodes[node].parent)
        s->prefix.nodes[node].stays += stays ? 1 : UINT32_MAX;
}

uint32_t sched_prefix_stop(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    uint32_t source = cold->prefix.source;
    while (seq->shared > seq->held / s->config.page_tokens)
        ascend(s, slot);
    seq->gathering = false;
    if (!cold->prefix.keep)
        stay(s, slot, false);
    cold->prefix.source = NONE;
    return source;
}

void sched_prefix_resume(struct sched *s, uint32_t slot) { stay(s, slot, true); }

void sched_prefix_leave(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    assert_always(!cold->prefix.keep);
    if (cold->prefix.idle)
        sched_place_of(s, seq)->pages_idle -= own_pages(seq);
    while (seq->shared > 0)
        ascend(s, slot);
    cold->prefix.idle = cold->prefix.stopped = seq->sharing = false;
}

void sched_prefix_pass_on(struct sched *s, uint32_t slot, uint32_t to)
{
    uint32_t node = s->cold[slot].prefix.node;
    assert_always(!s->cold[slot].prefix.keep && !s->cold[slot].prefix.stopped && s->seqs[slot].pins == 0);
    sched_prefix_holder_unlink(s, slot);
    sched_prefix_holder_link(s, node, to);
    s->seqs[to].shared = s->seqs[slot].shared;
    s->seqs[slot].shared = 0;
    s->cold[slot].prefix.node = NONE;
}

uint32_t sched_prefix_own_pages(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    uint32_t pages = own_pages(seq);
    for (uint32_t node = s->cold[slot].prefix.node; seq->shared > 0 && node != NONE && s->prefix.nodes[node].refs == 1;
         node = s->prefix.nodes[node].parent)
        pages++;
    return pages;
}

// Gives a sequence that has ring_pages pages of its own for those that it shares, one by one, because a shared page cannot be written
// again. False: its place has no page for the next one, or another sequence is about to begin with its pages.
static bool own_all(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    if (seq->pins > 0)
        return false;
    while (seq->shared > 0) {
        bool others = s->prefix.nodes[s->cold[slot].prefix.node].refs > 1;
        const struct sched_place *place = sched_place_of(s, seq);
        if (others && place->pages_used >= place->pages_total)
            return false;
        ascend(s, slot);
        if (others)
            assert_always(sched_place_grow(s, seq));
    }
    return true;
}

bool sched_prefix_grow(struct sched *s, struct sched_seq *seq)
{
    const struct sched_place *place = sched_place_of(s, seq);
    if (s->config.ring_pages != 0 && seq->pages >= s->config.ring_pages)
        return own_all(s, (uint32_t)(seq - s->seqs));
    if (!sched_place_grow(s, seq))
        return false;
    if (place->kept.head != NONE) // ahead of need, because it takes a moment
        sched_prefix_make_room(s, seq->place, sched_place_spared(place));
    return true;
}

// --- keeping --------------------------------------------------------------------------------------------------------

// Names its full pages, as far as no other sequence has the same ones.
static void name_all(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t count, full = seq->held / s->config.page_tokens;
    const struct sched_page_name *names = names_of(s, slot, &count);
    while (seq->shared > full) // named, but not computed
        ascend(s, slot);
    name_rest(s, slot, names, MIN(full, count));
}

// Evicts kept sequences above it in the tree: it has all of their pages.
static void evict_contained(struct sched *s, uint32_t slot)
{
    struct sched_prefix *t = &s->prefix;
    for (uint32_t node = t->nodes[s->cold[slot].prefix.node].parent; node != NONE; node = t->nodes[node].parent) {
        uint32_t holder = t->nodes[node].first_holder; // the kept one, if there is one
        if (holder != NONE && s->cold[holder].prefix.keep)
            sched_prefix_evict(s, holder);
    }
}

bool sched_prefix_keep(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    struct sched_place *place = sched_place_of(s, seq);
    if (s->config.max_kept == 0 || !sched_seq_runs(seq) || seq->split || !place->up || place->draining || seq->sharing ||
        seq->held < s->config.page_tokens)
        return false;
    uint32_t ring = s->config.ring_pages;
    if (ring != 0 && (seq->next_pos > (uint64_t)ring * s->config.page_tokens || cold->place.written >= ring))
        return false; // its first pages are gone, or may be: wrong drafts were written behind what is held
    if (s->prefix.kept >= s->config.max_kept) {
        if (place->kept.head != NONE)
            sched_prefix_evict(s, place->kept.head);
        if (s->prefix.kept >= s->config.max_kept)
            return false;
    }
    name_all(s, slot);
    if (seq->shared == 0 || s->prefix.nodes[cold->prefix.node].stays > 1)
        return false; // others hold all that is worth keeping
    uint32_t written =
        MAX(MAX(seq->shared, cold->place.written), sched_place_pages(s, seq->next_pos)); // rows behind what is held have pages, too
    place->pages_used -= seq->pages - MIN(seq->pages, written);
    seq->pages = MIN(seq->pages, written);
    for (uint32_t node = cold->prefix.node; node != NONE; node = s->prefix.nodes[node].parent) {
        struct sched_prefix_node *n = &s->prefix.nodes[node];
        place->pages_idle += --n->live == 0;
        s->stats.shared_pages -= n->live > 0;
    }
    place->pages_idle += own_pages(seq);
    cold->prefix.keep = cold->prefix.idle = cold->prefix.was_kept = true;
    s->prefix.kept++;
    s->prefix.slots++;
    sched_place_unlist(s, place, slot);
    keep_last(s, place, slot);
    sched_prefix_holder_first(s, slot);
    evict_contained(s, slot);
    return true;
}

void sched_prefix_evict(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    struct sched_place *place = sched_place_of(s, seq);
    assert_always(cold->prefix.keep);
    if (seq->state == SCHED_SEQ_KEPT) {
        s->retiring++;
        s->stats.evicted++;
    }
    s->prefix.kept--;
    cold->prefix.keep = cold->out.kept = false;
    sched_list_remove(s, &place->kept, slot);
    sched_place_list(s, place, slot);
    stay(s, slot, false);
    sched_place_leaving(s, slot, sched_prefix_own_pages(s, slot));
    seq->state = SCHED_SEQ_DRAINING;
    if (seq->pins > 0 || seq->in_flight > 0)
        return; // the last of them to come back says so
    seq->fenced = false;
    sched_outbox_release(s, slot);
}

void sched_prefix_make_room(struct sched *s, uint32_t index, uint32_t pages)
{
    struct sched_place *place = &s->places.of[index];
    while (place->kept.head != NONE && place->pages_total - place->pages_used + place->pages_releasing < pages)
        sched_prefix_evict(s, place->kept.head);
}
