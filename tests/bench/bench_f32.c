/* bench_f32.c: the f32 products of the reference mode, as a segment runs them, beside OpenBLAS called by itself.
 *
 *     bench_f32 [threads]
 *
 * 256 rows, the matrices of the default model and of a Llama with 1.1 G parameters.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "kernels/backend/cpu_internal.h"
#include "tests/bench/report.h"

enum { PASSES = 15, ROWS = 256 };

static const struct {
    uint32_t outputs, inputs;
    const char *name;
} shapes[] = {
    {576, 576, "q, o"},      {1536, 576, "gate, up"},     {576, 1536, "down"},
    {2048, 2048, "1b q, o"}, {5632, 2048, "1b gate, up"}, {2048, 5632, "1b down"},
};

struct job {
    struct backend *backend;
    struct cpu_product product;
};

static void product_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct job *job = arg;
    (void)thread_count;
    cpu_products(job->backend, &job->product, 1, ROWS, NULL, ROWS, thread_index, NULL);
}

static float *random_values(size_t count)
{
    float *values = aligned_alloc(64, (count * sizeof *values + 63) / 64 * 64);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    return values;
}

static void bench_shape(struct thread_pool *pool, uint32_t outputs, uint32_t inputs, const char *shape_name)
{
    float *weights = random_values((size_t)outputs * inputs), *x = random_values((size_t)ROWS * inputs);
    float *y = random_values((size_t)ROWS * outputs);
    struct backend backend = {.config = {.pool = pool}, .dense = true};
    const struct cpu_linear linear = {.dense = weights, .outputs = outputs, .inputs = inputs};
    struct job job = {&backend, {&linear, x, inputs, y, outputs, GEMM_SET}};
    struct report_passes passes = {0};
    uint32_t repeats = 1 + (uint32_t)(2e8 / ((double)outputs * inputs * ROWS)); /* some milliseconds each */
    double operations = 2.0 * outputs * inputs * ROWS * repeats;
    char name[96];

    for (int pass = 0; pass <= PASSES; pass++) {
        uint64_t begin = clock_now_ns();
        for (uint32_t i = 0; i < repeats; i++)
            thread_pool_run(pool, product_job, &job);
        double ours = (double)(clock_now_ns() - begin);
        begin = clock_now_ns();
        for (uint32_t i = 0; i < repeats; i++)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, ROWS, (int)outputs, (int)inputs, 1.0f, x, (int)inputs, weights,
                        (int)inputs, 0.0f, y, (int)outputs);
        double blas = (double)(clock_now_ns() - begin);
        if (pass > 0) /* the first warms up */
            report_pass(&passes, operations / ours, operations / blas);
    }
    snprintf(name, sizeof name, "f32 gemm, %s %ux%u, %d rows, beside OpenBLAS", shape_name, outputs, inputs, ROWS);
    report_figure(name, "GFLOP/s", &passes, 0.97); /* no slower, within what two equal runs differ by */
    free(weights);
    free(x);
    free(y);
}

int main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)atoi(argv[1]) : cpu_count_usable();
    struct thread_pool *pool;
    struct error error;

    if (kernels_init(NULL, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    if (thread_pool_open(threads, &pool))
        return 1;
    openblas_set_num_threads((int)threads);
    for (size_t i = 0; i < ARRAY_COUNT(shapes); i++)
        bench_shape(pool, shapes[i].outputs, shapes[i].inputs, shapes[i].name);
    thread_pool_close(pool);
    return 0;
}
