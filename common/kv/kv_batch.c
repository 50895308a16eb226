// kv_batch.c: plans of mini-batches, and their attention on the pool of threads.
//
// A block is up to block_rows rows of one sequence that follow each other; its lines (rows times the query heads of one
// KV head) share tiles. A unit is a block's whole context or, where a block is too large a part of the step for that,
// one range of it. Threads claim (unit, KV head) pairs:
//
//     store: pieces ─ barrier ─ attend: units × KV heads ─ barrier (if a block was split) ─ fold the split ones
//
// A piece is what a step writes to one tile, so that whoever stores the tile's last token has all 16 and writes its bounds.
// A sparse row (attention_sparse.h) is a block of its own, because it has tiles of its own: the thread that attends to it for a KV head
// chooses them first. It is never split: its tiles are few, and the choice would be made once for each range.
//
// Whether a block is split changes who computes a range, never its bits: partials are folded in the order of ranges
// either way. A thread claims its next unit before it computes the one it has, and prefetches the first tiles of it.
//
// A worked number: 32 rows at context 1024, 3 KV heads, 2 threads: 96 units of 3 lines and 128 KiB of f16 each, none
// split. One row at context 8192: 16 ranges × 3 heads = 48 units.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/kv/kv_state.h"

struct block {
    uint32_t slot, generation;
    uint32_t first_row, row_count;
    uint32_t range_count;
    uint32_t partial;                 // first line of its partials: [kv_heads][range_count][lines]; KV_NONE: not split
    uint64_t bytes_read, tokens_read; // of one layer
    uint32_t seen;                    // positions that its last row attends to
    bool sparse;                      // one row, which attends to chosen tiles
    bool alive;                       // its sequence is still what was planned
    bool wanted;                      // alive, and o of a row is asked for
};

// Consecutive rows of one sequence that go to one tile.
struct piece {
    uint32_t block, first_row, row_count; // block: of its first row
};

struct unit {
    uint32_t block, range; // range KV_NONE: all of them
};

struct kv_batch {
    struct kv_store *store;
    uint32_t row_count, block_count, piece_count, unit_count, split_count;
    uint32_t layers_done; // attended in order since the plan
    uint32_t *positions;  // [max_rows]
    struct block *blocks; // [max_rows]
    struct piece *pieces; // [max_rows]
    uint32_t *splits;     // [max_rows] numbers of the blocks that are split
    struct unit *units;   // [unit_capacity]
    // of the layer that is being attended
    uint32_t layer;
    const float *const *q, *const *k, *const *v;
    float *const *o;
};

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
    batch->units = calloc(store->unit_capacity, sizeof *batch->units);
    store->batch_count++;
    if (!batch->positions || !batch->blocks || !batch->pieces || !batch->splits || !batch->units) {
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
    free(batch->units);
    free(batch->splits);
    free(batch->pieces);
    free(batch->blocks);
    free(batch->positions);
    free(batch);
}

// --- plan ---

static uint32_t block_limit(const struct kv_batch *batch, const struct block *block)
{
    return batch->positions[block->first_row + block->row_count - 1] + 1;
}

static struct attend_choice choice_of(const struct kv_batch *batch, uint32_t row)
{
    return attend_choice_of(batch->positions[row], batch->store->shape.sparse_percent);
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
    if (first || batch->positions[row] % ATTEND_TILE == 0)
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
        const bool sparse = is_sparse(store, &rows[row]);
        if (walk.first || block->row_count == store->block_rows || sparse || block->sparse) {
            block = &batch->blocks[batch->block_count++];
            *block = (struct block){.slot = walk.slot,
                                    .generation = kv_ledger_generation(&store->ledger, walk.slot),
                                    .first_row = row,
                                    .sparse = sparse,
                                    .partial = KV_NONE};
        }
        block->row_count++;
        batch->positions[row] = rows[row].position;
        plan_piece(batch, row, walk.first);
    }
    return STATUS_OK;
}

// What a block costs a thread, for one KV head: reading its context, and arithmetic on it.
static uint64_t block_work(const struct kv_batch *batch, const struct block *block)
{
    return (uint64_t)block->seen * (block->row_count * batch->store->group_heads + 8);
}

