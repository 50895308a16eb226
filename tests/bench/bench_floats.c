// bench_floats.c: products with packed F32, F16 and BF16 weights, beside the read bandwidth of memory and beside what a dense f32 copy of the
// weights takes OpenBLAS.
//
//     bench_floats [threads] [rows,rows,...]
//
// Each shape runs over copies of its matrix that together are much larger than the caches, like the layers of a model; so does OpenBLAS, whose
// copies are of f32. All are measured in the same pass, because other load on the machine affects them alike.
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/quant/dequant.h"
#include "tests/bench/machine.h"
#include "tests/bench/report.h"

enum { PASSES = 9, ROWS_MAX = 512 };
#define GRAIN 8u // tiles

static const struct {
    enum tensor_type type;
    const char *name;
} types[] = {{TENSOR_F16, "F16"}, {TENSOR_BF16, "BF16"}, {TENSOR_F32, "F32"}};

static const struct {
    uint32_t outputs, k;
    const char *name;
} shapes[] = {{2048, 2048, "1b q, o"}, {2048, 5632, "1b down"}, {1536, 576, "gate, up"}};

struct job {
    struct thread_pool *pool;
    struct packed_matrix w; // the first of the copies, which lie one after the other
    struct quantized_rows x;
    const float *dense; // [copies][outputs][k]
    uint32_t copies, rows;
    float *y;
};

// Makes one pass over all copies, without the barrier that a layer has between its matrices.
static void packed_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct job *job = arg;
    const struct packed_matrix *w = &job->w;
    const uint32_t per_copy = (w->tile_count + GRAIN - 1) / GRAIN, count = per_copy * job->copies;
    (void)thread_index, (void)thread_count;
    for (uint32_t item = thread_pool_claim(job->pool), later; item < count; item = later) {
        struct packed_matrix own = *w;
        const uint32_t begin = item % per_copy * GRAIN;
        own.data += item / per_copy * w->bytes;
        later = thread_pool_claim(job->pool); // known beforehand, as in a step, to prefetch its weights
        const uint8_t *next = w->data + later / per_copy * w->bytes + later % per_copy * GRAIN * w->tile_bytes;
        kernels->gemm(&own, &job->x, 0, job->rows, begin, MIN(GRAIN, w->tile_count - begin), later < count ? next : NULL, job->y,
                      w->output_count, GEMM_SET);
    }
}

static double dense_seconds(const struct job *job)
{
    const uint64_t began_ns = clock_now_ns();
    for (uint32_t c = 0; c < job->copies; c++)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)job->rows, (int)job->w.output_count, (int)job->w.k, 1.0f,
                    job->x.values, (int)job->w.k, job->dense + (size_t)c * job->w.output_count * job->w.k, (int)job->w.k, 0.0f,
                    job->y, (int)job->w.output_count);
    return (double)(clock_now_ns() - began_ns) * 1e-9;
}

static void bench_rows(struct job *job, struct machine *machine, const char *name, bool halves)
{
    struct report_passes beside_memory = {0}, beside_dense = {0};
    char text[128];

    for (int pass = 0; pass <= PASSES; pass++) {
        const double ours = machine_seconds(job->pool, packed_job, job), dense = dense_seconds(job);
        const double bytes = (double)job->copies * (double)job->w.bytes, read = machine_read_bandwidth(machine);
        if (pass == 0)
            continue; // warms up
        report_pass(&beside_memory, bytes / ours * 1e-9, read * 1e-9);
        const double operations = 2e-9 * job->copies * job->w.output_count * job->w.k * job->rows;
        report_pass(&beside_dense, operations / ours, operations / dense);
    }
    if (job->rows == 1) {
        snprintf(text, sizeof text, "gemm, %s, %s, 1 row", kernels_level_name(), name);
        report_figure(text, "GB/s", &beside_memory, 0.85);
    }
    snprintf(text, sizeof text, "gemm, %s, %s, %u row%s, beside dense f32", kernels_level_name(), name, job->rows,
             job->rows > 1 ? "s" : "");
    report_figure(text, "GFLOP/s", &beside_dense, job->rows == 1 && halves ? 1.8 : 0.9);
}

