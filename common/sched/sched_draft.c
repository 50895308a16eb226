// sched_draft.c: rows of tokens that are guessed.
//
// A small batch reads all weights for a few rows, and more rows cost little: a token that is guessed can be computed behind the
// row that samples it, and counts if it is what was sampled (speculative decoding, Leviathan et al., arXiv 2211.17192). Who
// guesses is not known here, only how many tokens and how often they are right (config.drafts).
//
// Of n sequences the i-th gets t_i = 1 + p + p² … tokens of a step with its row and its drafts, each right with chance p. All
// together d drafts make a step last T(n + d) + gap instead of T(n): the s-part's work by rows, and what else a step takes. The gap
// is there because a step with drafts waits for the answer to the one before, which says what follows; otherwise it is at the
// s-part already. So they gain
//
//     (Π t_i)^(1/n) · T(n) / (T(n + d) + gap)
//
// The product, not the sum, counts what a draft brings to a slow one for more than to a fast one (proportional fairness, Kelly
// 1997). And who has no drafts waits for those of the others: nobody is to get a token more than a tenth later than without. Drafts
// are added in the order of what they bring, and the best number of them is taken. Whether to wait at all is decided by the smoothed
// gain, of steps that did and of those that did not.
//
// Example: T(1) = 3.0 ms, T(2) = 3.2, T(4) = 3.9, a gap of 0.1 and p = 0.8: three drafts give 2.95 tokens in 4.0 ms, 2.2 times as
// many as one in 3.0. With p = 0.2 one draft gives 1.2 in 3.3 ms, 1.09 times; with 32 rows, of which each adds a 32nd to T, nothing.
#include <math.h>

#include "common/sched/sched_state.h"

// One sequence's guess.
struct guess {
    uint32_t count, taken;
    double chance, next; // next: of the first that is not taken, with all before it
    double tokens;       // expected, of the row and what is taken
    bool runs;           // it has a row
};

static void line_learn(struct sched_draft_line *line, double x, double y)
{
    *line = (struct sched_draft_line){TUNE_DRAFT_FORGET * line->count + 1, TUNE_DRAFT_FORGET * line->x + x,
                                      TUNE_DRAFT_FORGET * line->y + y, TUNE_DRAFT_FORGET * line->xx + x * x,
                                      TUNE_DRAFT_FORGET * line->xy + x * y};
}

// Where all points have about the same x, as if y grew with it from 0 on: drafts are not taken for cheaper than rows were.
static double line_at(const struct sched_draft_line *line, double x)
{
    if (line->count == 0)
        return 0;
    double mean_x = line->x / line->count, mean_y = line->y / line->count, spread = line->xx / line->count - mean_x * mean_x;
    double slope = mean_y / mean_x;
    if (spread > TUNE_DRAFT_SPREAD * mean_x * mean_x)
        slope = MIN(MAX((line->xy / line->count - mean_x * mean_y) / spread, 0), slope);
    return mean_y + slope * (x - mean_x);
}

// From one step of the mini-batch to the next.
static double step_us(const struct sched *s, const struct sched_draft *d, double rows, double gap_us)
{
    struct sched_round round = {.s_part_us = sched_time_s_part_us(s, rows, rows)};
    sched_round_add(&round, false, 0, line_at(&d->other, rows) + gap_us);
    return sched_round_us(&round, s->batches.in_use);
}

// Guessed tokens that a sequence's row may have behind it: what it may generate but for the one that is sampled after them.
static uint32_t room(const struct sched *s, const struct sched_batch *b, const struct sched_seq *q)
{
    uint32_t tokens = q->known + q->samples + 1;
    // Rows in flight though its mini-batch has none: it has come from another.
    if (tokens >= q->limit || (q->in_flight > 0 && b->in_flight_count == 0))
        return 0;
    return MIN(q->limit - tokens, s->config.draft_tokens);
}

// How many rows the members will have without drafts, and what is guessed of each.
static uint32_t ask(const struct sched *s, const struct sched_batch *b, struct guess *guesses)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < b->member_count; i++) {
        const struct sched_seq *q = &s->seqs[b->members[i]];
        guesses[i] = (struct guess){.tokens = 1};
        if (q->known + q->samples >= q->limit || sched_place_blocks(s, q))
            continue;
        rows++;
        guesses[i].runs = true;
        uint32_t most = room(s, b, q);
        if (most > 0)
            guesses[i].count = MIN(s->config.drafts(s->config.user, q->id, most, &guesses[i].chance), most);
        guesses[i].next = guesses[i].chance;
    }
    return rows;
}

// Whose next draft brings most.
static struct guess *best_next(struct guess *guesses, uint32_t count)
{
    struct guess *best = NULL;
    for (uint32_t i = 0; i < count; i++) {
        struct guess *g = &guesses[i];
        if (g->taken < g->count && (best == NULL || g->next * best->tokens > best->next * g->tokens))
            best = g;
    }
    return best;
}

// That any one gets of the step.
static double least_tokens(const struct guess *guesses, uint32_t count)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < count; i++)
        least = guesses[i].runs ? MIN(least, guesses[i].tokens) : least;
    return least;
}

