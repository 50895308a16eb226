// kv_attend.c: attention of a planned mini-batch (kv_internal.h) on the pool of threads.
#include <string.h>

#include "common/base/clock.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/kv/kv_internal.h"

// --- the tiles that sparse rows attend to ---

#define KV_SHARE_TILES 256u

// A thread's scratch for the choice of one row and KV head.
struct kv_choosing {
    float *bound_q;   // [2][head_dim]
    float *scores;    // [candidates] of q·k
    uint32_t *chosen; // tiles, ascending
};

// Scores candidates [begin, end): compares their bounds with the row's q.
static void score_candidates(const struct kv_batch *batch, const struct block *block, const struct attend_choice *choice,
                             uint32_t kv_head, uint32_t begin, uint32_t end, const struct kv_choosing *at)
{
    enum { AT_ONCE = 64 };
    const struct kv_store *store = batch->store;
    const uint32_t *table = kv_ledger_table(&store->ledger, block->slot);
    const uint32_t odd = store->page_tiles - 1; // a page has one tile or two; dividing by that would take a tenth of the time
    const uint16_t *base = kv_bounds(store, batch->layer, kv_head, 0, 0), *bounds[AT_ONCE + ATTEND_AHEAD_BOUNDS];
    uint32_t heads = store->group_heads, head_dim = store->shape.head_dim;

    attend_bound_q(heads, head_dim, batch->q[block->first_row] + (size_t)kv_head * heads * head_dim, at->bound_q);
    for (uint32_t tile = begin; tile < end; tile += AT_ONCE) {
        uint32_t count = MIN(end - tile, (uint32_t)ARRAY_COUNT(bounds));
        for (uint32_t i = 0; i < count; i++) {
            uint64_t index = ((uint64_t)table[(tile + i) >> odd] << odd) + ((tile + i) & odd);
            bounds[i] = base + index * store->bounds_width;
        }
        store->kernels->scores(&(struct attend_scores){.head_dim = head_dim,
                                                       .count = MIN(count, (uint32_t)AT_ONCE),
                                                       .q = at->bound_q,
                                                       .bounds = bounds,
                                                       .bounds_count = count,
                                                       .scores = at->scores + (tile - choice->first)});
    }
}

// Lists the tiles at both ends and the best of the candidates.
static void choose_tiles(const struct kv_store *store, const struct attend_choice *choice, float *scores, uint32_t *out)
{
    for (uint32_t tile = 0; tile < choice->first; tile++)
        *out++ = tile;
    store->kernels->choose(scores, choice->last - choice->first, choice->keep, choice->first, out);
    out += choice->keep;
    for (uint32_t tile = choice->last; tile < choice->tiles; tile++)
        *out++ = tile;
}

// Chooses the tiles of a row that is not split, into scratch->chosen.
static void kv_choose_alone(const struct kv_batch *batch, const struct block *block, uint32_t kv_head,
                            const struct kv_choosing *scratch)
{
    const struct attend_choice choice = kv_row_choice(batch, block->first_row);

    score_candidates(batch, block, &choice, kv_head, choice.first, choice.last, scratch);
    choose_tiles(batch->store, &choice, scratch->scores, scratch->chosen);
}

// --- rows that are split ---

// Index of a row and KV head among those of the split rows.
static uint32_t choice_index(const struct kv_batch *batch, const struct block *block, uint32_t kv_head)
{
    return block->choice * batch->store->shape.kv_heads + kv_head;
}

static float *split_scores(const struct kv_store *store, uint32_t index)
{
    return store->choices + (size_t)index * kv_choice_floats(&store->shape);
}

static uint32_t *split_chosen(const struct kv_store *store, uint32_t index)
{
    return (uint32_t *)(split_scores(store, index) + kv_sparse_tiles(&store->shape));
}

static uint32_t share_count(const struct kv_batch *batch, const struct block *block)
{
    const struct attend_choice choice = kv_row_choice(batch, block->first_row);
    return (choice.last - choice.first + KV_SHARE_TILES - 1) / KV_SHARE_TILES;
}

