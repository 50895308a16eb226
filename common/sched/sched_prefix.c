/* sched_prefix.c: see sched_prefix.h. */
#include "common/sched/sched_state.h"

/* --- those that are kept, least recently used first ------------------------------------------------------------------ */

static uint32_t own_pages(const struct seq *q) { return q->pages - q->shared; }

static void touch(struct sched *s, uint32_t slot)
{
    if (!s->cold[slot].keep)
        return;
    struct place *p = seq_place(s, &s->seqs[slot]);
    list_remove(s, &p->kept, slot);
    list_insert(s, &p->kept, p->kept.tail, slot);
}

/* --- finding -------------------------------------------------------------------------------------------------------- */

static const struct sched_page_name *names_of(const struct sched *s, uint32_t slot, uint32_t *count)
{
    *count = 0;
    return s->config.page_names(s->config.user, s->seqs[slot].id, count);
}

/* Pages that it may begin with: two tokens are left to compute. */
static const struct sched_page_name *begin_names(const struct sched *s, uint32_t slot, uint32_t *count)
{
    const struct seq *q = &s->seqs[slot];
    *count = 0;
    if (s->config.page_names == NULL || q->scoring || s->cold[slot].alone || q->known < 2)
        return NULL;
    const struct sched_page_name *names = names_of(s, slot, count);
    *count = MIN(*count, (q->known - 2) / s->config.page_tokens);
    return names;
}

uint32_t prefix_hits(struct sched *s, uint32_t slot, struct prefix_hit *hits)
{
    const struct prefix_tree *t = &s->prefix;
    uint32_t names_count, count = 0;
    const struct sched_page_name *names = begin_names(s, slot, &names_count);
    if (names_count == 0 || t->count == 0)
        return 0;
    for (uint32_t node = prefix_node_first(t, names); node != NONE && count < PREFIX_HITS_MAX; node = prefix_node_next(t, node)) {
        struct prefix_hit *hit = &hits[count++];
        *hit = (struct prefix_hit){t->nodes[node].place, 1};
        while (hit->pages < names_count && prefix_node_find(t, &names[hit->pages], hit->place) != NONE)
            hit->pages++;
    }
    return count;
}

uint32_t prefix_ready_pages(struct sched *s, uint32_t slot, uint32_t place)
{
    uint32_t count;
    const struct sched_page_name *names = begin_names(s, slot, &count);
    if (count == 0)
        return 0;
    struct prefix_found found = prefix_look(s, place, names, count, 0);
    if (found.source != NONE)
        touch(s, found.source);
    return found.pages;
}

/* --- holding -------------------------------------------------------------------------------------------------------- */

/* Goes one page down. The caller counts the page. */
static void descend(struct sched *s, uint32_t slot, uint32_t node)
{
    struct prefix_node *n = &s->prefix.nodes[node];
    prefix_holder_unlink(s, slot);
    prefix_holder_link(s, node, slot);
    n->refs++;
    n->stays++;
    s->stats.shared_pages += n->live > 0;
    if (n->live++ == 0 && n->refs > 1)
        s->places[n->place].pages_idle--;
    s->seqs[slot].shared++;
}

// Pins the sequence that gives it its first pages. Returns the one that was pinned before, which the caller unpins; NONE: nobody was.
static uint32_t pin(struct sched *s, uint32_t slot, uint32_t source)
{
    struct seq_cold *c = &s->cold[slot];
    uint32_t before = c->source;
    s->seqs[slot].sharing = true;
    if (before == source)
        return NONE;
    c->source = source;
    s->seqs[source].pins++;
    touch(s, source);
    return before;
}

