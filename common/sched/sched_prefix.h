// sched_prefix.h: sequences that begin alike share the pages of what they have in common. Private to common/sched.
//
// A full page is named by the chain of all tokens up to its end (the caller's page_names), so equal names are equal K and V. The
// pages of a place that have names form a tree; a sequence holds the path from a root down to its last named page, and a page is
// counted once in the ledger however many hold it:
//
//     system prompt ── p0 ── p1 ── p2 ─┬─ a3 ── a4      sequence A holds p0..a4, and a private page behind it
//                                      ├─ b3            B
//                                      └─ c3 ── c4      C is over: kept, until somebody needs its pages
//
// Before its first row a sequence goes down the tree as far as pages are there (complete in somebody's hands); where the next
// page is being computed by another it waits for it, else it names the rest of its prompt's pages and computes them. Its first run
// says from whom it has the pages it begins with; that one is pinned (counts a step in flight) until the run is answered. At
// least two tokens are left to compute, so that a sequence always begins as prefill.
//
// One that is over is kept if its last named page is its alone, with all full pages that it has. The least recently used of a
// place goes first when pages are needed there. (Pages found by hash chain: vLLM, arXiv 2309.06180; the tree: SGLang's
// RadixAttention, arXiv 2312.07104.)
#ifndef FD_SCHED_SCHED_PREFIX_H
#define FD_SCHED_SCHED_PREFIX_H

#include "common/sched/sched.h"

// A named page at a place. Indices into the nodes or slots; none is UINT32_MAX.
struct sched_prefix_node {
    struct sched_page_name name;
    uint32_t place, depth; // page number in its sequences
    uint32_t parent, first_child, last_child, prev_sibling, next_sibling;
    uint32_t first_holder, last_holder; // sequences whose last named page this is: the kept one, then oldest first
    uint32_t bucket_next;
    uint32_t refs;  // sequences that hold it
    uint32_t live;  // of them, those that are not kept only
    uint32_t stays; // of them, those that are not about to leave the place
};

struct sched_prefix {
    struct sched_prefix_node *nodes; // [capacity]
    uint32_t *buckets;               // [bucket_mask + 1] heads of lists by name
    uint32_t bucket_mask, capacity, touched, free_head, count;
    uint32_t kept;  // sequences
    uint32_t slots; // of them, and of those that were and are not gone yet
};

// Of a sequence.
struct sched_prefix_link {
    uint32_t node;                     // of its last named page, NONE
    uint32_t holder_prev, holder_next; // of that node
    uint32_t source;                   // slot of whom its first pages come from, pinned; NONE
    uint32_t cached;                   // positions that it found, at most
    bool keep;                         // is kept, or will be when its rows are back
    bool was_kept;                     // that it is or was: its slot is the cache's
    bool idle;                         // is kept, or was until now: its pages count as idle
    bool stopped;                      // is about to leave its place
    bool alone;                        // shares nothing: what it should have shared was not there
};

// What a waiting sequence would find at a place.
struct sched_prefix_hit {
    uint32_t place, pages; // in the tree, those being computed included
};
enum { SCHED_PREFIX_HITS_MAX = 8 };

struct sched;
struct sched_seq;

// What can be had of a beginning at a place.
struct sched_prefix_found {
    uint32_t source, pages; // who has its first pages; NONE and 0: nobody has any
    bool coming;            // the next page is being computed
};

// --- sched_prefix_tree.c ---------------------------------------------------------------------------------------------

// Nodes of a name: one a place at most. NONE: none, or no more.
uint32_t sched_prefix_node_first(const struct sched_prefix *t, const struct sched_page_name *name);
uint32_t sched_prefix_node_next(const struct sched_prefix *t, uint32_t node);
uint32_t sched_prefix_node_find(const struct sched_prefix *t, const struct sched_page_name *name, uint32_t place);
uint32_t sched_prefix_node_add(struct sched_prefix *t, const struct sched_page_name *name, uint32_t place, uint32_t parent,
                               uint32_t depth);
void sched_prefix_node_remove(struct sched_prefix *t, uint32_t node);
void sched_prefix_holder_link(struct sched *s, uint32_t node, uint32_t slot); // its last named page is this one; NONE: it has none
void sched_prefix_holder_unlink(struct sched *s, uint32_t slot);
void sched_prefix_holder_first(struct sched *s, uint32_t slot); // before the others of its node

// Who has most of a beginning; `have` pages the asker has already: fewer are of no use.
struct sched_prefix_found sched_prefix_look(const struct sched *s, uint32_t place, const struct sched_page_name *names,
                                            uint32_t count, uint32_t have);

// --- sched_prefix.c ---------------------------------------------------------------------------------------------------

// The places that have the longest beginnings of a sequence, at most SCHED_PREFIX_HITS_MAX; returns how many.
uint32_t sched_prefix_hits(struct sched *s, uint32_t slot, struct sched_prefix_hit *hits);

// How many pages of it are there to be shared at a place now.
uint32_t sched_prefix_ready_pages(struct sched *s, uint32_t slot, uint32_t place);

// It was placed, with pages for what is not there: it holds what is there, too, and the rest is its to compute, unless the next page
// is being computed: then it gathers.
void sched_prefix_begin(struct sched *s, uint32_t slot);

// Of one that gathers, before its first rows are planned: what has come since. False: it waits on. *unpin: a slot that the caller
// unpins afterwards (another has more of the beginning now), NONE.
bool sched_prefix_gather(struct sched *s, uint32_t slot, uint32_t *unpin);

// The slot of whom it has its first pages from, to be pinned by the step that says so; NONE: it has them.
uint32_t sched_prefix_take_source(struct sched *s, uint32_t slot);

// It is about to leave its place: what it has not computed is for others to compute. What it has stays counted until it is gone. Returns
// the slot that it would have had its first pages from, which the caller unpins; NONE.
uint32_t sched_prefix_stop(struct sched *s, uint32_t slot);
void sched_prefix_resume(struct sched *s, uint32_t slot); // it stays after all

// One page more, and room for the next ones: those that are kept make way. False: its place has none.
bool sched_prefix_grow(struct sched *s, struct sched_seq *q);

// It has gone: it holds no named page any more, and `pages` are those that nobody else has.
void sched_prefix_leave(struct sched *s, uint32_t slot);

// Pages of its place that nobody else has.
uint32_t sched_prefix_own_pages(const struct sched *s, uint32_t slot);

// It is over, its place is there, and rows of it may be in flight: true if it is to be kept, with what it has.
bool sched_prefix_keep(struct sched *s, uint32_t slot);

// Ends the keeping: it leaves as others do.
void sched_prefix_evict(struct sched *s, uint32_t slot);

// Lets kept ones go until so many pages of the place are free or about to be, or none is left.
void sched_prefix_make_room(struct sched *s, uint32_t place, uint32_t pages);

#endif
