// kv_batch.c: plans mini-batches: rows become blocks, pieces and units (kv_internal.h).
#include <stdlib.h>

#include "kernels/kv/kv_internal.h"

enum status kv_batch_open(struct kv_store *store, struct kv_batch **out)
{
    struct kv_batch *batch = calloc(1, sizeof *batch);

    if (!batch)
        return STATUS_RESOURCE_EXHAUSTED;
    batch->store = store;
    batch->positions = calloc(store->max_rows, sizeof *batch->positions);
    batch->blocks = calloc(store->max_rows, sizeof *batch->blocks);
    batch->pieces = calloc(store->max_rows, sizeof *batch->pieces);
    batch->splits = calloc(store->max_rows, sizeof *batch->splits);
    batch->choices = calloc(MAX(store->choice_capacity, 1u), sizeof *batch->choices);
    batch->units = calloc(store->unit_capacity, sizeof *batch->units);
    batch->left = calloc((size_t)KV_JOIN_ROWS * store->shape.kv_heads, sizeof *batch->left);
    store->batch_count++;
    if (!batch->positions || !batch->blocks || !batch->pieces || !batch->splits || !batch->choices || !batch->units ||
        !batch->left) {
        kv_batch_close(batch);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    *out = batch;
    return STATUS_OK;
}

void kv_batch_close(struct kv_batch *batch)
{
    if (!batch)
        return;
    batch->store->batch_count--;
    free(batch->left);
    free(batch->units);
    free(batch->choices);
    free(batch->splits);
    free(batch->pieces);
    free(batch->blocks);
    free(batch->positions);
    free(batch);
}

// Whether the row leaves tiles out. One that keeps all of them is dense: the bits are the same.
static bool is_sparse(const struct kv_store *store, const struct kv_row *row)
{
    const struct attend_choice choice = attend_choice_of(row->position, store->shape.sparse_percent);
    return row->sparse && store->shape.sparse_percent && choice.keep < choice.last - choice.first;
}

// Adds a row to the piece that goes to its tile.
static void plan_piece(struct kv_batch *batch, uint32_t row, bool first)
{
    if (first || batch->positions[row] % KV_TILE == 0)
        batch->pieces[batch->piece_count++] = (struct piece){.block = batch->block_count - 1, .first_row = row};
    batch->pieces[batch->piece_count - 1].row_count++;
}

// Checks the rows and cuts them into blocks and pieces.
static enum status plan_blocks(struct kv_batch *batch, const struct kv_row *rows, uint32_t row_count, uint32_t *bad_row,
                               struct error *error)
{
    struct kv_store *store = batch->store;
    struct kv_row_walk walk;
    struct block *block = NULL;
    enum status status;

