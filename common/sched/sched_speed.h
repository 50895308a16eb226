// sched_speed.h: how fast places read: what their steps took, and what steps will take there. Private to common/sched.
#ifndef FD_SCHED_SCHED_SPEED_H
#define FD_SCHED_SCHED_SPEED_H

#include "common/sched/sched.h"

struct sched;
struct sched_place;

// A place's part.
struct sched_speed {
    double token_us;                   // R-part time of one context token
    double token_last_us, token_noise; // the last one measured; mean relative difference of one from the next, over sqrt 2
    double off;                        // by what part of what was expected its latest steps took longer, mean
    double pair_us;                    // of a prefill row and one context token; 0: not known
    double link_step_us;               // link round trips of a step; of those that share cores the largest counts
    uint64_t step_pairs;               // scratch: of the step that is answered
    bool attends_measured;             // token_us is what it said itself
    bool slow;                         // shares cores, and is much slower than the others that do
};

// Sets the first guesses, when a place comes up.
void sched_speed_guess(struct sched *s, struct sched_place *place, const struct sched_place_up *up);

double sched_speed_token_us(const struct sched *s, const struct sched_place *place); // to compare places by

// Return how long it reads for a mini-batch with so many tokens more, and until it has answered. `weight` tokens are added for each of
// its sequences (sched_load_weight()).
double sched_speed_read_us(const struct sched *s, const struct sched_place *place, uint32_t mini_batch, uint32_t tokens,
                           double weight);
double sched_speed_answer_us(const struct sched *s, const struct sched_place *place, uint32_t mini_batch, uint32_t tokens,
                             double weight);

// Returns how long it attends for a step, in which prefill rows read speed.step_pairs of the tokens.
double sched_speed_attend_us(const struct sched_place *place, uint64_t tokens_read);

// Returns the pairs of prefill rows and context tokens of `rows` rows from a position on.
static inline double sched_speed_pairs(double position, double rows) { return rows * (position + (rows + 1) / 2); }

// Learns from what a step took there; here_us: what all places on the s-part's cores attended for it.
void sched_speed_learn(struct sched *s, const struct sched_place_time *time, double here_us);

#endif
