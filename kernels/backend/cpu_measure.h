// cpu_measure.h: what this machine's memory and the CPU backend's kernels reach, in about a second: the rates that the performance
// model starts from (common/plan/hardware.h).
#ifndef FD_KERNELS_BACKEND_CPU_MEASURE_H
#define FD_KERNELS_BACKEND_CPU_MEASURE_H

#include "common/base/status.h"
#include "common/base/thread_pool.h"

// What a quarter of 31 passes exceed, all threads of the pool: other load only makes a pass slower. Bytes and operations a second; a multiply-add is two operations.
struct cpu_rates {
    double read_bytes;      // a buffer beyond the caches, in plain loops
    double weight_bytes;    // packed 4-bit weights by a product of one row
    double int8_operations; // the same weights, 64 rows
    double f32_operations;  // OpenBLAS
    double kv_bytes;        // f16 K and V by decode attention
    double phase_us;        // a barrier of the pool, as between phases of a layer
};

// Runs on the pool, whose caller it is; kernels_init() has been called. Takes up to 384 MiB meanwhile. RESOURCE_EXHAUSTED without
// it. Sets OpenBLAS' threads to the pool's.
enum status cpu_measure(struct thread_pool *pool, struct cpu_rates *out, struct error *error) MUST_CHECK;

#endif
