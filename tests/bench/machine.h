/* machine.h: what the machine can do at this moment, measured beside each figure: read bandwidth of memory, int8 operations a
 * second on registers. For benches, which include it in one file each.
 */
#ifndef FD_TESTS_BENCH_MACHINE_H
#define FD_TESTS_BENCH_MACHINE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "kernels/dispatch/isa.h"

#define MACHINE_STREAM_BYTES (256ull << 20)
#define MACHINE_HUGE_PAGE (2u << 20) /* buffers lie in huge pages where the system grants them */
#define MACHINE_PART (1u << 20)

struct machine {
    struct thread_pool *pool; /* borrowed */
    uint8_t *stream;          /* [MACHINE_STREAM_BYTES] */
    uint64_t sink;
};

static inline bool machine_open(struct machine *machine, struct thread_pool *pool)
{
    machine->pool = pool;
    machine->sink = 0;
    machine->stream = aligned_alloc(MACHINE_HUGE_PAGE, MACHINE_STREAM_BYTES);
    if (!machine->stream)
        return false;
    madvise(machine->stream, MACHINE_STREAM_BYTES, MADV_HUGEPAGE);
    memset(machine->stream, 1, MACHINE_STREAM_BYTES);
    return true;
}

static inline void machine_close(struct machine *machine) { free(machine->stream); }

static inline double machine_seconds(struct thread_pool *pool, thread_pool_fn *fn, void *arg)
{
    uint64_t begin = clock_now_ns();
    thread_pool_run(pool, fn, arg);
    return (double)(clock_now_ns() - begin) * 1e-9;
}

/* Reads in plain loops that the compiler turns into vector loads. */
__attribute__((optimize("O3"), noinline, unused)) static uint64_t machine_read_all(const uint64_t *words, size_t count)
{
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i + 32 <= count; i += 32)
        for (size_t j = 0; j < 8; j++) {
            a ^= words[i + j];
            b ^= words[i + 8 + j];
            c ^= words[i + 16 + j];
            d ^= words[i + 24 + j];
        }
    return a ^ b ^ c ^ d;
}

static inline void machine_read_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct machine *machine = arg;
    (void)thread_index, (void)thread_count;
    for (uint32_t item; (item = thread_pool_claim(machine->pool)) < MACHINE_STREAM_BYTES / MACHINE_PART;)
        __atomic_fetch_xor(&machine->sink,
                           machine_read_all((const uint64_t *)(machine->stream + (size_t)item * MACHINE_PART), MACHINE_PART / 8),
                           __ATOMIC_RELAXED);
}

/* Bytes a second, all threads. */
static inline double machine_read_bandwidth(struct machine *machine)
{
    return (double)MACHINE_STREAM_BYTES / machine_seconds(machine->pool, machine_read_job, machine);
}

#define MACHINE_PEAK_LOOPS 2000000u

/* 16 independent chains of vpdpbusd on registers: 64 multiply-adds of 2 operations each. */
__attribute__((target("avx512f,avx512vnni"), noinline, unused)) static void machine_vnni(void)
{
    __asm__ volatile("mov %0, %%ecx\n\t"
                     "1:\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm0\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm1\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm2\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm3\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm4\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm5\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm6\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm7\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm8\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm9\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm10\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm11\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm12\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm13\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm14\n\t"
                     "vpdpbusd %%zmm16, %%zmm17, %%zmm15\n\t"
                     "dec %%ecx\n\t"
                     "jnz 1b\n\t"
                     "vzeroupper"
                     :
                     : "i"(MACHINE_PEAK_LOOPS)
                     : "ecx", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

static inline void machine_peak_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    (void)arg, (void)thread_index, (void)thread_count;
    machine_vnni();
}

/* Operations a second, all threads; a multiply-add is two. 0 where the machine has no vpdpbusd. */
static inline double machine_int8_peak(struct machine *machine)
{
    if (!isa_supported(ISA_VNNI))
        return 0;
    return thread_pool_threads(machine->pool) * MACHINE_PEAK_LOOPS * 16.0 * 128.0 /
           machine_seconds(machine->pool, machine_peak_job, machine);
}

#endif
