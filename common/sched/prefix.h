// prefix.h: sequences with the same beginning share its pages. Private to common/sched.
//
// A full page is named by the chain of all tokens up to its end (the caller's page_names), so pages with the same name have the
// same K and V. The pages of a place that have names form a tree; a sequence holds the path from a root down to its last named
// page, and a page counts once in the ledger however many sequences hold it:
//
//     system prompt ── p0 ── p1 ── p2 ─┬─ a3 ── a4      sequence A holds p0..a4, and a private page behind it
//                                      ├─ b3            B
//                                      └─ c3 ── c4      C has ended: it is kept until its pages are needed
//
// Before its first row a sequence follows the tree down as far as pages are complete. If another sequence is computing the next
// page, it waits for that page; otherwise it names the rest of its prompt's pages and computes them. Its first run names the
// sequence whose pages it begins with. That sequence, the source, is pinned (may not move) until the run is answered. At least two
// tokens are left to compute, so that a sequence always starts in prefill.
//
// If first pages are given back (config.ring_pages), a sequence shares none that will be: one whose prompt is as long as that never
// does, and another gets pages of its own before it grows beyond them, and is not kept.
//
// A sequence that has ended is kept with all its full pages if no other holds its last named page. When a place needs pages, the
// least recently used kept sequence is evicted first. (Pages found by hash chain: vLLM, arXiv 2309.06180; the tree: SGLang's
// RadixAttention, arXiv 2312.07104.)
#ifndef FD_SCHED_PREFIX_H
#define FD_SCHED_PREFIX_H

#include "common/sched/sched.h"

struct sched_seq;

// A named page at a place. The fields are indices of nodes or slots, or UINT32_MAX.
struct sched_prefix_node {
    struct sched_page_name name;
    uint32_t place, depth; // depth: page number in the sequences that hold it
    uint32_t parent, first_child, last_child, prev_sibling, next_sibling;
    uint32_t first_holder, last_holder; // sequences whose last named page this is: first the kept one, then oldest first
    uint32_t bucket_next;
    uint32_t refs;  // number of sequences that hold it
    uint32_t live;  // how many of them are not merely kept
    uint32_t stays; // how many of them are not about to leave the place
};

struct sched_prefix {
    struct sched_prefix_node *nodes; // [capacity]
    uint32_t *buckets;               // [bucket_mask + 1] heads of lists by name
    uint32_t bucket_mask, capacity, touched, free_head, count;
    uint32_t kept;  // sequences that are
    uint32_t slots; // slots of kept sequences, and of those that were kept and are not gone yet
};

// A sequence's part.
struct sched_prefix_link {
    uint32_t node;                     // node of its last named page, or NONE
    uint32_t holder_prev, holder_next; // of that node
    uint32_t source;                   // slot of the pinned sequence that provides its first pages, or NONE
    uint32_t cached;                   // the most positions that it has found computed so far
    bool keep;                         // it is kept, or will be when its rows in flight are answered
    bool was_kept;                     // it is or was kept, so its slot counts for the cache and not for max_sequences
    bool idle;                         // its pages count as idle
    bool stopped;                      // it is about to leave its place
    bool alone;                        // it shares nothing, because the pages it was to share were not there
};

// A beginning that a waiting sequence would find at a place.
struct sched_prefix_hit {
    uint32_t place, pages; // pages: its pages in the tree, including those being computed
};
enum { SCHED_PREFIX_HITS_MAX = 8 };

// Lists the places that have the longest beginnings of a sequence, at most SCHED_PREFIX_HITS_MAX; returns how many.
uint32_t sched_prefix_hits(struct sched *s, uint32_t slot, struct sched_prefix_hit *hits);

// Returns how many of its pages can be shared at a place now.
uint32_t sched_prefix_ready_pages(struct sched *s, uint32_t slot, uint32_t place);

// Begins sharing for a sequence that was placed with pages for what is not shared: it takes the shared pages too. It computes the
// rest itself, unless another sequence is computing the next page; then it gathers.
void sched_prefix_begin(struct sched *s, uint32_t slot);

// Gives a gathering sequence the pages completed since. Returns false if it must wait longer. *unpin: a slot that the caller unpins
// afterwards, because another sequence now has more of the beginning, or NONE.
bool sched_prefix_gather(struct sched *s, uint32_t slot, uint32_t *unpin);

// Returns the source of its first pages, whose pin now belongs to the step that names it; NONE: it has them already.
uint32_t sched_prefix_take_source(struct sched *s, uint32_t slot);

// Stops sharing before a sequence leaves its place: others compute the pages that it has not completed. Its pages stay counted
// until it is gone. Returns the source of its first pages, which the caller unpins, or NONE.
uint32_t sched_prefix_stop(struct sched *s, uint32_t slot);
void sched_prefix_resume(struct sched *s, uint32_t slot); // it stays after all

// Gives it one more page, and makes room for the next ones by evicting kept sequences. Returns false if its place has no page.
bool sched_prefix_grow(struct sched *s, struct sched_seq *seq);

// Ends its hold on named pages when it is gone; `pages` then counts the pages that no other sequence holds.
void sched_prefix_leave(struct sched *s, uint32_t slot);

// Makes another slot at the same place the holder of all that it shares. It may not be kept, nor be about to leave.
void sched_prefix_pass_on(struct sched *s, uint32_t slot, uint32_t to);

// Returns how many of its pages no other sequence holds.
uint32_t sched_prefix_own_pages(const struct sched *s, uint32_t slot);

// Decides whether an ended sequence is kept with its pages. Rows of it may still be in flight.
bool sched_prefix_keep(struct sched *s, uint32_t slot);

// Stops keeping a sequence, which then leaves as others do.
void sched_prefix_evict(struct sched *s, uint32_t slot);

// Evicts kept sequences until `pages` pages of the place are free or about to be, or none is kept.
void sched_prefix_make_room(struct sched *s, uint32_t place, uint32_t pages);

#endif