static void bench_shape(struct machine *machine, enum tensor_type type, const char *type_name, uint32_t outputs, uint32_t k,
                        const char *shape_name, const char *rows)
{
    struct job job = {.pool = machine->pool};
    struct error error;
    char name[96];

    assert_always(pack_plan((uint32_t)type, outputs, k, &job.w, &error) == STATUS_OK);
    const size_t values = (size_t)outputs * k, copies = MACHINE_STREAM_BYTES / job.w.bytes + 1;
    const size_t bytes = (copies * job.w.bytes + MACHINE_HUGE_PAGE - 1) / MACHINE_HUGE_PAGE * MACHINE_HUGE_PAGE;
    const size_t dense_bytes = (copies * values * sizeof(float) + MACHINE_HUGE_PAGE - 1) / MACHINE_HUGE_PAGE * MACHINE_HUGE_PAGE;
    float *dense = aligned_alloc(MACHINE_HUGE_PAGE, dense_bytes), *x = malloc((size_t)ROWS_MAX * k * sizeof *x);
    uint8_t *memory = aligned_alloc(MACHINE_HUGE_PAGE, bytes), *source = malloc(outputs * job.w.source_row_bytes);

    job.y = malloc((size_t)ROWS_MAX * outputs * sizeof *job.y);
    assert_always(dense && x && memory && source && job.y);
    madvise(memory, bytes, MADV_HUGEPAGE);
    madvise(dense, dense_bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < values; i++)
        dense[i] = (float)(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    for (size_t i = 0; i < (size_t)ROWS_MAX * k; i++)
        x[i] = (float)(i * 2246822519u % 2001) / 1000.0f - 1.0f;
    if (type == TENSOR_F32)
        memcpy(source, dense, values * sizeof *dense);
    else
        assert_always(encode_values(type, dense, values, source));
    job.w.data = memory;
    pack_tiles(&job.w, source, 0, job.w.tile_count);
    for (size_t c = 1; c < copies; c++) {
        memcpy(memory + c * job.w.bytes, memory, job.w.bytes);
        memcpy(dense + c * values, dense, values * sizeof *dense);
    }
    quantized_rows_init(&job.x, NULL, ROWS_MAX, k);
    quantized_rows_source(&job.x, x, k);
    job.dense = dense;
    snprintf(name, sizeof name, "%s %ux%u %s", shape_name, outputs, k, type_name);
    for (const char *at = rows; *at; at += *at == ',') {
        char *end;
        job.rows = (uint32_t)strtoul(at, &end, 10);
        assert_always(end != at && job.rows > 0 && job.rows <= ROWS_MAX);
        job.copies = (uint32_t)(job.rows < 8 ? copies : MAX(1u, copies * 4 / job.rows)); // enough work without all copies
        bench_rows(&job, machine, name, type != TENSOR_F32);
        at = end;
    }
    free(dense), free(x), free(memory), free(source), free(job.y);
}

int main(int argc, char **argv)
{
    const uint32_t threads = argc > 1 ? (uint32_t)atoi(argv[1]) : cpu_count_usable();
    const char *rows = argc > 2 ? argv[2] : "1,8,32,128";
    struct thread_pool *pool;
    struct machine machine;
    struct error error;

    if (kernels_init(NULL, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    if (thread_pool_open(threads, &pool) || !machine_open(&machine, pool))
        return 1;
    openblas_set_num_threads((int)threads);
    for (size_t t = 0; t < ARRAY_COUNT(types); t++)
        for (size_t s = 0; s < ARRAY_COUNT(shapes); s++)
            bench_shape(&machine, types[t].type, types[t].name, shapes[s].outputs, shapes[s].k, shapes[s].name, rows);
    machine_close(&machine);
    thread_pool_close(pool);
    return 0;
}
