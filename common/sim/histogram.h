// histogram.h: durations counted in buckets that grow by 1 %: percentiles of any number of them in 32 KiB. Plain; any thread.
#ifndef FD_SIM_HISTOGRAM_H
#define FD_SIM_HISTOGRAM_H

#include <stdint.h>

enum { HISTOGRAM_BUCKETS = 4096 }; // from 1 us: 1.01^2313 us is three hours

struct histogram {
    uint64_t count, buckets[HISTOGRAM_BUCKETS];
    double sum_us, max_us;
};

void histogram_add(struct histogram *histogram, double us);

// Returns the duration that a share (0 to 1) of all do not exceed; 0 if there are none.
double histogram_percentile_us(const struct histogram *histogram, double share);

#endif
