/* work_pool.h: threads for work that takes too long for the polling and RPC threads: parsing and tokenizing. The queue is
 * bounded; full is a status that reaches the client.
 *
 * Long work yields to the computing threads of the same machine (SCHED_IDLE): it gets what they leave, and a thread that
 * wakes to compute takes the core back at once instead of waiting for a time slice to end. On cores that compute without a
 * pause it still gets 3/1027 of each: 4,000 tokens, 2 ms of work, then take about a third of a second, which is a tenth of
 * what their prefill takes there.
 */
#ifndef FD_GATEWAY_WORK_POOL_H
#define FD_GATEWAY_WORK_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct work_pool;
typedef void work_pool_fn(void *arg, void *item);

/* fn is called once for each item, on one of the threads, in the order of arrival; yields: of work that takes long, as above
 * (the system may refuse it: then they are like others). The caller stops *out. */
enum status work_pool_start(uint32_t thread_count, uint32_t capacity, bool yields, work_pool_fn *fn, void *arg,
                            struct work_pool **out) MUST_CHECK;
/* Does what is queued, ends the threads, frees. Blocks. NULL is allowed. */
void work_pool_stop(struct work_pool *pool);
/* RESOURCE_EXHAUSTED: the queue is full. Never blocks. Any thread. */
enum status work_pool_push(struct work_pool *pool, void *item) MUST_CHECK;

#endif
