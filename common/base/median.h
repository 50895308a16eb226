/* median.h: of a few measured values the one that stands for them. Each sorts `values` in place; any unit, no NaN, count >= 1. */
#ifndef FD_BASE_MEDIAN_H
#define FD_BASE_MEDIAN_H

#include <stdint.h>

/* Of an even count the upper of the two in the middle. */
double median_of(double *values, uint32_t count);

/* What a quarter are below: of times, which other programs only make longer. */
double quartile_of(double *values, uint32_t count);

#endif
