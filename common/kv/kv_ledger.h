// kv_ledger.h: which sequence has which pages: sequences, page tables, reference counts and free pages. The pages themselves are in
// memory (kv_store) or on a device.
//
//     id ─id_map▶ slot ─▶ sequences[slot] { complete, certain, page_count }, tables[slot] ─▶ page numbers ─▶ references
//
// One place of a sequence that lies at several holds an extent: positions from `first` on, a multiple of KV_EXTENT_TOKENS. Its pages
// begin there, and the pages before are elsewhere. Positions and page indices count from the sequence's start all the same.
//
// If every layer of the model is windowed, no layer reads a position that all windows have passed. The shape then says how many pages
// a sequence has at most, ring_pages: the next one takes the oldest one's place, and page i lies in table[i % ring_pages].
//
// A slot's generation changes when the sequence is freed, so that rows planned earlier can be told. The structs are
// plain. The planner of a step reads them and changes only `complete` and, through kv_ledger_check_row, `certain`.
//
// Threads: one at a time. kv_ledger_open() allocates all memory, which becomes resident as it is touched.
#ifndef FD_KV_KV_LEDGER_H
#define FD_KV_KV_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/id_map.h"

#define KV_NONE ID_MAP_NONE
#define KV_EXTENT_TOKENS 512u // extents begin and end at multiples of it

// Returns the most rows of a sequence that a step may have where pages are given back. Pages are kept for the rows of two steps, which may
// be in flight at a time, beside a window.
static inline uint32_t kv_ring_step_rows(uint32_t window) { return (window < 64 ? 64 : window < 1024 ? window : 1024) / 2; }

// Returns ring_pages (below) for a window, or 0 if a context of that length has no more pages.
static inline uint32_t kv_ring_pages_of(uint32_t window, uint32_t page_tokens, uint32_t max_context)
{
    if (window == 0 || page_tokens == 0 || window >= max_context)
        return 0;
    uint32_t pages = (window + 2 * kv_ring_step_rows(window) + page_tokens - 1) / page_tokens + 1;
    return pages < (max_context + page_tokens - 1) / page_tokens ? pages : 0;
}

// Each of the first four is at least 1 and at most 2^30. (A plan may have 0 pages.)
struct kv_ledger_shape {
    uint32_t pages, page_tokens, max_sequences, max_context;
    uint32_t ring_pages; // the most pages of a sequence; 0: it keeps all
    uint32_t window;     // with ring_pages: how many positions a row reads, its own included
};

struct kv_sequence {
    uint64_t id;
    uint32_t page_count;
    uint32_t first;    // where it begins; 0 unless it is an extent
    uint32_t begin;    // first position held; `first` unless pages have been given back
    uint32_t complete; // number of positions, from the sequence's start, that have passed the last layer
    uint32_t certain;  // number of positions before the first row of the latest step; tokens from there on may be wrong guesses
};

struct kv_ledger {
    struct kv_ledger_shape shape;
    uint32_t free_count, pages_peak; // pages_peak: the most pages in use at one time
    uint32_t *free_pages;            // [pages], a stack
    uint32_t *references;            // [pages] 0: the page is free
    struct kv_sequence *sequences;   // [max_sequences]
    uint32_t *tables;                // [max_sequences][table_length] page numbers
    uint32_t table_length;
    struct id_map slots; // of `sequences` and `tables`
    void *memory;        // the one mapping of all arrays above
    uint64_t memory_bytes;
};

// The memory that a ledger takes, for the memory plan.
struct kv_ledger_plan {
    uint64_t fixed_bytes; // the map of ids and the list of free pages
    uint64_t table_bytes; // upper limit: page tables and reference counts, which become resident as pages come into use
};
struct kv_ledger_plan kv_ledger_plan(const struct kv_ledger_shape *shape);

// RESOURCE_EXHAUSTED: not enough memory; there is nothing to close then.
enum status kv_ledger_open(const struct kv_ledger_shape *shape, struct kv_ledger *ledger, struct error *error) MUST_CHECK;
void kv_ledger_close(struct kv_ledger *ledger);

// Returns the slot of a sequence, or KV_NONE.
static inline uint32_t kv_ledger_slot(const struct kv_ledger *ledger, uint64_t sequence)
{
    return id_map_find(&ledger->slots, sequence);
}

