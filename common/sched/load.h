// load.h: the load-stabilizing schedule: how much context a mini-batch will read, and which sequences may start (FastDecode,
// arXiv 2403.11421, section 4.2; the length estimate and the rule for short queues are our own). Private to common/sched.
//
// Sequences that start together end together. The load of a mini-batch then climbs to b·(p + S), falls to nothing and climbs again,
// and half of the time S-part or R-part waits for the other. If they start F steps apart, b·F/S at a time, the load stays near
// b·(p + (S + F)/2). So these rules hold when KV workers take part:
//
//   - The whole queue starts at once if the projected load stays under the limit at every step to come.
//   - Otherwise b/E[L] sequences start in a step while there is room, and one for each that ends, always under the limit. If lives are
//     of about the same length, sequences that follow a cluster of ends start farther apart, or the cluster would return in each life.
//   - If F is given, b·F/E[L] sequences start together every F steps instead, the first of them at once, and one for each that has ended.
//   - With admission auto a queue too short to repay such a slow start still starts at once, as if starts were not spaced at all: both ways
//     are computed and compared. So does one of whose lives nothing is known but max_tokens. Pages and step_limit_us are limits even then,
//     and b is at most the number of sequences that they allow with evenly spaced starts.
//
// The projection: running sequences are kept in cohorts of about the same start and cutoff. After e steps, a cohort of age a holds
// (P(L >= a+e) / P(L >= a)) · Σ (p + a + e), and variances are summed likewise. The limit must hold for the mean plus two standard
// deviations. Times are counted in steps of the mini-batch: a sequence grows by one token in each.
//
//   load │        limit ───────────────────────────────
//        │           ▄▄▄▄▖
//        │     ▄▄▄▞▀▀    ▝▚▖        the running sequences, projected: some end, the others grow
//        │ ▄▞▀▀             ▝▚▄▖
//        └─────────────────────────▶ steps from now
#ifndef FD_SCHED_LOAD_H
#define FD_SCHED_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/lengths.h"
#include "common/sched/sched.h"

enum { SCHED_LOAD_COHORTS = 128, SCHED_LOAD_POINTS = 96 };

struct sched_load_cohort {
    uint32_t count, cutoff; // number of sequences; the most tokens that each generates, roughly
    int64_t start;          // step at which their age was 0
    double base;            // sum over its sequences of context minus age
};

// The projection for the sequences of a class in a mini-batch.
struct sched_load_plan {
    enum sched_class class;
    struct sched_load_cohort cohorts[SCHED_LOAD_COHORTS];
    uint64_t step;     // steps planned so far
    double credit;     // number of starts that are due
    double room;       // number of starts that keep their distance from earlier ones
    uint64_t credited; // step up to which both are counted; if F is given, that of the next group
    uint32_t ends;     // number of sequences that have ended since they were counted
    bool stale;        // sequences have come or gone since the projection
    double tokens;     // E[L] by which the points are spaced in time
    double mean[SCHED_LOAD_POINTS], variance[SCHED_LOAD_POINTS]; // the projection: the maximum between two points
};

// A sequence's part.
struct sched_load_link {
    double cohort_base; // its part of the cohort's `base`
    uint8_t cohort;     // its cohort in its mini-batch, while it runs
};

// Each class has its own lengths and its own schedule: jobs of class batch may be as long as they like without changing what interactive
// sequences are expected to be, and they take no part in those sequences' load, because they wait where there is no time for both.
struct sched_load {
    struct sched_load_class {
        struct sched_survival survival;
        struct sched_lengths lengths;
        struct sched_load_plan plans[SCHED_MINI_BATCHES_MAX];
        bool together;        // the queue starts at once
        uint64_t decided;     // number of steps + 1 at which `together` was decided; 0: never
        double decided_queue; // number of sequences in the queue at that time
    } of[SCHED_CLASSES];
};

void sched_load_init(struct sched *s);
void sched_load_join(struct sched *s, uint32_t slot);  // call when it begins to run in its mini-batch
void sched_load_leave(struct sched *s, uint32_t slot); // call when it no longer runs there
void sched_load_stepped(struct sched *s, uint32_t mini_batch, enum sched_class class); // call when a step of that class was planned
void sched_load_grew(struct sched *s, uint32_t slot); // call when its length has reached the next bucket
// Call when it got `tokens` tokens more than steps of its class were planned for it.
void sched_load_leapt(struct sched *s, uint32_t slot, uint32_t tokens);

// Returns whether the head of the queue may start in that mini-batch now. Starts of a class that does not lead are not spaced.
// If it does start, sched_load_started() follows.
bool sched_load_lets_in(struct sched *s, uint32_t slot, uint32_t mini_batch);
void sched_load_started(struct sched *s, uint32_t slot, uint32_t mini_batch);

// Returns whether the load of that mini-batch stays under its limit, now and later, if a running sequence moves to it from another
// one.
bool sched_load_has_room(struct sched *s, uint32_t slot, uint32_t mini_batch);

// Returns what counts when places or mini-batches are compared to find one for a new sequence: what they will read, not only what they read
// now. If only the present load counted, the one with the youngest sequences would get all new ones and be the slowest a life later, again
// and again. (This is a control loop with a dead time of one life, so its gain must be well below 1.) So each sequence counts for several
// times the mean over a life. If lives are alike its age counts as well: what it has behind it it will not read again, so the new one
// goes where the next to end are, and each place has sequences of all ages. Nothing is known of lengths: the present load.
struct sched_weight sched_load_weight(const struct sched *s, enum sched_class class);

#endif
