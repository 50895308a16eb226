// machine.h: what the machine can do at this moment, measured beside each figure: read bandwidth of memory, and int8
// operations a second on registers with the instructions of a level. For benches, which include it in one file each.
#ifndef FD_TESTS_BENCH_MACHINE_H
#define FD_TESTS_BENCH_MACHINE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "kernels/simd/isa.h"

#define MACHINE_STREAM_BYTES (256ull << 20)
#define MACHINE_HUGE_PAGE (2u << 20) // buffers lie in huge pages where the system grants them
#define MACHINE_PART (1u << 20)

struct machine {
    struct thread_pool *pool; // borrowed
    uint8_t *stream;          // [MACHINE_STREAM_BYTES]
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

// Reads in plain loops that the compiler turns into vector loads.
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

// Bytes a second, all threads.
static inline double machine_read_bandwidth(struct machine *machine)
{
    return (double)MACHINE_STREAM_BYTES / machine_seconds(machine->pool, machine_read_job, machine);
}

#define MACHINE_PEAK_LOOPS 2000000u

// The instruction of each loop below, eight or sixteen times on registers of its own.
#define MACHINE_EIGHT(one, v) one(v, 0) one(v, 1) one(v, 2) one(v, 3) one(v, 4) one(v, 5) one(v, 6) one(v, 7)
#define MACHINE_SIXTEEN(one, v) \
    MACHINE_EIGHT(one, v) one(v, 8) one(v, 9) one(v, 10) one(v, 11) one(v, 12) one(v, 13) one(v, 14) one(v, 15)
#define MACHINE_VNNI_ONE(v, i) "vpdpbusd %%" #v "16, %%" #v "17, %%" #v #i "\n\t"
#define MACHINE_BYTES_ONE(v, i) "vpmaddubsw %%" #v "14, %%" #v "15, %%" #v "13\n\tvpaddw %%" #v "13, %%" #v #i ", %%" #v #i "\n\t"
#define MACHINE_LOOP(name, isa, instructions)                                                                                    \
    __attribute__((target(isa), noinline, unused)) static void name(void)                                                        \
    {                                                                                                                            \
        __asm__ volatile("mov %0, %%ecx\n\t"                                                                                     \
                         "1:\n\t" instructions "dec %%ecx\n\t"                                                                   \
                         "jnz 1b\n\t"                                                                                            \
                         "vzeroupper"                                                                                            \
                         :                                                                                                       \
                         : "i"(MACHINE_PEAK_LOOPS)                                                                               \
                         : "ecx", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                           "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                                         \
    }
MACHINE_LOOP(machine_peak_vnni, "avx512f,avx512vnni", MACHINE_SIXTEEN(MACHINE_VNNI_ONE, zmm))
MACHINE_LOOP(machine_peak_avx512, "avx512f,avx512bw", MACHINE_EIGHT(MACHINE_BYTES_ONE, zmm))
MACHINE_LOOP(machine_peak_avx2, "avx2", MACHINE_EIGHT(MACHINE_BYTES_ONE, ymm))

// By level: the loop, and the products of bytes in one round of it.
static const struct {
    void (*loop)(void);
    double products;
} machine_peaks[ISA_LEVEL_COUNT] = {
    [ISA_AVX2] = {machine_peak_avx2, 8 * 32},
    [ISA_AVX512] = {machine_peak_avx512, 8 * 64},
    [ISA_VNNI] = {machine_peak_vnni, 16 * 64},
};

static inline void machine_peak_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    const enum isa_level *level = arg;
    (void)thread_index, (void)thread_count;
    machine_peaks[*level].loop();
}

// Operations a second, all threads, with the level's instructions: vpdpbusd, or vpmaddubsw and the vpaddw that adds it up. A
// multiply-add is two operations. 0 for a level that this machine does not have, and for ref.
static inline double machine_int8_peak(struct machine *machine, enum isa_level level)
{
    if (!isa_supported(level) || !machine_peaks[level].loop)
        return 0;
    return thread_pool_threads(machine->pool) * MACHINE_PEAK_LOOPS * 2.0 * machine_peaks[level].products /
           machine_seconds(machine->pool, machine_peak_job, &level);
}

#endif