/* Down the tree as far as pages are there. True: the next one is coming. */
static bool gather(struct sched *s, uint32_t slot, const struct sched_page_name *names, uint32_t count, uint32_t *unpin)
{
    struct seq *q = &s->seqs[slot];
    uint32_t before = q->shared;
    struct prefix_found found = prefix_look(s, q->place, names, count, before);
    *unpin = found.pages > before ? pin(s, slot, found.source) : NONE;
    while (q->shared < found.pages)
        descend(s, slot, prefix_node_find(&s->prefix, &names[q->shared], q->place));
    s->stats.shared_tokens += (q->shared - before) * s->config.page_tokens;
    q->held = q->next_pos = q->shared * s->config.page_tokens;
    s->cold[slot].cached = MAX(s->cold[slot].cached, q->held);
    return found.coming;
}

/* What nobody has computed or is computing is for it to compute. */
static void name_rest(struct sched *s, uint32_t slot, const struct sched_page_name *names, uint32_t count)
{
    struct seq *q = &s->seqs[slot];
    while (q->shared < count && prefix_node_find(&s->prefix, &names[q->shared], q->place) == NONE) {
        uint32_t node = prefix_node_add(&s->prefix, &names[q->shared], q->place, s->cold[slot].named, q->shared);
        if (node == NONE)
            break;
        descend(s, slot, node);
    }
}

void prefix_begin(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    uint32_t count;
    const struct sched_page_name *names = begin_names(s, slot, &count);
    uint32_t unpin;
    q->gathering = gather(s, slot, names, count, &unpin);
    assert_always(unpin == NONE);
    q->pages += q->shared; // counted already
    if (!q->gathering)
        name_rest(s, slot, names, count);
}

bool prefix_gather(struct sched *s, uint32_t slot, uint32_t *unpin)
{
    struct seq *q = &s->seqs[slot];
    uint32_t count, before = q->shared;
    const struct sched_page_name *names = begin_names(s, slot, &count);
    q->gathering = gather(s, slot, names, count, unpin);
    s->places[q->place].pages_used -= q->shared - before; // those it was placed with are not needed
    s->mini_batches[q->mini_batch].prefill_rows -= (q->shared - before) * s->config.page_tokens;
    if (!q->gathering)
        name_rest(s, slot, names, count);
    return !q->gathering;
}

uint32_t prefix_take_source(struct sched *s, uint32_t slot)
{
    uint32_t source = s->cold[slot].source;
    s->cold[slot].source = NONE; // the pin is the step's now
    return source;
}

/* Gives the last named page up. */
static void ascend(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    bool idle = s->cold[slot].idle;
    uint32_t node = s->cold[slot].named;
    struct prefix_node *n = &s->prefix.nodes[node];
    struct place *p = &s->places[n->place];
    prefix_holder_unlink(s, slot);
    prefix_holder_link(s, n->parent, slot);
    q->shared--;
    n->live -= !idle;
    n->stays -= !s->cold[slot].stopped;
    s->stats.shared_pages -= n->live > 0 && !idle;
    if (--n->refs > 0) { // others have it
        q->pages--;
        p->pages_idle += n->live == 0 && !idle;
        return;
    }
    p->pages_idle -= idle;
    prefix_node_remove(&s->prefix, node);
}

static void stay(struct sched *s, uint32_t slot, bool stays)
{
    struct seq_cold *c = &s->cold[slot];
    if (c->stopped == !stays)
        return;
    c->stopped = !stays;
    for (uint32_t node = c->named; node != NONE; node = s->prefix.nodes[node].parent)
        s->prefix.nodes[node].stays += stays ? 1 : UINT32_MAX;
}

uint32_t prefix_stop(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    uint32_t source = c->source;
    while (q->shared > q->held / s->config.page_tokens)
        ascend(s, slot);
    q->gathering = false;
    if (!c->keep)
        stay(s, slot, false);
    c->source = NONE;
    return source;
}

void prefix_resume(struct sched *s, uint32_t slot) { stay(s, slot, true); }

void prefix_leave(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    assert_always(!c->keep);
    if (c->idle)
        seq_place(s, q)->pages_idle -= own_pages(q);
    while (q->shared > 0)
        ascend(s, slot);
    c->idle = c->stopped = q->sharing = false;
}

