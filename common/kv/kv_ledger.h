// kv_ledger.h: which sequence has which pages: sequences, their page tables, reference counts and free pages, wherever the pages themselves
// lie: in memory (kv_store), or on a device.
//
//     id ─id_map▶ slot ─▶ sequences[slot] { complete, certain, page_count }, tables[slot] ─▶ page numbers ─▶ references
//
// A slot's generation changes when the sequence is freed or truncated, so that rows planned before notice. The structs are plain;
// the planner of a step reads them, and changes nothing but `complete` and, by kv_ledger_check_row, `certain`.
//
// Threads: one at a time. Memory is taken by open and resident as it is touched; nothing is allocated afterwards.
#ifndef FD_KV_KV_LEDGER_H
#define FD_KV_KV_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/id_map.h"

#define KV_NONE ID_MAP_NONE

// Each at least 1, and at most 2^30. (A plan may have 0 pages.)
struct kv_ledger_shape {
    uint32_t pages, page_tokens, max_sequences, max_context;
};

struct kv_sequence {
    uint64_t id;
    uint32_t page_count;
    uint32_t complete; // positions through the last layer
    uint32_t certain;  // those before the first row of the latest step: tokens from there on may have been guessed
};

struct kv_ledger {
    struct kv_ledger_shape shape;
    uint32_t free_count, pages_peak; // the most that were in use at once
    uint32_t *free_pages;            // [pages], a stack
    uint32_t *references;            // [pages] 0 is free
    struct kv_sequence *sequences;   // [max_sequences]
    uint32_t *tables;                // [max_sequences][table_length] page numbers
    uint32_t table_length;
    struct id_map slots; // of `sequences` and `tables`
    void *memory;        // the one mapping of all arrays above
    uint64_t memory_bytes;
};

// For the memory plan.
struct kv_ledger_plan {
    uint64_t fixed_bytes; // the map of ids, the list of free pages
    uint64_t table_bytes; // at most: page tables and reference counts, touched in step with the pages in use
};
struct kv_ledger_plan kv_ledger_plan(const struct kv_ledger_shape *shape);

// RESOURCE_EXHAUSTED without memory; then there is nothing to close.
enum status kv_ledger_open(const struct kv_ledger_shape *shape, struct kv_ledger *ledger, struct error *error) MUST_CHECK;
void kv_ledger_close(struct kv_ledger *ledger);

// The slot of a sequence, or KV_NONE.
static inline uint32_t kv_ledger_slot(const struct kv_ledger *ledger, uint64_t sequence)
{
    return id_map_find(&ledger->slots, sequence);
}

// What kv_ledger_is_current() is asked with later: whether the slot's sequence is still there, and was not truncated.
static inline uint32_t kv_ledger_generation(const struct kv_ledger *ledger, uint32_t slot)
{
    return ledger->slots.generations[slot];
}
static inline bool kv_ledger_is_current(const struct kv_ledger *ledger, uint32_t slot, uint32_t generation)
{
    return id_map_is_current(&ledger->slots, slot, generation);
}

// The page numbers of the sequence in `slot`.
static inline const uint32_t *kv_ledger_table(const struct kv_ledger *ledger, uint32_t slot)
{
    return ledger->tables + (size_t)slot * ledger->table_length;
}

// A page whose content the caller copies before it writes to page `to`.
struct kv_copy {
    uint32_t from, to;
    bool needed;
};

// These four are kv_store's of the same names (kv_store.h), without the memory: a page that must be copied is said in *copied.
enum status kv_ledger_reserve(struct kv_ledger *ledger, uint64_t sequence, uint32_t positions, struct kv_copy *copied,
                              struct error *error) MUST_CHECK;
void kv_ledger_free(struct kv_ledger *ledger, uint64_t sequence);
enum status kv_ledger_share(struct kv_ledger *ledger, uint64_t from, uint32_t positions, uint64_t to,
                            struct error *error) MUST_CHECK;
void kv_ledger_truncate(struct kv_ledger *ledger, uint64_t sequence, uint32_t positions);

// What is held of a sequence.
struct kv_held {
    uint64_t sequence;
    uint32_t positions; // complete through the last layer, without a gap from 0
    uint32_t certain;   // of these, those whose tokens were no guesses: a step began behind them, or they were shared
};

// Iterates over the known sequences, in no order: *cursor starts at 0. False at the end.
bool kv_ledger_next(const struct kv_ledger *ledger, uint32_t *cursor, struct kv_held *out);
// False if the sequence is unknown.
bool kv_ledger_find(const struct kv_ledger *ledger, uint64_t sequence, struct kv_held *out);

// For handing a page over (kv_store_export_page, kv_store_import_page). give: where the sequence's page page_index lies, and how many of
// its positions are complete. take: where the page must go, with pages reserved; once it is there, the caller raises `complete` to
// page_index * page_tokens + positions. Both fail as kv_store's do, and a failure changes nothing.
enum status kv_ledger_give_page(const struct kv_ledger *ledger, uint64_t sequence, uint32_t page_index, uint32_t *page,
                                uint32_t *positions) MUST_CHECK;
enum status kv_ledger_take_page(struct kv_ledger *ledger, uint64_t sequence, uint32_t page_index, uint32_t positions,
                                uint32_t *slot, uint32_t *page, struct kv_copy *copied, struct error *error) MUST_CHECK;

struct kv_row {
    uint64_t sequence;
    uint32_t position;
    bool sparse; // it attends to chosen tiles only, in a store whose shape has a sparse_percent
};

// The state of kv_ledger_check_row between rows.
struct kv_row_walk {
    uint32_t slot; // of the row's sequence
    uint32_t have; // positions that are complete or in rows up to this one
    bool first;    // the first row of its sequence
};

// Whether row number `row` may be written and attend: the statuses of kv_batch_plan (kv_store.h). Call for each row in order, with
// one walk. The first one of a sequence makes the positions before it certain.
enum status kv_ledger_check_row(struct kv_ledger *ledger, const struct kv_row *rows, uint32_t row, struct kv_row_walk *walk,
                                struct error *error) MUST_CHECK;

#endif
