// thread_pool.c: runs a job on all threads of a pool, with barriers; counts processors; gives a thread short turns.
//
// The state is three counters. `job` grows by one per run: a worker that sees it change takes part. `arrived` and `phase`
// make the barrier: the last thread to arrive resets `claim`, then bumps `phase`.
// A waiter spins SPIN_ROUNDS times on its counter, then yields its core for a while, then sleeps in futex(2). `sleepers` tells
// whoever bumps a counter whether a wake-up call is needed at all.
#include "common/base/thread_pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/cgroup.h"
#include "common/base/checked.h"
#include "common/base/numa.h"

// About 30 µs of pause instructions: longer than the gap between two operations of a dense step, much shorter than a time slice.
enum { SPIN_ROUNDS = 1500, CACHE_LINE = 64 };

// Calls of sched_yield(), each 0.4 µs if nobody else wants the core. Within a job the other threads will arrive soon, so about a
// millisecond; between jobs a tenth of that. Measured against sleeping at once, in tokens/s at 1 and 32 streams: 1.14 and 1.18 on a
// virtual machine with a busy host (medians of 7 and 3 rounds), 1.01 and 1.03 on a quiet one (35 and 9 rounds). Spinning all the time
// is as fast alone but takes cores from workers beside it (0.94 for 0.99, 4 rounds).
enum { YIELDS_WITHIN_JOB = 3000, YIELDS_BETWEEN_JOBS = 300, YIELDS_WHEN_WOKEN = YIELDS_WITHIN_JOB };

struct thread_pool {
    _Alignas(CACHE_LINE) atomic_uint job;
    _Alignas(CACHE_LINE) atomic_uint phase;
    _Alignas(CACHE_LINE) atomic_uint arrived;
    _Alignas(CACHE_LINE) atomic_uint claim;
    struct thread_pool_counts counts; // the last thread to arrive counts a barrier, and `phase` publishes it
    _Alignas(CACHE_LINE) atomic_uint sleepers;
    atomic_ullong woken;
    thread_pool_fn *fn;
    void *arg;
    atomic_bool running; // one caller at a time: asserted
    bool stopping, spread;
    cpu_set_t cpus; // one per thread; empty if threads are not pinned
    int home;       // the caller's, the first of them; -1: not pinned
    uint32_t thread_count;
    pthread_t *threads; // [thread_count - 1]
};

struct worker_start {
    struct thread_pool *pool;
    uint32_t index;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); // takes as long as a pause; `yield` does nothing
#else
    sched_yield();
#endif
}

// Waits until *word is no longer `old`.
static void wait_change(struct thread_pool *pool, atomic_uint *word, unsigned old, int yields)
{
    for (;; yields = YIELDS_WHEN_WOKEN) { // again where a thread is woken for what is yet to come
        for (int round = 0; round < SPIN_ROUNDS; round++) {
            // acquire: pairs with the release in bump()
            if (atomic_load_explicit(word, memory_order_acquire) != old)
                return;
            pause_cpu();
        }
        for (int round = 0; round < yields; round++) {
            if (atomic_load_explicit(word, memory_order_acquire) != old) // acquire: as above
                return;
            sched_yield();
        }
        // seq_cst on both sides: either bump() sees this sleeper, or this load sees the new value
        atomic_fetch_add_explicit(&pool->sleepers, 1, memory_order_seq_cst);
        if (atomic_load_explicit(word, memory_order_seq_cst) == old) {
            syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
            atomic_fetch_add_explicit(&pool->woken, 1, memory_order_relaxed); // relaxed: it is a statistic
        }
        atomic_fetch_sub_explicit(&pool->sleepers, 1,
                                  memory_order_relaxed); // relaxed: a late decrement costs a spare wake-up at most
    }
}

