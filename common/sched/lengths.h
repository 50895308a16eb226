// lengths.h: how long sequences live: P(L >= l) of generated lengths, as observed, and what is expected of those that start. Private to
// common/sched.
//
// A sequence that reached its max_tokens only shows that it would have been longer. So the estimate is Kaplan and Meier's (a
// product of the buckets' survival rates), which cut-off lengths do not pull down. A cancelled sequence, whether its client left or
// a stop string was found, counts as ended, because it makes room just like one with an EOS. Buckets are single tokens up to 8,
// then quarters of an octave. Running sequences count, too, in each bucket that they have passed: otherwise the first lengths to be
// observed would be the shortest ones, and all lives would seem short. Observations are forgotten slowly, half of them within about
// 350 sequences. Lengths without observations have no ends before the cutoff: the estimate errs towards long lives, and so towards
// too much load.
//
// Example: of 4 sequences, 2 ended themselves at 4 tokens, 2 were cut at 100: P(L >= 4) is 1, P(L >= 5) is 1/2 (3/5 with a prior of
// one survivor), and stays so beyond.
#ifndef FD_SCHED_LENGTHS_H
#define FD_SCHED_LENGTHS_H

#include <stdbool.h>
#include <stdint.h>

enum { SCHED_SURVIVAL_BUCKETS = 8 + 4 * 18 }; // up to 2^21 tokens

struct sched_survival {
    double reached[SCHED_SURVIVAL_BUCKETS],
        ended[SCHED_SURVIVAL_BUCKETS];        // decayed counts: passed the bucket or ended in it; ended in it
    double alive[SCHED_SURVIVAL_BUCKETS + 1]; // P(L >= its first length)
    uint64_t learned;                         // grows with every observation
    bool stale;                               // `alive` is older than what was learned
};

// Means over lives limited by a cutoff: L is the length, at most the cutoff.
struct sched_survival_mean {
    double tokens;  // E[L]
    double ages;    // E[L (L + 1) / 2]: the sum of the age over a life
    double squares; // the same for the age squared
};

void sched_survival_init(struct sched_survival *survival);

// Returns the first length of the bucket after that of `tokens`.
uint32_t sched_survival_next(uint32_t tokens);

// Records that a sequence goes on with `tokens` tokens, the first length of a bucket.
void sched_survival_pass(struct sched_survival *survival, uint32_t tokens);

// Records that a sequence is over: it ended by itself, or was cut off at that length. It must have passed all earlier buckets.
void sched_survival_end(struct sched_survival *survival, uint32_t tokens, bool ended);

// Takes in what was recorded since the last call. Must be called before the functions below. O(buckets), or O(1) if nothing was
// recorded.
void sched_survival_settle(struct sched_survival *survival);

// Returns how many of the sequences that count lived that long, roughly. Lengths beyond the longest life are mere assumptions.
double sched_survival_seen(const struct sched_survival *survival, double tokens);

// Returns P(L >= tokens). It is never 0, because some sequence may still live that long.
double sched_survival_at(const struct sched_survival *survival, double tokens);

uint32_t sched_survival_bucket(uint32_t tokens);

// Adds the part of a life between a bucket's first length and its end, or the cutoff if that comes first.
void sched_survival_mean_add(const struct sched_survival *survival, uint32_t bucket, double cutoff,
                             struct sched_survival_mean *mean);

// --- the sequences that start ---------------------------------------------------------------------------------------

// Expectations of the sequences that start: how long they live and how much context they read meanwhile.
//
// The latest starts are remembered by their prompt and cutoff, in buckets of cutoffs, and not by the lengths expected at the time.
// Each observed length so changes the expectation for all of them. Before the first observation the expectation is the cutoff,
// which may be ten times too long; if that were remembered, the first batch's starts would be spread over ten lives.
//
// Example: cutoffs of 700, lives of 70. Nothing observed: E[L] = 700. Three lives that ended at 40, 70 and 100: P(L > 100) = 1/4,
// so E[L] = 76 + (700 - 100) / 4 = 226 at once, even for sequences that started before.

struct sched_lengths {
    struct {
        double weight, cutoffs, prompts, prompt_squares; // sums over starts; older starts weigh less
    } asked[SCHED_SURVIVAL_BUCKETS];                     // by cutoff
    double count;                                        // number of starts remembered; 0: there is no expectation yet
    double unit;                                         // weight of the next start
    uint64_t learned;                                    // survival.learned when the fields below were computed
    double tokens;                                       // E[L]
    double prompt_tokens;                                // E[p]
    double prompt_squares;                               // E[p squared]
    double variation;                                    // standard deviation of L, divided by E[L]
    double context_tokens;                               // E[sum of the context that a sequence reads over its life]
    double context_squares;
};

void sched_lengths_init(struct sched_lengths *lengths);

// Counts the start of a sequence with a prompt of `prompt` tokens that generates at most `cutoff` tokens. O(buckets).
void sched_lengths_note(struct sched_lengths *lengths, struct sched_survival *survival, uint32_t prompt, uint32_t cutoff);

// Computes the expectations anew if the survival has learned something since. O(buckets), otherwise O(1).
void sched_lengths_refresh(struct sched_lengths *lengths, struct sched_survival *survival);

#endif