// Returns a number to give to kv_ledger_is_current() later, which tells whether the slot's sequence is still there.
static inline uint32_t kv_ledger_generation(const struct kv_ledger *ledger, uint32_t slot)
{
    return ledger->slots.generations[slot];
}
static inline bool kv_ledger_is_current(const struct kv_ledger *ledger, uint32_t slot, uint32_t generation)
{
    return id_map_is_current(&ledger->slots, slot, generation);
}

// Returns the page numbers of the sequence in `slot`. With ring_pages see kv_ledger_page().
static inline const uint32_t *kv_ledger_table(const struct kv_ledger *ledger, uint32_t slot)
{
    return ledger->tables + (size_t)slot * ledger->table_length;
}

// Returns where the table has the page that is `index` pages behind where its sequence begins.
static inline uint32_t kv_ledger_entry(const struct kv_ledger *ledger, uint32_t index)
{
    return ledger->shape.ring_pages ? index % ledger->shape.ring_pages : index;
}

// Returns the number of that page of the sequence in `slot`. It must be held.
static inline uint32_t kv_ledger_page(const struct kv_ledger *ledger, uint32_t slot, uint32_t index)
{
    return kv_ledger_table(ledger, slot)[kv_ledger_entry(ledger, index)];
}

// If needed, the caller must copy page `from` to page `to` before it writes to `to`.
struct kv_copy {
    uint32_t from, to;
    bool needed;
};

// These four do what kv_store's functions of the same names do (kv_store.h), but touch no page: *copied says which page the caller
// must copy.
enum status kv_ledger_begin(struct kv_ledger *ledger, uint64_t sequence, uint32_t first, struct error *error) MUST_CHECK;
enum status kv_ledger_reserve(struct kv_ledger *ledger, uint64_t sequence, uint32_t positions, struct kv_copy *copied,
                              struct error *error) MUST_CHECK;
void kv_ledger_free(struct kv_ledger *ledger, uint64_t sequence);
enum status kv_ledger_share(struct kv_ledger *ledger, uint64_t from, uint32_t positions, uint64_t to,
                            struct error *error) MUST_CHECK;

// How much of a sequence is held.
struct kv_held {
    uint64_t sequence;
    uint32_t positions; // number of positions, from the sequence's start, that are complete through the last layer
    uint32_t certain;   // how many of these have tokens that were no guesses, because a later step began behind them or they were
                        // shared
    uint32_t first;     // the first position that is held
    uint32_t pages;     // that it has; more than it has positions for while a step is under way, or was given up
};

// Iterates over the known sequences in no particular order; *cursor starts at 0. Returns false at the end.
bool kv_ledger_next(const struct kv_ledger *ledger, uint32_t *cursor, struct kv_held *out);
// Returns false if the sequence is unknown.
bool kv_ledger_find(const struct kv_ledger *ledger, uint64_t sequence, struct kv_held *out);

// For handing a page over; these fail like kv_store_export_page and kv_store_import_page, and a failure changes nothing. give_page
// returns where the sequence's page page_index is, and how many of its positions are complete. take_page reserves the pages and
// returns where the page must go; once it is there, the caller raises `complete` to page_index * page_tokens + positions.
enum status kv_ledger_give_page(const struct kv_ledger *ledger, uint64_t sequence, uint32_t page_index, uint32_t *page,
                                uint32_t *positions) MUST_CHECK;
enum status kv_ledger_take_page(struct kv_ledger *ledger, uint64_t sequence, uint32_t page_index, uint32_t positions,
                                uint32_t *slot, uint32_t *page, struct kv_copy *copied, struct error *error) MUST_CHECK;

struct kv_row {
    uint64_t sequence;
    uint32_t position;
    bool sparse;    // it attends to chosen tiles only, in a store whose shape has a sparse_percent
    bool reads;     // it has no K and V, and only attends to positions [first, position]
    uint32_t first; // the first position of its sequence that is held here
};

// The state of kv_ledger_check_row between rows.
struct kv_row_walk {
    uint32_t slot; // slot of the row's sequence
    uint32_t have; // number of positions that are complete or in rows up to this one
    bool first;    // this is the first row of its sequence, or the first that only reads
};

// Checks that row number `row` may be written and may attend. Returns the statuses of kv_batch_plan (kv_store.h). Call it for each
// row in order, with one walk. The first row of a sequence makes the positions before it certain.
enum status kv_ledger_check_row(struct kv_ledger *ledger, const struct kv_row *rows, uint32_t row, struct kv_row_walk *walk,
                                struct error *error) MUST_CHECK;

#endif
