// lengths.c: see lengths.h.
#include "common/sched/lengths.h"

#include <math.h>

#include "common/base/checked.h"
#include "common/sched/tuning.h"

// --- survival -------------------------------------------------------------------------------------------------------

// First length of a bucket: 0 to 7, 8, 10, 12, 14, 16, 20, 24, 28, 32 ...
static double bucket_begin(uint32_t bucket)
{
    if (bucket < 8)
        return bucket;
    uint32_t octave = (bucket - 8) / 4, quarter = (bucket - 8) % 4;
    return (double)((8 + 2 * quarter) << octave);
}

uint32_t sched_survival_bucket(uint32_t tokens)
{
    if (tokens < 8)
        return tokens;
    uint32_t octave = 31 - (uint32_t)__builtin_clz(tokens);
    return MIN(8 + 4 * (octave - 3) + (tokens >> (octave - 2) & 3), SCHED_SURVIVAL_BUCKETS - 1);
}

void sched_survival_settle(struct sched_survival *s)
{
    double alive = 1;
    if (!s->stale)
        return;
    s->stale = false;
    for (uint32_t i = 0; i < SCHED_SURVIVAL_BUCKETS; i++) {
        s->alive[i] = alive;
        alive = MAX(alive * (1 - s->ended[i] / (s->reached[i] + 1)), TUNE_SURVIVAL_ALIVE_MIN);
    }
    s->alive[SCHED_SURVIVAL_BUCKETS] = alive;
}

void sched_survival_init(struct sched_survival *s)
{
    *s = (struct sched_survival){.stale = true};
    sched_survival_settle(s);
}

uint32_t sched_survival_next(uint32_t tokens)
{
    uint32_t bucket = sched_survival_bucket(tokens);
    return bucket == SCHED_SURVIVAL_BUCKETS - 1 ? UINT32_MAX / 2 : (uint32_t)bucket_begin(bucket + 1);
}

void sched_survival_pass(struct sched_survival *s, uint32_t tokens)
{
    s->reached[sched_survival_bucket(tokens) - 1]++;
    s->learned++;
    s->stale = true;
}

void sched_survival_end(struct sched_survival *s, uint32_t tokens, bool ended)
{
    uint32_t last = sched_survival_bucket(tokens);
    double begin = bucket_begin(last);
    for (uint32_t i = 0; i < SCHED_SURVIVAL_BUCKETS; i++) {
        s->reached[i] *= TUNE_SURVIVAL_FORGET;
        s->ended[i] *= TUNE_SURVIVAL_FORGET;
    }
    s->reached[last] += ended ? 1 : (tokens - begin) / (bucket_begin(last + 1) - begin);
    s->ended[last] += ended;
    s->learned++;
    s->stale = true;
}

double sched_survival_seen(const struct sched_survival *s, double tokens)
{
    uint32_t bucket = sched_survival_bucket((uint32_t)MIN(MAX(tokens, 1), 4e9));
    return s->reached[bucket - 1]; // it has passed the bucket before
}

double sched_survival_at(const struct sched_survival *s, double tokens)
{
    uint32_t bucket = sched_survival_bucket(tokens < 0 ? 0 : (uint32_t)MIN(tokens, 4e9));
    double begin = bucket_begin(bucket), share = MIN((tokens - begin) / (bucket_begin(bucket + 1) - begin), 1);
    return s->alive[bucket] + share * (s->alive[bucket + 1] - s->alive[bucket]);
}

void sched_survival_mean_add(const struct sched_survival *s, uint32_t bucket, double cutoff, struct sched_survival_mean *mean)
{
    double begin = bucket_begin(bucket), end = MIN(bucket_begin(bucket + 1), cutoff);
    double share = (end - begin) / (bucket_begin(bucket + 1) - begin);
    double weight = (s->alive[bucket] + share / 2 * (s->alive[bucket + 1] - s->alive[bucket])) * (end - begin);
    mean->tokens += weight;
    mean->ages += weight * (begin + end + 1) / 2;
    mean->squares += weight * (begin * begin + begin * end + end * end) / 3;
}

// --- the sequences that start ---------------------------------------------------------------------------------------
#define UNIT_MAX 1e100

void sched_lengths_init(struct sched_lengths *l) { *l = (struct sched_lengths){.unit = 1}; }

// Computes the expectations, all buckets in one pass: an integral over the survival function that grows with the cutoff.
static void expect_lives(struct sched_lengths *l, struct sched_survival *survival)
{
    struct sched_survival_mean life = {0};
    double weights = 0, prompts = 0, prompt_squares = 0, tokens = 0, token_squares = 0, context = 0, squares = 0;
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
            prompt_squares += l->asked[i].prompt_squares;
            tokens += weight * to.tokens;
            token_squares += weight * (2 * to.ages - to.tokens);
            context += weight * (prompt * to.tokens + to.ages);
            squares += l->asked[i].prompt_squares * to.tokens + weight * (2 * prompt * to.ages + to.squares);
        }
        sched_survival_mean_add(survival, i, INFINITY, &life);
    }
    l->tokens = tokens / weights;
    l->prompt_tokens = prompts / weights;
    l->prompt_squares = prompt_squares / weights;
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
    expect_lives(l, survival);
}

void sched_lengths_refresh(struct sched_lengths *l, struct sched_survival *survival)
{
    if (l->count > 0 && l->learned != survival->learned)
        expect_lives(l, survival);
}