uint32_t prefix_own_pages(const struct sched *s, uint32_t slot)
{
    const struct seq *q = &s->seqs[slot];
    uint32_t pages = own_pages(q);
    for (uint32_t node = s->cold[slot].named; q->shared > 0 && node != NONE && s->prefix.nodes[node].refs == 1;
         node = s->prefix.nodes[node].parent)
        pages++;
    return pages;
}

bool prefix_grow(struct sched *s, struct seq *q)
{
    const struct place *p = seq_place(s, q);
    if (!place_grow(s, q))
        return false;
    if (p->kept.head != NONE) // ahead of need: it takes a moment
        prefix_make_room(s, q->place, place_spared(p));
    return true;
}

/* --- keeping -------------------------------------------------------------------------------------------------------- */

/* Names the full pages that it has, as far as no other has the same ones. */
static void name_all(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    uint32_t count, full = q->held / s->config.page_tokens;
    const struct sched_page_name *names = names_of(s, slot, &count);
    while (q->shared > full) // named, but not computed
        ascend(s, slot);
    name_rest(s, slot, names, MIN(full, count));
}

/* What another kept above it in the tree is all in it. */
static void evict_contained(struct sched *s, uint32_t slot)
{
    struct prefix_tree *t = &s->prefix;
    for (uint32_t node = t->nodes[s->cold[slot].named].parent; node != NONE; node = t->nodes[node].parent) {
        uint32_t holder = t->nodes[node].first_holder; // the one that is kept, if there is one
        if (holder != NONE && s->cold[holder].keep)
            prefix_evict(s, holder);
    }
}

bool prefix_keep(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    struct place *p = seq_place(s, q);
    if (s->config.max_kept == 0 || !seq_runs(q) || !p->up || p->draining || q->sharing || q->held < s->config.page_tokens)
        return false;
    if (s->prefix.kept >= s->config.max_kept) {
        if (p->kept.head != NONE)
            prefix_evict(s, p->kept.head);
        if (s->prefix.kept >= s->config.max_kept)
            return false;
    }
    name_all(s, slot);
    if (q->shared == 0 || s->prefix.nodes[c->named].stays > 1)
        return false;                                                              // others have all that is worth keeping
    uint32_t written = MAX(MAX(q->shared, c->written), pages_for(s, q->next_pos)); // rows behind what is held have pages there
    p->pages_used -= q->pages - MIN(q->pages, written);
    q->pages = MIN(q->pages, written);
    for (uint32_t node = c->named; node != NONE; node = s->prefix.nodes[node].parent) {
        struct prefix_node *n = &s->prefix.nodes[node];
        p->pages_idle += --n->live == 0;
        s->stats.shared_pages -= n->live > 0;
    }
    p->pages_idle += own_pages(q);
    c->keep = c->idle = c->was_kept = true;
    s->prefix.kept++;
    s->prefix.slots++;
    place_unlist(s, p, slot);
    list_insert(s, &p->kept, p->kept.tail, slot);
    prefix_holder_first(s, slot);
    evict_contained(s, slot);
    return true;
}

void prefix_evict(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct seq_cold *c = &s->cold[slot];
    struct place *p = seq_place(s, q);
    assert_always(c->keep);
    if (q->state == SEQ_KEPT) {
        s->retiring++;
        s->stats.evicted++;
    }
    s->prefix.kept--;
    c->keep = c->out_kept = false;
    list_remove(s, &p->kept, slot);
    place_list(s, p, slot);
    stay(s, slot, false);
    leaving_begin(s, slot, prefix_own_pages(s, slot));
    q->state = SEQ_DRAINING;
    if (q->pins > 0 || q->in_flight > 0)
        return; // the last of them to come back says so
    q->fenced = false;
    out_release(s, slot);
}

void prefix_make_room(struct sched *s, uint32_t place, uint32_t pages)
{
    struct place *p = &s->places[place];
    while (p->kept.head != NONE && p->pages_total - p->pages_used + p->pages_releasing < pages)
        prefix_evict(s, p->kept.head);
}
