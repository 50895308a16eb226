// step_time.h: how long a step takes: the one formula for all predictions of the core and the planner, with the curves of time by rows and the
// speeds of places that go into it.
//
// M mini-batches are in flight. A step of each consists of, over all layers:
//
//   S      the s-part's own work: the layers by rows, head and sampling by the rows that are sampled
//   H      attention on the s-part's cores: the local pool and the workers that share them. Their work adds up, but
//          their calls are in flight together, so only the longest of their round trips counts
//   R, L   attention at the slowest worker elsewhere, with what a step occupies it for whatever it reads, and its round trips
//
// The s-part does S and H of all mini-batches one after the other. The other workers attend meanwhile, so one mini-batch waits for
// the longer of H and R + L. A worker also serves all mini-batches. The time from one step of a mini-batch to its next is
//
//     round(M) = max( M·(S + H),  S + R + L,  M·R,  W )
//
// W is the time to read weights that do not stay in memory; one reading serves all mini-batches. It is 0 where all weights stay.
//
// In a pipeline of P stages S is the sum of all of them, and each computes for a mini-batch of its own: a mini-batch's step still takes
// S + max(H, R + L), but the stages are busy for the slowest one's time only, and all of them ask the workers at once:
//
//     round(M) = max( M·max(S_slowest + H/P, R),  S + max(H, R + L),  W )
//
// A worker keeps up if R, its reading for one mini-batch, is no longer than S_slowest: r·W·P/N = T(b) of a layer.
//
// Example: S = 10 ms, H = 2 ms, R = 7 ms, L = 1 ms: one mini-batch takes max(12, 18, 7) = 18 ms, two take max(24, 18, 14) = 24 ms
// for twice the rows.
#ifndef FD_SCHED_STEP_TIME_H
#define FD_SCHED_STEP_TIME_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/checked.h"
#include "common/sched/sched.h"

struct sched_place;

// --- curves ---------------------------------------------------------------------------------------------------------

// How long something takes as a function of its rows: calibrated at the start, corrected by each step.
//
// Steps are gathered in size classes, each with the mean of its latest steps. A class that has had no step for a while knows only
// how fast the machine was then. So a change in the classes in use (by clock rate, other programs, growing contexts) changes the
// unused classes by the same factor. An unused class weighs less, and learns faster when it is used again. Example: 8 rows took 8
// ms, 128 rows 60 ms; the machine slows, and only steps of 8 rows come: once they take 12 ms, 128 rows are predicted to take 90 ms
// before any was seen. This holds for the s-part's own work. A whole step also includes the workers' reading, which does not change
// by the same factor, so there old classes only lose weight.
//
// The first step of a class is believed whole, and may have been disturbed. So until a few steps agree, a class that is far above a larger one
// counts as that one.
//
// The result has two forms: a curve through the classes, to predict a step, and a line, base + row x rows, where a slope is needed.

enum { SCHED_CURVE_SIZES = 16 }; // class i holds steps of at least 2^i and fewer than 2^(i+1) rows

struct sched_curve {
    struct sched_curve_size {
        double rows, us; // smoothed; rows 0: nothing known
        uint64_t seen;   // steps learned by then
        uint64_t steps;  // learned of this class; calibrated ones count as confirmed
        double drift;    // the curve's drift at that time
    } sizes[SCHED_CURVE_SIZES];
    double drift; // product of the changes of the classes in use
    bool whole;   // the curve is of whole steps: unused classes keep their times
    uint64_t steps;
    double base_us, row_us; // the line
    double rows_seen;       // of the largest class seen; 0: nothing measured
};

void sched_curve_learn(struct sched_curve *curve, double rows, double total_us);

// Sets the times of size classes that have none yet.
void sched_curve_calibrate(struct sched_curve *curve, const struct sched_time *points, uint32_t count);

// Returns the curve's value; 0 while nothing is known.
double sched_curve_us(const struct sched_curve *curve, double rows);

uint32_t sched_curve_class(double rows);                     // index of a size class
uint32_t sched_curve_sizes(const struct sched_curve *curve); // number of size classes with a time

// --- the formula ----------------------------------------------------------------------------------------------------
// Step times, as far as they are known. Places have their own speeds (below).
struct sched_times {
    struct sched_curve whole;                    // whole steps, by rows
    struct sched_curve layers, heads;            // the s-part's own work: layers by rows; head and sampling by sampled rows
    struct sched_curve stages[SCHED_STAGES_MAX]; // of a pipeline: each stage's layers by rows
    struct sched_curve links;                    // round trips to the workers elsewhere, by the rows that go there: L
    double stream_us;                            // W
    struct sched_time_error {                    // errors of predictions whose steps were then measured
        uint64_t steps;
        double ratio;                     // |predicted - measured| / measured, smoothed
        double predicted_us, measured_us; // sums
    } error;
};

