// bench_attention.c: decode attention in GB/s of K and V, beside its bound: the longer of reading them at the bandwidth of a buffer of the same
// size and of the products at the level's peak (f32 multiply-adds; for codes, products of bytes); other KV types, AVX2
// and sparse rows, beside f16, AVX-512 and dense rows on the same tokens; prefill chunks in GFLOP/s, beside OpenBLAS. Both sides are measured in the same
// pass.
//
//     bench_attention [threads] [MiB] [heads per KV head: only those; or "alone": one sequence that has all threads]
//
// The pool (1 GiB of f16 unless given) is much larger than the caches. It has one layer and as many sequences as fill it, with one
// row each a step, so that each step reads the whole pool once.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cblas.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/kv/kv_store.h"
#include "tests/bench/machine.h"
#include "tests/bench/report.h"

#define PART (1u << 20)
#define DECODE_PASSES 5
#define PREFILL_PASSES 15
#define MAX_ROWS 4096u
#define PREFILL_ROWS 128u
#define PREFILL_HELD 4096u
#define SQUARE 768 // size of the sgemm that is the ceiling of prefill; like prefill's tiles it fits L2
#define CACHED_BYTES (4ull << 20)
#define SPARSE_PERCENT 10u
#define ALONE_LAYERS 32u // their KV is more than caches hold
#define ALONE_PASSES 15
#define PAGE_KINDS 61u // pages differ, so that a sparse row's choice lies scattered over its context

struct job {
    struct thread_pool *pool;
    const unsigned char *bytes;
    uint64_t size;
    uint64_t (*read)(const uint64_t *words, size_t count);
    uint64_t sink;
};

// A way of reading: one stream a thread, which the hardware prefetches, or four with software prefetch.
typedef uint64_t read_fn(const uint64_t *words, size_t count);

#if defined(__x86_64__)
#define PLAIN_TARGET target("avx2"),
__attribute__((target("avx512f"), noinline)) static uint64_t read_stream(const uint64_t *words, size_t count)
{
    __m512i sums[4] = {0};
    for (size_t i = 0; i < count; i += 32)
        for (uint32_t k = 0; k < 4; k++)
            sums[k] = _mm512_xor_si512(sums[k], _mm512_loadu_si512(words + i + 8 * k));
    return (uint64_t)_mm512_reduce_add_epi64(
        _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3])));
}

__attribute__((target("avx512f"), noinline)) static uint64_t read_four_streams(const uint64_t *words, size_t count)
{
    __m512i sums[4] = {0};
    for (size_t i = 0; i < count / 4; i += 32)
        for (uint32_t stream = 0; stream < 4; stream++)
            for (uint32_t k = 0; k < 4; k++) {
                const uint64_t *at = words + stream * (count / 4) + i + 8 * k;
                _mm_prefetch((const char *)(at + 128), _MM_HINT_T1);
                sums[k] = _mm512_xor_si512(sums[k], _mm512_loadu_si512(at));
            }
    return (uint64_t)_mm512_reduce_add_epi64(
        _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3])));
}

#else
#define PLAIN_TARGET
#define read_stream read_plain
#define read_four_streams read_plain
#endif

// Without AVX-512: plain loops that the compiler turns into vector loads.
__attribute__((optimize("O3"), PLAIN_TARGET noinline)) static uint64_t read_plain(const uint64_t *words, size_t count)
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
        __atomic_fetch_xor(&job->sink, job->read((const uint64_t *)(job->bytes + (size_t)item * PART), PART / 8), __ATOMIC_RELAXED);
}

// Returns the rate of the faster way.
static double read_gbs(struct job *job)
{
    read_fn *const ways[] = {isa_supported(ISA_AVX512) ? read_stream : read_plain,
                             isa_supported(ISA_AVX512) ? read_four_streams : read_plain};
    double best = 0;
    for (uint32_t i = 0; i < ARRAY_COUNT(ways); i++) {
        job->read = ways[i];
        uint64_t start = clock_now_ns();
        thread_pool_run(job->pool, read_job, job);
        best = MAX(best, (double)(job->size / PART * PART) / (double)(clock_now_ns() - start));
    }
    return best;
}

