// rate_search.h: finds the highest rate that meets a target, by trying rates one after the other.
//
//   begin at a guess ─▶ double while it is met, halve while it is missed ─▶ bisect ─▶ confirm both ends ─▶ rate_search_found()
//
// A trial near the limit may go either way, and any trial may be hit by something else on the machine. So once the two ends are within the
// precision of each other, both are tried again: an end that does not hold moves, and the search goes on from there in small strides that
// grow, three times at most. Without chance the limit is found within the precision, by |log2(limit / guess)| + log2(1 / precision) + 5
// trials at most.
//
// Pure: no clock, no I/O. The caller tries rates.
#ifndef FD_CAPACITY_RATE_SEARCH_H
#define FD_CAPACITY_RATE_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

enum { RATE_TRIALS_MAX = 64, RATE_REVERSALS_MAX = 3 };

struct rate_search {
    double least, most; // rates that are tried, at least and at most
    double precision;   // 0.05: the ends are within 5 %
    bool confirm;       // try both ends twice
    double met, missed; // highest rate that was met, lowest above it that was missed; 0: none
    bool met_twice, missed_twice;
    double stride;      // factor to the next rate while one of the ends is not known
    double rate;        // on trial
    uint32_t trials;    // ended
    uint32_t reversals; // ends that did not hold
};

// guess is within least and most; 0 < least <= most, 0 < precision < 1.
void rate_search_begin(struct rate_search *search, double guess, double least, double most, double precision, bool confirm);
// The rate to try next; 0: the search is over.
double rate_search_next(struct rate_search *search);
// How the trial of the rate that rate_search_next() has named went.
void rate_search_take(struct rate_search *search, bool met);
// The highest rate known to meet the target; 0: none did.
static inline double rate_search_found(const struct rate_search *search) { return search->met; }

#endif
