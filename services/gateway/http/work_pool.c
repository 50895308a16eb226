// work_pool.c: see work_pool.h: a ring under one mutex.
#include "services/gateway/http/work_pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "common/base/checked.h"
#include "common/trace/trace.h"

enum { LEAST_PRIORITY = 19 }; // a nice value

struct work_pool {
    pthread_mutex_t mutex;
    pthread_cond_t some;
    work_pool_fn *fn;
    void *arg;
    bool yields, stopping;
    uint32_t capacity, first, count; // of the ring
    uint32_t thread_count;
    void **items;
    pthread_t *threads;
};

static void *run(void *arg)
{
    struct work_pool *pool = arg;
    struct trace_track *track = trace_track_open(pool->yields ? "parse and tokenize, long" : "parse and tokenize");

    if (pool->yields) // on Linux this thread alone; if it fails the work is done all the same
        (void)setpriority(PRIO_PROCESS, 0, LEAST_PRIORITY);
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        uint64_t began_ns;
        void *item;
        while (pool->count == 0 && !pool->stopping)
            pthread_cond_wait(&pool->some, &pool->mutex);
        if (pool->count == 0)
            break;
        item = pool->items[pool->first];
        pool->first = (pool->first + 1) % pool->capacity;
        pool->count--;
        pthread_mutex_unlock(&pool->mutex);
        began_ns = trace_clock(track);
        pool->fn(pool->arg, item);
        trace_span(track, "parse", began_ns);
        pthread_mutex_lock(&pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

enum status work_pool_start(uint32_t thread_count, uint32_t capacity, bool yields, work_pool_fn *fn, void *arg,
                            struct work_pool **out)
{
    struct work_pool *pool = calloc(1, sizeof *pool);

    *out = NULL;
    if (!pool)
        return STATUS_RESOURCE_EXHAUSTED;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->some, NULL);
    pool->fn = fn;
    pool->arg = arg;
    pool->yields = yields;
    pool->capacity = capacity;
    pool->items = calloc(capacity, sizeof *pool->items);
    pool->threads = calloc(MAX(thread_count, 1u), sizeof *pool->threads);
    while (pool->items && pool->threads && pool->thread_count < thread_count &&
           pthread_create(&pool->threads[pool->thread_count], NULL, run, pool) == 0)
        pool->thread_count++;
    if (pool->thread_count < thread_count) {
        work_pool_stop(pool);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    *out = pool;
    return STATUS_OK;
}

void work_pool_stop(struct work_pool *pool)
{
    uint32_t i;

    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->some);
    pthread_mutex_unlock(&pool->mutex);
    for (i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->some);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->items);
    free(pool->threads);
    free(pool);
}

enum status work_pool_push(struct work_pool *pool, void *item)
{
    enum status status = STATUS_OK;

    if (!pool->thread_count) {
        pool->fn(pool->arg, item);
        return STATUS_OK;
    }
    pthread_mutex_lock(&pool->mutex);
    if (pool->count == pool->capacity) {
        status = STATUS_RESOURCE_EXHAUSTED;
    } else {
        pool->items[(pool->first + pool->count) % pool->capacity] = item;
        pool->count++;
        pthread_cond_signal(&pool->some);
    }
    pthread_mutex_unlock(&pool->mutex);
    return status;
}
