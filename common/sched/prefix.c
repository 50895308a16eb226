// prefix.c: see prefix.h.
#include "common/sched/state.h"

// --- the tree of named pages: who holds them, and who has the contents ----------------------------------------------

// How much of a sequence's beginning a place has.
struct prefix_found {
    uint32_t source, pages; // a sequence that has its first `pages` pages; NONE and 0: there is none
    bool coming;            // the next page is being computed, by a sequence that does not go behind the caller's
};

static uint32_t *bucket_of(const struct sched_prefix *t, const struct sched_page_name *name)
{
    return &t->buckets[(uint32_t)(name->low ^ name->high >> 32) & t->bucket_mask]; // names are uniform already
}

static bool same_name(const struct sched_page_name *a, const struct sched_page_name *b)
{
    return a->low == b->low && a->high == b->high;
}

// Returns the next node of that name behind `node`, at whatever place.
static uint32_t same_name_from(const struct sched_prefix *t, const struct sched_page_name *name, uint32_t node)
{
    while (node != NONE && !same_name(&t->nodes[node].name, name))
        node = t->nodes[node].bucket_next;
    return node;
}

// These return the nodes with a name, at most one per place; NONE: there is none, or no more.
static uint32_t node_first(const struct sched_prefix *t, const struct sched_page_name *name)
{
    return same_name_from(t, name, *bucket_of(t, name));
}

static uint32_t node_next(const struct sched_prefix *t, uint32_t node)
{
    return same_name_from(t, &t->nodes[node].name, t->nodes[node].bucket_next);
}

static uint32_t node_find(const struct sched_prefix *t, const struct sched_page_name *name, uint32_t place)
{
    uint32_t node = node_first(t, name);
    while (node != NONE && t->nodes[node].place != place)
        node = node_next(t, node);
    return node;
}

// Returns NONE if there are as many nodes as there may be.
static uint32_t node_add(struct sched_prefix *t, const struct sched_page_name *name, uint32_t place, uint32_t parent,
                         uint32_t depth)
{
    uint32_t node = t->free_head, *bucket = bucket_of(t, name);
    if (node != NONE)
        t->free_head = t->nodes[node].bucket_next;
    else if (t->touched < t->capacity)
        node = t->touched++;
    else
        return NONE;
    struct sched_prefix_node *n = &t->nodes[node];
    *n = (struct sched_prefix_node){.name = *name,
                                    .place = place,
                                    .depth = depth,
                                    .parent = parent,
                                    .first_child = NONE,
                                    .last_child = NONE,
                                    .prev_sibling = NONE,
                                    .next_sibling = NONE,
                                    .first_holder = NONE,
                                    .last_holder = NONE,
                                    .bucket_next = *bucket};
    *bucket = node;
    t->count++;
    if (parent == NONE)
        return node;
    struct sched_prefix_node *p = &t->nodes[parent];
    n->prev_sibling = p->last_child;
    *(p->last_child == NONE ? &p->first_child : &t->nodes[p->last_child].next_sibling) = node;
    p->last_child = node;
    return node;
}

static void node_remove(struct sched_prefix *t, uint32_t node)
{
    struct sched_prefix_node *n = &t->nodes[node];
    uint32_t *at = bucket_of(t, &n->name);
    assert_always(n->first_child == NONE && n->first_holder == NONE && n->live == 0);
    while (*at != node)
        at = &t->nodes[*at].bucket_next;
    *at = n->bucket_next;
    if (n->parent != NONE) {
        struct sched_prefix_node *p = &t->nodes[n->parent];
        *(n->prev_sibling == NONE ? &p->first_child : &t->nodes[n->prev_sibling].next_sibling) = n->next_sibling;
        *(n->next_sibling == NONE ? &p->last_child : &t->nodes[n->next_sibling].prev_sibling) = n->prev_sibling;
    }
    n->bucket_next = t->free_head;
    t->free_head = node;
    t->count--;
}

static void holder_link(struct sched *s, uint32_t node, uint32_t slot)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    cold->prefix.node = node;
    if (node == NONE)
        return;
    struct sched_prefix_node *n = &s->prefix.nodes[node];
    cold->prefix.holder_prev = n->last_holder;
    cold->prefix.holder_next = NONE;
    *(n->last_holder == NONE ? &n->first_holder : &s->cold[n->last_holder].prefix.holder_next) = slot;
    n->last_holder = slot;
}

static void holder_unlink(struct sched *s, uint32_t slot)
{
    const struct sched_seq_cold *cold = &s->cold[slot];
    if (cold->prefix.node == NONE)
        return;
    struct sched_prefix_node *n = &s->prefix.nodes[cold->prefix.node];
    *(cold->prefix.holder_prev == NONE ? &n->first_holder : &s->cold[cold->prefix.holder_prev].prefix.holder_next) =
        cold->prefix.holder_next;
    *(cold->prefix.holder_next == NONE ? &n->last_holder : &s->cold[cold->prefix.holder_next].prefix.holder_prev) =
        cold->prefix.holder_prev;
}

