// kv_ledger.c: keeps sequences, page tables and reference counts. Free pages are a stack, low numbers on top, so that a pool that was never full never touches its upper
// end. Slots are an id_map's.
#include "common/kv/kv_ledger.h"

#include <string.h>
#include <sys/mman.h>

#include "common/base/alloc.h"
#include "common/base/checked.h"

// --- memory ---

enum { SLICE_COUNT = 4, ALIGN = 64 };

static void set_sizes(struct kv_ledger *ledger)
{
    const struct kv_ledger_shape *shape = &ledger->shape;

    ledger->table_length = MIN((shape->max_context + shape->page_tokens - 1) / shape->page_tokens, shape->pages);
    if (shape->ring_pages)
        ledger->table_length = MIN(ledger->table_length, shape->ring_pages);
}

static void set_slices(struct kv_ledger *ledger, struct slice *slices)
{
    uint64_t sequences = ledger->shape.max_sequences, pages = ledger->shape.pages;
    const struct slice all[SLICE_COUNT] = {
        {(void **)&ledger->free_pages, pages * sizeof(uint32_t)},
        {(void **)&ledger->references, pages * sizeof(uint32_t)},
        {(void **)&ledger->sequences, sequences * sizeof(struct kv_sequence)},
        {(void **)&ledger->tables, sequences * ledger->table_length * sizeof(uint32_t)},
    };
    memcpy(slices, all, sizeof all);
}

struct kv_ledger_plan kv_ledger_plan(const struct kv_ledger_shape *shape)
{
    struct kv_ledger ledger = {.shape = *shape};
    uint64_t sequences = MIN(shape->max_sequences, shape->pages); // each has a page at least

    set_sizes(&ledger);
    return (struct kv_ledger_plan){
        .fixed_bytes = id_map_bytes(shape->max_sequences) + shape->pages * sizeof(uint32_t),
        .table_bytes = sequences * (sizeof(struct kv_sequence) + ledger.table_length * sizeof(uint32_t)) +
                       (uint64_t)shape->pages * sizeof(uint32_t),
    };
}

enum status kv_ledger_open(const struct kv_ledger_shape *shape, struct kv_ledger *ledger, struct error *error)
{
    struct slice slices[SLICE_COUNT];

    const uint32_t sizes[] = {shape->pages, shape->page_tokens, shape->max_sequences, shape->max_context};
    for (uint32_t i = 0; i < ARRAY_COUNT(sizes); i++)
        assert_always(sizes[i] >= 1 && sizes[i] <= 1u << 30);
    *ledger = (struct kv_ledger){.shape = *shape};
    set_sizes(ledger);
    set_slices(ledger, slices);
    ledger->memory_bytes = slices_bytes(slices, SLICE_COUNT, ALIGN);
    if (id_map_open(shape->max_sequences, &ledger->slots))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "KV pages: no memory for %u sequences", shape->max_sequences);
    ledger->memory = mmap(NULL, ledger->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ledger->memory == MAP_FAILED) {
        ledger->memory = NULL;
        id_map_close(&ledger->slots);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "KV pages: no memory for %llu bytes of tables",
                         (unsigned long long)ledger->memory_bytes);
    }
    slices_place(slices, SLICE_COUNT, ALIGN, ledger->memory);
    for (uint32_t i = 0; i < shape->pages; i++)
        ledger->free_pages[i] = shape->pages - 1 - i;
    ledger->free_count = shape->pages;
    return STATUS_OK;
}

void kv_ledger_close(struct kv_ledger *ledger)
{
    if (ledger->memory)
        munmap(ledger->memory, ledger->memory_bytes);
    ledger->memory = NULL;
    id_map_close(&ledger->slots);
}

// --- sequences and their pages ---

// How many pages positions [first, positions) take.
static uint32_t pages_for(const struct kv_ledger *ledger, uint32_t first, uint32_t positions)
{
    return positions <= first
               ? 0
               : (uint32_t)(((uint64_t)positions - first + ledger->shape.page_tokens - 1) / ledger->shape.page_tokens);
}

