// draft.c: rows of tokens that are guessed.
//
// A small batch reads all weights for a few rows, so more rows cost little: a guessed token can be computed behind the row that samples
// it, and counts if it is what was sampled (speculative decoding, Leviathan et al., arXiv 2211.17192). The core does not guess: it only
// asks how many tokens can be guessed and how often they are right (config.drafts).
//
// With n sequences the i-th gets t_i = 1 + p + p² … tokens from a step with its row and its drafts, each right with chance p. All d drafts
// together make a step last T(n + d) + gap instead of T(n). The gap is there because a step with drafts waits for the answer to the one
// before, which says what follows; without drafts it is at the s-part already. So drafts gain
//
//     (Π t_i)^(1/n) · T(n) / (T(n + d) + gap)
//
// The product, unlike the sum, values what a draft brings to a slow sequence more than to a fast one (proportional fairness, Kelly
// 1997). Sequences without drafts wait for those of the others, so no sequence may get its tokens more than a tenth later than without
// drafts. Drafts are added in the order of what they bring, and the best number of them is taken. The smoothed gain, of steps with and
// without drafts, decides whether to wait at all.
//
// Example: T(1) = 3.0 ms, T(2) = 3.2, T(4) = 3.9, a gap of 0.1 and p = 0.8: three drafts give 2.95 tokens in 4.0 ms, 2.2 times as
// many as one in 3.0. With p = 0.2 one draft gives 1.2 in 3.3 ms, 1.09 times; with 32 rows, of which each adds a 32nd to T, nothing.
#include <math.h>

#include "common/sched/state.h"

// One sequence's guess.
struct guess {
    uint32_t count, taken;
    double chance, next; // next: that the first one not taken is right, and all before it
    double tokens;       // expected from the row and what is taken
    bool runs;           // it has a row
};

// While all points have about the same x, they say nothing of the slope: the last known one is kept and fades. It starts at 0 and
// ends there, so that drafts are tried, and tried again later: one step with drafts shows what they cost.
static void line_learn(struct sched_draft_line *line, double x, double y)
{
    *line = (struct sched_draft_line){.count = TUNE_DRAFT_FORGET * line->count + 1,
                                      .x = TUNE_DRAFT_FORGET * line->x + x,
                                      .y = TUNE_DRAFT_FORGET * line->y + y,
                                      .xx = TUNE_DRAFT_FORGET * line->xx + x * x,
                                      .xy = TUNE_DRAFT_FORGET * line->xy + x * y,
                                      .slope = TUNE_DRAFT_FADE * line->slope};
    double mean_x = line->x / line->count, mean_y = line->y / line->count, spread = line->xx / line->count - mean_x * mean_x;
    if (spread > TUNE_DRAFT_SPREAD * mean_x * mean_x)
        line->slope = MIN(MAX((line->xy / line->count - mean_x * mean_y) / spread, 0), mean_y / mean_x);
}

static double line_at(const struct sched_draft_line *line, double x)
{
    if (line->count == 0)
        return 0;
    return MAX(line->y / line->count + line->slope * (x - line->x / line->count), 0);
}

// Predicts the time from one step of the mini-batch to its next.
static double step_us(const struct sched *s, const struct sched_draft *d, double rows, double gap_us)
{
    struct sched_round round = sched_time_round(s, rows, rows);
    sched_round_add(&round, false, 0, line_at(&d->other, rows) + gap_us);
    return sched_round_us(&round, s->batches.in_use);
}

// Returns how many guessed tokens a sequence's row may have behind it: all that it may still generate but the one sampled last.
static uint32_t room_for_drafts(const struct sched *s, const struct sched_batch *batch, const struct sched_seq *seq)
{
    uint32_t tokens = seq->known + seq->samples + 1;
    // It has rows in flight but its mini-batch has none: it has come from another.
    if (tokens >= seq->limit || (seq->in_flight > 0 && batch->in_flight_count == 0))
        return 0;
    return MIN(seq->limit - tokens, s->config.draft_tokens);
}

// Asks for guesses for each member; returns how many rows they will have without drafts.
static uint32_t ask_for_drafts(const struct sched *s, const struct sched_batch *batch, const struct sched_group *group,
                               struct guess *guesses)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < group->member_count; i++) {
        const struct sched_seq *seq = &s->seqs[group->members[i]];
        guesses[i] = (struct guess){.tokens = 1};
        if (seq->known + seq->samples >= seq->limit || sched_place_blocks(s, seq))
            continue;
        rows++;
        guesses[i].runs = true;
        uint32_t most = room_for_drafts(s, batch, seq);
        if (most > 0)
            guesses[i].count = MIN(s->config.drafts(s->config.user, seq->id, most, &guesses[i].chance), most);
        guesses[i].next = guesses[i].chance;
    }
    return rows;
}

// Returns the sequence whose next draft brings most; NULL: none has one.
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

