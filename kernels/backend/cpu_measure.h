// cpu_measure.h: measures in about a second how fast this machine's memory and the CPU backend's kernels are. The performance model
// starts from these rates (common/plan/hardware.h).
#ifndef FD_KERNELS_BACKEND_CPU_MEASURE_H
#define FD_KERNELS_BACKEND_CPU_MEASURE_H

#include "common/base/status.h"
#include "common/base/thread_pool.h"

// Each rate is exceeded by a quarter of 31 passes with all threads of the pool, because other load can only make a pass slower.
// Units are bytes and operations per second; a multiply-add is two operations.
struct cpu_rates {
    double read_bytes;      // plain loops over a buffer larger than the caches
    double weight_bytes;    // packed 4-bit weights, in a product with one row
    double int8_operations; // the same weights, in a product with 64 rows
    double f32_operations;  // OpenBLAS
    double kv_bytes;        // f16 K and V, in decode attention
    double phase_us;        // time of a barrier of the pool, as between the phases of a layer
};

// Measures on the pool, which nothing else may use meanwhile. Call kernels_init() first. Takes up to 384 MiB of memory.
// RESOURCE_EXHAUSTED: not enough memory. Sets OpenBLAS' number of threads to the pool's.
enum status cpu_measure(struct thread_pool *pool, struct cpu_rates *out, struct error *error) MUST_CHECK;

#endif
