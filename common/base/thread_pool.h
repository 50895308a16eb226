// thread_pool.h: a pool of compute threads, one per process.
//
// A job runs on all threads at once, the caller being thread 0; inside it, thread_pool_barrier() separates phases.
// A whole segment of a transformer is therefore one job with a few cheap barriers instead of one wake-up per operation.
// Threads spin for a moment, so dense work makes no system call, and then park on a futex.
//
//     run ──▶ fn(arg, 0..n-1) ── barrier ── … ──▶ all done ──▶ run returns
//
// Work inside a phase is split by thread_pool_claim(), a counter that hands out item numbers, so that a slow core takes fewer
// items. The result of an item must not depend on the thread that computes it.
//
// Threads: one caller at a time (asserted); a job must not call thread_pool_run().
#ifndef FD_BASE_THREAD_POOL_H
#define FD_BASE_THREAD_POOL_H

#include <stdint.h>

#include "common/base/status.h"

struct numa_mask;
struct thread_pool;

typedef void thread_pool_fn(void *arg, uint32_t thread_index, uint32_t thread_count);

// Starts thread_count - 1 threads. If there are as many threads as usable CPUs, each is pinned to its own CPU, and the caller
// begins each job on the first. Without pinning, Linux on a virtual machine may take a CPU that the host has halted for busy, and
// queue a woken thread behind its waker. Measured on two CPUs after a pause of 40 ms, the thread began after 1.3 ms and was moved
// after 2 to 9 ms, instead of after 0.07 ms. *out is owned by the caller. On failure nothing is left behind.
enum status thread_pool_open(uint32_t thread_count, struct thread_pool **out) MUST_CHECK;

// Ends the threads and frees the pool. Blocks until they have ended. NULL is allowed.
void thread_pool_close(struct thread_pool *pool);

uint32_t thread_pool_threads(const struct thread_pool *pool);

// Has threads stay on the sets of CPUs (of NUMA nodes) in turn, beginning with the caller's, so that fewer threads than CPUs are on all of
// them. The caller itself stays free. Nothing changes if each thread has its own CPU, or there is but one set.
void thread_pool_spread(struct thread_pool *pool, const struct numa_mask *sets, uint32_t set_count);

// Returns "own" if each thread has its own CPU, "nodes" if they are spread over sets, otherwise "any". For logs.
const char *thread_pool_cpus(const struct thread_pool *pool);

// Runs fn on every thread and returns when all have returned. Allocates nothing.
void thread_pool_run(struct thread_pool *pool, thread_pool_fn *fn, void *arg);

// Call it inside a job. Waits until every thread of the job has called it, and resets the claim counter. All threads then see what
// any of them wrote before the call.
void thread_pool_barrier(struct thread_pool *pool);

// Wakes threads that sleep: they look out for the next job for about a millisecond, so that it finds them on their cores. Any thread may
// call it, at any time.
void thread_pool_wake(struct thread_pool *pool);

// How often the threads of a pool have waited for one another.
struct thread_pool_counts {
    uint64_t jobs;     // thread_pool_run(): the threads wait for it to begin
    uint64_t barriers; // the end of each job is one
    uint64_t woken;    // how often a thread that slept was woken
};

// Returns the counts since the pool was opened. Call it from the thread that runs jobs, between two of them.
struct thread_pool_counts thread_pool_count(const struct thread_pool *pool);

// Call it inside a job. Returns the next item number of this phase, from 0. A number that is not below the phase's item count means
// that no item is left.
uint32_t thread_pool_claim(struct thread_pool *pool);

// Returns how many CPUs this process may use, at least 1: those in its affinity, or fewer if its control group grants less CPU
// time. 2.5 CPUs of time become 2, because a third thread, throttled at times, would hold up the others at each barrier.
uint32_t cpu_count_usable(void);
uint32_t cpu_count_within(uint32_t count, double limit); // the same rule for a given limit; INFINITY: none

// --- other threads ---

// For a thread that works for some microseconds at a time and that others wait for: when it wakes, it runs before threads that compute for long.
// Its share of the processor stays the same. A kernel that refuses leaves it as it was.
void priority_short_turns(void);

#endif
