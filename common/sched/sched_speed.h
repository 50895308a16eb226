// sched_speed.h: how fast places read: measured from their steps, and predicted. Private to common/sched.
#ifndef FD_SCHED_SCHED_SPEED_H
#define FD_SCHED_SCHED_SPEED_H

#include "common/sched/sched.h"

struct sched;
struct sched_place;

// A place's part.
struct sched_speed {
    double token_us;                   // R-part time per context token
    double token_last_us, token_noise; // the last one measured; mean relative change from one to the next, over sqrt 2
    double off;                        // mean fraction by which its latest steps took longer than expected
    double pair_us;                    // attention time of a prefill row per context token; 0: not known
    double call_step_us;               // what a step occupies it for, whatever it reads
    double link_step_us;               // time of a step's link round trips; of places that share cores only the largest counts
    uint64_t step_pairs;               // scratch: pairs of prefill rows and context tokens in the step being answered
    bool attends_measured;             // token_us comes from times that the place measured itself
    bool slow;                         // it shares cores, and is much slower than the others that share them
};

// What counts when places are compared: each sequence `each` tokens, and their context times `context`.
struct sched_weight {
    double each, context;
};
#define SCHED_WEIGHT_NOW ((struct sched_weight){.context = 1}) // what is read now

// Sets the first guesses, when a place comes up.
void sched_speed_guess(struct sched *s, struct sched_place *place, const struct sched_place_up *up);

double sched_speed_token_us(const struct sched *s, const struct sched_place *place); // returns token_us for comparing places

// These return how long a place reads for a mini-batch with `tokens` more tokens, as a class sees it, and how long until it has answered.
// weight: SCHED_WEIGHT_NOW, or what will be read, of sched_load_weight().
double sched_speed_read_us(const struct sched *s, const struct sched_place *place, enum sched_class class, uint32_t mini_batch,
                           uint32_t tokens, struct sched_weight weight);
double sched_speed_answer_us(const struct sched *s, const struct sched_place *place, enum sched_class class, uint32_t mini_batch,
                             uint32_t tokens, struct sched_weight weight);

// Returns how long the place attends for a step in which prefill rows read speed.step_pairs of the tokens.
double sched_speed_attend_us(const struct sched_place *place, uint64_t tokens_read);

// Returns the pairs of prefill rows and context tokens of `rows` rows from a position on.
static inline double sched_speed_pairs(double position, double rows) { return rows * (position + (rows + 1) / 2); }

// Returns how many positions of a run's sequence its extent holds.
static inline uint32_t sched_speed_extent_tokens(const struct sched_run *run, uint32_t extent)
{
    return (extent + 1 < run->extent_count ? run->extents[extent + 1].first : run->first) - run->extents[extent].first;
}

// Learns from the time of a step there; here_us: attention time of all places on the s-part's cores in that step.
void sched_speed_learn(struct sched *s, const struct sched_place_time *time, double here_us);

#endif
