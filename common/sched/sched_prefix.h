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
// Before its first row a sequence goes down the tree as far as pages are complete. If another sequence is computing the next page,
// it waits for that; otherwise it names the rest of its prompt's pages and computes them. Its first run says which sequence gives it
// the pages it begins with; that one, the source, is pinned (stays where it is) until the run is answered. At least two tokens are left
// to compute, so that a sequence always begins as prefill.
//
// A sequence that is over is kept, with all its full pages, if nobody else holds its last named page. When pages are needed at a
// place, the least recently used goes first. (Pages found by hash chain: vLLM, arXiv 2309.06180; the tree: SGLang's RadixAttention,
// arXiv 2312.07104.)
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
    uint32_t live;  // of them, those that are not merely kept
    uint32_t stays; // of them, those that are not about to leave the place
};

struct sched_prefix {
    struct sched_prefix_node *nodes; // [capacity]
    uint32_t *buckets;               // [bucket_mask + 1] heads of lists by name
    uint32_t bucket_mask, capacity, touched, free_head, count;
    uint32_t kept;  // sequences that are
    uint32_t slots; // that those have, and those that were kept and are not gone yet
};

// A sequence's part.
struct sched_prefix_link {
    uint32_t node;                     // its last named page, NONE
    uint32_t holder_prev, holder_next; // of that node
    uint32_t source;                   // slot of the sequence that gives it its first pages, pinned; NONE
    uint32_t cached;                   // positions that it found, the most so far
    bool keep;                         // is kept, or will be when its rows are back
    bool was_kept;                     // it is kept or was: its slot is counted for the cache, not for max_sequences
    bool idle;                         // its pages count as idle
    bool stopped;                      // is about to leave its place
    bool alone;                        // shares nothing, because what it was to share was not there
};

// What a waiting sequence would find at a place.
struct sched_prefix_hit {
    uint32_t place, pages; // in the tree, those being computed included
};
enum { SCHED_PREFIX_HITS_MAX = 8 };

struct sched;
struct sched_seq;

// How much of a beginning a place has.
struct sched_prefix_found {
    uint32_t source, pages; // a sequence that has its first pages; NONE and 0: none has any
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
void sched_prefix_holder_link(struct sched *s, uint32_t node, uint32_t slot); // node: its last named page; NONE: it has none
void sched_prefix_holder_unlink(struct sched *s, uint32_t slot);
void sched_prefix_holder_first(struct sched *s, uint32_t slot); // before the others of its node

// Finds the sequence that has most of a beginning. The asker has `have` pages already: fewer are of no use.
struct sched_prefix_found sched_prefix_look(const struct sched *s, uint32_t place, const struct sched_page_name *names,
                                            uint32_t count, uint32_t have);

// --- sched_prefix.c ---------------------------------------------------------------------------------------------------

// Lists the places that have the longest beginnings of a sequence, at most SCHED_PREFIX_HITS_MAX; returns how many.
uint32_t sched_prefix_hits(struct sched *s, uint32_t slot, struct sched_prefix_hit *hits);

// Returns how many of its pages can be shared at a place now.
uint32_t sched_prefix_ready_pages(struct sched *s, uint32_t slot, uint32_t place);

// Begins after it was placed with pages for what is not shared: it takes the shared pages, too. The rest is its own to compute, unless
// another is computing the next page: then it gathers.
void sched_prefix_begin(struct sched *s, uint32_t slot);

// Takes what has been completed since, for a sequence that gathers. False: it waits on. *unpin is a slot that the caller unpins
// afterwards, because another has more of the beginning now; NONE.
bool sched_prefix_gather(struct sched *s, uint32_t slot, uint32_t *unpin);

// Returns the source of its first pages, whose pin passes to the step that names it; NONE: it has them already.
uint32_t sched_prefix_take_source(struct sched *s, uint32_t slot);

// Stops sharing before a sequence leaves its place: others compute what it has not. What it has stays counted until it is gone.
// Returns the source of its first pages, which the caller unpins; NONE.
uint32_t sched_prefix_stop(struct sched *s, uint32_t slot);
void sched_prefix_resume(struct sched *s, uint32_t slot); // it stays after all

// Gives it one page more, and makes room for the next ones at the expense of kept sequences. False: its place has no page.
bool sched_prefix_grow(struct sched *s, struct sched_seq *seq);

// Ends its hold on named pages when it has gone: `pages` are then those that nobody else holds.
void sched_prefix_leave(struct sched *s, uint32_t slot);

// Returns how many pages of its place nobody else holds.
uint32_t sched_prefix_own_pages(const struct sched *s, uint32_t slot);

// Decides whether a sequence that is over is kept with what it has. Rows of it may still be in flight.
bool sched_prefix_keep(struct sched *s, uint32_t slot);

// No longer keeps a sequence: it leaves as others do.
void sched_prefix_evict(struct sched *s, uint32_t slot);

// Evicts kept sequences until so many pages of the place are free or about to be, or none is kept.
void sched_prefix_make_room(struct sched *s, uint32_t place, uint32_t pages);

#endif