// The parts of a step, in microseconds over all layers.
struct sched_round {
    double s_part_us;               // S
    uint32_t stages;                // P; 0 counts as 1
    double slowest_us;              // S_slowest, if there are several
    double here_us, here_link_us;   // H without its round trips; the longest of these
    double away_us, away_answer_us; // R; R + L of the worker that answers last
    double stream_us;               // W
};

// Adds what a place reads for the step: `here` on the s-part's cores.
static inline void sched_round_add(struct sched_round *round, bool here, double read_us, double link_us)
{
    if (here) {
        round->here_us += read_us;
        round->here_link_us = MAX(round->here_link_us, link_us);
    } else {
        round->away_us = MAX(round->away_us, read_us);
        round->away_answer_us = MAX(round->away_answer_us, read_us + link_us);
    }
}

// Returns what a mini-batch occupies the s-part for, or the slowest stage.
static inline double sched_round_turn_us(const struct sched_round *round)
{
    const double here_us = round->here_us + round->here_link_us;
    return round->stages > 1 ? round->slowest_us + here_us / round->stages : round->s_part_us + here_us;
}

static inline double sched_round_us(const struct sched_round *round, uint32_t mini_batches)
{
    double here_us = round->here_us + round->here_link_us, step_us = round->s_part_us + MAX(here_us, round->away_answer_us);
    double busiest_us = MAX(sched_round_turn_us(round), round->away_us);
    return MAX(MAX(mini_batches * busiest_us, step_us), round->stream_us);
}

// Returns how long one mini-batch waits for attention: max(H, R + L).
static inline double sched_round_attend_us(const struct sched_round *round)
{
    return MAX(round->here_us + round->here_link_us, round->away_answer_us);
}

// Returns the largest R with which a round of M mini-batches keeps to limit_us; 0 or less if S and L alone exceed it.
static inline double sched_round_away_most_us(double limit_us, double s_part_us, double link_us, uint32_t mini_batches)
{
    return MIN(limit_us / mini_batches, limit_us - s_part_us - link_us);
}

void sched_time_init(struct sched *s); // forgets all that is known of the s-part
void sched_time_calibrate(struct sched *s, const struct sched_s_part_up *up);

// Returns by how much one mini-batch may lengthen the s-part's work beyond that of a step of so many decode rows without lengthening
// any step, because weights are still being read.
double sched_time_free_us(const struct sched *s, double decode_rows);

// Returns S; 0 while nothing is known.
double sched_time_s_part_us(const struct sched *s, double rows, double sampled);

// Returns the slowest stage's part of S: all of it, if there is one stage.
double sched_time_slowest_us(const struct sched *s, double rows, double sampled);

// Returns a round without attention.
struct sched_round sched_time_round(const struct sched *s, double rows, double sampled);

// Returns the share of the running sequences that are at workers elsewhere, as large a one as of their rows.
double sched_time_away_share(const struct sched *s);

// Returns how many times as long the round trips of a step take that sends `rows` rows to workers elsewhere as those of one that sends
// `rows_now`: the bytes of rows take their time, latency does not change. 1 until steps of different sizes were seen.
double sched_time_links_times(const struct sched *s, double rows_now, double rows);

// Learns each stage's part of a step's S.
void sched_time_learn_stages(struct sched *s, const struct sched_step_done *done, double rows, double sampled);

// Return the time of a step's layers, and the time of one more row. While nothing is known of the layers alone, whole steps are
// used.
double sched_time_rows_us(const struct sched *s, double rows);
double sched_time_row_us(const struct sched *s);

void sched_time_judge(struct sched_time_error *error, double predicted_us, double measured_us);

// --- how fast places read: measured from their steps, and predicted -------------------------------------------------
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

// The load by which places are compared: each sequence `each` tokens, and their context times `context`.
struct sched_weight {
    double each, context;
};
#define SCHED_WEIGHT_NOW ((struct sched_weight){.context = 1}) // what is read now

// Sets the first guesses, when a place comes up.
void sched_speed_guess(struct sched *s, struct sched_place *place, const struct sched_place_up *up);

double sched_speed_token_us(const struct sched *s, const struct sched_place *place); // returns token_us for comparing places

// These return how long a place reads for a mini-batch with `tokens` more tokens, as a class sees it, and how long until it has answered.
// weight: SCHED_WEIGHT_NOW, or what will be read, of sched_load_weight(). The answer is that to what is read now.
double sched_speed_read_us(const struct sched *s, const struct sched_place *place, enum sched_class class, uint32_t mini_batch,
                           uint32_t tokens, struct sched_weight weight);
double sched_speed_answer_us(const struct sched *s, const struct sched_place *place, enum sched_class class, uint32_t mini_batch,
                             uint32_t tokens);

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
