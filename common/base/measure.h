// measure.h: one value for a few measured ones, and how fast this machine reads its memory, which limits attention and products with few rows.
#ifndef FD_BASE_MEASURE_H
#define FD_BASE_MEASURE_H

#include <stdint.h>

#include "common/base/thread_pool.h"

// One value that stands for a few measured ones. Both functions sort `values` in place. Any unit, no NaN, count >= 1.

// Returns the median; if the count is even, the upper of the middle two.
double median_of(double *values, uint32_t count);

// Returns the lower quartile. Suits times, because other programs can only make them longer.
double quartile_of(double *values, uint32_t count);

// Returns the bytes per second at which all threads of the pool read a buffer of `bytes` (more than the caches hold) in plain loops:
// the upper quartile of the passes, because other programs can only make a pass slower. Runs `passes` passes (at most 63), or fewer
// (at least 3) if limit_us goes by first. Allocates the buffer meanwhile; returns 0 if there is no memory for it. The calling thread
// must be the one that uses the pool.
double read_rate_measure(struct thread_pool *pool, uint64_t bytes, uint32_t passes, uint64_t limit_us);

// The same of memory that the caller has filled, for example on a NUMA node of its choice.
double read_rate_of(struct thread_pool *pool, const void *memory, uint64_t bytes, uint32_t passes, uint64_t limit_us);

#endif