// The best number of drafts of each; returns what they gain.
static double choose(const struct sched *s, const struct sched_batch *b, const struct sched_draft *d, uint8_t *drafts)
{
    struct guess guesses[TUNE_DRAFT_SEQUENCES_MAX];
    uint32_t rows = ask(s, b, guesses), most = rows < s->s_part.rows_max ? s->s_part.rows_max - rows : 0;
    double gap_us = d->gap_us > 0 ? d->gap_us : TUNE_DRAFT_GAP_US, logs = 0;
    if (rows == 0)
        return 0;
    double plain_us = step_us(s, d, rows, 0), best = plain_us / step_us(s, d, rows, gap_us);
    double most_us = MAX(s->config.step_target_us, TUNE_DRAFT_STEP_MAX * plain_us);
    struct guess *next;
    for (uint32_t drafted = 1; drafted <= most && (next = best_next(guesses, b->member_count)) != NULL; drafted++) {
        logs += log(1 + next->next / next->tokens);
        next->tokens += next->next;
        next->next *= next->chance;
        next->taken++;
        double us = step_us(s, d, rows + drafted, gap_us), gain = exp(logs / rows) * plain_us / us;
        if (us > most_us)
            break;
        if (gain <= best || us > TUNE_DRAFT_SLOWEST * plain_us * least_tokens(guesses, b->member_count))
            continue;
        best = gain;
        for (uint32_t i = 0; i < b->member_count; i++)
            drafts[i] = (uint8_t)guesses[i].taken;
    }
    return best;
}

// Whether drafts of all would pay if they were right for certain: where rows cost as much as tokens are worth, nobody is asked.
static bool could_pay(const struct sched *s, const struct sched_batch *b, const struct sched_draft *d)
{
    double rows = b->member_count;
    return 2 * step_us(s, d, rows, 0) > TUNE_DRAFT_WORTH * step_us(s, d, 2 * rows, 0);
}

uint32_t sched_draft_fit(struct sched *s, struct sched_seq *q, uint32_t drafts)
{
    while (q->next_pos + drafts >= (uint64_t)q->pages * s->config.page_tokens) {
        if (sched_place_fits(sched_place_of(s, q), 1, false) && sched_prefix_grow(s, q))
            continue;
        return q->pages * s->config.page_tokens - q->next_pos - 1;
    }
    return drafts;
}

bool sched_draft_plan(struct sched *s, uint32_t mini_batch, uint8_t *drafts)
{
    const struct sched_batch *b = &s->batches.of[mini_batch];
    struct sched_draft *d = &s->drafts[mini_batch];
    for (uint32_t i = 0; i < TUNE_DRAFT_SEQUENCES_MAX; i++)
        drafts[i] = 0;
    if (b->in_flight_count > 0 && b->in_flight[b->in_flight_count - 1]->draft_rows > 0)
        return false; // where their sequences will be is not known
    // Rows beside prompts are the prompts': they are wanted for certain.
    if (s->config.drafts == NULL || !s->s_part.rows_alike || b->prefill_count > 0 || b->member_count == 0 ||
        b->member_count > TUNE_DRAFT_SEQUENCES_MAX || s->time.layers.rows_seen == 0 || !could_pay(s, b, d)) {
        d->drafting = false;
        return true;
    }
    if (b->in_flight_count > 0 && d->drafting)
        return false;
    double gain = choose(s, b, d, drafts);
    if (gain > 0)
        d->gain += (d->gain > 0 ? TUNE_DRAFT_GAIN : 1) * (gain - d->gain);
    d->drafting = d->gain > TUNE_DRAFT_WORTH;
    bool waits = b->in_flight_count > 0; // then what was guessed follows what is being sampled
    bool probes = !waits && s->stats.steps / s->batches.in_use % TUNE_DRAFT_PROBE_STEPS == 0;
    for (uint32_t i = 0; (waits || probes) && i < TUNE_DRAFT_SEQUENCES_MAX; i++)
        drafts[i] = 0;
    return !(waits && d->drafting);
}

void sched_draft_init(struct sched *s)
{
    for (uint32_t m = 0; m < SCHED_MINI_BATCHES_MAX; m++)
        s->drafts[m] = (struct sched_draft){.drafting = false};
}

void sched_draft_learn(struct sched *s, const struct sched_flight *step, const struct sched_step_done *done)
{
    struct sched_draft *d = &s->drafts[step->mini_batch];
    if (done->total_us == 0 || done->s_part_us == 0 || step->prefill_rows > 0)
        return;
    double other_us = done->total_us > done->s_part_us ? done->total_us - done->s_part_us : 0;
    line_learn(&d->other, step->row_count, other_us);
    double away_us = (double)(s->now_us - step->emitted_us);
    if (step->queued || away_us <= done->total_us)
        return;
    double gap_us = away_us - done->total_us; // one may be disturbed, and others come only while drafts pay
    d->gap_us = d->gap_us > 0 ? d->gap_us + TUNE_DRAFT_GAIN * (MIN(gap_us, 2 * d->gap_us) - d->gap_us)
                              : MIN(gap_us, 4 * TUNE_DRAFT_GAP_US);
}
