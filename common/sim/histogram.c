// histogram.c: see histogram.h.
#include "common/sim/histogram.h"

#include <math.h>

#include "common/base/checked.h"

static const double growth = 1.01;

void histogram_add(struct histogram *h, double us)
{
    double index = us <= 1 ? 0 : log(us) / log(growth);

    h->buckets[index < HISTOGRAM_BUCKETS ? (uint32_t)index : HISTOGRAM_BUCKETS - 1]++;
    h->count++;
    h->sum_us += us;
    h->max_us = MAX(h->max_us, us);
}

double histogram_percentile_us(const struct histogram *h, double share)
{
    uint64_t seen = 0, wanted = (uint64_t)ceil(share * (double)h->count);

    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS && h->count > 0; i++) {
        seen += h->buckets[i];
        if (seen >= MAX(wanted, 1))
            return MIN(pow(growth, i + 1), h->max_us);
    }
    return 0;
}