// Returns the fewest tokens that any sequence gets from the step.
static double least_tokens(const struct guess *guesses, uint32_t count)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < count; i++)
        least = guesses[i].runs ? MIN(least, guesses[i].tokens) : least;
    return least;
}

// Chooses the best number of drafts of each; returns what they gain.
static double choose_drafts(const struct sched *s, const struct sched_batch *batch, const struct sched_group *group,
                            const struct sched_draft *d, uint8_t *drafts)
{
    struct guess guesses[TUNE_DRAFT_SEQUENCES_MAX];
    uint32_t rows = ask_for_drafts(s, batch, group, guesses), most = rows < s->s_part.rows_max ? s->s_part.rows_max - rows : 0;
    double gap_us = d->gap_us > 0 ? d->gap_us : TUNE_DRAFT_GAP_US, logs = 0;
    if (rows == 0)
        return 0;
    double plain_us = step_us(s, d, rows, 0), best = plain_us / step_us(s, d, rows, gap_us);
    double most_us = MAX(s->config.step_target_us, TUNE_DRAFT_STEP_MAX * plain_us);
    struct guess *next;
    for (uint32_t drafted = 1; drafted <= most && (next = best_next(guesses, group->member_count)) != NULL; drafted++) {
        logs += log(1 + next->next / next->tokens);
        next->tokens += next->next;
        next->next *= next->chance;
        next->taken++;
        double us = step_us(s, d, rows + drafted, gap_us), gain = exp(logs / rows) * plain_us / us;
        if (us > most_us)
            break;
        if (gain <= best || us > TUNE_DRAFT_SLOWEST * plain_us * least_tokens(guesses, group->member_count))
            continue;
        best = gain;
        for (uint32_t i = 0; i < group->member_count; i++)
            drafts[i] = (uint8_t)guesses[i].taken;
    }
    return best;
}

// Returns whether drafts would pay if all were right: otherwise nothing needs to be guessed.
static bool could_pay(const struct sched *s, const struct sched_group *group, const struct sched_draft *d)
{
    double rows = group->member_count;
    return 2 * step_us(s, d, rows, 0) > TUNE_DRAFT_WORTH * step_us(s, d, 2 * rows, 0);
}

uint32_t sched_draft_fit(struct sched *s, struct sched_seq *seq, uint32_t drafts)
{
    uint64_t end;
    while (seq->next_pos + drafts >= (end = sched_seq_room_end(s, seq))) {
        if (!seq->split && sched_place_fits(sched_place_of(s, seq), 1, false) && sched_prefix_grow(s, seq))
            continue;
        return (uint32_t)(end - seq->next_pos - 1);
    }
    return drafts;
}

bool sched_draft_plan(struct sched *s, uint32_t mini_batch, enum sched_class class, uint8_t *drafts)
{
    const struct sched_batch *batch = &s->batches.of[mini_batch];
    const struct sched_group *group = &batch->of[class];
    struct sched_draft *d = &s->drafts[mini_batch];
    for (uint32_t i = 0; i < TUNE_DRAFT_SEQUENCES_MAX; i++)
        drafts[i] = 0;
    if (batch->in_flight_count > 0 && batch->in_flight[batch->in_flight_count - 1]->draft_rows > 0)
        return false; // the next position of their sequences is not known
    // Beside prompts, rows are better spent on prompts: those are wanted for certain.
    if (s->config.drafts == NULL || !s->s_part.rows_alike || group->prefill_count > 0 || group->member_count == 0 ||
        group->member_count > TUNE_DRAFT_SEQUENCES_MAX || s->time.layers.rows_seen == 0 || !could_pay(s, group, d)) {
        d->drafting = false;
        return true;
    }
    if (batch->in_flight_count > 0 && d->drafting)
        return false;
    double gain = choose_drafts(s, batch, group, d, drafts);
    if (gain > 0)
        d->gain += (d->gain > 0 ? TUNE_DRAFT_GAIN : 1) * (gain - d->gain);
    d->drafting = d->gain > TUNE_DRAFT_WORTH;
    bool waits = batch->in_flight_count > 0; // the guesses would follow tokens that are still being sampled
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
    if (done->total_us == 0 || done->s_part_us == 0 || step->row_count > step->decode_rows)
        return;
    double other_us = done->total_us > done->s_part_us ? done->total_us - done->s_part_us : 0;
    line_learn(&d->other, step->row_count, other_us);
    double away_us = (double)(s->now_us - step->emitted_us);
    if (step->queued || away_us <= done->total_us)
        return;
    double gap_us = away_us - done->total_us; // bounded: one step may be disturbed, and more come only while drafts pay
    d->gap_us = d->gap_us > 0 ? d->gap_us + TUNE_DRAFT_GAIN * (MIN(gap_us, 2 * d->gap_us) - d->gap_us)
                              : MIN(gap_us, 4 * TUNE_DRAFT_GAP_US);
}
