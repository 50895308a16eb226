/* thread_pool.c: see thread_pool.h.
 *
 * State is three counters. `job` grows by one a run: a worker that sees it change takes part. `arrived` and `phase`
 * make the barrier (central counter, sense by generation). The last to arrive resets `claim`, then bumps `phase`.
 * Waiters spin SPIN_ROUNDS times on the counter they wait for, then offer their core to others for a while, then sleep in
 * futex(2); `sleepers` tells the one who bumps a counter whether a wake-up call is needed at all.
 */
#include "common/base/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/cgroup.h"
#include "common/base/checked.h"

/* About 30 µs of pause instructions: longer than the gap between two operations of a dense step, shorter than a
 * scheduler's time slice is worth when the cores are shared. */
enum { SPIN_ROUNDS = 1500, CACHE_LINE = 64 };

/* Calls of sched_yield, each 0.4 µs where nobody else wants the core: within a job the others are at work and come soon, so
 * about a millisecond; between jobs a tenth. On a virtual machine whose host was busy a decode step at one row had 15 sleeps a
 * thread. Measured there, times the tokens a second of sleeping at once, medians of 7 and 3 rounds: 1.14 and 1.18 at 1 and 32
 * streams; on a quiet host 1.01 and 1.03 (35 and 9 rounds). Spinning all the time does as well alone, but takes the core of
 * workers beside it (0.94 for 0.99, 4 rounds). */
enum { YIELDS_WITHIN_JOB = 3000, YIELDS_BETWEEN_JOBS = 300 };

struct thread_pool {
    _Alignas(CACHE_LINE) atomic_uint job;
    _Alignas(CACHE_LINE) atomic_uint phase;
    _Alignas(CACHE_LINE) atomic_uint arrived;
    _Alignas(CACHE_LINE) atomic_uint claim;
    _Alignas(CACHE_LINE) atomic_uint sleepers;
    thread_pool_fn *fn;
    void *arg;
    atomic_bool running; /* asserts one caller at a time */
    bool stopping;
    cpu_set_t cpus; /* one a thread, or none: then nobody has one of its own */
    int home;       /* the first of them, the caller's; -1: none */
    uint32_t thread_count;
    pthread_t *threads; /* [thread_count - 1] */
};

struct worker_start {
    struct thread_pool *pool;
    uint32_t index;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

/* Returns when *word is no longer `old`. */
static void wait_change(struct thread_pool *pool, atomic_uint *word, unsigned old, int yields)
{
    for (int round = 0; round < SPIN_ROUNDS; round++) {
        /* acquire: what the bumper wrote before its release is seen after this */
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        pause_cpu();
    }
    for (int round = 0; round < yields; round++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old) /* acquire: as above */
            return;
        sched_yield();
    }
    /* seq_cst on both sides: either the bumper sees this sleeper, or this load sees the bump */
    atomic_fetch_add_explicit(&pool->sleepers, 1, memory_order_seq_cst);
    while (atomic_load_explicit(word, memory_order_seq_cst) == old)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&pool->sleepers, 1, memory_order_relaxed); /* a late decrement costs a spare wake-up only */
}

static void bump(struct thread_pool *pool, atomic_uint *word)
{
    atomic_fetch_add_explicit(word, 1, memory_order_seq_cst); /* pairs with wait_change's seq_cst */
    if (atomic_load_explicit(&pool->sleepers, memory_order_seq_cst))
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void thread_pool_barrier(struct thread_pool *pool)
{
    unsigned phase = atomic_load_explicit(&pool->phase, memory_order_relaxed); /* cannot change before this arrival */
    /* acq_rel: the last to arrive has seen what all others wrote, and passes it on through `phase` */
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) + 1 < pool->thread_count) {
        wait_change(pool, &pool->phase, phase, YIELDS_WITHIN_JOB);
        return;
    }
    atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed); /* published by the bump */
    atomic_store_explicit(&pool->claim, 0, memory_order_relaxed);
    bump(pool, &pool->phase);
}

uint32_t thread_pool_claim(struct thread_pool *pool)
{
    return atomic_fetch_add_explicit(&pool->claim, 1, memory_order_relaxed); /* only uniqueness matters */
}