static double sgemm_gflops(void)
{
    static float a[SQUARE * SQUARE], b[SQUARE * SQUARE], c[SQUARE * SQUARE];
    uint64_t start = clock_now_ns();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, SQUARE, SQUARE, SQUARE, 1, a, SQUARE, b, SQUARE, 0, c, SQUARE);
    return 2.0 * SQUARE * SQUARE * SQUARE / (double)(clock_now_ns() - start);
}

static void die(const char *what, const struct error *error)
{
    fprintf(stderr, "%s: %s\n", what, error->text);
    exit(1);
}

// Opens a store of one layer. Sequences 0 .. count - 1 hold `held` imported positions each and have room for `extra` more.
static struct kv_store *fill(struct thread_pool *pool, const struct kv_shape *shape, uint32_t count, uint32_t held, uint32_t extra)
{
    uint64_t page_bytes = kv_page_bytes(shape), pages = (held + extra + 15) / 16;
    uint16_t *page = malloc(PAGE_KINDS * page_bytes);
    struct kv_store *store;
    struct error error;

    for (uint64_t i = 0; i < PAGE_KINDS * page_bytes / 2; i++)
        page[i] = (uint16_t)(0x3000u | (i * 2654435761u >> 20 & 0x8fffu)); // f16 of ±0.1 to ±2
    if (kv_store_open(shape, kv_page_memory_bytes(shape) * pages * count, MAX_ROWS, pool, &store, &error))
        die("open", &error);
    for (uint32_t i = 0; i < count; i++) {
        if (kv_store_reserve(store, i, held + extra, &error))
            die("reserve", &error);
        for (uint32_t at = 0; at < held; at += 16)
            if (kv_store_import_page(store, i, at / 16, page + (i * 7 + at / 16 * 37) % PAGE_KINDS * (page_bytes / 2),
                                     MIN(16u, held - at), &error))
                die("import", &error);
    }
    free(page);
    return store;
}

// Pointers to the rows of q, k, v and o.
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

static void use_level(const char *level)
{
    struct error error;
    if (kernels_init(level, &error))
        die("level", &error);
}

// A way to attend the same tokens: a type at a level, by dense or by sparse rows.
struct way {
    enum kv_type type;
    uint32_t sparse_percent;
    const char *level; // NULL: the best
    double target;     // its tokens a second ÷ those of the first way
    struct kv_store *store;
    struct kv_batch *batch;
    struct report_passes bytes, tokens; // GB/s beside reading; millions of tokens a second beside the first way
    double seconds, bytes_read;         // of the last pass
    uint32_t computing;                 // passes whose bound were products
};

static void way_open(struct way *way, struct thread_pool *pool, struct kv_shape shape, uint32_t count)
{
    use_level(way->level);
    shape.type = way->type;
    shape.sparse_percent = way->sparse_percent;
    way->store = fill(pool, &shape, count, shape.max_context - 1, 1);
    if (kv_batch_open(way->store, &way->batch))
        exit(1);
}

// Runs one step. Returns bytes a nanosecond.
static double way_run(struct way *way, uint32_t count)
{
    struct kv_stats before, after;
    struct error error;
    uint32_t bad;

    if (kv_batch_plan(way->batch, rows, count, &bad, &error))
        die("plan", &error);
    kv_store_stats(way->store, &before);
    kv_batch_attend(way->batch, 0, tensors.q, tensors.k, tensors.v, tensors.o);
    kv_store_stats(way->store, &after);
    way->seconds = (double)(after.attend_ns - before.attend_ns) * 1e-9;
    way->bytes_read = (double)(after.bytes_read - before.bytes_read);
    return way->bytes_read / (double)(after.attend_ns - before.attend_ns);
}

