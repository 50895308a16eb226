// machine.h: what the machine can do at this moment, measured beside each figure: read bandwidth of memory, and operations a second on
// registers with the instructions of a level, of bytes and of f32. The bound of work is the longer of reading and computing. For benches, which include it in one file each.
#ifndef FD_TESTS_BENCH_MACHINE_H
#define FD_TESTS_BENCH_MACHINE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/measure.h"
#include "common/base/thread_pool.h"
#include "kernels/simd/isa.h"

#define MACHINE_STREAM_BYTES (256ull << 20)
#define MACHINE_HUGE_PAGE (2u << 20) // buffers lie in huge pages where the system grants them

struct machine {
    struct thread_pool *pool; // borrowed
    uint8_t *stream;          // [MACHINE_STREAM_BYTES]
};

static inline bool machine_open(struct machine *machine, struct thread_pool *pool)
{
    machine->pool = pool;
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

// Bytes a second, all threads.
static inline double machine_read_bandwidth(const struct machine *machine)
{
    return read_rate_of(machine->pool, machine->stream, MACHINE_STREAM_BYTES, 1, 0);
}

#define MACHINE_PEAK_LOOPS 200000u

#if defined(__x86_64__)
// The instruction of each loop below, on eight to sixteen registers of its own: enough to hide its latency. All registers begin as zeros,
// because numbers of f32 that are subnormal would be slow.
#define MACHINE_EIGHT(one, v) one(v, 0) one(v, 1) one(v, 2) one(v, 3) one(v, 4) one(v, 5) one(v, 6) one(v, 7)
#define MACHINE_TWELVE(one, v) MACHINE_EIGHT(one, v) one(v, 8) one(v, 9) one(v, 10) one(v, 11)
#define MACHINE_SIXTEEN(one, v) MACHINE_TWELVE(one, v) one(v, 12) one(v, 13) one(v, 14) one(v, 15)
#define MACHINE_ZERO(v, i) "vxorps %%" #v #i ", %%" #v #i ", %%" #v #i "\n\t"
#define MACHINE_BYTES_ONE(v, i) "vpmaddubsw %%" #v "14, %%" #v "15, %%" #v "13\n\tvpaddw %%" #v "13, %%" #v #i ", %%" #v #i "\n\t"
#define MACHINE_AVXVNNI_ONE(v, i) "%{vex%} vpdpbusd %%" #v "14, %%" #v "15, %%" #v #i "\n\t"
#define MACHINE_VNNI_ONE(v, i) "vpdpbusd %%" #v "16, %%" #v "17, %%" #v #i "\n\t"
#define MACHINE_FMA_ONE(v, i) "vfmadd231ps %%" #v "14, %%" #v "15, %%" #v #i "\n\t"
#define MACHINE_WIDE_FMA_ONE(v, i) "vfmadd231ps %%" #v "16, %%" #v "17, %%" #v #i "\n\t"
#define MACHINE_LOOP(name, isa, more, instructions)                                                                              \
    __attribute__((target(isa), noinline, unused)) static void name(void)                                                        \
    {                                                                                                                            \
        __asm__ volatile(MACHINE_SIXTEEN(MACHINE_ZERO, ymm) more "mov %0, %%ecx\n\t"                                             \
                                                                 "1:\n\t" instructions "dec %%ecx\n\t"                           \
                                                                 "jnz 1b\n\t"                                                    \
                                                                 "vzeroupper"                                                    \
                         :                                                                                                       \
                         : "i"(MACHINE_PEAK_LOOPS)                                                                               \
                         : "ecx", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                           "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                                         \
    }
#define MACHINE_WIDE_ZERO "vpxord %%zmm16, %%zmm16, %%zmm16\n\tvpxord %%zmm17, %%zmm17, %%zmm17\n\t"
MACHINE_LOOP(machine_bytes_256, "avx2", "", MACHINE_EIGHT(MACHINE_BYTES_ONE, ymm))
MACHINE_LOOP(machine_bytes_512, "avx512f,avx512bw", "", MACHINE_EIGHT(MACHINE_BYTES_ONE, zmm))
MACHINE_LOOP(machine_dpbusd_256, "avx2,avxvnni", "", MACHINE_TWELVE(MACHINE_AVXVNNI_ONE, ymm))
MACHINE_LOOP(machine_dpbusd_512, "avx512f,avx512vnni", MACHINE_WIDE_ZERO, MACHINE_SIXTEEN(MACHINE_VNNI_ONE, zmm))
MACHINE_LOOP(machine_fma_256, "avx2,fma", "", MACHINE_TWELVE(MACHINE_FMA_ONE, ymm))
MACHINE_LOOP(machine_fma_512, "avx512f", MACHINE_WIDE_ZERO, MACHINE_SIXTEEN(MACHINE_WIDE_FMA_ONE, zmm))
#endif

// The instructions that bound a level's products: a loop, and the products in one round of it.
struct machine_peak {
    const char *name;
    void (*loop)(void);
    double products;
};

// Another architecture has no peaks yet.
static const struct machine_peak machine_int8_peaks[ISA_LEVEL_COUNT] = {
#if defined(__x86_64__)
    [ISA_AVX2] = {"vpmaddubsw + vpaddw, 256 bits", machine_bytes_256, 8 * 32},
    [ISA_AVXVNNI] = {"vpdpbusd, 256 bits", machine_dpbusd_256, 12 * 32},
    [ISA_AVX512] = {"vpmaddubsw + vpaddw, 512 bits", machine_bytes_512, 8 * 64},
    [ISA_VNNI] = {"vpdpbusd, 512 bits", machine_dpbusd_512, 16 * 64},
#endif
};

static const struct machine_peak machine_f32_peaks[ISA_LEVEL_COUNT] = {
#if defined(__x86_64__)
    [ISA_AVX2] = {"f32 FMA, 256 bits", machine_fma_256, 12 * 8},
    [ISA_AVXVNNI] = {"f32 FMA, 256 bits", machine_fma_256, 12 * 8},
    [ISA_AVX512] = {"f32 FMA, 512 bits", machine_fma_512, 16 * 16},
    [ISA_VNNI] = {"f32 FMA, 512 bits", machine_fma_512, 16 * 16},
#endif
};

static inline void machine_peak_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    const struct machine_peak *peak = arg;
    (void)thread_index, (void)thread_count;
    peak->loop();
}

// Operations a second of all threads; a multiply-add is two. 0 for a level that this machine does not have, and for ref.
static inline double machine_peak_of(struct thread_pool *pool, enum isa_level level, const struct machine_peak *peaks)
{
    struct machine_peak peak = peaks[level];
    if (!isa_supported(level) || !peak.loop)
        return 0;
    return thread_pool_threads(pool) * MACHINE_PEAK_LOOPS * 2.0 * peak.products / machine_seconds(pool, machine_peak_job, &peak);
}

// With the level's instructions for products of bytes: vpdpbusd, or vpmaddubsw and the vpaddw that adds it up.
static inline double machine_int8_peak(struct thread_pool *pool, enum isa_level level)
{
    return machine_peak_of(pool, level, machine_int8_peaks);
}

// With the level's fused multiply-add of f32.
static inline double machine_f32_peak(struct thread_pool *pool, enum isa_level level)
{
    return machine_peak_of(pool, level, machine_f32_peaks);
}

// Returns the least seconds for bytes and operations: what either of the two takes at the rates given. A rate of 0 bounds nothing.
static inline double machine_bound(double bytes, double read, double operations, double peak)
{
    double reading = read > 0 ? bytes / read : 0, computing = peak > 0 ? operations / peak : 0;
    return reading > computing ? reading : computing;
}

#endif