// Prepares a layer; call it before the threads begin.
static void kv_choose_begin(const struct kv_batch *batch)
{
    const struct kv_store *store = batch->store;

    for (uint32_t i = 0; i < batch->choice_count; i++) {
        const struct block *block = &batch->blocks[batch->choices[i]];
        for (uint32_t head = 0; head < store->shape.kv_heads; head++) // relaxed: the start of the job publishes it
            atomic_store_explicit(&store->shares_left[choice_index(batch, block, head)], share_count(batch, block),
                                  memory_order_relaxed);
    }
}

// Returns how many shares all split sparse rows have together. Some of them may be empty.
static uint32_t kv_choose_shares(const struct kv_batch *batch)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < batch->choice_count; i++)
        most = MAX(most, share_count(batch, &batch->blocks[batch->choices[i]]));
    return batch->choice_count * batch->store->shape.kv_heads * most;
}

// Scores one of them, and chooses if it is the last one of its row and KV head. Any thread; a barrier must come before
// kv_choose_chosen().
static void kv_choose_share(const struct kv_batch *batch, uint32_t share, const struct kv_choosing *scratch)
{
    const struct kv_store *store = batch->store;
    uint32_t pairs = batch->choice_count * store->shape.kv_heads, pair = share % pairs, part = share / pairs;
    const struct block *block = &batch->blocks[batch->choices[pair / store->shape.kv_heads]];
    uint32_t kv_head = pair % store->shape.kv_heads, index = choice_index(batch, block, kv_head);
    const struct attend_choice choice = kv_row_choice(batch, block->first_row);
    uint32_t begin = choice.first + part * KV_SHARE_TILES, end = MIN(begin + KV_SHARE_TILES, choice.last);

    if (!block->wanted || begin >= choice.last)
        return;
    score_candidates(batch, block, &choice, kv_head, begin, end,
                     &(struct kv_choosing){.bound_q = scratch->bound_q, .scores = split_scores(store, index)});
    // release: this share's scores; acquire: the others'
    if (atomic_fetch_sub_explicit(&store->shares_left[index], 1, memory_order_acq_rel) == 1)
        choose_tiles(store, &choice, split_scores(store, index), split_chosen(store, index));
}

// Returns what was chosen for a row that is split.
static const uint32_t *kv_choose_chosen(const struct kv_batch *batch, const struct block *block, uint32_t kv_head)
{
    return split_chosen(batch->store, choice_index(batch, block, kv_head));
}

// --- partial results of several places ---

static struct attend_partial partial_at(float *at, uint32_t heads)
{
    return (struct attend_partial){.m = at, .l = at + heads, .acc = at + 2 * (size_t)heads};
}

const float *kv_partials_fold(uint32_t heads, uint32_t head_dim, const struct kv_part *parts, uint32_t count)
{
    const struct attention_kernels *table = attention_of_level(kernels->level);
    const struct attend_partial total = partial_at(parts[0].partials, heads);
    struct attend_partial span = total;

    for (uint32_t i = 0; i < count; i++) {
        float *at = parts[i].partials;
        for (uint32_t position = parts[i].first, end; position < parts[i].end; position = end) {
            const struct attend_partial next = partial_at(at, heads);
            const bool opens = position % KV_SPAN == 0; // then the partial is of all of the span that the place has
            if (opens && position > KV_SPAN)
                table->fold(heads, head_dim, &total, &span);
            if (opens)
                span = next;
            else
                table->fold(heads, head_dim, &span, &next);
            end = MIN(parts[i].end, opens ? position + KV_SPAN : position + KV_RANGE);
            at += kv_partial_floats(heads, head_dim);
        }
    }
    if (parts[count - 1].end > KV_SPAN)
        table->fold(heads, head_dim, &total, &span);
    for (uint32_t head = 0; head < heads; head++)
        attend_finish(head_dim, total.acc + (size_t)head * head_dim, total.l[head], total.acc + (size_t)head * head_dim);
    return total.acc;
}

// A thread's scratch, for the lines of one block.
struct scratch {
    struct attend_partial total, span, part; // of all spans so far; of a later span's ranges so far; of one range
    float *q, *sums, *scores;
    uint32_t *limits, *lowers;
    struct kv_choosing choosing; // of a sparse row
};

