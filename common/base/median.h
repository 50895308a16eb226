// median.h: one value that stands for a few measured ones. Both functions sort `values` in place. Any unit, no NaN, count >= 1.
#ifndef FD_BASE_MEDIAN_H
#define FD_BASE_MEDIAN_H

#include <stdint.h>

// Returns the median; of an even count the upper of the two in the middle.
double median_of(double *values, uint32_t count);

// Returns the lower quartile. For times, which other programs only make longer.
double quartile_of(double *values, uint32_t count);

#endif
