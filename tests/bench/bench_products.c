// bench_products.c: what the GEMM's code reaches of each level's instruction peak when nothing else runs: one thread, weights in the cache,
// the third best of many short runs beside the third best of as many runs of the peak. Other load lengthens most runs, but not all, so the
// ratio holds on a shared machine, where bench_gemm's medians of whole passes do not. The very best does not: on a virtual machine under
// load a run in some thousands read a time far too short.
//
//     bench_products [level]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "kernels/dispatch/kernels.h"
#include "tests/bench/machine.h"
#include "tests/bench/report.h"

enum { RUNS = 150, BEST = 2, MAX_ROWS = 128 };

static const struct shape {
    uint32_t type, outputs, k; // type: GGUF's number
    const char *name;
    bool is_4_bit;
} shapes[] = {
    {2, 512, 2048, "Q4_0", true},
    {3, 512, 2048, "Q4_1", true},
    {12, 512, 2048, "Q4_K", true},
    {8, 512, 2048, "Q8_0", false},
};

static const uint32_t row_counts[] = {8, 32, 128};

// Returns the share of the peak that is asked for; 0: none.
static double target_of(enum isa_level level, bool is_4_bit)
{
    if (level != ISA_VNNI && level != ISA_AVX2)
        return 0;
    return level == ISA_VNNI ? 0.6 : is_4_bit ? 0.55 : 0.5;
}

static void bench_rows(struct thread_pool *pool, const struct kernels *level, const struct shape *shape,
                       const struct packed_matrix *w, const struct quantized_rows *x, uint32_t rows, float *y)
{
    struct report_passes passes = {0};
    double rate[RUNS], peak[RUNS], operations = 2.0 * rows * shape->outputs * shape->k;
    char name[96];

    for (int run = 0; run < RUNS; run++) {
        uint64_t begin = clock_now_ns();
        level->gemm(w, x, 0, rows, 0, w->tile_count, NULL, y, w->output_count, GEMM_SET);
        rate[run] = operations / (double)(clock_now_ns() - begin);
        peak[run] = machine_int8_peak(pool, level->level) * 1e-9;
    }
    qsort(rate, RUNS, sizeof *rate, report_order);
    qsort(peak, RUNS, sizeof *peak, report_order);
    report_pass(&passes, rate[RUNS - 1 - BEST], peak[RUNS - 1 - BEST]);
    snprintf(name, sizeof name, "products, %s, %s, %u rows, of %s", isa_name(level->level), shape->name, rows,
             machine_int8_peaks[level->level].name);
    report_figure(name, "GOPS", &passes, target_of(level->level, shape->is_4_bit));
}

static void bench_shape(struct thread_pool *pool, const struct kernels *level, const struct shape *shape)
{
    struct packed_matrix w;
    struct error error;
    if (pack_plan(shape->type, shape->outputs, shape->k, &w, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    const size_t source_bytes = shape->outputs * w.source_row_bytes, value_count = (size_t)MAX_ROWS * shape->k;
    uint8_t *source = malloc(source_bytes);
    float *values = malloc(value_count * sizeof *values), *y = malloc((size_t)MAX_ROWS * shape->outputs * sizeof *y);
    void *blocks = aligned_alloc(64, quantized_rows_bytes(MAX_ROWS, shape->k));
    struct quantized_rows x;
    w.data = aligned_alloc(MACHINE_HUGE_PAGE, (w.bytes + MACHINE_HUGE_PAGE - 1) / MACHINE_HUGE_PAGE * MACHINE_HUGE_PAGE);
    for (size_t i = 0; i < source_bytes; i++)
        source[i] = (uint8_t)((i * 2654435761u >> 16) & 0x3f); // small positive exponents: every f16 is finite
    for (size_t i = 0; i < value_count; i++)
        values[i] = (float)(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    pack_tiles(&w, source, 0, w.tile_count);
    quantized_rows_init(&x, blocks, MAX_ROWS, shape->k);
    quantized_rows_source(&x, values, shape->k);
    level->quantize_rows(&x, 0, MAX_ROWS);
    for (size_t r = 0; r < ARRAY_COUNT(row_counts); r++)
        bench_rows(pool, level, shape, &w, &x, row_counts[r], y);
    free(source), free(values), free(y), free(blocks), free(w.data);
}

int main(int argc, char **argv)
{
    struct thread_pool *pool;
    struct error error;

    if (argc > 1 && kernels_init(argv[1], &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 2;
    }
    if (thread_pool_open(1, &pool) != STATUS_OK)
        return 1;
    for (int level = ISA_AVX2; level < ISA_LEVEL_COUNT; level++)
        for (size_t s = 0; s < ARRAY_COUNT(shapes); s++)
            if (isa_supported((enum isa_level)level) && (argc < 2 || kernels->level == (enum isa_level)level))
                bench_shape(pool, kernels_of_level((enum isa_level)level), &shapes[s]);
    thread_pool_close(pool);
    return 0;
}