// Returns the bytes a nanosecond at which products bound a way's last pass; 0: they do not. q·k and p·V take a multiply-add each for every value
// of a head and token. Codes of K and V are multiplied with numbers of 16 bits, which are two products of bytes; with vpdpbusd q has 8 bits
// beside K of 4.
static double way_peak(const struct way *way, struct thread_pool *pool, double products)
{
    bool is_coded = way->type > KV_BF16, has_dpbusd = kernels->level == ISA_VNNI || kernels->level == ISA_AVXVNNI;
    double peak = (is_coded ? machine_int8_peak : machine_f32_peak)(pool, kernels->level);
    double times = !is_coded ? 1 : way->type == KV_INT8 || !has_dpbusd ? 2 : 1.5;
    return peak > 0 ? way->bytes_read / (2 * products * times / peak) * 1e-9 : 0;
}

static const uint32_t groups[] = {1, 3, 4, 8}, head_dims[] = {64, 128}, contexts[] = {512, 4096, 16384};

// Measures all ways. target: share of the bound for the first one, f16; 0: none.
static void decode(struct thread_pool *pool, struct job *job, struct way *ways, uint32_t way_count, uint32_t group,
                   uint32_t head_dim, uint32_t context, double target)
{
    const struct kv_shape shape = {.layers = 1,
                                   .heads = 4 * group,
                                   .kv_heads = 4,
                                   .head_dim = head_dim,
                                   .page_tokens = 16,
                                   .type = KV_F16,
                                   .max_sequences = MAX_ROWS,
                                   .max_context = context};
    uint32_t count = MAX(1u, (uint32_t)MIN((uint64_t)MAX_ROWS, job->size / (kv_page_bytes(&shape) * (context / 16))));
    double tokens = (double)count * context * 1e-6;
    char name[160];

    tensors_make(&tensors, &shape, count);
    for (uint32_t i = 0; i < count; i++)
        rows[i] = (struct kv_row){
            .sequence = i, .position = context - 1, .sparse = true}; // in a store without a sparse_percent that says nothing
    for (uint32_t i = 0; i < way_count; i++)
        way_open(&ways[i], pool, shape, count);
    for (int pass = 0; pass <= DECODE_PASSES; pass++) { // the first warms up
        double ceiling = read_gbs(job);
        for (uint32_t i = 0; i < way_count; i++) {
            double rate = way_run(&ways[i], count);
            if (pass > 0) {
                use_level(ways[i].level);
                double peak = ways[i].sparse_percent ? 0 : way_peak(&ways[i], pool, 2.0 * tokens * 1e6 * shape.heads * head_dim);
                report_pass(&ways[i].bytes, rate, peak > 0 ? MIN(ceiling, peak) : ceiling);
                ways[i].computing += peak > 0 && peak < ceiling;
                report_pass(&ways[i].tokens, tokens / ways[i].seconds, tokens / ways->seconds);
            }
        }
    }
    for (uint32_t i = 0; i < way_count; i++) {
        struct way *way = &ways[i];
        use_level(way->level);
        int length = snprintf(name, sizeof name, "attention decode, %s, %s, %u head%s a KV head, dim %u, %u tokens%s",
                              kernels_level_name(), kv_type_name(way->type), group, group > 1 ? "s" : "", head_dim, context,
                              job->size <= CACHED_BYTES ? ", in cache" : "");
        if (!way->sparse_percent) {
            snprintf(name + length, sizeof name - (size_t)length, ", bound by %s",
                     way->computing * 2 > DECODE_PASSES ? "products" : "reading");
            report_figure(name, "GB/s", &way->bytes, i == 0 ? target : 0);
        }
        if (way->sparse_percent) {
            snprintf(name + length, sizeof name - (size_t)length, ", sparse %u %%, %.1f %% of the bytes, beside dense",
                     way->sparse_percent, 100 * way->bytes_read / ways->bytes_read);
            report_figure(name, "Mtok/s", &way->tokens, way->target);
        } else if (way->target > 0) {
            snprintf(name + length, sizeof name - (size_t)length, ", beside %s", way->level ? "avx512" : "f16");
            report_figure(name, "Mtok/s", &way->tokens, way->target);
        }
        kv_batch_close(way->batch);
        kv_store_close(way->store);
    }
    use_level(NULL);
    free(tensors.memory);
}

