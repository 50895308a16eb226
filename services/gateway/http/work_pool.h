// work_pool.h: threads for work that takes too long for the polling and RPC threads: parsing and tokenizing. The queue is
// bounded; full is a status that reaches the client.
//
// Long work runs at nice 19, so that it yields to the computing threads of the same machine: a thread that wakes to compute gets its
// core back almost at once. On cores that compute without a pause, long work gets 15/1039 of each core, so 4,000 tokens (2 ms of
// work) take about 140 ms. SCHED_IDLE would leave it 3/1027, which is too little: these threads share locks with the polling thread
// (those of the queue, of an exchange, of the allocator), which would then wait for a holder that gets no core.
#ifndef FD_GATEWAY_HTTP_WORK_POOL_H
#define FD_GATEWAY_HTTP_WORK_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct work_pool;
typedef void work_pool_fn(void *arg, void *item);

// Calls fn once for each item, on one of the threads, in the order of arrival. yields: the work takes long and runs at nice 19
// (if the system refuses that, at the usual priority). thread_count 0: whoever pushes does the work at once. The caller stops *out.
enum status work_pool_start(uint32_t thread_count, uint32_t capacity, bool yields, work_pool_fn *fn, void *arg,
                            struct work_pool **out) MUST_CHECK;
// Finishes the queued items, ends the threads and frees the pool. Blocks. NULL is allowed.
void work_pool_stop(struct work_pool *pool);
// Queues an item. RESOURCE_EXHAUSTED: the queue is full. Never blocks. Any thread.
enum status work_pool_push(struct work_pool *pool, void *item) MUST_CHECK;

#endif
