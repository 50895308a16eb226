// measure.c: measures how fast the threads of a pool read memory.
#include "common/base/measure.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/status.h"

// --- the median and the lower quartile of measured values ------------------------------------------------------------

static int ascending(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static const double *sorted(double *values, uint32_t count)
{
    assert_always(count >= 1);
    qsort(values, count, sizeof *values, ascending);
    return values;
}

double median_of(double *values, uint32_t count) { return sorted(values, count)[count / 2]; }

double quartile_of(double *values, uint32_t count) { return sorted(values, count)[count / 4]; }

enum { PART = 1 << 20, HUGE_PAGE = 2 << 20, PASSES_MAX = 63, PASSES_MIN = 3 };

struct stream {
    struct thread_pool *pool;
    const unsigned char *bytes;
    uint64_t part_count, sink;
};

__attribute__((optimize("O3"), noinline)) static uint64_t read_words(const uint64_t *words, size_t count)
{
    uint64_t sums[32] = {0}, all = 0;
    for (size_t i = 0; i + 32 <= count; i += 32)
        for (size_t j = 0; j < 32; j++)
            sums[j] ^= words[i + j];
    for (size_t j = 0; j < 32; j++)
        all ^= sums[j];
    return all;
}

static void read_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct stream *stream = arg;
    (void)thread_index, (void)thread_count;
    for (uint32_t item; (item = thread_pool_claim(stream->pool)) < stream->part_count;)
        __atomic_fetch_xor(&stream->sink,
                           read_words((const uint64_t *)(const void *)(stream->bytes + (size_t)item * PART), PART / 8),
                           __ATOMIC_RELAXED); // keeps the reads; orders nothing
}

double read_rate_of(struct thread_pool *pool, const void *memory, uint64_t bytes, uint32_t passes, uint64_t limit_us)
{
    double ns[PASSES_MAX];
    struct stream stream = {.pool = pool, .bytes = memory, .part_count = bytes / PART};
    uint32_t count = 0;

    thread_pool_run(pool, read_job, &stream); // warms up
    uint64_t until_us = clock_now_us() + limit_us;
    while (count < MIN(passes, (uint32_t)PASSES_MAX) && (count < PASSES_MIN || clock_now_us() < until_us)) {
        uint64_t began_ns = clock_now_ns();
        thread_pool_run(pool, read_job, &stream);
        ns[count++] = (double)MAX(clock_now_ns() - began_ns, 1);
    }
    return (double)(stream.part_count * PART) * 1e9 / quartile_of(ns, count);
}

double read_rate_measure(struct thread_pool *pool, uint64_t bytes, uint32_t passes, uint64_t limit_us)
{
    uint64_t size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    unsigned char *memory = aligned_alloc(HUGE_PAGE, size);

    if (!memory)
        return 0;
    madvise(memory, size, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    double rate = read_rate_of(pool, memory, bytes, passes, limit_us);
    free(memory);
    return rate;
}