// One past the last position that the sequence has a page for.
static uint64_t reserved_end(const struct kv_ledger *ledger, const struct kv_sequence *sequence)
{
    return sequence->begin + (uint64_t)sequence->page_count * ledger->shape.page_tokens;
}

// Returns where the table has the page with a position.
static uint32_t *entry_of(const struct kv_ledger *ledger, uint32_t slot, uint64_t position)
{
    uint32_t index = (uint32_t)((position - ledger->sequences[slot].first) / ledger->shape.page_tokens);
    return &ledger->tables[(size_t)slot * ledger->table_length + kv_ledger_entry(ledger, index)];
}

static void drop_page(struct kv_ledger *ledger, uint32_t page)
{
    assert_always(ledger->references[page] > 0);
    if (--ledger->references[page] == 0)
        ledger->free_pages[ledger->free_count++] = page;
}

// Returns how many of its first pages a sequence must give back before it has pages for `positions` positions.
static uint32_t pages_passed(const struct kv_ledger *ledger, const struct kv_sequence *sequence, uint32_t positions)
{
    uint32_t need = pages_for(ledger, sequence->begin, positions);
    return ledger->shape.ring_pages && need > ledger->shape.ring_pages ? need - ledger->shape.ring_pages : 0;
}

// Returns whether a row reads what is held only, although pages may have been given back.
static bool sees_its_window(const struct kv_ledger *ledger, const struct kv_sequence *sequence, uint32_t begin, uint32_t position)
{
    return begin == sequence->first || position + 1ull >= (uint64_t)begin + ledger->shape.window;
}

// Whether the next position is written into a page that other sequences read as well.
static bool next_is_shared(const struct kv_ledger *ledger, uint32_t slot)
{
    const struct kv_sequence *sequence = &ledger->sequences[slot];
    return sequence->complete % ledger->shape.page_tokens && sequence->complete < reserved_end(ledger, sequence) &&
           ledger->references[*entry_of(ledger, slot, sequence->complete)] > 1;
}

// Gives the sequence a page of its own for the next position. There must be a free one.
static struct kv_copy replace_shared(struct kv_ledger *ledger, uint32_t slot)
{
    uint32_t *page = entry_of(ledger, slot, ledger->sequences[slot].complete);
    const struct kv_copy copy = {.from = *page, .to = ledger->free_pages[--ledger->free_count], .needed = true};

    ledger->references[copy.from]--;
    ledger->references[copy.to] = 1;
    *page = copy.to;
    return copy;
}

static enum status add_sequence(struct kv_ledger *ledger, uint64_t sequence, uint32_t first, uint32_t *slot, struct error *error)
{
    uint32_t added = id_map_add(&ledger->slots, sequence);

    if (added == ID_MAP_NONE)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "sequence %llx: there are %u sequences, the most allowed",
                         (unsigned long long)sequence, ledger->shape.max_sequences);
    *slot = added;
    ledger->sequences[added] =
        (struct kv_sequence){.id = sequence, .first = first, .begin = first, .complete = first, .certain = first};
    return STATUS_OK;
}

enum status kv_ledger_begin(struct kv_ledger *ledger, uint64_t sequence, uint32_t first, struct error *error)
{
    uint32_t slot = kv_ledger_slot(ledger, sequence);

    if (first % KV_EXTENT_TOKENS || first >= ledger->shape.max_context)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "sequence %llx: an extent begins at position %u: must be a multiple of %u below %u",
                         (unsigned long long)sequence, first, KV_EXTENT_TOKENS, ledger->shape.max_context);
    if (slot != KV_NONE && ledger->sequences[slot].first == first)
        return STATUS_OK;
    kv_ledger_free(ledger, sequence);
    return add_sequence(ledger, sequence, first, &slot, error);
}

// Gives back the first `count` pages of a sequence, or as many as it has.
static void give_back(struct kv_ledger *ledger, uint32_t slot, uint32_t count)
{
    struct kv_sequence *sequence = &ledger->sequences[slot];

    for (; count > 0; count--, sequence->begin += ledger->shape.page_tokens) {
        if (sequence->page_count == 0)
            continue;
        drop_page(ledger, *entry_of(ledger, slot, sequence->begin));
        sequence->page_count--;
    }
}

