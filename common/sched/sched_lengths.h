// sched_lengths.h: expectations of the sequences that start: how long they live and how much context they read meanwhile. Private
// to common/sched.
//
// The latest starts are remembered by their prompt and cutoff, in buckets of cutoffs, and not by the lengths expected at the time.
// So each observed length changes the expectation for all of them. Before the first observation the expectation is the cutoff,
// which may be ten times too long; if that were remembered, the first batch's starts would be spread over ten lives.
//
// Example: cutoffs of 700, lives of 70. Nothing observed: E[L] = 700. Three lives that ended at 40, 70 and 100: P(L > 100) = 1/4,
// so E[L] = 76 + (700 - 100) / 4 = 226 at once, even for sequences that started before.
#ifndef FD_SCHED_SCHED_LENGTHS_H
#define FD_SCHED_SCHED_LENGTHS_H

#include "common/sched/sched_survival.h"

struct sched_lengths {
    struct {
        double weight, cutoffs, prompts, prompt_squares; // sums over starts; older starts weigh less
    } asked[SCHED_SURVIVAL_BUCKETS];                     // by cutoff
    double count;                                        // number of starts remembered; 0: there is no expectation yet
    double unit;                                         // weight of the next start
    uint64_t learned;                                    // survival.learned when the fields below were computed
    double tokens;                                       // E[L]
    double prompt_tokens;                                // E[p]
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
