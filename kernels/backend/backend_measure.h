// backend_measure.h: measures T(b) of the performance model on the loaded model through the backend's own entries, and r and r_p of
// a local pool on the device. After each entry it waits for `done`, like an engine that must wait for workers in between, so the
// times include the device's work and not just the calls.
//
// For growing numbers of rows it runs whole layers (from segment 1 on, with o = 0, because kv_measure measures attention) and the
// head with greedy sampling. It takes all sizes in turn until the time is over, and the median of each size's passes. All layers
// are alike, so a size that would exceed its share of the time runs fewer layers. A size for which even one pass is too long is
// left out; larger sizes are taken to lie on the line through the last two.
//
//     rows       1     2     4     8    16    32    64   128   256
//     layer_us  92    96   118   170   281   ...
#ifndef FD_KERNELS_BACKEND_BACKEND_MEASURE_H
#define FD_KERNELS_BACKEND_BACKEND_MEASURE_H

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/kv/kv_shape.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"

enum { BACKEND_POINTS_MAX = 12 };

struct backend_times {
    uint32_t layer_count, head_count;
    double layer_rows[BACKEND_POINTS_MAX], layer_us[BACKEND_POINTS_MAX]; // one layer, including its share of the embedding
    double head_rows[BACKEND_POINTS_MAX], head_us[BACKEND_POINTS_MAX];   // final norm, output matrix, greedy sampling
};

// Measures for about limit_us, and at least one pass of one row. max_rows: at most the batch's max_rows; max_sampled: the most rows
// to measure the head with; max_layers: the most layers of a pass, 1 if weights are read in each step, because those of the first
// layer are in memory then. Nothing else may run on the backend meanwhile. The batch is left as after a step that was given up.
// RESOURCE_EXHAUSTED: no memory. Otherwise returns the status of `begin`.
enum status backend_measure(const struct backend_ops *ops, struct backend_batch *batch, const struct model_shape *shape,
                            uint32_t max_rows, uint32_t max_sampled, uint32_t max_layers, uint64_t limit_us,
                            struct backend_times *out, struct error *error) MUST_CHECK;

// --- attention in the device's pool ---

// Measures what it costs (common/kv/kv_shape.h has the model). It fills the pool
// with sequences of up to ATTEND_MEASURE_CONTEXT tokens, until they exceed the caches or half the time is over. Then it times five
// settings with `attend`, layer by layer, and takes the median of each setting's passes. Takes about limit_us, and at least one
// pass of each setting. The pool is empty afterwards, but backend_info's pages_peak and attend_bytes include the measurement.
// Nothing else may run on the backend meanwhile. RESOURCE_EXHAUSTED: the pool or the batch is too small.
enum { ATTEND_MEASURE_CONTEXT = 1024, ATTEND_MEASURE_SEQUENCES = 256 };

struct attend_measure {
    const struct backend_ops *ops;
    struct backend *backend;
    struct backend_batch *batch;
    const struct model_shape *shape;
    uint64_t pages;
    uint32_t page_tokens, max_rows, context_tokens; // the values that the backend was opened with
};

enum status backend_measure_attention(const struct attend_measure *what, uint64_t limit_us, struct kv_costs *out,
                                      struct error *error) MUST_CHECK;

// --- how fast this machine's memory and the CPU backend's kernels are, in about a second: the performance model starts from it ---

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