    for (uint32_t row = 0; row < row_count; row++) {
        *bad_row = row;
        if ((status = kv_ledger_check_row(&store->ledger, rows, row, &walk, error)))
            return status;
        const bool sparse = is_sparse(store, &rows[row]), gets_partials = rows[row].reads || rows[row].first;
        if (sparse && gets_partials)
            return error_set(error, STATUS_INVALID_ARGUMENT, "row %u: a sparse row of a sequence that is at several places", row);
        if (gets_partials && store->shape.window)
            return error_set(error, STATUS_INVALID_ARGUMENT, "row %u: a sequence at several places, of a model with windows", row);
        if (walk.first || block->row_count == store->block_rows || sparse || block->sparse) {
            block = &batch->blocks[batch->block_count++];
            *block = (struct block){.slot = walk.slot,
                                    .generation = kv_ledger_generation(&store->ledger, walk.slot),
                                    .first_row = row,
                                    .first_range = rows[row].first / KV_RANGE,
                                    .sparse = sparse,
                                    .reads = rows[row].reads,
                                    .gets_partials = gets_partials,
                                    .partial = KV_NONE};
        }
        block->row_count++;
        batch->positions[row] = rows[row].position - rows[row].first;
        if (!rows[row].reads)
            plan_piece(batch, row, walk.first);
    }
    return STATUS_OK;
}

// Returns what a block costs a thread, for one KV head: reading its context, and arithmetic on it. A tile's bounds are as many bytes as one of its
// tokens.
static uint64_t block_work(const struct kv_batch *batch, const struct block *block)
{
    return (uint64_t)block->seen * (block->row_count * batch->store->group_heads + 8) + (uint64_t)block->candidates * 8;
}

// How much of its context the block attends to.
static void plan_context(const struct kv_batch *batch, struct block *block)
{
    const struct kv_store *store = batch->store;

    block->seen = kv_block_limit(batch, block);
    if (block->sparse) {
        const struct attend_choice choice = kv_row_choice(batch, block->first_row);
        block->candidates = choice.last - choice.first;
        block->seen -= (block->candidates - choice.keep) * KV_TILE;
    }
    block->range_count = (block->seen + KV_RANGE - 1) / KV_RANGE;
    block->bytes_read = (block->seen + KV_TILE - 1) / KV_TILE * store->tile_bytes * store->shape.kv_heads +
                        (uint64_t)block->candidates * store->bounds_width * sizeof(uint16_t) * store->shape.kv_heads;
    if (store->shape.window) {
        uint32_t tiles = (kv_block_limit(batch, block) - 1) / KV_TILE + 1;
        tiles -= kv_window_first(batch, block->first_row) / KV_TILE;
        block->window_bytes_read = tiles * store->tile_bytes * store->shape.kv_heads;
    }
    for (uint32_t row = block->first_row; store->shape.window && row < block->first_row + block->row_count; row++)
        block->window_tokens_read += batch->positions[row] + 1u - kv_window_first(batch, row);
    for (uint32_t row = 0; row < block->row_count; row++)
        block->tokens_read += block->sparse ? block->seen : batch->positions[block->first_row + row] + 1u;
}

// Whether a block is so large a part of all the work that threads share it.
static bool is_split(const struct kv_batch *batch, const struct block *block, uint64_t work)
{
    const struct kv_store *store = batch->store;
    uint64_t parts = thread_pool_threads(store->pool) * (block->sparse ? KV_SPARSE_UNITS_PER_THREAD : KV_UNITS_PER_THREAD);

    return block->range_count > 1 && block_work(batch, block) * parts > work &&
           (!block->sparse || batch->choice_count < store->choice_capacity);
}

static void plan_units(struct kv_batch *batch)
{
    struct kv_store *store = batch->store;
    uint32_t kv_heads = store->shape.kv_heads, partial_lines = 0;
    uint64_t work = 0;

    for (uint32_t i = 0; i < batch->block_count; i++) {
        plan_context(batch, &batch->blocks[i]);
        work += block_work(batch, &batch->blocks[i]) * kv_heads;
    }
    for (uint32_t i = 0; i < batch->block_count; i++) {
        struct block *block = &batch->blocks[i];
        uint32_t lines = block->row_count * store->group_heads;
        uint64_t wanted = (uint64_t)kv_heads * block->range_count * lines;
        uint32_t units_left = store->unit_capacity - batch->unit_count - (batch->block_count - i);
        if (is_split(batch, block, work) && wanted <= store->partial_lines - partial_lines && block->range_count <= units_left) {
            if (block->sparse) {
                block->choice = batch->choice_count;
                batch->choices[batch->choice_count++] = i;
            }
            block->partial = partial_lines;
            partial_lines += (uint32_t)wanted;
            batch->splits[batch->split_count++] = i;
            for (uint32_t range = 0; range < block->range_count; range++)
                batch->units[batch->unit_count++] = (struct unit){i, range};
        }
    }
    for (uint32_t i = 0; i < batch->block_count; i++)
        if (batch->blocks[i].partial == KV_NONE)
            batch->units[batch->unit_count++] = (struct unit){i, KV_NONE};
}

enum status kv_batch_plan(struct kv_batch *batch, const struct kv_row *rows, uint32_t row_count, uint32_t *bad_row,
                          struct error *error)
{
    enum status status;

    batch->row_count = batch->block_count = batch->piece_count = batch->unit_count = batch->split_count = batch->choice_count = 0;
    batch->layers_done = 0;
    batch->sinks = NULL;
    *bad_row = 0;
    if (row_count > batch->store->max_rows)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%u rows: at most %u are allowed", row_count, batch->store->max_rows);
    status = plan_blocks(batch, rows, row_count, bad_row, error);
    if (status) {
        batch->block_count = batch->piece_count = 0;
        return status;
    }
    batch->row_count = row_count;
    plan_units(batch);
    return STATUS_OK;
}

// Each sequence's rows are in one block then: what a unit reads is stored by the unit itself.
bool kv_batch_can_join(const struct kv_batch *batch)
{
    bool can = batch->row_count > 0 && batch->row_count <= MIN(KV_JOIN_ROWS, batch->store->block_rows);

    for (uint32_t i = 0; can && i < batch->block_count; i++)
        can = !batch->blocks[i].sparse && !batch->blocks[i].gets_partials;
    return can;
}
