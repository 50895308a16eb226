/* work_pool.h: threads for work that takes too long for the polling and RPC threads: parsing and tokenizing. The queue is
 * bounded; full is a status that reaches the client.
 */
#ifndef FD_GATEWAY_WORK_POOL_H
#define FD_GATEWAY_WORK_POOL_H

#include <stdint.h>

#include "common/base/status.h"

struct work_pool;
typedef void work_pool_fn(void *arg, void *item);

/* fn is called once for each item, on one of the threads, in the order of arrival. The caller stops *out. */
enum status work_pool_start(uint32_t thread_count, uint32_t capacity, work_pool_fn *fn, void *arg,
                            struct work_pool **out) MUST_CHECK;
/* Does what is queued, ends the threads, frees. Blocks. NULL is allowed. */
void work_pool_stop(struct work_pool *pool);
/* RESOURCE_EXHAUSTED: the queue is full. Never blocks. Any thread. */
enum status work_pool_push(struct work_pool *pool, void *item) MUST_CHECK;

#endif
