// kv_choose.c: see kv_choose.h.
#include "common/kv/kv_choose.h"

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
static void choose(const struct kv_store *store, const struct attend_choice *choice, float *scores, uint32_t *out)
{
    for (uint32_t tile = 0; tile < choice->first; tile++)
        *out++ = tile;
    store->kernels->choose(scores, choice->last - choice->first, choice->keep, choice->first, out);
    out += choice->keep;
    for (uint32_t tile = choice->last; tile < choice->tiles; tile++)
        *out++ = tile;
}

void kv_choose_alone(const struct kv_batch *batch, const struct block *block, uint32_t kv_head, const struct kv_choosing *scratch)
{
    const struct attend_choice choice = kv_row_choice(batch, block->first_row);

    score_candidates(batch, block, &choice, kv_head, choice.first, choice.last, scratch);
    choose(batch->store, &choice, scratch->scores, scratch->chosen);
}

// --- rows that are split ---

// Index of a row and KV head among those of the split rows.
static uint32_t choice_index(const struct kv_batch *batch, const struct block *block, uint32_t kv_head)
{
    return block->choice * batch->store->shape.kv_heads + kv_head;
}

static float *scores_of(const struct kv_store *store, uint32_t index)
{
    return store->choices + (size_t)index * kv_choice_floats(&store->shape);
}

static uint32_t *chosen_of(const struct kv_store *store, uint32_t index)
{
    return (uint32_t *)(scores_of(store, index) + kv_sparse_tiles(&store->shape));
}

static uint32_t share_count(const struct kv_batch *batch, const struct block *block)
{
    const struct attend_choice choice = kv_row_choice(batch, block->first_row);
    return (choice.last - choice.first + KV_SHARE_TILES - 1) / KV_SHARE_TILES;
}

void kv_choose_begin(const struct kv_batch *batch)
{
    const struct kv_store *store = batch->store;

    for (uint32_t i = 0; i < batch->choice_count; i++) {
        const struct block *block = &batch->blocks[batch->choices[i]];
        for (uint32_t head = 0; head < store->shape.kv_heads; head++) // relaxed: the start of the job publishes it
            atomic_store_explicit(&store->shares_left[choice_index(batch, block, head)], share_count(batch, block),
                                  memory_order_relaxed);
    }
}

uint32_t kv_choose_shares(const struct kv_batch *batch)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < batch->choice_count; i++)
        most = MAX(most, share_count(batch, &batch->blocks[batch->choices[i]]));
    return batch->choice_count * batch->store->shape.kv_heads * most;
}

void kv_choose_share(const struct kv_batch *batch, uint32_t share, const struct kv_choosing *scratch)
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
                     &(struct kv_choosing){.bound_q = scratch->bound_q, .scores = scores_of(store, index)});
    // release: this share's scores; acquire: the others'
    if (atomic_fetch_sub_explicit(&store->shares_left[index], 1, memory_order_acq_rel) == 1)
        choose(store, &choice, scores_of(store, index), chosen_of(store, index));
}

const uint32_t *kv_choose_chosen(const struct kv_batch *batch, const struct block *block, uint32_t kv_head)
{
    return chosen_of(batch->store, choice_index(batch, block, kv_head));
}
