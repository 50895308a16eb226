// sched_prefix_tree.c: the named pages of all places, the sequences that hold them, and which of those have the contents
// (sched_prefix.h).
#include "common/sched/sched_state.h"

static uint32_t *bucket_of(const struct sched_prefix *t, const struct sched_page_name *name)
{
    return &t->buckets[(uint32_t)(name->low ^ name->high >> 32) & t->bucket_mask]; // names are uniform already
}

static bool same_name(const struct sched_page_name *a, const struct sched_page_name *b)
{
    return a->low == b->low && a->high == b->high;
}

// The next node of that name behind `node`, at whatever place.
static uint32_t same_name_from(const struct sched_prefix *t, const struct sched_page_name *name, uint32_t node)
{
    while (node != NONE && !same_name(&t->nodes[node].name, name))
        node = t->nodes[node].bucket_next;
    return node;
}

uint32_t sched_prefix_node_first(const struct sched_prefix *t, const struct sched_page_name *name)
{
    return same_name_from(t, name, *bucket_of(t, name));
}

uint32_t sched_prefix_node_next(const struct sched_prefix *t, uint32_t node)
{
    return same_name_from(t, &t->nodes[node].name, t->nodes[node].bucket_next);
}

uint32_t sched_prefix_node_find(const struct sched_prefix *t, const struct sched_page_name *name, uint32_t place)
{
    uint32_t node = sched_prefix_node_first(t, name);
    while (node != NONE && t->nodes[node].place != place)
        node = sched_prefix_node_next(t, node);
    return node;
}

// Returns NONE if there are as many nodes as there may be.
uint32_t sched_prefix_node_add(struct sched_prefix *t, const struct sched_page_name *name, uint32_t place, uint32_t parent,
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

void sched_prefix_node_remove(struct sched_prefix *t, uint32_t node)
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

void sched_prefix_holder_link(struct sched *s, uint32_t node, uint32_t slot)
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

void sched_prefix_holder_unlink(struct sched *s, uint32_t slot)
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

void sched_prefix_holder_first(struct sched *s, uint32_t slot)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    struct sched_prefix_node *n = &s->prefix.nodes[cold->prefix.node];
    sched_prefix_holder_unlink(s, slot);
    cold->prefix.holder_prev = NONE;
    cold->prefix.holder_next = n->first_holder;
    *(n->first_holder == NONE ? &n->last_holder : &s->cold[n->first_holder].prefix.holder_prev) = slot;
    n->first_holder = slot;
}

// --- who has a page -------------------------------------------------------------------------------------------------

// Returns how many of its pages, from the first one on, are complete at its place and stay there until it is let go.
static uint32_t has(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    bool stays = sched_seq_runs(seq) || seq->state == SCHED_SEQ_KEPT || seq->state == SCHED_SEQ_EXTENT ||
                 (seq->state == SCHED_SEQ_DRAINING && s->cold[slot].prefix.keep);
    return stays && !seq->sharing ? seq->held / s->config.page_tokens : 0;
}

// Looks at one holder more. True: it has all that is wanted, or no more may be looked at.
static bool look_at(const struct sched *s, uint32_t slot, enum sched_class class, uint32_t wanted, struct sched_prefix_found *found,
                    uint32_t *looks)
{
    uint32_t pages = MIN(has(s, slot), wanted);
    found->coming = found->coming || (sched_seq_runs(&s->seqs[slot]) && s->seqs[slot].class <= class);
    if (pages > found->pages) {
        found->source = slot;
        found->pages = pages;
    }
    return found->pages == wanted || --*looks == 0;
}

// Finds the sequence below a node, but not below `seen`, that has most of its path, oldest first. Every leaf has a holder.
static void look_below(const struct sched *s, uint32_t node, uint32_t seen, enum sched_class class,
                       struct sched_prefix_found *found, uint32_t *looks)
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
struct sched_prefix_found sched_prefix_look(const struct sched *s, uint32_t place, enum sched_class class,
                                            const struct sched_page_name *names, uint32_t count, uint32_t have)
{
    const struct sched_prefix *t = &s->prefix;
    uint32_t deepest = NONE, next, looks = TUNE_PREFIX_LOOKS_MAX;
    for (uint32_t i = have; i < count && (next = sched_prefix_node_find(t, &names[i], place)) != NONE; i++)
        deepest = next;
    struct sched_prefix_found best = {.source = NONE, .pages = have};
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