/* The index-th of the pool's CPUs; -1: it has none. */
static int cpu_of(const struct thread_pool *pool, uint32_t index)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &pool->cpus) && index-- == 0)
            return cpu;
    return -1;
}

/* Best effort: a thread that is elsewhere is still right. */
static void pin(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

/* The caller may run where it may, and threads that it starts too; but it begins a job on its own CPU, not on another thread's. */
static void go_home(const struct thread_pool *pool)
{
    cpu_set_t allowed;
    if (pool->home < 0 || sched_getcpu() == pool->home || pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed) ||
        !CPU_ISSET((size_t)pool->home, &allowed))
        return;
    pin(pool->home);
    pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
}

static void *worker_main(void *opaque)
{
    struct worker_start start = *(struct worker_start *)opaque;
    struct thread_pool *pool = start.pool;
    unsigned job = 0;

    free(opaque);
    if (pool->home >= 0)
        pin(cpu_of(pool, start.index));
    for (;;) {
        wait_change(pool, &pool->job, job++, YIELDS_BETWEEN_JOBS);
        if (pool->stopping)
            return NULL;
        pool->fn(pool->arg, start.index, pool->thread_count);
        thread_pool_barrier(pool);
    }
}

void thread_pool_run(struct thread_pool *pool, thread_pool_fn *fn, void *arg)
{
    assert_always(!atomic_exchange_explicit(&pool->running, true, memory_order_acquire));
    go_home(pool);
    pool->fn = fn;
    pool->arg = arg;
    atomic_store_explicit(&pool->claim, 0, memory_order_relaxed); /* published by the bump */
    if (pool->thread_count > 1)
        bump(pool, &pool->job);
    fn(arg, 0, pool->thread_count);
    thread_pool_barrier(pool);
    atomic_store_explicit(&pool->running, false, memory_order_release);
}

enum status thread_pool_open(uint32_t thread_count, struct thread_pool **out)
{
    struct thread_pool *pool;

    if (thread_count == 0 || thread_count > 1024)
        return STATUS_INVALID_ARGUMENT;
    pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool)
        return STATUS_RESOURCE_EXHAUSTED;
    *pool = (struct thread_pool){.thread_count = 1};
    if (thread_count == 1 || sched_getaffinity(0, sizeof pool->cpus, &pool->cpus) || CPU_COUNT(&pool->cpus) != (int)thread_count)
        CPU_ZERO(&pool->cpus);
    pool->home = cpu_of(pool, 0);
    pool->threads = calloc(thread_count, sizeof *pool->threads);
    if (!pool->threads)
        goto fail;
    for (uint32_t index = 1; index < thread_count; index++) {
        struct worker_start *start = malloc(sizeof *start);
        if (!start)
            goto fail;
        *start = (struct worker_start){.pool = pool, .index = index};
        if (pthread_create(&pool->threads[index - 1], NULL, worker_main, start)) {
            free(start);
            goto fail;
        }
        pool->thread_count = index + 1;
    }
    *out = pool;
    return STATUS_OK;
fail:
    thread_pool_close(pool);
    return STATUS_RESOURCE_EXHAUSTED;
}

void thread_pool_close(struct thread_pool *pool)
{
    if (!pool)
        return;
    pool->stopping = true;
    bump(pool, &pool->job);
    for (uint32_t index = 1; index < pool->thread_count; index++)
        pthread_join(pool->threads[index - 1], NULL);
    free(pool->threads);
    free(pool);
}

uint32_t thread_pool_threads(const struct thread_pool *pool) { return pool->thread_count; }

const char *thread_pool_cpus(const struct thread_pool *pool) { return pool->home >= 0 ? "own" : "any"; }

uint32_t cpu_count_within(uint32_t count, double limit) { return limit < count ? MAX((uint32_t)limit, 1u) : count; }

uint32_t cpu_count_usable(void)
{
    cpu_set_t set;
    uint32_t count = sched_getaffinity(0, sizeof set, &set) ? 1 : (uint32_t)MAX(CPU_COUNT(&set), 1);
    return cpu_count_within(count, cgroup_own_cpus());
}