// Returns how many pages are free once the first `count` pages of a sequence have been given back.
static uint32_t free_without(const struct kv_ledger *ledger, uint32_t slot, uint32_t count)
{
    uint32_t free_count = ledger->free_count;

    for (uint32_t i = 0; i < count && i < ledger->sequences[slot].page_count; i++) {
        uint64_t position = ledger->sequences[slot].begin + (uint64_t)i * ledger->shape.page_tokens;
        free_count += ledger->references[*entry_of(ledger, slot, position)] == 1;
    }
    return free_count;
}

enum status kv_ledger_reserve(struct kv_ledger *ledger, uint64_t sequence, uint32_t positions, struct kv_copy *copied,
                              struct error *error)
{
    static const struct kv_sequence nothing;
    uint32_t slot = kv_ledger_slot(ledger, sequence);
    const struct kv_sequence *known = slot == KV_NONE ? &nothing : &ledger->sequences[slot];
    uint32_t passed = pages_passed(ledger, known, positions), begin = known->begin + passed * ledger->shape.page_tokens;
    uint32_t have = known->page_count - MIN(passed, known->page_count), need = pages_for(ledger, begin, positions);
    uint32_t more = need > have ? need - have : 0, free_count = passed ? free_without(ledger, slot, passed) : ledger->free_count;
    bool copy = slot != KV_NONE && positions > known->complete && next_is_shared(ledger, slot);
    enum status status;

    *copied = (struct kv_copy){0};
    if (positions > ledger->shape.max_context)
        return error_set(error, STATUS_OUT_OF_RANGE, "sequence %llx: %u positions are more than the context of %u",
                         (unsigned long long)sequence, positions, ledger->shape.max_context);
    if (passed && !sees_its_window(ledger, known, begin, known->complete))
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "sequence %llx: %u positions, of which %u are held, do not fit into the %u pages that it may have",
                         (unsigned long long)sequence, positions, known->complete, ledger->shape.ring_pages);
    if (more + copy > free_count)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "sequence %llx: %u more pages are needed and %u of %u are free",
                         (unsigned long long)sequence, more + copy, free_count, ledger->shape.pages);
    if (slot == KV_NONE && (status = add_sequence(ledger, sequence, 0, &slot, error)))
        return status;
    if (passed)
        give_back(ledger, slot, passed);
    if (copy)
        *copied = replace_shared(ledger, slot);
    for (; more > 0; more--) {
        uint32_t page = ledger->free_pages[--ledger->free_count];
        ledger->references[page] = 1;
        *entry_of(ledger, slot, reserved_end(ledger, &ledger->sequences[slot])) = page;
        ledger->sequences[slot].page_count++;
    }
    ledger->pages_peak = MAX(ledger->pages_peak, ledger->shape.pages - ledger->free_count);
    return STATUS_OK;
}

void kv_ledger_free(struct kv_ledger *ledger, uint64_t sequence)
{
    uint32_t slot = kv_ledger_slot(ledger, sequence);

    if (slot == KV_NONE)
        return;
    for (struct kv_sequence *held = &ledger->sequences[slot]; held->page_count > 0;) { // the first page is the next that is taken
        held->page_count--;
        drop_page(ledger, *entry_of(ledger, slot, reserved_end(ledger, held)));
    }
    id_map_remove(&ledger->slots, sequence);
}

// Whether a sequence's first positions are in another one's pages. The last page, unless it is full, may have been copied since.
static bool shares_pages(const struct kv_ledger *ledger, uint32_t slot, uint32_t source, uint32_t positions)
{
    const uint64_t page_tokens = ledger->shape.page_tokens;
    uint64_t at = MAX(ledger->sequences[slot].begin, ledger->sequences[source].begin);

    while (at + page_tokens <= positions && *entry_of(ledger, slot, at) == *entry_of(ledger, source, at))
        at += page_tokens;
    return at + page_tokens > positions;
}

enum status kv_ledger_share(struct kv_ledger *ledger, uint64_t from, uint32_t positions, uint64_t to, struct error *error)
{
    uint32_t source = kv_ledger_slot(ledger, from), slot = kv_ledger_slot(ledger, to);
    const struct kv_sequence *origin = source == KV_NONE ? NULL : &ledger->sequences[source];
    const bool known = from != to && origin && origin->first < positions && origin->complete >= positions;
    const bool can = known && positions > origin->begin && sees_its_window(ledger, origin, origin->begin, positions);
    enum status status;