static void holder_first(struct sched *s, uint32_t slot)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    struct sched_prefix_node *n = &s->prefix.nodes[cold->prefix.node];
    holder_unlink(s, slot);
    cold->prefix.holder_prev = NONE;
    cold->prefix.holder_next = n->first_holder;
    *(n->first_holder == NONE ? &n->last_holder : &s->cold[n->first_holder].prefix.holder_prev) = slot;
    n->first_holder = slot;
}

// --- who has a page -------------------------------------------------------------------------------------------------

// Returns how many of its pages, from the first one on, are complete at its place and stay there until it is let go.
static uint32_t complete_pages(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    bool stays = sched_seq_runs(seq) || seq->state == SCHED_SEQ_KEPT || seq->state == SCHED_SEQ_EXTENT ||
                 (seq->state == SCHED_SEQ_DRAINING && s->cold[slot].prefix.keep);
    return stays && !seq->sharing ? seq->held / s->config.page_tokens : 0;
}

// Looks at one holder more. True: it has all that is wanted, or no more may be looked at.
static bool look_at(const struct sched *s, uint32_t slot, enum sched_class class, uint32_t wanted, struct prefix_found *found,
                    uint32_t *looks)
{
    uint32_t pages = MIN(complete_pages(s, slot), wanted);
    found->coming = found->coming || (sched_seq_runs(&s->seqs[slot]) && s->seqs[slot].class <= class);
    if (pages > found->pages) {
        found->source = slot;
        found->pages = pages;
    }
    return found->pages == wanted || --*looks == 0;
}

// Finds the sequence below a node, but not below `seen`, that has most of its path, oldest first. Every leaf has a holder.
static void look_below(const struct sched *s, uint32_t node, uint32_t seen, enum sched_class class, struct prefix_found *found,
                       uint32_t *looks)
{
    const struct sched_prefix *t = &s->prefix;
    uint32_t wanted = t->nodes[node].depth + 1;
    for (uint32_t at = node, down;;) {
        for (uint32_t slot = t->nodes[at].first_holder; slot != NONE; slot = s->cold[slot].prefix.holder_next) {
            if (look_at(s, slot, class, wanted, found, looks))
                return;
        }
        down = t->nodes[at].first_child;
        if (down != NONE && down == seen)
            down = t->nodes[down].next_sibling;
        while (down == NONE && at != node) { // up until there is a next one below `node`
            down = t->nodes[at].next_sibling;
            if (down != NONE && down == seen)
                down = t->nodes[down].next_sibling;
            at = t->nodes[at].parent;
        }
        if (down == NONE || --*looks == 0)
            return;
        at = down;
    }
}

// Goes from the last page that the tree has of the beginning upwards, to those that the asker has. Holders below the page that was looked
// at before are skipped: they were asked for more already.
static struct prefix_found look_for_beginning(const struct sched *s, uint32_t place, enum sched_class class,
                                              const struct sched_page_name *names, uint32_t count, uint32_t have)
{
    const struct sched_prefix *t = &s->prefix;
    uint32_t deepest = NONE, next, looks = TUNE_PREFIX_LOOKS_MAX;
    for (uint32_t i = have; i < count && (next = node_find(t, &names[i], place)) != NONE; i++)
        deepest = next;
    struct prefix_found best = {.source = NONE, .pages = have};
    if (deepest == NONE)
        return best;
    looks += t->nodes[deepest].depth + 1 - have;
    bool coming = false;
    for (uint32_t node = deepest, seen = NONE; node != NONE && t->nodes[node].depth >= best.pages && looks > 0;
         seen = node, node = t->nodes[node].parent) {
        look_below(s, node, seen, class, &best, &looks);
        coming = coming || (node == deepest && best.coming);
    }
    best.coming = coming && best.pages <= t->nodes[deepest].depth; // otherwise it has all that is coming
    return best;
}

// --- kept sequences, least recently used first ------------------------------------------------------------------

static uint32_t own_pages(const struct sched_seq *seq) { return seq->pages - seq->shared; }

// Those of class batch are the first to go, the latest of them first: the oldest one has what all have in common.
static void keep_last(struct sched *s, struct sched_place *place, uint32_t slot)
{
    sched_list_insert(s, &place->kept, s->seqs[slot].class == SCHED_CLASS_BATCH ? NONE : place->kept.tail, slot);
}

