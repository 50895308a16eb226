// sched_lengths.c: see sched_lengths.h.
#include "common/sched/sched_lengths.h"

#include <math.h>

#include "common/base/checked.h"
#include "common/sched/sched_tuning.h"

#define UNIT_MAX 1e100

void sched_lengths_init(struct sched_lengths *l) { *l = (struct sched_lengths){.unit = 1}; }

// Computes the expectations, all buckets in one pass: an integral over the survival function that grows with the cutoff.
static void expect(struct sched_lengths *l, struct sched_survival *survival)
{
    struct sched_survival_mean life = {0};
    double weights = 0, prompts = 0, tokens = 0, token_squares = 0, context = 0, squares = 0;
    sched_survival_settle(survival);
    l->learned = survival->learned;
    for (uint32_t i = 0; i < SCHED_SURVIVAL_BUCKETS; i++) {
        double weight = l->asked[i].weight;
        if (weight > 0) {
            struct sched_survival_mean to = life;
            double prompt = l->asked[i].prompts / weight;
            sched_survival_mean_add(survival, i, l->asked[i].cutoffs / weight, &to);
            to.tokens = MAX(to.tokens, 1);
            weights += weight;
            prompts += l->asked[i].prompts;
            tokens += weight * to.tokens;
            token_squares += weight * (2 * to.ages - to.tokens);
            context += weight * (prompt * to.tokens + to.ages);
            squares += l->asked[i].prompt_squares * to.tokens + weight * (2 * prompt * to.ages + to.squares);
        }
        sched_survival_mean_add(survival, i, INFINITY, &life);
    }
    l->tokens = tokens / weights;
    l->prompt_tokens = prompts / weights;
    l->variation = sqrt(MAX(token_squares / weights / (l->tokens * l->tokens) - 1, 0));
    l->context_tokens = context / weights;
    l->context_squares = squares / weights;
}

static void weigh_anew(struct sched_lengths *l)
{
    for (uint32_t i = 0; i < SCHED_SURVIVAL_BUCKETS; i++) {
        l->asked[i].weight /= l->unit;
        l->asked[i].cutoffs /= l->unit;
        l->asked[i].prompts /= l->unit;
        l->asked[i].prompt_squares /= l->unit;
    }
    l->unit = 1;
}

void sched_lengths_note(struct sched_lengths *l, struct sched_survival *survival, uint32_t prompt, uint32_t cutoff)
{
    uint32_t bucket = sched_survival_bucket(MAX(cutoff, 1));
    if (l->count >= TUNE_LENGTHS_STARTS) { // the next one weighs more, instead of all before it less
        l->unit /= 1 - 1.0 / TUNE_LENGTHS_STARTS;
    }
    if (l->unit > UNIT_MAX)
        weigh_anew(l);
    l->count = MIN(l->count + 1, TUNE_LENGTHS_STARTS);
    l->asked[bucket].weight += l->unit;
    l->asked[bucket].cutoffs += l->unit * MAX(cutoff, 1);
    l->asked[bucket].prompts += l->unit * prompt;
    l->asked[bucket].prompt_squares += l->unit * prompt * prompt;
    expect(l, survival);
}

void sched_lengths_refresh(struct sched_lengths *l, struct sched_survival *survival)
{
    if (l->count > 0 && l->learned != survival->learned)
        expect(l, survival);
}
