/* bench_attention.c: decode attention as GB/s of K and V read, beside the read bandwidth of the same pool in the same run;
 * prefill chunks as GFLOP/s, beside the peak of fused multiply-adds on registers.
 *
 *     bench_attention [level] [threads] [MiB] [heads per KV head: only those]
 *
 * The pool (512 MiB unless said) exceeds the caches by far: one layer, as many sequences as fill it, one row each a step,
 * so that each step reads the whole pool once. A figure is the best of several passes. Ceilings are measured between the
 * passes, because other load on the machine moves both.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "common/kv/kv_store.h"
#include "kernels/dispatch/kernels.h"

#define PART (1u << 20)
#define DECODE_PASSES 5
#define MAX_ROWS 4096u
#define PREFILL_ROWS 256u
#define PEAK_LOOPS 4000000u

struct job {
    struct thread_pool *pool;
    const unsigned char *bytes;
    uint64_t size;
    uint64_t sink;
};

/* Reads in plain loops that the compiler turns into vector loads. */
__attribute__((optimize("O3"), target("avx2"), noinline)) static uint64_t read_all(const uint64_t *words, size_t count)
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
    struct job *job = arg;
    (void)thread_index, (void)thread_count;
    for (uint32_t item; (item = thread_pool_claim(job->pool)) < job->size / PART;)
        __atomic_fetch_xor(&job->sink, read_all((const uint64_t *)(job->bytes + (size_t)item * PART), PART / 8), __ATOMIC_RELAXED);
}

static double read_gbs(struct job *job)
{
    uint64_t start = clock_now_ns();
    thread_pool_run(job->pool, read_job, job);
    return (double)(job->size / PART * PART) / (double)(clock_now_ns() - start);
}