// How much of its context the block attends to.
static void plan_context(const struct kv_batch *batch, struct block *block)
{
    const struct kv_store *store = batch->store;
    uint32_t bounds = 0;

    block->seen = block_limit(batch, block);
    if (block->sparse) {
        const struct attend_choice choice = choice_of(batch, block->first_row);
        bounds = choice.last - choice.first;
        block->seen -= (bounds - choice.keep) * ATTEND_TILE;
    }
    block->range_count = (block->seen + ATTEND_RANGE - 1) / ATTEND_RANGE;
    block->bytes_read = (block->seen + ATTEND_TILE - 1) / ATTEND_TILE * store->tile_bytes * store->shape.kv_heads +
                        (uint64_t)bounds * store->bounds_width * sizeof(uint16_t) * store->shape.kv_heads;
    for (uint32_t row = 0; row < block->row_count; row++)
        block->tokens_read += block->sparse ? block->seen : batch->positions[block->first_row + row] + 1u;
}

static void plan_units(struct kv_batch *batch)
{
    struct kv_store *store = batch->store;
    uint32_t kv_heads = store->shape.kv_heads, partial_lines = 0;
    uint64_t work = 0, threads = thread_pool_threads(store->pool);

    for (uint32_t i = 0; i < batch->block_count; i++) {
        plan_context(batch, &batch->blocks[i]);
        work += block_work(batch, &batch->blocks[i]) * kv_heads;
    }
    for (uint32_t i = 0; i < batch->block_count; i++) {
        struct block *block = &batch->blocks[i];
        uint32_t lines = block->row_count * store->group_heads;
        uint64_t wanted = (uint64_t)kv_heads * block->range_count * lines;
        uint32_t units_left = store->unit_capacity - batch->unit_count - (batch->block_count - i);
        if (block->range_count > 1 && !block->sparse && block_work(batch, block) * threads * KV_UNITS_PER_THREAD > work &&
            wanted <= store->partial_lines - partial_lines && block->range_count <= units_left) {
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

    batch->row_count = batch->block_count = batch->piece_count = batch->unit_count = batch->split_count = 0;
    batch->layers_done = 0;
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

// --- attend ---

// A thread's scratch, for the lines of one block.
struct scratch {
    struct attend_partial total, part; // of all ranges so far; of one range
    float *q, *sums, *scores;
    uint32_t *limits;
    // of a sparse row
    float *bound_q, *bounds; // [2][head_dim]; [candidates] of q·k
    uint32_t *chosen;        // tiles that it attends to, ascending
};

static struct scratch scratch_of(const struct kv_store *store, uint32_t thread_index)
{
    size_t lines = (size_t)MIN(store->block_rows, store->max_rows) * store->group_heads, head_dim = store->shape.head_dim;
    float *at = store->scratch + thread_index * store->scratch_floats;
    struct scratch scratch;

    scratch.q = at, at += lines * head_dim;
    scratch.total.acc = at, at += lines * head_dim;
    scratch.part.acc = at, at += lines * head_dim;
    scratch.sums = at, at += lines * ATTEND_TILE;
    scratch.scores = at, at += ATTEND_SCORES;
    scratch.total.m = at, at += lines;
    scratch.total.l = at, at += lines;
    scratch.part.m = at, at += lines;
    scratch.part.l = at, at += lines;
    scratch.limits = (uint32_t *)at, at += lines;
    scratch.bound_q = at, at += 2 * head_dim;
    scratch.bounds = at, at += kv_sparse_tiles(&store->shape);
    scratch.chosen = (uint32_t *)at;
    return scratch;
}

static struct attend_partial partial_from(const struct kv_store *store, const struct attend_partial *base, size_t line)
{
    return (struct attend_partial){base->m + line, base->l + line, base->acc + line * store->shape.head_dim};
}

// Where a split block keeps a range's partials.
static struct attend_partial split_partial(const struct kv_store *store, const struct block *block, uint32_t kv_head,
                                           uint32_t range)
{
    size_t lines = (size_t)block->row_count * store->group_heads;
    float *m = store->partials + (size_t)store->partial_lines * store->shape.head_dim;
    const struct attend_partial all = {m, m + store->partial_lines, store->partials};
    return partial_from(store, &all, block->partial + ((size_t)kv_head * block->range_count + range) * lines);
}

// The first line of the block that sees anything of the range.
static uint32_t first_line(const struct kv_batch *batch, const struct block *block, uint32_t range)
{
    uint32_t row = 0;
    while (batch->positions[block->first_row + row] < range * ATTEND_RANGE) // ends: the last row's is not below
        row++;
    return row * batch->store->group_heads;
}

static void load_lines(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, const struct scratch *scratch)
{
    uint32_t heads = batch->store->group_heads, head_dim = batch->store->shape.head_dim;

    for (uint32_t row = 0; row < block->row_count; row++)
        for (uint32_t head = 0; head < heads; head++) {
            size_t line = (size_t)row * heads + head;
            batch->store->kernels->load_q((enum attend_type)batch->store->shape.type, head_dim,
                                          batch->q[block->first_row + row] + (size_t)(kv_head * heads + head) * head_dim,
                                          scratch->q + line * head_dim);
            scratch->limits[line] = block->sparse ? block->seen : batch->positions[block->first_row + row] + 1;
        }
}

// Compares the bounds of the candidates with the row's q.
static void score_candidates(const struct kv_batch *batch, const struct block *block, const struct attend_choice *choice,
                             uint32_t kv_head, const struct scratch *scratch)
{
    enum { AT_ONCE = 64 };
    const struct kv_store *store = batch->store;
    const uint32_t *table = kv_ledger_table(&store->ledger, block->slot);
    const uint32_t odd = store->page_tiles - 1; // a page has one tile or two; dividing by that would take a tenth of the time
    const uint16_t *base = kv_bounds(store, batch->layer, kv_head, 0, 0), *bounds[AT_ONCE + ATTEND_AHEAD_BOUNDS];

    for (uint32_t tile = choice->first; tile < choice->last; tile += AT_ONCE) {
        uint32_t count = MIN(choice->last - tile, (uint32_t)ARRAY_COUNT(bounds));
        for (uint32_t i = 0; i < count; i++) {
            uint64_t index = ((uint64_t)table[(tile + i) >> odd] << odd) + ((tile + i) & odd);
            bounds[i] = base + index * store->bounds_width;
        }
        store->kernels->scores(&(struct attend_scores){.head_dim = store->shape.head_dim,
                                                       .count = MIN(count, (uint32_t)AT_ONCE),
                                                       .q = scratch->bound_q,
                                                       .bounds = bounds,
                                                       .bounds_count = count,
                                                       .scores = scratch->bounds + (tile - choice->first)});
    }
}

// Chooses the tiles that a sparse row attends to for one KV head.
static void choose_tiles(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, const struct scratch *scratch)
{
    const struct kv_store *store = batch->store;
    const struct attend_choice choice = choice_of(batch, block->first_row);
    uint32_t heads = store->group_heads, head_dim = store->shape.head_dim, *out = scratch->chosen;

    attend_bound_q(heads, head_dim, batch->q[block->first_row] + (size_t)kv_head * heads * head_dim, scratch->bound_q);
    score_candidates(batch, block, &choice, kv_head, scratch);
    for (uint32_t tile = 0; tile < choice.first; tile++)
        *out++ = tile;
    store->kernels->choose(scratch->bounds, choice.last - choice.first, choice.keep, choice.first, out);
    out += choice.keep;
    for (uint32_t tile = choice.last; tile < choice.tiles; tile++)
        *out++ = tile;
}

// What a thread does after its present unit.
struct next {
    const struct block *block; // NULL: nothing
    uint32_t kv_head, range;
};

// Attends to one range, for the lines from `first` on.
static void attend_range(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, uint32_t range, uint32_t first,
                         bool last, const struct next *next, const struct scratch *scratch, const struct attend_partial *out)
{
    const struct kv_store *store = batch->store;
    const unsigned char *tiles[ATTEND_RANGE_TILES + ATTEND_AHEAD_TILES];
    uint32_t begin = range * ATTEND_RANGE_TILES, count = 0;
    uint32_t end = (block->seen + ATTEND_TILE - 1) / ATTEND_TILE;
    uint32_t stop = MIN(end, begin + ATTEND_RANGE_TILES + (last ? 0 : ATTEND_AHEAD_TILES));

    for (uint32_t tile = begin; tile < stop; tile++)
        tiles[count++] = kv_tile(store, block->slot, batch->layer, kv_head, block->sparse ? scratch->chosen[tile] : tile);
    if (last && next->block) {
        uint32_t from = next->range == KV_NONE ? 0 : next->range * ATTEND_RANGE_TILES;
        uint32_t known = next->block->sparse ? ATTEND_EDGE
                                             : next->block->seen; // which tiles a sparse row chooses behind them is not
        uint32_t until = MIN((known + ATTEND_TILE - 1) / ATTEND_TILE, from + ATTEND_AHEAD_TILES);
        for (uint32_t tile = from; tile < until; tile++)
            tiles[count++] = kv_tile(store, next->block->slot, batch->layer, next->kv_head, tile);
    }
    const struct attend_range call = {
        .type = (enum attend_type)store->shape.type,
        .head_dim = store->shape.head_dim,
        .line_count = block->row_count * store->group_heads - first,
        .begin = range * ATTEND_RANGE,
        .limit = scratch->limits + first,
        .q = scratch->q + (size_t)first * store->shape.head_dim,
        .tiles = tiles,
        .tile_count = count,
        .m = out->m,
        .l = out->l,
        .acc = out->acc,
        .sums = scratch->sums,
        .scores = scratch->scores,
    };
    store->kernels->range(&call);
}

static void write_outputs(const struct kv_batch *batch, const struct block *block, uint32_t kv_head,
                          const struct attend_partial *total)
{
    uint32_t heads = batch->store->group_heads, head_dim = batch->store->shape.head_dim;

    for (uint32_t row = 0; row < block->row_count; row++) {
        float *o = batch->o[block->first_row + row];
        for (uint32_t head = 0; o && head < heads; head++) {
            size_t line = (size_t)row * heads + head;
            attend_finish(head_dim, total->acc + line * head_dim, total->l[line], o + (size_t)(kv_head * heads + head) * head_dim);
        }
    }
}

static void attend_unit(const struct kv_batch *batch, const struct unit *unit, uint32_t kv_head, const struct next *next,
                        const struct scratch *scratch)
{
    const struct kv_store *store = batch->store;
    const struct block *block = &batch->blocks[unit->block];
    uint32_t lines = block->row_count * store->group_heads;

    load_lines(batch, block, kv_head, scratch);
    if (block->sparse)
        choose_tiles(batch, block, kv_head, scratch);
    if (unit->range != KV_NONE) {
        uint32_t first = first_line(batch, block, unit->range);
        struct attend_partial all = split_partial(store, block, kv_head, unit->range), out = partial_from(store, &all, first);
        attend_range(batch, block, kv_head, unit->range, first, true, next, scratch, &out);
        return;
    }
    for (uint32_t range = 0; range < block->range_count; range++) {
        uint32_t first = first_line(batch, block, range);
        bool last = range + 1 == block->range_count;
        attend_range(batch, block, kv_head, range, first, last, next, scratch, range ? &scratch->part : &scratch->total);
        if (range) {
            struct attend_partial into = partial_from(store, &scratch->total, first);
            store->kernels->fold(lines - first, store->shape.head_dim, &into, &scratch->part);
        }
    }
    write_outputs(batch, block, kv_head, &scratch->total);
}

static void fold_split(const struct kv_batch *batch, const struct block *block, uint32_t kv_head)
{
    const struct kv_store *store = batch->store;
    struct attend_partial total = split_partial(store, block, kv_head, 0);

    for (uint32_t range = 1; range < block->range_count; range++) {
        uint32_t first = first_line(batch, block, range);
        struct attend_partial all = split_partial(store, block, kv_head, range);
        struct attend_partial into = partial_from(store, &total, first), part = partial_from(store, &all, first);
        store->kernels->fold(block->row_count * store->group_heads - first, store->shape.head_dim, &into, &part);
    }
    write_outputs(batch, block, kv_head, &total);
}

// K and V of the piece's rows into their tile, and its bounds once it is full; the outputs of rows that lost their sequence become 0.
static void store_piece(const struct kv_batch *batch, const struct piece *piece)
{
    const struct kv_store *store = batch->store;
    const struct block *block = &batch->blocks[piece->block];
    uint32_t head_dim = store->shape.head_dim, end = piece->first_row + piece->row_count;
    uint32_t tile = batch->positions[piece->first_row] / ATTEND_TILE;
    bool is_full = batch->positions[end - 1] % ATTEND_TILE == ATTEND_TILE - 1;

    for (uint32_t row = piece->first_row; row < end; row++) {
        if (!block->alive) {
            if (batch->o[row])
                memset(batch->o[row], 0, (size_t)store->shape.heads * head_dim * sizeof(float));
            continue;
        }
        for (uint32_t head = 0; head < store->shape.kv_heads; head++)
            store->kernels->store((enum attend_type)store->shape.type, head_dim, batch->k[row] + (size_t)head * head_dim,
                                  batch->v[row] + (size_t)head * head_dim, kv_tile(store, block->slot, batch->layer, head, tile),
                                  batch->positions[row] % ATTEND_TILE);
    }
    for (uint32_t head = 0; is_full && block->alive && store->bounds_width && head < store->shape.kv_heads; head++)
        kv_bounds_write(store, block->slot, batch->layer, head, tile);
}

// Claims the next unit whose block is wanted. False: none is left.
static bool claim_unit(const struct kv_batch *batch, const struct unit **unit, struct next *next)
{
    uint32_t kv_heads = batch->store->shape.kv_heads;

    for (uint32_t item; (item = thread_pool_claim(batch->store->pool)) < batch->unit_count * kv_heads;) {
        *unit = &batch->units[item / kv_heads];
        *next = (struct next){&batch->blocks[(*unit)->block], item % kv_heads, (*unit)->range};
        if (next->block->wanted)
            return true;
    }
    next->block = NULL;
    return false;
}

static void attend_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    const struct kv_batch *batch = arg;
    const struct kv_store *store = batch->store;
    const struct scratch scratch = scratch_of(store, thread_index);
    const struct unit *unit = NULL, *next_unit = NULL;
    struct next now, next;
    bool more;

    (void)thread_count;
    for (uint32_t item; (item = thread_pool_claim(store->pool)) < batch->piece_count;)
        store_piece(batch, &batch->pieces[item]);
    thread_pool_barrier(store->pool);
    for (more = claim_unit(batch, &unit, &now); more; now = next, unit = next_unit) {
        more = claim_unit(batch, &next_unit, &next);
        attend_unit(batch, unit, now.kv_head, &next, &scratch);
    }
    if (!batch->split_count)
        return;
    thread_pool_barrier(store->pool);
    for (uint32_t item; (item = thread_pool_claim(store->pool)) < batch->split_count * store->shape.kv_heads;) {
        const struct block *block = &batch->blocks[batch->splits[item / store->shape.kv_heads]];
        if (block->wanted)
            fold_split(batch, block, item % store->shape.kv_heads);
    }
}

void kv_batch_attend(struct kv_batch *batch, uint32_t layer, const float *const *q, const float *const *k, const float *const *v,
                     float *const *o)
{
    struct kv_store *store = batch->store;
    uint64_t start_ns = clock_now_ns();

    assert_always(layer < store->shape.layers);
    if (!batch->row_count)
        return;
    batch->layer = layer;
    batch->q = q, batch->k = k, batch->v = v, batch->o = o;
    for (uint32_t i = 0; i < batch->block_count; i++) {
        struct block *block = &batch->blocks[i];
        block->alive = kv_ledger_is_current(&store->ledger, block->slot, block->generation);
        block->wanted = false;
        for (uint32_t row = 0; block->alive && row < block->row_count; row++)
            block->wanted |= o[block->first_row + row] != NULL;
        store->stats.bytes_read += block->wanted ? block->bytes_read : 0;
        store->stats.tokens_read += block->wanted ? block->tokens_read : 0;
    }
    thread_pool_run(store->pool, attend_job, batch);
    if (layer == batch->layers_done)
        batch->layers_done++;
    if (layer + 1 == store->shape.layers && batch->layers_done == store->shape.layers)
        for (uint32_t i = 0; i < batch->block_count; i++) {
            struct kv_sequence *sequence = &store->ledger.sequences[batch->blocks[i].slot];
            if (batch->blocks[i].alive)
                sequence->complete = MAX(sequence->complete, block_limit(batch, &batch->blocks[i]));
        }
    store->stats.rows += batch->row_count;
    store->stats.attend_ns += clock_now_ns() - start_ns;
}
