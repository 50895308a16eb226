/* bench_machine.c: the ceilings themselves, for a table's head and for predictions: read bandwidth of memory, int8 and f32
 * operations a second with the instructions of each level that the machine has, all threads.
 *
 *     bench_machine [threads]
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "tests/bench/machine.h"
#include "tests/bench/report.h"

enum { PASSES = 9, SQUARE = 768 };

static double f32_peak(void)
{
    static float a[SQUARE * SQUARE], b[SQUARE * SQUARE], c[SQUARE * SQUARE];
    uint64_t begin = clock_now_ns();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, SQUARE, SQUARE, SQUARE, 1, a, SQUARE, b, SQUARE, 0, c, SQUARE);
    return 2.0 * SQUARE * SQUARE * SQUARE / ((double)(clock_now_ns() - begin) * 1e-9);
}

int main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)atoi(argv[1]) : cpu_count_usable();
    double read[PASSES], int8[PASSES], f32[PASSES];
    struct thread_pool *pool;
    struct machine machine;

    if (thread_pool_open(threads, &pool) || !machine_open(&machine, pool))
        return 1;
    openblas_set_num_threads((int)threads);
    for (int pass = -1; pass < PASSES; pass++) { /* the first warms up */
        uint32_t at = (uint32_t)MAX(pass, 0);
        read[at] = machine_read_bandwidth(&machine) * 1e-9;
        int8[at] = machine_int8_peak(pool, isa_best()) * 1e-9;
        f32[at] = f32_peak() * 1e-9;
    }
    report_value("machine, read bandwidth of 256 MiB", "GB/s", report_median(read, PASSES));
    report_value("machine, int8 products on registers", "GOPS", report_median(int8, PASSES));
    report_value("machine, f32 products of 768 x 768 (OpenBLAS)", "GFLOP/s", report_median(f32, PASSES));
    for (int level = 0; level < ISA_LEVEL_COUNT; level++) {
        const struct machine_peak *peaks[] = {&machine_int8_peaks[level], &machine_f32_peaks[level]};
        for (size_t i = 0; i < ARRAY_COUNT(peaks) && isa_supported((enum isa_level)level) && peaks[i]->loop; i++) {
            double rates[PASSES];
            char name[96];
            for (int pass = 0; pass < PASSES; pass++)
                rates[pass] = (i == 0 ? machine_int8_peak : machine_f32_peak)(pool, (enum isa_level)level) * 1e-9;
            snprintf(name, sizeof name, "machine, %s, peak of %s", isa_name((enum isa_level)level), peaks[i]->name);
            report_value(name, i == 0 ? "GOPS" : "GFLOP/s", report_median(rates, PASSES));
        }
    }
    machine_close(&machine);
    thread_pool_close(pool);
    return 0;
}