    if (slot != KV_NONE && ledger->sequences[slot].complete >= positions && (!can || shares_pages(ledger, slot, source, positions)))
        return STATUS_OK; // a repeated request
    if (!known)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "sequence %llx holds %u positions, %u of them are to be shared with %llx", (unsigned long long)from,
                         origin ? origin->complete : 0, positions, (unsigned long long)to);
    if (!can)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "sequence %llx holds positions from %u on, too few for %u of them to be shared with %llx",
                         (unsigned long long)from, origin->begin, positions, (unsigned long long)to);
    if (slot != KV_NONE)
        kv_ledger_free(ledger, to);
    if ((status = add_sequence(ledger, to, ledger->sequences[source].first, &slot, error)))
        return status;
    struct kv_sequence *sequence = &ledger->sequences[slot];
    sequence->begin = ledger->sequences[source].begin;
    sequence->page_count = pages_for(ledger, sequence->begin, positions);
    sequence->complete = sequence->certain = positions;
    for (uint32_t i = 0; i < sequence->page_count; i++) {
        uint64_t position = sequence->begin + (uint64_t)i * ledger->shape.page_tokens;
        uint32_t page = *entry_of(ledger, source, position);
        *entry_of(ledger, slot, position) = page;
        ledger->references[page]++;
    }
    return STATUS_OK;
}

enum status kv_ledger_give_page(const struct kv_ledger *ledger, uint64_t sequence, uint32_t page_index, uint32_t *page,
                                uint32_t *positions)
{
    uint32_t slot = kv_ledger_slot(ledger, sequence);
    uint64_t begin = (uint64_t)page_index * ledger->shape.page_tokens;

    if (slot == KV_NONE || ledger->sequences[slot].complete <= begin || ledger->sequences[slot].begin > begin)
        return STATUS_NOT_FOUND;
    *positions = (uint32_t)MIN(ledger->sequences[slot].complete - begin, ledger->shape.page_tokens);
    *page = *entry_of(ledger, slot, begin);
    return STATUS_OK;
}

enum status kv_ledger_take_page(struct kv_ledger *ledger, uint64_t sequence, uint32_t page_index, uint32_t positions,
                                uint32_t *slot, uint32_t *page, struct kv_copy *copied, struct error *error)
{
    struct kv_held held = {.sequence = sequence};
    uint64_t begin = (uint64_t)page_index * ledger->shape.page_tokens, end = begin + positions;
    enum status status;

    if (positions == 0 || positions > ledger->shape.page_tokens)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx, page %u: %u positions in a page of %u",
                         (unsigned long long)sequence, page_index, positions, ledger->shape.page_tokens);
    if (end > ledger->shape.max_context)
        return error_set(error, STATUS_OUT_OF_RANGE, "sequence %llx, page %u: beyond the context of %u",
                         (unsigned long long)sequence, page_index, ledger->shape.max_context);
    bool is_new = !kv_ledger_find(ledger, sequence, &held) && (ledger->shape.ring_pages || begin % KV_EXTENT_TOKENS == 0);
    uint32_t first = ledger->shape.ring_pages ? 0 : (uint32_t)begin; // of a new one
    uint32_t known = kv_ledger_slot(ledger, sequence), from = known == KV_NONE ? 0 : ledger->sequences[known].begin;
    if (is_new)
        held.positions = (uint32_t)begin;
    if (held.positions < begin || held.positions > end || from > begin)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "sequence %llx, page %u with %u positions does not follow the %u that are held",
                         (unsigned long long)sequence, page_index, positions, held.positions);
    if (is_new && (status = add_sequence(ledger, sequence, first, slot, error)))
        return status;
    if (is_new)
        ledger->sequences[*slot].begin = ledger->sequences[*slot].complete = ledger->sequences[*slot].certain = (uint32_t)begin;
    if ((status = kv_ledger_reserve(ledger, sequence, (uint32_t)end, copied, error))) {
        if (is_new)
            kv_ledger_free(ledger, sequence);
        return status;
    }
    *slot = kv_ledger_slot(ledger, sequence);
    *page = *entry_of(ledger, *slot, begin);
    return STATUS_OK;
}

