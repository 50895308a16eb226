/* thread_pool.h: one pool of compute threads a process.
 *
 * A job runs on all threads at once, the caller being thread 0; inside it, thread_pool_barrier() separates phases, so
 * that a whole segment of a transformer is one job with a few cheap barriers instead of one wake-up an operation.
 * Threads spin for a moment (while work is dense no system call is made) and then park on a futex.
 *
 *     run ──▶ fn(arg, 0..n-1) ── barrier ── … ──▶ all done ──▶ run returns
 *
 * Work inside a phase is split by thread_pool_claim(): a counter that hands out item numbers, so that a slow core
 * takes fewer. What an item computes must not depend on who computes it.
 *
 * Threads: one caller at a time (asserted); a job must not call thread_pool_run().
 */
#ifndef FD_BASE_THREAD_POOL_H
#define FD_BASE_THREAD_POOL_H

#include <stdint.h>

#include "common/base/status.h"

struct thread_pool;

typedef void thread_pool_fn(void *arg, uint32_t thread_index, uint32_t thread_count);

/* Starts thread_count - 1 threads. Where there are as many threads as usable CPUs each has one of its own, the caller the first, on
 * which it begins each job. Otherwise, on a virtual machine, Linux takes a CPU that the host has halted for busy, and puts a thread
 * that it wakes behind its waker: measured on two CPUs after a pause of 40 ms, 1.3 ms until it began and 2 to 9 until it was moved,
 * instead of 0.07. *out is owned by the caller. On failure nothing is left behind. */
enum status thread_pool_open(uint32_t thread_count, struct thread_pool **out) MUST_CHECK;

/* Ends the threads and frees the pool. NULL is allowed. Blocks until they ended. */
void thread_pool_close(struct thread_pool *pool);

uint32_t thread_pool_threads(const struct thread_pool *pool);

/* For logs: "own" where each thread has a CPU of its own, else "any". */
const char *thread_pool_cpus(const struct thread_pool *pool);

/* Runs fn on every thread and returns when all returned. Makes no allocation. */
void thread_pool_run(struct thread_pool *pool, thread_pool_fn *fn, void *arg);

/* Inside a job: waits until every thread of the job is here. Resets the claim counter. Everything written before it
 * by any thread is seen after it by all. */
void thread_pool_barrier(struct thread_pool *pool);

/* Inside a job: the next item number of this phase, from 0; numbers >= the phase's item count mean "none left". */
uint32_t thread_pool_claim(struct thread_pool *pool);

/* CPUs that this process may use, at least 1: those that it may run on, or as many as its cgroup gives it the time of if those are
 * fewer. Of 2.5 it is 2: threads that wait for each other in phases lose more by a third that is stopped in turns than it brings. */
uint32_t cpu_count_usable(void);
uint32_t cpu_count_within(uint32_t count, double limit); /* that rule; limit: INFINITY for none */

#endif
