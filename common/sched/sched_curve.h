// sched_curve.h: how long something takes as a function of its rows: calibrated at the start, corrected by each step. Private to
// common/sched.
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
#ifndef FD_SCHED_SCHED_CURVE_H
#define FD_SCHED_SCHED_CURVE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/sched.h"

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

#endif
