// sched_micro_batch.c: how many prefill rows a step has.
//
// With one s-part a step may take as long as its target allows (sched_chunk.c). In a pipeline a step that takes longer than those before
// and behind it leaves stages idle, so all of them are to have the same number of rows U (SARATHI, arXiv 2308.16369): a step of d decode
// rows has U - d prefill rows. Contexts are evened out between mini-batches by admission and by sched_balance.c.
//
// U follows from the observed ratio P:D of prompt to generated tokens. With n sequences in each mini-batch, of which one is in prefill, a
// chunk of C = P:D·(n - 1) rows beside n - 1 decode rows ends prompts as fast as sequences end, so every step has prefill and none has more
// than another:
//
//     U = (1 + P:D)·(n - 1),  as a multiple of the tile, at most what the step's time target allows
//
// That holds while sequences wait. While none does there are not always prompts, so steps cannot be equal: then prompts get what the
// target allows, and their first tokens come sooner. --chunk sets U instead.
//
// Example: prompts are ten times as long as answers, 27 sequences are in each mini-batch: U = 11·26 = 286 rows, 288 with a tile of 8: 26
// decode rows and a chunk of 262. A prompt of 2,000 tokens takes 8 steps, while 208 tokens are generated beside it, as much as one answer.
#include "common/sched/sched_micro_batch.h"

#include "common/sched/sched_state.h"

// Returns the most rows, a multiple of the tile, with which a round of all mini-batches keeps to the target beside n decode rows each.
static uint32_t timely_rows(const struct sched *s, enum sched_class class, double n, uint32_t decoding)
{
    uint32_t tile = s->config.tile_rows, batches = s->batches.in_use;
    uint32_t most = MIN((uint32_t)n + sched_chunk_max(s), s->s_part.rows_max);
    double tried = 2 * s->time.layers.rows_seen; // as in sched_chunk.c: the line may be wrong out there
    if (decoding == 0)
        return most;
    if (s->time.layers.rows_seen == 0)
        return MIN(most, (uint32_t)n + TUNE_MICRO_BATCH_FIRST_TILES * tile);
    double most_us = sched_chunk_target_us(s, class, decoding, batches * sched_time_slowest_us(s, MAX(n, 1), MAX(n, 1)));
    uint32_t low = 0, high = most / tile; // tiles
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        double rows = middle * tile;
        bool timely = batches * sched_time_slowest_us(s, rows, n) <= most_us && rows <= MAX(tried, tile);
        *(timely ? &low : &high) = timely ? middle : middle - 1;
    }
    return MAX(low, 1) * tile;
}

// Returns how many sequences will run once as many as may have started: those of now would only keep their own number up.
static double running_then(const struct sched *s, enum sched_class class)
{
    const struct sched_lengths *l = &s->load.of[class].lengths;
    double most = (double)sched_class_sum(s->running, class) + sched_class_sum(s->queue.count, class), tokens = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        tokens += place->up && !place->draining ? (double)place->pages_total * s->config.page_tokens : 0;
    }
    return MIN(MIN(most, s->config.max_running), tokens * l->tokens / MAX(l->context_tokens, 1));
}

// Chooses U.
static uint32_t choose(const struct sched *s, enum sched_class class)
{
    const struct sched_lengths *l = &s->load.of[class].lengths;
    uint32_t tile = s->config.tile_rows, decoding = 0;
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        decoding += s->batches.of[m].of[class].member_count;
    uint32_t most = timely_rows(s, class, (double)decoding / s->batches.in_use, decoding);
    if (sched_class_sum(s->queue.count, class) == 0 || l->tokens <= 0)
        return most;
    double rows = (1 + l->prompt_tokens / l->tokens) * MAX(running_then(s, class) / s->batches.in_use - 1, 1);
    return MIN(most, ((uint32_t)rows / tile + 1) * tile);
}

// Judges U anew after some steps, or at once if sequences have begun or ceased to wait; a small change does not count.
static uint32_t uniform_rows(struct sched *s, enum sched_class class)
{
    struct sched_micro_batches *u = &s->micro_batches[class];
    bool saturated = sched_class_sum(s->queue.count, class) > 0;
    if (s->config.chunk_tokens != 0)
        return s->config.chunk_tokens;
    if (u->rows != 0 && u->saturated == saturated &&
        s->stats.steps < u->judged + TUNE_MICRO_BATCH_JUDGE_STEPS * (uint64_t)s->batches.in_use)
        return u->rows;
    uint32_t rows = choose(s, class);
    double change = u->rows == 0 ? 1 : rows > u->rows ? (double)rows / u->rows - 1 : (double)u->rows / rows - 1;
    if (change > TUNE_MICRO_BATCH_CHANGE)
        u->rows = rows;
    u->judged = s->stats.steps;
    u->saturated = saturated;
    return u->rows;
}

// A prompt goes into a step whole, if the step has rows for it; short ones go together.
static uint32_t whole_rows(const struct sched *s, const struct sched_group *group, uint32_t decode_rows)
{
    uint32_t most = s->s_part.rows_max - decode_rows, slot = group->prefill_head;
    while (slot != NONE && sched_place_blocks(s, &s->seqs[slot]))
        slot = s->cold[slot].batch.next;
    uint32_t first = slot == NONE ? 0 : s->seqs[slot].target - s->seqs[slot].next_pos;
    return MIN(MAX(first, sched_chunk_max(s)), most);
}

uint32_t sched_micro_batch_prefill(struct sched *s, enum sched_class class, const struct sched_group *group, uint32_t decode_rows)
{
    if (s->config.micro_batch == SCHED_MICRO_BATCH_AUTO)
        return sched_chunk_rows(s, class, group, decode_rows);
    if (s->config.micro_batch == SCHED_MICRO_BATCH_WHOLE)
        return whole_rows(s, group, decode_rows);
    uint32_t rows = MIN(uniform_rows(s, class), s->s_part.rows_max), least = sched_chunk_least(s);
    if (rows < decode_rows + least) // prompts must go on
        rows = MIN(decode_rows + least, s->s_part.rows_max);
    return rows - decode_rows;
}

bool sched_micro_batch_takes(const struct sched *s, const struct sched_flight *step, const struct sched_seq *seq, uint32_t left)
{
    return s->config.micro_batch != SCHED_MICRO_BATCH_WHOLE || step->prefill_rows == 0 || seq->target - seq->next_pos <= left;
}

uint32_t sched_micro_batch_most(const struct sched *s, const struct sched_flight *step)
{
    if (s->config.micro_batch != SCHED_MICRO_BATCH_UNIFORM)
        return s->s_part.rows_max;
    uint32_t rows = s->config.chunk_tokens != 0 ? s->config.chunk_tokens : s->micro_batches[step->class].rows;
    return MIN(MAX(rows, step->row_count), s->s_part.rows_max);
}
