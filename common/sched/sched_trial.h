// sched_trial.h: how long a class's queue takes if it starts together, and if it starts apart. Private to common/sched.
//
// Both ways are computed in a life's 32nd parts, from the sequences that run now: how many have which age, how many of these live on
// (P(L >= l), as observed), who starts, and how long a step of so many sequences with so much context takes by the formula of sched_time.h,
// with the number of mini-batches that is fastest then. So a backlog whose starts have become even by themselves gains nothing by spacing,
// and neither does one whose steps take the sum of both parts, in whatever way these are spread.
//
// Example: S-part and R-part take 10 ms each at the mean load, two mini-batches, ten batches wait. Together a step takes 10 ms while
// contexts are below their mean and then up to 20 ms: 12.5 ms in the mean, ten lives. Apart it takes 10 ms, but the batch fills during the
// first life and empties during the last one: eleven lives. So spacing gains 12.5·10 / (10·11) = 1.14 times, with two batches 0.83.
#ifndef FD_SCHED_SCHED_TRIAL_H
#define FD_SCHED_SCHED_TRIAL_H

#include <stdbool.h>

struct sched;
struct sched_load_class;

struct sched_trial {
    const struct sched_load_class *of; // the class's lengths and running sequences
    double full;                       // sequences that run at once
    double waiting;                    // sequences in the queue
    double tokens_per_us;              // context tokens that all workers read together
    double link_us, call_us;           // a step's round trips, as measured; what it occupies a worker for, whatever it reads
};

// Returns in how many microseconds the sequences that run and those that wait are through, nearly all of them. apart: they start at an even
// rate, and one for each that ends; else as soon as there is room. Needs an expectation of lengths. O(steps x bins).
double sched_trial_us(const struct sched *s, const struct sched_trial *trial, bool apart);

#endif