// Measures the sparse rows of one sequence, all of its layers in turn as a mesh has them, beside dense rows; threads share a row.
static void alone(struct thread_pool *pool, uint32_t kv_heads)
{
    const uint32_t context = contexts[ARRAY_COUNT(contexts) - 1];
    const struct kv_shape shape = {.layers = ALONE_LAYERS,
                                   .heads = 4 * kv_heads,
                                   .kv_heads = kv_heads,
                                   .head_dim = 64,
                                   .page_tokens = 16,
                                   .type = KV_F16,
                                   .max_sequences = 1,
                                   .max_context = context};
    struct way ways[2] = {{.type = KV_F16}, {.type = KV_F16, .sparse_percent = SPARSE_PERCENT}};
    struct report_passes passes = {0};
    struct error error;
    char name[160];
    uint32_t bad;

    tensors_make(&tensors, &shape, 1);
    rows[0] = (struct kv_row){.position = context - 1, .sparse = true};
    for (uint32_t i = 0; i < 2; i++)
        way_open(&ways[i], pool, shape, 1);
    for (int pass = 0; pass <= ALONE_PASSES; pass++) {
        double us[2];
        for (uint32_t i = 0; i < 2; i++) {
            uint64_t start_ns = clock_now_ns();
            if (kv_batch_plan(ways[i].batch, rows, 1, &bad, &error))
                die("plan", &error);
            for (uint32_t layer = 0; layer < shape.layers; layer++)
                kv_batch_attend(ways[i].batch, layer, tensors.q, tensors.k, tensors.v, tensors.o);
            us[i] = (double)(clock_now_ns() - start_ns) * 1e-3 / shape.layers;
        }
        if (pass > 0)
            report_pass(&passes, 1e3 / us[1], 1e3 / us[0]);
    }
    snprintf(name, sizeof name, "attention decode, one sequence, %u KV heads, %u threads, %u tokens, sparse %u %%, beside dense",
             kv_heads, thread_pool_threads(pool), context, SPARSE_PERCENT);
    report_figure(name, "rows/ms", &passes, 0);
    for (uint32_t i = 0; i < 2; i++) {
        kv_batch_close(ways[i].batch);
        kv_store_close(ways[i].store);
    }
    free(tensors.memory);
}

static void prefill(struct thread_pool *pool, uint32_t group, uint32_t head_dim)
{
    struct kv_shape shape = {.layers = 1,
                             .heads = 4 * group,
                             .kv_heads = 4,
                             .head_dim = head_dim,
                             .page_tokens = 16,
                             .type = KV_F16,
                             .max_sequences = 4,
                             .max_context = PREFILL_HELD + PREFILL_ROWS};
    struct kv_store *store = fill(pool, &shape, 1, PREFILL_HELD, PREFILL_ROWS);
    struct report_passes passes = {0};
    struct kv_batch *batch;
    struct kv_stats before, after;
    struct error error;
    char name[96];
    uint32_t bad;

    tensors_make(&tensors, &shape, PREFILL_ROWS);
    if (kv_batch_open(store, &batch))
        exit(1);
    for (uint32_t i = 0; i < PREFILL_ROWS; i++)
        rows[i] = (struct kv_row){.sequence = 0, .position = PREFILL_HELD + i};
    for (int pass = 0; pass <= PREFILL_PASSES; pass++) {
        if (kv_batch_plan(batch, rows, PREFILL_ROWS, &bad, &error))
            die("plan", &error);
        for (int turn = 0; turn < 2; turn++) { // the first wakes the cores, which on a virtual machine took up to 9 ms
            kv_store_stats(store, &before);
            kv_batch_attend(batch, 0, tensors.q, tensors.k, tensors.v, tensors.o);
            kv_store_stats(store, &after);
        }
        double flops = 4.0 * (double)(after.tokens_read - before.tokens_read) * shape.heads * head_dim;
        double ceiling = sgemm_gflops();
        nanosleep(&(struct timespec){.tv_nsec = 40000000}, NULL); // OpenBLAS's threads spin so long for more work
        if (pass > 0)
            report_pass(&passes, flops / (double)(after.attend_ns - before.attend_ns), ceiling);
    }
    snprintf(name, sizeof name, "attention prefill, %s, f16, %u head%s a KV head, dim %u, %u rows over %u", kernels_level_name(),
             group, group > 1 ? "s" : "", head_dim, PREFILL_ROWS, PREFILL_HELD);
    report_figure(name, "GFLOP/s", &passes, 0.6);
    kv_batch_close(batch);
    kv_store_close(store);
    free(tensors.memory);
}

