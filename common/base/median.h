// median.h: one value that stands for a few measured ones. Both functions sort `values` in place. Any unit, no NaN, count >= 1.
#ifndef FD_BASE_MEDIAN_H
#define FD_BASE_MEDIAN_H

#include <stdint.h>

// Returns the median; if the count is even, the upper of the middle two.
double median_of(double *values, uint32_t count);

// Returns the lower quartile. Suits times, because other programs can only make them longer.
double quartile_of(double *values, uint32_t count);

#endif