/* 12 independent chains of fused multiply-adds, 8 or 16 values each. */
__attribute__((target("avx512f"), noinline)) static void peak_avx512(void)
{
    __asm__ volatile("mov %0, %%ecx\n\t"
                     "1:\n\t"
                     "vfmadd231ps %%zmm31, %%zmm31, %%zmm0\n\tvfmadd231ps %%zmm31, %%zmm31, %%zmm1\n\t"
                     "vfmadd231ps %%zmm31, %%zmm31, %%zmm2\n\tvfmadd231ps %%zmm31, %%zmm31, %%zmm3\n\t"
                     "vfmadd231ps %%zmm31, %%zmm31, %%zmm4\n\tvfmadd231ps %%zmm31, %%zmm31, %%zmm5\n\t"
                     "vfmadd231ps %%zmm31, %%zmm31, %%zmm6\n\tvfmadd231ps %%zmm31, %%zmm31, %%zmm7\n\t"
                     "vfmadd231ps %%zmm31, %%zmm31, %%zmm8\n\tvfmadd231ps %%zmm31, %%zmm31, %%zmm9\n\t"
                     "vfmadd231ps %%zmm31, %%zmm31, %%zmm10\n\tvfmadd231ps %%zmm31, %%zmm31, %%zmm11\n\t"
                     "dec %%ecx\n\tjnz 1b\n\t"
                     :
                     : "i"(PEAK_LOOPS)
                     : "ecx", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
}

__attribute__((target("avx2,fma"), noinline)) static void peak_avx2(void)
{
    __asm__ volatile("mov %0, %%ecx\n\t"
                     "1:\n\t"
                     "vfmadd231ps %%ymm15, %%ymm15, %%ymm0\n\tvfmadd231ps %%ymm15, %%ymm15, %%ymm1\n\t"
                     "vfmadd231ps %%ymm15, %%ymm15, %%ymm2\n\tvfmadd231ps %%ymm15, %%ymm15, %%ymm3\n\t"
                     "vfmadd231ps %%ymm15, %%ymm15, %%ymm4\n\tvfmadd231ps %%ymm15, %%ymm15, %%ymm5\n\t"
                     "vfmadd231ps %%ymm15, %%ymm15, %%ymm6\n\tvfmadd231ps %%ymm15, %%ymm15, %%ymm7\n\t"
                     "vfmadd231ps %%ymm15, %%ymm15, %%ymm8\n\tvfmadd231ps %%ymm15, %%ymm15, %%ymm9\n\t"
                     "vfmadd231ps %%ymm15, %%ymm15, %%ymm10\n\tvfmadd231ps %%ymm15, %%ymm15, %%ymm11\n\t"
                     "dec %%ecx\n\tjnz 1b\n\t"
                     :
                     : "i"(PEAK_LOOPS)
                     : "ecx", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
}

static void peak_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    (void)arg, (void)thread_index, (void)thread_count;
    if (kernels->level >= ISA_AVX512)
        peak_avx512();
    else
        peak_avx2();
}

static double peak_gflops(struct thread_pool *pool)
{
    double lanes = kernels->level >= ISA_AVX512 ? 16 : 8, best = 0;
    for (int pass = 0; pass < 3; pass++) {
        uint64_t start = clock_now_ns();
        thread_pool_run(pool, peak_job, NULL);
        best = MAX(best, 2 * 12 * lanes * PEAK_LOOPS * thread_pool_threads(pool) / (double)(clock_now_ns() - start));
    }
    return best;
}

static void die(const char *what, const struct error *error)
{
    fprintf(stderr, "%s: %s\n", what, error->text);
    exit(1);
}

/* A store of one layer whose sequences 0..count-1 hold `held` imported positions each, with room for `extra` more. */
static struct kv_store *fill(struct thread_pool *pool, const struct kv_shape *shape, uint32_t count, uint32_t held, uint32_t extra)
{
    uint64_t page_bytes = kv_page_bytes(shape), pages = (held + extra + 15) / 16;
    uint16_t *page = malloc(page_bytes);
    struct kv_store *store;
    struct error error;

    for (uint64_t i = 0; i < page_bytes / 2; i++)
        page[i] = (uint16_t)(0x3000u | (i * 2654435761u >> 20 & 0x8fffu)); /* f16 of ±0.1 to ±2 */
    if (kv_store_open(shape, page_bytes * pages * count, MAX_ROWS, pool, &store, &error))
        die("open", &error);
    for (uint32_t i = 0; i < count; i++) {
        if (kv_store_reserve(store, i, held + extra, &error))
            die("reserve", &error);
        for (uint32_t at = 0; at < held; at += 16)
            if (kv_store_import_page(store, i, at / 16, page, MIN(16u, held - at), &error))
                die("import", &error);
    }
    free(page);
    return store;
}

/* Pointers of `rows` rows into one tensor each. */
struct tensors {
    const float *q[MAX_ROWS], *k[MAX_ROWS], *v[MAX_ROWS];
    float *o[MAX_ROWS];
    float *memory;
};

static void tensors_make(struct tensors *tensors, const struct kv_shape *shape, uint32_t rows)
{
    size_t q = shape->heads * shape->head_dim, kv = shape->kv_heads * shape->head_dim;
    float *at = tensors->memory = malloc(rows * 2 * (q + kv) * sizeof *at);
    for (size_t i = 0; i < rows * 2 * (q + kv); i++)
        at[i] = (float)(i * 2654435761u >> 8 & 1023) / 512.0f - 1.0f;
    for (uint32_t row = 0; row < rows; row++, at += 2 * (q + kv)) {
        tensors->q[row] = at, tensors->k[row] = at + q;
        tensors->v[row] = at + q + kv, tensors->o[row] = at + q + 2 * kv;
    }
}

static struct tensors tensors;
static struct kv_row rows[MAX_ROWS];

static void decode(struct thread_pool *pool, struct job *job, uint32_t group, uint32_t head_dim, uint32_t context)
{
    struct kv_shape shape = {.layers = 1,
                             .heads = 4 * group,
                             .kv_heads = 4,
                             .head_dim = head_dim,
                             .page_tokens = 16,
                             .type = KV_F16,
                             .max_sequences = MAX_ROWS,
                             .max_context = context};
    uint32_t count = MAX(1u, (uint32_t)MIN((uint64_t)MAX_ROWS, job->size / (kv_page_bytes(&shape) * (context / 16)))), bad;
    struct kv_store *store = fill(pool, &shape, count, context - 1, 1);
    struct kv_batch *batch;
    struct kv_stats before, after;
    struct error error;
    double best = 0, ceiling = 0;

    tensors_make(&tensors, &shape, count);
    if (kv_batch_open(store, &batch))
        exit(1);
    for (uint32_t i = 0; i < count; i++)
        rows[i] = (struct kv_row){i, context - 1};
    for (int pass = 0; pass < DECODE_PASSES; pass++) {
        if (kv_batch_plan(batch, rows, count, &bad, &error))
            die("plan", &error);
        kv_store_stats(store, &before);
        kv_batch_attend(batch, 0, tensors.q, tensors.k, tensors.v, tensors.o);
        kv_store_stats(store, &after);
        best = MAX(best, (double)(after.bytes_read - before.bytes_read) / (double)(after.attend_ns - before.attend_ns));
        ceiling = MAX(ceiling, read_gbs(job));
    }
    printf("decode   %2u heads per KV head  head_dim %3u  context %5u  %6.2f GB/s of %6.2f: %3.0f %%\n", group, head_dim, context,
           best, ceiling, 100 * best / ceiling);
    fflush(stdout);
    kv_batch_close(batch);
    kv_store_close(store);
    free(tensors.memory);
}

static void prefill(struct thread_pool *pool, uint32_t group, uint32_t head_dim, uint32_t held)
{
    struct kv_shape shape = {.layers = 1,
                             .heads = 4 * group,
                             .kv_heads = 4,
                             .head_dim = head_dim,
                             .page_tokens = 16,
                             .type = KV_F16,
                             .max_sequences = 4,
                             .max_context = held + PREFILL_ROWS};
    struct kv_store *store = fill(pool, &shape, 1, held, PREFILL_ROWS);
    struct kv_batch *batch;
    struct kv_stats before, after;
    struct error error;
    double best = 0, peak = peak_gflops(pool);
    uint32_t bad;

    tensors_make(&tensors, &shape, PREFILL_ROWS);
    if (kv_batch_open(store, &batch))
        exit(1);
    for (uint32_t i = 0; i < PREFILL_ROWS; i++)
        rows[i] = (struct kv_row){0, held + i};
    for (int pass = 0; pass < 8; pass++) {
        if (kv_batch_plan(batch, rows, PREFILL_ROWS, &bad, &error))
            die("plan", &error);
        kv_store_stats(store, &before);
        kv_batch_attend(batch, 0, tensors.q, tensors.k, tensors.v, tensors.o);
        kv_store_stats(store, &after);
        double flops = 4.0 * (double)(after.tokens_read - before.tokens_read) * shape.heads * head_dim;
        best = MAX(best, flops / (double)(after.attend_ns - before.attend_ns));
    }
    printf("prefill  %2u heads per KV head  head_dim %3u  %u rows at %5u  %6.1f GFLOP/s of %6.1f: %3.0f %%\n", group, head_dim,
           PREFILL_ROWS, held, best, peak, 100 * best / peak);
    fflush(stdout);
    kv_batch_close(batch);
    kv_store_close(store);
    free(tensors.memory);
}

int main(int argc, char **argv)
{
    static const uint32_t groups[] = {1, 3, 4, 8}, head_dims[] = {64, 128}, contexts[] = {512, 1024, 4096};
    uint32_t threads = argc > 2 ? (uint32_t)atoi(argv[2]) : cpu_count_usable();
    struct thread_pool *pool;
    struct error error;
    uint32_t only = argc > 4 ? (uint32_t)atoi(argv[4]) : 0;
    struct job job = {.size = (argc > 3 ? (uint64_t)atoi(argv[3]) : 512) << 20};

    if (kernels_init(argc > 1 && strcmp(argv[1], "auto") ? argv[1] : NULL, &error))
        die("level", &error);
    if (thread_pool_open(threads, NULL, &pool))
        return 1;
    void *memory = mmap(NULL, job.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    madvise(memory, job.size, MADV_HUGEPAGE);
    memset(memory, 1, job.size);
    job.pool = pool;
    job.bytes = memory;
    printf("level %s, %u threads\n", kernels_level_name(), threads);
    for (uint32_t g = 0; g < ARRAY_COUNT(groups); g++)
        for (uint32_t d = 0; d < ARRAY_COUNT(head_dims) && (!only || only == groups[g]); d++)
            for (uint32_t c = 0; c < ARRAY_COUNT(contexts); c++)
                decode(pool, &job, groups[g], head_dims[d], contexts[c]);
    for (uint32_t g = 0; g < ARRAY_COUNT(groups); g++)
        for (uint32_t d = 0; d < ARRAY_COUNT(head_dims) && (!only || only == groups[g]); d++)
            prefill(pool, groups[g], head_dims[d], 1024);
    munmap(memory, job.size);
    thread_pool_close(pool);
    return 0;
}
