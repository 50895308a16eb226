// bench_gemm.c: the GEMM beside what the machine can do: integer operations a second beside the bound, which is the longer of reading the
// packed bytes and of computing with the level's own instructions; at one row GB/s of packed bytes beside the same bound.
//
//     bench_gemm [threads] [rows,rows,... [part of a shape's name]]
//
// FD_ISA chooses the level. Each shape runs over copies of its matrix that together are much larger than the caches, like the layers of a
// model. Ceilings are measured in the same pass, because other load on the machine affects both.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "kernels/dispatch/kernels.h"
#include "tests/bench/machine.h"
#include "tests/bench/report.h"

#define GRAIN 8u

struct shape {
    uint32_t type, outputs, k; // type: GGUF's number
    const char *name;
};

// The matrices of the default model, and of a Llama with 1.1 G parameters.
static const struct shape shapes[] = {
    {3, 576, 576, "q, o 576x576 Q4_1"},
    {3, 192, 576, "k, v 192x576 Q4_1"},
    {3, 1536, 576, "gate, up 1536x576 Q4_1"},
    {3, 576, 1536, "down 576x1536 Q4_1"},
    {8, 49152, 576, "head 49152x576 Q8_0"},
    {2, 2048, 2048, "1b q, o 2048x2048 Q4_0"},
    {2, 256, 2048, "1b k, v 256x2048 Q4_0"},
    {2, 5632, 2048, "1b gate, up 5632x2048 Q4_0"},
    {2, 2048, 5632, "1b down 2048x5632 Q4_0"},
    {12, 2048, 2048, "1b q, o 2048x2048 Q4_K"},
    {8, 5632, 2048, "1b gate, up 5632x2048 Q8_0"},
};

enum { MAX_ROWS = 128 };

struct job {
    struct thread_pool *pool;
    struct packed_matrix *copies;
    uint32_t copy_count;
    const struct quantized_rows *x;
    uint32_t rows;
    float *y;
};

// Makes one pass over all copies, without the barrier that a layer has between its matrices.
static void gemm_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct job *job = arg;
    (void)thread_index, (void)thread_count;
    uint32_t tiles = job->copies->tile_count, per_copy = (tiles + GRAIN - 1) / GRAIN, item_count = per_copy * job->copy_count;
    for (uint32_t item = thread_pool_claim(job->pool), later; item < item_count; item = later) {
        const struct packed_matrix *w = &job->copies[item / per_copy], *after;
        uint32_t begin = item % per_copy * GRAIN;
        later = thread_pool_claim(job->pool); // known beforehand, as in a step, to prefetch its weights
        after = &job->copies[MIN(later, item_count - 1) / per_copy];
        kernels->gemm(w, job->x, 0, job->rows, begin, MIN(GRAIN, tiles - begin),
                      later < item_count ? after->data + later % per_copy * GRAIN * after->tile_bytes : NULL, job->y,
                      w->output_count, GEMM_SET);
    }
}

static void fill(uint8_t *bytes, size_t count)
{
    uint64_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(state >> 56) & 0x3f; // small positive exponents: every f16 and f32 is finite
    }
}

// Returns the share of the bound that is asked for; 0: none. Few rows are bound by reading and by computing at once.
static double target_of(bool is_4_bit, uint32_t rows)
{
    if (rows == 1)
        return 0.85;
    if (rows < 8 || (kernels->level != ISA_VNNI && kernels->level != ISA_AVX2))
        return 0;
    return kernels->level == ISA_VNNI ? 0.6 : is_4_bit ? 0.55 : 0.5;
}

