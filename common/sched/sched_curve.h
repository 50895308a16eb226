// sched_curve.h: how long something takes by its rows: what calibration said at the start, corrected by each step. Private to
// common/sched.
//
// Steps are gathered in size classes, each with the mean of its latest. A class that has not been seen for a while knows the machine
// as it was then: so what moves the class that is seen (the clock, other programs, contexts that grow) moves those that are away by
// the same factor, and one that comes back learns faster and weighs less until then. Example: 8 rows took 8 ms, 128 rows 60 ms; the
// machine slows, and only steps of 8 rows come: once they are at 12 ms, 128 rows are at 90 ms before one was seen. This holds of the
// s-part's own work. Whole steps have what workers read on top, which is no factor: there old classes only lose weight.
//
// There are two forms of the same: a curve through the classes, to predict a step, and a line, base + row x rows, for what needs a slope.
#ifndef FD_SCHED_SCHED_CURVE_H
#define FD_SCHED_SCHED_CURVE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/sched.h"

enum { SCHED_CURVE_SIZES = 16 }; // class i holds steps of 2^i rows and more, below 2^(i+1)

struct sched_curve {
    struct sched_curve_size {
        double rows, us; // smoothed; rows 0: nothing known
        uint64_t seen;   // steps learned by then
        double drift;    // of the curve, then
    } sizes[SCHED_CURVE_SIZES];
    double drift; // grows and falls with the classes that are seen
    bool whole;   // of whole steps: classes that are not seen stay as they were
    uint64_t steps;
    double base_us, row_us; // the line
    double rows_seen;       // of the largest class seen; 0: nothing measured
};

void sched_curve_learn(struct sched_curve *curve, double rows, double total_us);

// For sizes of which nothing is known.
void sched_curve_calibrate(struct sched_curve *curve, const struct sched_time *points, uint32_t count);

// The curve; 0 while nothing is known.
double sched_curve_us(const struct sched_curve *curve, double rows);

uint32_t sched_curve_class(double rows); // index of a size class

#endif
