// median.c: the median and the lower quartile of measured values.
#include "common/base/median.h"

#include <stdlib.h>

#include "common/base/status.h"

static int ascending(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static const double *sorted(double *values, uint32_t count)
{
    assert_always(count >= 1);
    qsort(values, count, sizeof *values, ascending);
    return values;
}

double median_of(double *values, uint32_t count) { return sorted(values, count)[count / 2]; }

double quartile_of(double *values, uint32_t count) { return sorted(values, count)[count / 4]; }
