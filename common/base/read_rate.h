/* read_rate.h: how fast this machine's memory is read: the ceiling of attention and of products of few rows. */
#ifndef FD_BASE_READ_RATE_H
#define FD_BASE_READ_RATE_H

#include <stdint.h>

#include "common/base/thread_pool.h"

/* Bytes a second of a buffer of `bytes`, more than caches hold, read in plain loops by all threads of the pool, whose caller it is:
 * what a quarter of the passes exceed, since other programs only make one longer. At most 63 passes; fewer, at least 3, once
 * limit_us have gone by. Takes the buffer meanwhile; 0 without memory for it. */
double read_rate_measure(struct thread_pool *pool, uint64_t bytes, uint32_t passes, uint64_t limit_us);

#endif