static struct scratch scratch_of(const struct kv_store *store, uint32_t thread_index)
{
    size_t lines = (size_t)MIN(store->block_rows, store->max_rows) * store->group_heads, head_dim = store->shape.head_dim;
    float *at = store->scratch + thread_index * store->scratch_floats;
    struct scratch scratch;

    scratch.q = at, at += lines * head_dim;
    scratch.total.acc = at, at += lines * head_dim;
    scratch.span.acc = at, at += lines * head_dim;
    scratch.part.acc = at, at += lines * head_dim;
    scratch.sums = at, at += lines * KV_TILE;
    scratch.scores = at, at += ATTEND_SCORES;
    scratch.total.m = at, at += lines;
    scratch.total.l = at, at += lines;
    scratch.span.m = at, at += lines;
    scratch.span.l = at, at += lines;
    scratch.part.m = at, at += lines;
    scratch.part.l = at, at += lines;
    scratch.limits = (uint32_t *)at, at += lines;
    scratch.lowers = (uint32_t *)at, at += lines;
    scratch.choosing.bound_q = at, at += 2 * head_dim;
    scratch.choosing.scores = at, at += kv_sparse_tiles(&store->shape);
    scratch.choosing.chosen = (uint32_t *)at;
    return scratch;
}

static struct attend_partial partial_from(const struct kv_store *store, const struct attend_partial *base, size_t line)
{
    return (struct attend_partial){.m = base->m + line, .l = base->l + line, .acc = base->acc + line * store->shape.head_dim};
}

// Returns where a split block keeps a range's partials.
static struct attend_partial split_partial(const struct kv_store *store, const struct block *block, uint32_t kv_head,
                                           uint32_t range)
{
    size_t lines = (size_t)block->row_count * store->group_heads;
    float *m = store->partials + (size_t)store->partial_lines * store->shape.head_dim;
    const struct attend_partial all = {.m = m, .l = m + store->partial_lines, .acc = store->partials};
    return partial_from(store, &all, block->partial + ((size_t)kv_head * block->range_count + range) * lines);
}

// The first line of the block that sees anything of the range.
static uint32_t first_line(const struct kv_batch *batch, const struct block *block, uint32_t range)
{
    uint32_t row = 0;
    while (batch->positions[block->first_row + row] < range * KV_RANGE) // ends: the last row's is not below
        row++;
    return row * batch->store->group_heads;
}

// Whether the block's row attends to chosen tiles in this layer.
static bool is_chosen(const struct kv_batch *batch, const struct block *block) { return block->sparse && !batch->windowed; }

static void load_lines(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, const struct scratch *scratch)
{
    uint32_t heads = batch->store->group_heads, head_dim = batch->store->shape.head_dim;

    for (uint32_t row = 0; row < block->row_count; row++)
        for (uint32_t head = 0; head < heads; head++) {
            size_t line = (size_t)row * heads + head;
            batch->store->kernels->load_q(batch->store->shape.type, head_dim,
                                          batch->q[block->first_row + row] + (size_t)(kv_head * heads + head) * head_dim,
                                          scratch->q + line * head_dim);
            scratch->limits[line] = is_chosen(batch, block) ? block->seen : batch->positions[block->first_row + row] + 1;
            scratch->lowers[line] = batch->windowed ? kv_window_first(batch, block->first_row + row) : 0;
        }
}

// The next unit of a thread, after its present one.
struct next {
    const struct block *block; // NULL: nothing
    uint32_t kv_head, range;
};

// Returns the tiles that a sparse row attends to, once they are chosen; NULL for a dense one, which attends to all in order.
static const uint32_t *chosen_of(const struct kv_batch *batch, const struct block *block, uint32_t kv_head,
                                 const struct scratch *scratch)
{
    if (!is_chosen(batch, block))
        return NULL;
    return block->partial == KV_NONE ? scratch->choosing.chosen : kv_choose_chosen(batch, block, kv_head);
}

// How many positions the block's last row has before and at its own, those left out by choice not counted.
static uint32_t seen_of(const struct kv_batch *batch, const struct block *block)
{
    return batch->windowed ? kv_block_limit(batch, block) : block->seen;
}

// The first tile that the block reads.
static uint32_t first_tile(const struct kv_batch *batch, const struct block *block)
{
    return batch->windowed ? kv_window_first(batch, block->first_row) / KV_TILE : 0;
}