// Measures one figure in several passes, each beside its bound.
static void bench_rows(const struct shape *shape, struct machine *machine, struct job *job)
{
    enum { PASSES = 9 };
    struct report_passes passes = {0};
    double read_share = 0;
    char name[128];

    if (job->rows > 1 && kernels->level == ISA_REF)
        return; // no peak to compare with
    for (int pass = 0; pass <= PASSES; pass++) {
        double seconds = machine_seconds(job->pool, gemm_job, job);
        double bytes = (double)job->copy_count * (double)job->copies->bytes;
        double operations = 2.0 * job->copy_count * shape->outputs * shape->k * job->rows;
        double read = machine_read_bandwidth(machine), peak = machine_int8_peak(job->pool, kernels->level);
        double unit = (job->rows == 1 ? bytes : operations) * 1e-9;
        if (pass == 0)
            continue; // warms up
        report_pass(&passes, unit / seconds, unit / machine_bound(bytes, read, operations, peak));
        read_share += bytes / read > (peak > 0 ? operations / peak : 0) ? 1.0 / PASSES : 0;
    }
    snprintf(name, sizeof name, "gemm, %s, %s, %u row%s, bound by %s", kernels_level_name(), shape->name, job->rows,
             job->rows > 1 ? "s" : "", read_share > 0.5 ? "reading" : machine_int8_peaks[kernels->level].name);
    report_figure(name, job->rows == 1 ? "GB/s" : "GOPS", &passes, target_of(shape->type != 8, job->rows));
}

static void bench_shape(const struct shape *shape, struct machine *machine, const char *list)
{
    struct packed_matrix plan;
    struct error error;
    if (pack_plan(shape->type, shape->outputs, shape->k, &plan, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    const uint32_t copy_count = (uint32_t)(MACHINE_STREAM_BYTES / plan.bytes) + 1, max_rows = MAX_ROWS;
    struct packed_matrix *copies = calloc(copy_count, sizeof *copies);
    uint64_t bytes = (copy_count * plan.bytes + MACHINE_HUGE_PAGE - 1) / MACHINE_HUGE_PAGE * MACHINE_HUGE_PAGE;
    uint8_t *memory = aligned_alloc(MACHINE_HUGE_PAGE, bytes), *source = malloc(shape->outputs * plan.source_row_bytes);
    float *values = malloc((size_t)max_rows * shape->k * sizeof *values),
          *y = malloc((size_t)max_rows * shape->outputs * sizeof *y);
    size_t x_bytes = quantized_rows_bytes(max_rows, shape->k);
    void *blocks = aligned_alloc(64, x_bytes);
    madvise(memory, bytes, MADV_HUGEPAGE);
    fill(source, shape->outputs * plan.source_row_bytes);
    for (size_t i = 0; i < (size_t)max_rows * shape->k; i++)
        values[i] = (float)(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    for (uint32_t c = 0; c < copy_count; c++) {
        copies[c] = plan;
        copies[c].data = memory + c * plan.bytes;
        if (c == 0)
            pack_tiles(&copies[0], source, 0, plan.tile_count);
        else
            memcpy(copies[c].data, memory, plan.bytes);
    }
    struct quantized_rows x;
    quantized_rows_init(&x, blocks, max_rows, shape->k);
    quantized_rows_source(&x, values, shape->k);
    kernels->quantize_rows(&x, 0, max_rows);
    for (const char *at = list; *at; at += *at == ',') {
        char *end;
        struct job job = {.pool = machine->pool, .copies = copies, .x = &x, .rows = (uint32_t)strtoul(at, &end, 10), .y = y};
        if (end == at || job.rows == 0 || job.rows > MAX_ROWS) {
            fprintf(stderr, "bench_gemm: rows are 1 to %d, separated by commas: %s\n", MAX_ROWS, list);
            exit(2);
        }
        at = end;
        job.copy_count = job.rows < 8 ? copy_count : MAX(1u, copy_count * 4 / job.rows); // enough work without all copies
        bench_rows(shape, machine, &job);
    }
    free(copies), free(memory), free(source), free(values), free(y), free(blocks);
}

int main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)atoi(argv[1]) : cpu_count_usable();
    struct thread_pool *pool;
    struct error error;

    if (kernels_init(NULL, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    if (thread_pool_open(threads, &pool) != STATUS_OK)
        return 1;
    struct machine machine;
    if (!machine_open(&machine, pool))
        return 1;
    for (size_t s = 0; s < ARRAY_COUNT(shapes); s++)
        if (argc < 4 || strstr(shapes[s].name, argv[3]))
            bench_shape(&shapes[s], &machine, argc > 2 ? argv[2] : "1,2,4,8,16,32,128");
    machine_close(&machine);
    thread_pool_close(pool);
    return 0;
}