// Measures f16, int8 and int4 for up to 4 heads, f16 by AVX2 at one length, and sparse rows at the longest.
static void decode_case(struct thread_pool *pool, struct job *job, uint32_t group, uint32_t head_dim, uint32_t context, bool wide)
{
    struct way ways[5] = {{.type = KV_F16}};
    uint32_t count = 1;

    if (group <= 4) {
        ways[count++] = (struct way){.type = KV_INT8, .target = wide ? 1.6 : 0};
        ways[count++] = (struct way){.type = KV_INT4, .target = wide ? 1.9 : 0};
    }
    if (wide && context == contexts[1])
        ways[count++] = (struct way){.type = KV_F16, .level = "avx2", .target = 0.8};
    if (context == contexts[ARRAY_COUNT(contexts) - 1])
        ways[count++] = (struct way){.type = KV_F16, .sparse_percent = SPARSE_PERCENT, .target = 4};
    decode(pool, job, ways, count, group, head_dim, context, !wide ? 0 : group > 4 ? 0.7 : 0.85);
}

int main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)atoi(argv[1]) : cpu_count_usable(), only = argc > 3 ? (uint32_t)atoi(argv[3]) : 0;
    struct job job = {.size = (argc > 2 ? (uint64_t)atoi(argv[2]) : 1024) << 20};
    struct thread_pool *pool;

    use_level(NULL);
    bool has_wide = kernels->level == ISA_AVX512 || kernels->level == ISA_VNNI;
    if (thread_pool_open(threads, &pool))
        return 1;
    openblas_set_num_threads((int)threads);
    for (uint32_t kv_heads = 1; kv_heads <= 8; kv_heads += kv_heads < 4 ? 1 : 4)
        alone(pool, kv_heads);
    if (argc > 3 && !strcmp(argv[3], "alone")) {
        thread_pool_close(pool);
        return 0;
    }
    void *memory = mmap(NULL, job.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    madvise(memory, job.size, MADV_HUGEPAGE);
    memset(memory, 1, job.size);
    job.pool = pool;
    job.bytes = memory;
    for (uint32_t g = 0; g < ARRAY_COUNT(groups); g++)
        for (uint32_t d = 0; d < ARRAY_COUNT(head_dims) && (!only || only == groups[g]); d++) {
            for (uint32_t c = 0; c < ARRAY_COUNT(contexts); c++)
                decode_case(pool, &job, groups[g], head_dims[d], contexts[c], has_wide);
            prefill(pool, groups[g], head_dims[d]);
        }
    struct job cached = {.pool = pool, .bytes = memory, .size = CACHED_BYTES};
    for (uint32_t d = 0; d < ARRAY_COUNT(head_dims); d++)
        decode(pool, &cached, (struct way[]){{.type = KV_F16}}, 1, 3, head_dims[d], 512, 0);
    munmap(memory, job.size);
    thread_pool_close(pool);
    return 0;
}