// Lists the first tiles of what comes next, behind the `count` that there are. Returns how many there are then.
static uint32_t add_next(const struct kv_batch *batch, const struct next *next, const unsigned char **tiles, uint32_t count)
{
    const struct block *block = next->block;
    bool has_chosen = is_chosen(batch, block) && block->partial != KV_NONE;
    const uint32_t *chosen = has_chosen ? kv_choose_chosen(batch, block, next->kv_head) : NULL;
    uint32_t from = next->range == KV_NONE ? first_tile(batch, block) : next->range * KV_RANGE_TILES;
    uint32_t known = is_chosen(batch, block) && !has_chosen ? ATTEND_EDGE : seen_of(batch, block); // what follows is chosen later
    uint32_t until = MIN((known + KV_TILE - 1) / KV_TILE, from + ATTEND_AHEAD_TILES);

    for (uint32_t tile = from; tile < until; tile++)
        tiles[count++] = kv_tile(batch->store, block->slot, batch->layer, next->kv_head, chosen ? chosen[tile] : tile);
    return count;
}

// Attends to one range, for the lines from `first` up to `until`. Tiles of it before the first one that is read are not touched.
static void attend_lines(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, uint32_t range, uint32_t first,
                         uint32_t until, bool last, const struct next *next, const struct scratch *scratch,
                         const struct attend_partial *out)
{
    const struct kv_store *store = batch->store;
    const unsigned char *tiles[KV_RANGE_TILES + ATTEND_AHEAD_TILES];
    const uint32_t *chosen = chosen_of(batch, block, kv_head, scratch);
    uint32_t begin = range * KV_RANGE_TILES, count = 0, lowest = first_tile(batch, block);
    uint32_t end = (seen_of(batch, block) + KV_TILE - 1) / KV_TILE;
    uint32_t stop = MIN(end, begin + KV_RANGE_TILES + (last ? 0 : ATTEND_AHEAD_TILES));

    for (uint32_t tile = begin; tile < stop; tile++)
        tiles[count++] = kv_tile(store, block->slot, batch->layer, kv_head, chosen ? chosen[tile] : MAX(tile, lowest));
    if (last && next->block)
        count = add_next(batch, next, tiles, count);
    const struct attend_range call = {
        .type = store->shape.type,
        .head_dim = store->shape.head_dim,
        .line_count = until - first,
        .begin = range * KV_RANGE,
        .limit = scratch->limits + first,
        .lower = batch->windowed ? scratch->lowers + first : NULL,
        .soft_cap = store->shape.soft_cap,
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

// The same for the lines from `first` on.
static void attend_range(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, uint32_t range, uint32_t first,
                         bool last, const struct next *next, const struct scratch *scratch, const struct attend_partial *out)
{
    attend_lines(batch, block, kv_head, range, first, block->row_count * batch->store->group_heads, last, next, scratch, out);
}

// Folds the scores without a value, as partials of their own, into those of all lines.
static void fold_sinks(const struct kv_batch *batch, uint32_t kv_head, uint32_t lines, const struct attend_partial *total,
                       const struct scratch *scratch)
{
    const struct kv_store *store = batch->store;
    const struct attend_partial *sink = &scratch->part;

    for (uint32_t line = 0; line < lines; line++) {
        sink->m[line] = batch->sinks[kv_head * store->group_heads + line % store->group_heads];
        sink->l[line] = 1;
    }
    memset(sink->acc, 0, (size_t)lines * store->shape.head_dim * sizeof *sink->acc);
    store->kernels->fold(lines, store->shape.head_dim, total, sink);
}

static void write_outputs(const struct kv_batch *batch, const struct block *block, uint32_t kv_head,
                          const struct attend_partial *total, const struct scratch *scratch)
{
    uint32_t heads = batch->store->group_heads, head_dim = batch->store->shape.head_dim;

    if (batch->sinks && !block->gets_partials)
        fold_sinks(batch, kv_head, block->row_count * heads, total, scratch);
    for (uint32_t row = 0; !block->gets_partials && row < block->row_count; row++) {
        float *o = batch->o[block->first_row + row];
        for (uint32_t head = 0; o && head < heads; head++) {
            size_t line = (size_t)row * heads + head;
            attend_finish(head_dim, total->acc + line * head_dim, total->l[line], o + (size_t)(kv_head * heads + head) * head_dim);
        }
    }
}

// The partial that the range belongs to, of those that the rows get.
static uint32_t partial_of(const struct block *block, uint32_t range)
{
    return kv_partial_count(block->first_range * KV_RANGE, (block->first_range + range + 1) * KV_RANGE) - 1;
}

// Whether the range is the first of what is folded apart from the ranges before it: of a span, or of a partial.
static bool opens(const struct block *block, uint32_t range)
{
    return range == 0 || partial_of(block, range) != partial_of(block, range - 1);
}

// Copies a partial of the lines from `first` on to where their rows want it.
static void put_partial(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, uint32_t index, uint32_t first,
                        const struct attend_partial *partial)
{
    const struct kv_store *store = batch->store;
    uint32_t group = store->group_heads, heads = store->shape.heads, head_dim = store->shape.head_dim;

    for (uint32_t line = first; line < block->row_count * group; line++) {
        float *out = batch->o[block->first_row + line / group];
        uint32_t head = kv_head * group + line % group;
        if (!out)
            continue;
        out += index * kv_partial_floats(heads, head_dim);
        out[head] = partial->m[line];
        out[heads + head] = partial->l[line];
        memcpy(out + 2 * heads + (size_t)head * head_dim, partial->acc + (size_t)line * head_dim, head_dim * sizeof *out);
    }
}

// Ends the span or partial that range number `opened` has opened: folds it into the total, which is the first span itself, or gives it
// to the rows.
static void end_span(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, uint32_t opened,
                     const struct attend_partial *total, const struct attend_partial *span)
{
    const struct kv_store *store = batch->store;
    uint32_t first = first_line(batch, block, opened);
    struct attend_partial into = partial_from(store, total, first), from = partial_from(store, span, first);

    if (block->gets_partials)
        put_partial(batch, block, kv_head, partial_of(block, opened), first, span);
    else if (opened)
        store->kernels->fold(block->row_count * store->group_heads - first, store->shape.head_dim, &into, &from);
}

// Adds what lines [first, until) have in `part` to what they have in `into`; those from `fresh` on have nothing there yet.
static void add_lines(const struct kv_store *store, uint32_t first, uint32_t fresh, uint32_t until,
                      const struct attend_partial *into, const struct attend_partial *part)
{
    uint32_t head_dim = store->shape.head_dim, count = until - MIN(fresh, until);
    struct attend_partial to = partial_from(store, into, first), from = partial_from(store, part, first);

    if (first < fresh)
        store->kernels->fold(MIN(fresh, until) - first, head_dim, &to, &from);
    if (!count)
        return;
    memcpy(into->m + fresh, part->m + fresh, count * sizeof *part->m);
    memcpy(into->l + fresh, part->l + fresh, count * sizeof *part->l);
    memcpy(into->acc + (size_t)fresh * head_dim, part->acc + (size_t)fresh * head_dim,
           (size_t)count * head_dim * sizeof *part->acc);
}

// The first line from `line` on whose window begins at or after a position.
static uint32_t line_from(const struct scratch *scratch, uint32_t line, uint32_t lines, uint32_t position)
{
    while (line < lines && scratch->lowers[line] < position)
        line++;
    return line;
}

// Attends a block in a windowed layer: each line to the ranges that its window reaches into. They are folded in the same two levels as in
// other layers.
static void attend_windowed(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, const struct next *next,
                            const struct scratch *scratch)
{
    const struct kv_store *store = batch->store;
    uint32_t lines = block->row_count * store->group_heads, ranges = (seen_of(batch, block) + KV_RANGE - 1) / KV_RANGE;
    uint32_t span_first = 0, span_fresh = 0;

    for (uint32_t range = scratch->lowers[0] / KV_RANGE, opening = range; range < ranges; range++) {
        uint32_t begin = range * KV_RANGE, first = first_line(batch, block, range);
        uint32_t fresh = line_from(scratch, first, lines, begin), until = line_from(scratch, fresh, lines, begin + KV_RANGE);
        bool last = range + 1 == ranges, opens_span = range == opening || range % KV_SPAN_RANGES == 0;
        struct attend_partial part = partial_from(store, &scratch->part, first);
        attend_lines(batch, block, kv_head, range, first, until, last, next, scratch, &part);
        if (opens_span)
            span_first = first, span_fresh = fresh;
        add_lines(store, first, opens_span ? first : fresh, until, &scratch->span, &scratch->part);
        if (last || (range + 1) % KV_SPAN_RANGES == 0)
            add_lines(store, span_first, span_fresh, until, &scratch->total, &scratch->span);
    }
    write_outputs(batch, block, kv_head, &scratch->total, scratch);
}

static void attend_unit(const struct kv_batch *batch, const struct unit *unit, uint32_t kv_head, const struct next *next,
                        const struct scratch *scratch)
{
    const struct kv_store *store = batch->store;
    const struct block *block = &batch->blocks[unit->block];
    uint32_t lines = block->row_count * store->group_heads;

    load_lines(batch, block, kv_head, scratch);
    if (batch->windowed) {
        attend_windowed(batch, block, kv_head, next, scratch);
        return;
    }
    if (block->sparse && unit->range == KV_NONE)
        kv_choose_alone(batch, block, kv_head, &scratch->choosing);
    if (unit->range != KV_NONE) {
        uint32_t first = first_line(batch, block, unit->range);
        struct attend_partial all = split_partial(store, block, kv_head, unit->range), out = partial_from(store, &all, first);
        attend_range(batch, block, kv_head, unit->range, first, true, next, scratch, &out);
        return;
    }
    for (uint32_t range = 0, opened = 0; range < block->range_count; range++) {
        uint32_t first = first_line(batch, block, range);
        bool last = range + 1 == block->range_count;
        opened = opens(block, range) ? range : opened;
        struct attend_partial into = partial_from(store, opened ? &scratch->span : &scratch->total, first);
        attend_range(batch, block, kv_head, range, first, last, next, scratch, opened == range ? &into : &scratch->part);
        if (opened != range)
            store->kernels->fold(lines - first, store->shape.head_dim, &into, &scratch->part);
        if (last || opens(block, range + 1))
            end_span(batch, block, kv_head, opened, &scratch->total, opened ? &scratch->span : &scratch->total);
    }
    write_outputs(batch, block, kv_head, &scratch->total, scratch);
}

static void fold_split(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, const struct scratch *scratch)
{
    const struct kv_store *store = batch->store;
    const struct attend_partial total = split_partial(store, block, kv_head, 0);
    struct attend_partial span = total;

    for (uint32_t range = 0, opened = 0; range < block->range_count; range++) {
        uint32_t first = first_line(batch, block, range);
        struct attend_partial all = split_partial(store, block, kv_head, range);
        struct attend_partial into = partial_from(store, &span, first), part = partial_from(store, &all, first);
        if (opens(block, range))
            opened = range, span = all;
        else
            store->kernels->fold(block->row_count * store->group_heads - first, store->shape.head_dim, &into, &part);
        if (range + 1 == block->range_count || opens(block, range + 1))
            end_span(batch, block, kv_head, opened, &total, &span);
    }
    write_outputs(batch, block, kv_head, &total, scratch);
}

// K and V of a row, for one KV head, into their tile.
static void store_head(const struct kv_batch *batch, const struct block *block, uint32_t row, uint32_t head)
{
    const struct kv_store *store = batch->store;
    uint32_t head_dim = store->shape.head_dim, position = batch->positions[row];

    store->kernels->store(store->shape.type, head_dim, batch->k[row] + (size_t)head * head_dim,
                          batch->v[row] + (size_t)head * head_dim,
                          kv_tile(store, block->slot, batch->layer, head, position / KV_TILE), position % KV_TILE);
}

// K and V of the piece's rows into their tile, and its bounds once it is full; the outputs of rows that lost their sequence become 0.
static void store_piece(const struct kv_batch *batch, const struct piece *piece)
{
    const struct kv_store *store = batch->store;
    const struct block *block = &batch->blocks[piece->block];
    uint32_t head_dim = store->shape.head_dim, end = piece->first_row + piece->row_count;
    uint32_t tile = batch->positions[piece->first_row] / KV_TILE;
    bool is_full = batch->positions[end - 1] % KV_TILE == KV_TILE - 1;

    for (uint32_t row = piece->first_row; row < end; row++) {
        if (!block->alive) {
            if (batch->o[row] && !block->gets_partials)
                memset(batch->o[row], 0, (size_t)store->shape.heads * head_dim * sizeof(float));
            continue;
        }
        for (uint32_t head = 0; head < store->shape.kv_heads; head++)
            store_head(batch, block, row, head);
    }
    for (uint32_t head = 0; is_full && block->alive && store->bounds_width && head < store->shape.kv_heads; head++)
        kv_bounds_write(store, block->slot, batch->layer, head, tile);
}

// Claims the next unit whose block is wanted, or, joined, is to be stored. False: none is left.
static bool claim_unit(const struct kv_batch *batch, bool joined, struct unit *unit, struct next *next)
{
    uint32_t kv_heads = batch->store->shape.kv_heads, units = batch->windowed ? batch->block_count : batch->unit_count;

    for (uint32_t item; (item = thread_pool_claim(batch->store->pool)) < units * kv_heads;) {
        *unit = batch->windowed ? (struct unit){item / kv_heads, KV_NONE} : batch->units[item / kv_heads];
        *next = (struct next){.block = &batch->blocks[unit->block], .kv_head = item % kv_heads, .range = unit->range};
        if (joined ? next->block->alive : next->block->wanted)
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
    struct unit unit, next_unit;
    struct next now, next;
    bool more;

    (void)thread_count;
    for (uint32_t item; (item = thread_pool_claim(store->pool)) < batch->piece_count;)
        store_piece(batch, &batch->pieces[item]);
    thread_pool_barrier(store->pool);
    if (batch->choice_count && !batch->windowed) {
        for (uint32_t shares = kv_choose_shares(batch), item; (item = thread_pool_claim(store->pool)) < shares;)
            kv_choose_share(batch, item, &scratch.choosing);
        thread_pool_barrier(store->pool);
    }
    for (more = claim_unit(batch, false, &unit, &now); more; now = next, unit = next_unit) {
        more = claim_unit(batch, false, &next_unit, &next);
        attend_unit(batch, &unit, now.kv_head, &next, &scratch);
    }
    if (!batch->split_count || batch->windowed)
        return;
    thread_pool_barrier(store->pool);
    for (uint32_t item; (item = thread_pool_claim(store->pool)) < batch->split_count * store->shape.kv_heads;) {
        const struct block *block = &batch->blocks[batch->splits[item / store->shape.kv_heads]];
        if (block->wanted)
            fold_split(batch, block, item % store->shape.kv_heads, &scratch);
    }
}

// Zeroes the partials of rows that lost their sequence.
static void clear_partials(const struct kv_batch *batch, const struct block *block)
{
    const struct kv_shape *shape = &batch->store->shape;
    uint32_t first = block->first_range * KV_RANGE;

    for (uint32_t row = block->first_row; row < block->first_row + block->row_count; row++)
        if (batch->o[row])
            memset(batch->o[row], 0,
                   kv_partial_count(first, first + batch->positions[row] + 1) * kv_partial_floats(shape->heads, shape->head_dim) *
                       sizeof(float));
}

void kv_batch_sinks(struct kv_batch *batch, const float *sinks) { batch->sinks = sinks; }

// Prepares a layer's job: which rows are still there, and what it will read.
static void begin_layer(struct kv_batch *batch, uint32_t layer, float *const *o)
{
    struct kv_store *store = batch->store;

    assert_always(layer < store->shape.layers);
    store->began_ns = clock_now_ns();
    batch->layer = layer;
    batch->windowed = kv_is_windowed(&store->shape, layer);
    batch->o = o;
    for (uint32_t i = 0; i < batch->block_count; i++) {
        struct block *block = &batch->blocks[i];
        block->alive = kv_ledger_is_current(&store->ledger, block->slot, block->generation);
        block->wanted = false;
        for (uint32_t row = 0; block->alive && row < block->row_count; row++)
            block->wanted |= o[block->first_row + row] != NULL;
        if (!block->alive && block->gets_partials)
            clear_partials(batch, block);
        if (block->wanted) {
            store->stats.bytes_read += batch->windowed ? block->window_bytes_read : block->bytes_read;
            store->stats.tokens_read += batch->windowed ? block->window_tokens_read : block->tokens_read;
        }
    }
}

// Ends a layer: the last one makes positions complete.
static void end_layer(struct kv_batch *batch)
{
    struct kv_store *store = batch->store;

    batch->sinks = NULL;
    if (batch->layer == batch->layers_done)
        batch->layers_done++;
    if (batch->layer + 1 == store->shape.layers && batch->layers_done == store->shape.layers)
        for (uint32_t i = 0; i < batch->block_count; i++) {
            struct kv_sequence *sequence = &store->ledger.sequences[batch->blocks[i].slot];
            if (batch->blocks[i].alive && !batch->blocks[i].reads)
                sequence->complete = MAX(sequence->complete, sequence->first + kv_block_limit(batch, &batch->blocks[i]));
        }
    store->stats.rows += batch->row_count;
    store->stats.attend_ns += clock_now_ns() - store->began_ns;
}

void kv_batch_attend(struct kv_batch *batch, uint32_t layer, const float *const *q, const float *const *k, const float *const *v,
                     float *const *o)
{
    if (!batch->row_count)
        return;
    begin_layer(batch, layer, o);
    batch->q = q, batch->k = k, batch->v = v;
    if (!batch->windowed)
        kv_choose_begin(batch);
    thread_pool_run(batch->store->pool, attend_job, batch);
    end_layer(batch);
}

// --- few rows, in the job of a caller ---

void kv_batch_join_begin(struct kv_batch *batch, uint32_t layer, float *const *o)
{
    const struct kv_shape *shape = &batch->store->shape;

    begin_layer(batch, layer, o);
    for (uint32_t i = 0; i < batch->block_count; i++) {
        const struct block *block = &batch->blocks[i];
        for (uint32_t row = block->first_row; !block->alive && row < block->first_row + block->row_count; row++)
            if (o[row])
                memset(o[row], 0, (size_t)shape->heads * shape->head_dim * sizeof *o[row]);
        for (uint32_t head = 0; head < shape->kv_heads; head++) // relaxed: the job's beginning publishes it
            atomic_store_explicit(&batch->left[i * shape->kv_heads + head], block->range_count, memory_order_relaxed);
    }
}

// Stores what the unit's rows write to the tiles that it reads, then attends.
static void join_unit(const struct kv_batch *batch, const struct unit *unit, uint32_t kv_head, const struct next *next,
                      const struct scratch *scratch)
{
    const struct kv_store *store = batch->store;
    const struct block *block = &batch->blocks[unit->block];

    for (uint32_t row = block->first_row; row < block->first_row + block->row_count; row++) {
        uint32_t position = batch->positions[row];
        if (unit->range != KV_NONE && position / KV_RANGE != unit->range)
            continue;
        store_head(batch, block, row, kv_head);
        if (store->bounds_width && position % KV_TILE == KV_TILE - 1)
            kv_bounds_write(store, block->slot, batch->layer, kv_head, position / KV_TILE);
    }
    if (!block->wanted)
        return;
    attend_unit(batch, unit, kv_head, next, scratch);
    if (unit->range == KV_NONE)
        return;
    // acq_rel: whoever folds has seen the partials of all ranges
    atomic_uint *left = &batch->left[unit->block * store->shape.kv_heads + kv_head];
    if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) == 1)
        fold_split(batch, block, kv_head, scratch);
}

void kv_batch_join(struct kv_batch *batch, uint32_t thread_index, const float *const *q, const float *const *k,
                   const float *const *v)
{
    const struct scratch scratch = scratch_of(batch->store, thread_index);
    struct kv_batch own = *batch; // this thread's rows
    struct unit unit, next_unit;
    struct next now, next;

    if (thread_index == 0)
        batch->store->began_ns = clock_now_ns(); // its phase begins
    own.q = q, own.k = k, own.v = v;
    for (bool more = claim_unit(&own, true, &unit, &now); more; now = next, unit = next_unit) {
        more = claim_unit(&own, true, &next_unit, &next);
        join_unit(&own, &unit, now.kv_head, &next, &scratch);
    }
}

void kv_batch_join_end(struct kv_batch *batch) { end_layer(batch); }