// A page that comes once more takes `complete` back until it is there: what is certain is not more than that.
static struct kv_held held_of(const struct kv_sequence *sequence)
{
    return (struct kv_held){.sequence = sequence->id,
                            .positions = sequence->complete,
                            .certain = MIN(sequence->certain, sequence->complete),
                            .first = sequence->first,
                            .pages = sequence->page_count};
}

bool kv_ledger_next(const struct kv_ledger *ledger, uint32_t *cursor, struct kv_held *out)
{
    uint32_t slot = id_map_next(&ledger->slots, cursor);
    if (slot == ID_MAP_NONE)
        return false;
    *out = held_of(&ledger->sequences[slot]);
    return true;
}

bool kv_ledger_find(const struct kv_ledger *ledger, uint64_t sequence, struct kv_held *out)
{
    uint32_t slot = kv_ledger_slot(ledger, sequence);
    if (slot == KV_NONE)
        return false;
    *out = held_of(&ledger->sequences[slot]);
    return true;
}

// --- rows of a step ---

// Whether rows[row] may follow the one before it: first those with K and V, sorted by sequence and position; then those that only
// read, sorted by sequence, which read the same of one sequence.
static bool is_sorted(const struct kv_row *rows, uint32_t row, bool same)
{
    const struct kv_row *before = &rows[row - (row > 0)], *now = &rows[row];

    if (row == 0 || before->reads < now->reads)
        return true;
    if (before->reads > now->reads || (same && before->first != now->first))
        return false;
    return same ? now->reads ? before->position == now->position : before->position < now->position
                : before->sequence < now->sequence;
}

enum status kv_ledger_check_row(struct kv_ledger *ledger, const struct kv_row *rows, uint32_t row, struct kv_row_walk *walk,
                                struct error *error)
{
    uint64_t id = rows[row].sequence;
    uint32_t position = rows[row].position;
    bool same = row > 0 && rows[row - 1].sequence == id && rows[row - 1].reads == rows[row].reads;

    if (!is_sorted(rows, row, same))
        return error_set(error, STATUS_INVALID_ARGUMENT, "row %u: not sorted by sequence and position", row);
    if (!same) {
        walk->slot = kv_ledger_slot(ledger, id);
        walk->have = walk->slot == KV_NONE ? 0 : ledger->sequences[walk->slot].complete;
    }
    walk->first = !same;
    if (walk->slot == KV_NONE || (rows[row].reads ? position >= walk->have : position > walk->have))
        return error_set(error, STATUS_FAILED_PRECONDITION, "row %u: sequence %llx has %u positions, not the %u before this row",
                         row, (unsigned long long)id, walk->have, position + rows[row].reads);
    struct kv_sequence *sequence = &ledger->sequences[walk->slot];
    if (rows[row].first != sequence->first || position < sequence->first)
        return error_set(error, STATUS_FAILED_PRECONDITION, "row %u: position %u of sequence %llx, held from %u and not from %u on",
                         row, position, (unsigned long long)id, sequence->first, rows[row].first);
    if (!sees_its_window(ledger, sequence, sequence->begin, position))
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "row %u: position %u of sequence %llx reads behind %u, where its pages begin", row, position,
                         (unsigned long long)id, sequence->begin);
    if (rows[row].reads)
        return STATUS_OK;
    if (position >= reserved_end(ledger, sequence))
        return error_set(error, STATUS_FAILED_PRECONDITION, "row %u: sequence %llx has no page for position %u", row,
                         (unsigned long long)id, position);
    if (position >= sequence->complete && ledger->references[*entry_of(ledger, walk->slot, position)] > 1)
        return error_set(error, STATUS_FAILED_PRECONDITION, "row %u: sequence %llx shares the page of position %u", row,
                         (unsigned long long)id, position);
    walk->have = MAX(walk->have, position + 1);
    if (walk->first)
        sequence->certain = position;
    return STATUS_OK;
}