static void bump(struct thread_pool *pool, atomic_uint *word)
{
    atomic_fetch_add_explicit(word, 1, memory_order_seq_cst); // pairs with wait_change's seq_cst
    if (atomic_load_explicit(&pool->sleepers, memory_order_seq_cst))
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void thread_pool_barrier(struct thread_pool *pool)
{
    unsigned phase =
        atomic_load_explicit(&pool->phase, memory_order_relaxed); // relaxed: it cannot change before this thread arrives
    // acq_rel: the last to arrive has seen what all others wrote and passes it on through `phase`
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) + 1 < pool->thread_count) {
        wait_change(pool, &pool->phase, phase, YIELDS_WITHIN_JOB);
        return;
    }
    pool->counts.barriers++;
    atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed); // published by the bump
    atomic_store_explicit(&pool->claim, 0, memory_order_relaxed);
    bump(pool, &pool->phase);
}

uint32_t thread_pool_claim(struct thread_pool *pool)
{
    return atomic_fetch_add_explicit(&pool->claim, 1, memory_order_relaxed); // relaxed: only uniqueness matters
}

// Returns the index-th of the pool's CPUs, -1 if it has none.
static int cpu_of(const struct thread_pool *pool, uint32_t index)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &pool->cpus) && index-- == 0)
            return cpu;
    return -1;
}

// Best effort: a thread on another CPU is slower, not wrong.
static void pin(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

// Moves the caller to its own CPU for the start of a job and leaves its affinity as it was, so that threads it creates are not pinned.
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
    pool->counts.jobs++;
    atomic_store_explicit(&pool->claim, 0, memory_order_relaxed); // published by the bump
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

struct thread_pool_counts thread_pool_count(const struct thread_pool *pool)
{
    struct thread_pool_counts counts = pool->counts;
    counts.woken = atomic_load_explicit(&pool->woken, memory_order_relaxed); // relaxed: it is a statistic
    return counts;
}

void thread_pool_wake(struct thread_pool *pool)
{
    if (atomic_load_explicit(&pool->sleepers, memory_order_relaxed)) // relaxed: one that falls asleep just now has only just run
        syscall(SYS_futex, &pool->job, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

// Best effort, as pin() is.
void thread_pool_spread(struct thread_pool *pool, const struct numa_mask *sets, uint32_t set_count)
{
    pool->spread = pool->home < 0 && set_count > 1;
    for (uint32_t index = 1; pool->spread && index < pool->thread_count; index++)
        pthread_setaffinity_np(pool->threads[index - 1], sizeof *sets, (const cpu_set_t *)(const void *)&sets[index % set_count]);
}

const char *thread_pool_cpus(const struct thread_pool *pool) { return pool->home >= 0 ? "own" : pool->spread ? "nodes" : "any"; }

uint32_t cpu_count_within(uint32_t count, double limit) { return limit < count ? MAX((uint32_t)limit, 1u) : count; }

uint32_t cpu_count_usable(void)
{
    cpu_set_t set;
    uint32_t count = sched_getaffinity(0, sizeof set, &set) ? 1 : (uint32_t)MAX(CPU_COUNT(&set), 1);
    return cpu_count_within(count, cgroup_own_cpus());
}

// --- short turns ---

enum { SLICE_NS = 100000 }; // the least that the kernel takes

// struct sched_attr of the kernel, in its first version.
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

_Static_assert(sizeof(struct attributes) == 48, "the kernel's SCHED_ATTR_SIZE_VER0");

// Since Linux 6.12 a thread of the usual policy may have a slice of its own: of those that have not had their share the one whose slice ends
// first runs next, and one that wakes with a shorter slice takes the core at once. Without it a woken thread waits for the slice of whoever
// computes: 2.8 ms with two cores, thirty layers a step. Earlier kernels ignore the field. glibc has no wrapper before 2.41.
void priority_short_turns(void)
{
    struct attributes own = {.size = sizeof own};

    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) || own.policy != 0) // nice stays; another policy was somebody's choice
        return;
    own.size = sizeof own;
    own.runtime_ns = SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &own, 0);
}
