// sched_load.h: the load-stabilizing schedule: how much context a mini-batch will read, and who may start (FastDecode,
// arXiv 2403.11421, section 4.2; the length estimate and the rule for short queues are our own). Private to common/sched.
//
// All that start together end together: the load of a mini-batch climbs to b·(p + S), falls to nothing, and climbs again, and
// half of the time one of S-part and R-part waits for the other. Started F steps apart, b·F/S at a time, the load stays near
// b·(p + (S + F)/2). So, where workers elsewhere take part:
//
//   - what waits starts at once if the projected load then stays under the limit at every step to come;
//   - else b/E[L] sequences start a step while there is room, and one for each that ends, and only under the limit; where lives are of
//     about one length those that ended close together start farther apart, or their clump would come back with each life;
//   - a queue too short to repay the slow start begins at once all the same: both are reckoned through. Not beyond what pages and
//     step_limit_us allow: these limits hold always, and b is at most what they let run evenly.
//
// The projection: running sequences are kept in cohorts of about the same start and cutoff. At e steps from now a cohort of age a
// holds (P(L >= a+e) / P(L >= a)) · Σ (p + a + e), of a variance that is summed too; the limit must hold for mean and two
// standard deviations. Times are counted in steps of the mini-batch: a sequence grows by one token in each.
//
//   load │        limit ───────────────────────────────
//        │           ▄▄▄▄▖
//        │     ▄▄▄▞▀▀    ▝▚▖        what runs now, projected: some end, the others grow
//        │ ▄▞▀▀             ▝▚▄▖
//        └─────────────────────────▶ steps from now
#ifndef FD_SCHED_SCHED_LOAD_H
#define FD_SCHED_SCHED_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/sched.h"
#include "common/sched/sched_lengths.h"

enum { SCHED_LOAD_COHORTS = 128, SCHED_LOAD_POINTS = 96 };

struct sched_load_cohort {
    uint32_t count, cutoff; // sequences; tokens that each generates at most, nearly
    int64_t start;          // step at which their age was 0
    double base;            // sum of context less age
};

// Of one mini-batch.
struct sched_load_plan {
    struct sched_load_cohort cohorts[SCHED_LOAD_COHORTS];
    uint64_t step;                                               // planned so far
    double credit;                                               // starts that are due
    double room;                                                 // for starts that keep clear of one another
    uint64_t credited;                                           // step up to which
    uint32_t ends;                                               // since then
    bool together;                                               // decided at that step: what waits starts at once
    uint64_t decided;                                            // step + 1; 0: never
    bool stale;                                                  // the projection is older than what runs
    double tokens;                                               // E[L] by which its points were laid
    double mean[SCHED_LOAD_POINTS], variance[SCHED_LOAD_POINTS]; // between two points in time, at most
};

// Of a sequence.
struct sched_load_link {
    double cohort_base; // what it adds to its cohort's
    uint8_t cohort;     // of its mini-batch, while it runs
};

struct sched_load {
    struct sched_survival survival;
    struct sched_lengths lengths;
    struct sched_load_plan plans[SCHED_MINI_BATCHES_MAX];
};

struct sched;

void sched_load_init(struct sched *s);
void sched_load_join(struct sched *s, uint32_t slot);  // it runs in its mini-batch from now on
void sched_load_leave(struct sched *s, uint32_t slot); // and no longer
void sched_load_stepped(struct sched *s, uint32_t mini_batch);
void sched_load_grew(struct sched *s, uint32_t slot); // it has generated as many tokens as begin another bucket of lengths
void sched_load_leapt(struct sched *s, uint32_t slot, uint32_t tokens); // it has got so many more than one of a step

// Whether the sequence, the first of those that wait, may start in that mini-batch now. If it does, sched_load_started().
bool sched_load_lets_in(struct sched *s, uint32_t slot, uint32_t mini_batch);
void sched_load_started(struct sched *s, uint32_t slot, uint32_t mini_batch);

// Whether one that runs may come to that mini-batch from another: its load stays under the limit, now and later.
bool sched_load_has_room(struct sched *s, uint32_t slot, uint32_t mini_batch);

// Context tokens that a place or a mini-batch counts for each of its sequences when it is compared with others, beside what they
// read now: several times the mean over a life. By the present load alone the one whose sequences are young would get all the new
// ones and be the slowest a life later, and so on for ever (a loop with a dead time of a life: its gain must be well below 1).
// 0: nothing is known of any.
double sched_load_weight(const struct sched *s);

#endif
