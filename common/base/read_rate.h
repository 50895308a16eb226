// read_rate.h: how fast this machine's memory is read: the ceiling of attention and of products of few rows.
#ifndef FD_BASE_READ_RATE_H
#define FD_BASE_READ_RATE_H

#include <stdint.h>

#include "common/base/thread_pool.h"

// Returns the bytes per second at which all threads of the pool read a buffer of `bytes` (more than the caches hold) in plain loops:
// the upper quartile of the passes, since other programs only make one longer. Runs 63 passes, or fewer but at least 3 if limit_us
// have gone by. Allocates the buffer meanwhile; 0 without memory for it. The caller must be the pool's.
double read_rate_measure(struct thread_pool *pool, uint64_t bytes, uint32_t passes, uint64_t limit_us);

#endif
