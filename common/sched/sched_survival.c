// sched_survival.c: see sched_survival.h.
#include "common/sched/sched_survival.h"

#include "common/base/checked.h"
#include "common/sched/sched_tuning.h"

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