static void touch_kept(struct sched *s, uint32_t slot)
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
    for (uint32_t node = node_first(t, names); node != NONE && count < SCHED_PREFIX_HITS_MAX; node = node_next(t, node)) {
        struct sched_prefix_hit *hit = &hits[count++];
        *hit = (struct sched_prefix_hit){t->nodes[node].place, 1};
        while (hit->pages < names_count && node_find(t, &names[hit->pages], hit->place) != NONE)
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
    struct prefix_found found = look_for_beginning(s, place, s->seqs[slot].class, names, count, 0);
    if (found.source != NONE)
        touch_kept(s, found.source);
    return found.pages;
}

// --- holding --------------------------------------------------------------------------------------------------------

// Takes hold of one page more. The caller counts the page.
static void take_page(struct sched *s, uint32_t slot, uint32_t node)
{
    struct sched_prefix_node *n = &s->prefix.nodes[node];
    holder_unlink(s, slot);
    holder_link(s, node, slot);
    n->refs++;
    n->stays++;
    s->stats.shared_pages += n->live > 0;
    if (n->live++ == 0 && n->refs > 1)
        s->places.of[n->place].pages_idle--;
    s->seqs[slot].shared++;
}

// Pins the sequence that gives it its first pages. Returns the one that was pinned before, which the caller unpins; NONE: none was.
static uint32_t pin_source(struct sched *s, uint32_t slot, uint32_t source)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    uint32_t before = cold->prefix.source;
    s->seqs[slot].sharing = true;
    if (before == source)
        return NONE;
    cold->prefix.source = source;
    s->seqs[source].pins++;
    touch_kept(s, source);
    return before;
}

// Takes hold of shared pages as far as they are complete. True: the next one is being computed.
static bool gather_shared(struct sched *s, uint32_t slot, const struct sched_page_name *names, uint32_t count, uint32_t *unpin)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t before = seq->shared;
    struct prefix_found found = look_for_beginning(s, seq->place, seq->class, names, count, before);
    *unpin = found.pages > before ? pin_source(s, slot, found.source) : NONE;
    while (seq->shared < found.pages)
        take_page(s, slot, node_find(&s->prefix, &names[seq->shared], seq->place));
    s->stats.shared_tokens += (seq->shared - before) * s->config.page_tokens;
    seq->held = seq->next_pos = seq->shared * s->config.page_tokens;
    s->cold[slot].prefix.cached = MAX(s->cold[slot].prefix.cached, seq->held);
    return found.coming;
}

// Names the pages that no sequence has computed or is computing: they are its to compute.
static void name_rest(struct sched *s, uint32_t slot, const struct sched_page_name *names, uint32_t count)
{
    struct sched_seq *seq = &s->seqs[slot];
    while (seq->shared < count && node_find(&s->prefix, &names[seq->shared], seq->place) == NONE) {
        uint32_t node = node_add(&s->prefix, &names[seq->shared], seq->place, s->cold[slot].prefix.node, seq->shared);
        if (node == NONE)
            break;
        take_page(s, slot, node);
    }
}

void sched_prefix_begin(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    uint32_t count;
    const struct sched_page_name *names = begin_names(s, slot, &count);
    uint32_t unpin;
    seq->gathering = gather_shared(s, slot, names, count, &unpin);
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
    seq->gathering = gather_shared(s, slot, names, count, unpin);
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
static void let_page_go(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    bool idle = s->cold[slot].prefix.idle;
    uint32_t node = s->cold[slot].prefix.node;
    struct sched_prefix_node *n = &s->prefix.nodes[node];
    struct sched_place *place = &s->places.of[n->place];
    holder_unlink(s, slot);
    holder_link(s, n->parent, slot);
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
    node_remove(&s->prefix, node);
}

static void set_stays(struct sched *s, uint32_t slot, bool stays)
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
        let_page_go(s, slot);
    seq->gathering = false;
    if (!cold->prefix.keep)
        set_stays(s, slot, false);
    cold->prefix.source = NONE;
    return source;
}

void sched_prefix_resume(struct sched *s, uint32_t slot) { set_stays(s, slot, true); }

void sched_prefix_leave(struct sched *s, uint32_t slot)
{
    struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    assert_always(!cold->prefix.keep);
    if (cold->prefix.idle)
        sched_place_of(s, seq)->pages_idle -= own_pages(seq);
    while (seq->shared > 0)
        let_page_go(s, slot);
    cold->prefix.idle = cold->prefix.stopped = seq->sharing = false;
}

void sched_prefix_pass_on(struct sched *s, uint32_t slot, uint32_t to)
{
    uint32_t node = s->cold[slot].prefix.node;
    assert_always(!s->cold[slot].prefix.keep && !s->cold[slot].prefix.stopped && s->seqs[slot].pins == 0);
    holder_unlink(s, slot);
    holder_link(s, node, to);
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
        let_page_go(s, slot);
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
        let_page_go(s, slot);
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
    holder_first(s, slot);
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
    set_stays(s, slot, false);
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
