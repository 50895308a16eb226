// sched_survival.h: how long sequences live: P(L >= l) of generated lengths, as observed.
//
// A sequence that ran into its max_tokens only shows that it would have been longer. So the estimate is Kaplan and Meier's (hazards of
// buckets multiplied), which cut-off lengths do not pull down. A cancelled sequence has ended: whether by a stop string or because
// its client has left, it makes room as one with an EOS does. Buckets are single tokens up to 8, then quarters of an octave. Running
// sequences count, too, in each bucket that they have passed: otherwise the first lengths to be observed would be the shortest ones,
// and all lives would seem short. Observations are forgotten slowly, a half in some 350 sequences. Where nothing was observed no
// sequence ends before its cutoff: the estimate errs to long lives, and so to too much load.
//
// Example: of 4 sequences, 2 ended themselves at 4 tokens, 2 were cut at 100: P(L >= 4) is 1, P(L >= 5) is 1/2 (3/5 with the
// prior of one that survived), and beyond as much.
#ifndef FD_SCHED_SCHED_SURVIVAL_H
#define FD_SCHED_SCHED_SURVIVAL_H

#include <stdbool.h>
#include <stdint.h>

enum { SCHED_SURVIVAL_BUCKETS = 8 + 4 * 18 }; // up to 2^21 tokens

struct sched_survival {
    double reached[SCHED_SURVIVAL_BUCKETS],
        ended[SCHED_SURVIVAL_BUCKETS];        // decayed counts: passed the bucket or ended in it; ended in it
    double alive[SCHED_SURVIVAL_BUCKETS + 1]; // P(L >= its first length)
    uint64_t learned;                         // grows with whatever is observed
    bool stale;                               // `alive` is older than what was learned
};

// Means over lives that a cutoff limits: L is the length, at most the cutoff.
struct sched_survival_mean {
    double tokens;  // E[L]
    double ages;    // E[L (L + 1) / 2]: the sum over a life of its age
    double squares; // likewise of its age squared
};

void sched_survival_init(struct sched_survival *survival);

// Returns the first length of the bucket after that of `tokens`.
uint32_t sched_survival_next(uint32_t tokens);

// A sequence lives on with so many tokens, the first of a bucket.
void sched_survival_pass(struct sched_survival *survival, uint32_t tokens);

// A sequence is over: it ended by itself, or was cut off at that length. It has passed all buckets before.
void sched_survival_end(struct sched_survival *survival, uint32_t tokens, bool ended);

// Takes in what has passed and ended since. Must be called before the following. O(buckets), and O(1) if nothing has.
void sched_survival_settle(struct sched_survival *survival);

// Returns P(L >= tokens). Never 0, because some sequence may live that long all the same.
double sched_survival_at(const struct sched_survival *survival, double tokens);

uint32_t sched_survival_bucket(uint32_t tokens);

// Adds the part of a life between a bucket's first length and its end, or the cutoff if that comes first.
void sched_survival_mean_add(const struct sched_survival *survival, uint32_t bucket, double cutoff,
                             struct sched_survival_mean *mean);

#endif
