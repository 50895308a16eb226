// backend_measure.h: T(b) of the performance model, measured on the loaded model through the backend's own entries; and r and r_p of a
// local pool that is the device's. Each entry is waited for by `done`, as an engine does that has to wait for workers in between, so
// the times are of the device's work and not of asking for it.
//
// For growing numbers of rows it runs whole layers (segments 1 to some layer, o being zeros: attention is kv_measure's) and the head
// with greedy sampling, all sizes in turn until the time is over, and takes the median of each size's passes. All layers are alike, so
// where one size would take more than its share of the time, fewer are run; a size that even one pass does not fit is left out:
// what follows the last one lies on the line of the last two.
//
//     rows       1     2     4     8    16    32    64   128   256
//     layer_us  92    96   118   170   281   ...
#ifndef FD_KERNELS_BACKEND_BACKEND_MEASURE_H
#define FD_KERNELS_BACKEND_BACKEND_MEASURE_H

#include "common/kv/kv_measure.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"

enum { BACKEND_POINTS_MAX = 12 };

struct backend_times {
    uint32_t layer_count, head_count;
    double layer_rows[BACKEND_POINTS_MAX], layer_us[BACKEND_POINTS_MAX]; // a layer, its share of embedding included
    double head_rows[BACKEND_POINTS_MAX], head_us[BACKEND_POINTS_MAX];   // final norm, output matrix, greedy sampling
};

// max_rows: at most the batch's; max_sampled: rows whose head is measured at most. Takes about limit_us, one pass of one row whatever
// that takes. Nothing may run on the backend meanwhile; the batch is as after a step that was given up. RESOURCE_EXHAUSTED: no
// memory; else what begin said.
enum status backend_measure(const struct backend_ops *ops, struct backend_batch *batch, const struct model_shape *shape,
                            uint32_t max_rows, uint32_t max_sampled, uint64_t limit_us, struct backend_times *out,
                            struct error *error) MUST_CHECK;

// attend_measure.c: what attention costs in the device's pool (common/kv/kv_measure.h has the model): sequences of up to
// ATTEND_MEASURE_CONTEXT tokens are laid into it, as many as are more than caches hold or as half the time is enough for, and five
// settings are timed by `attend`, layer by layer, the median of passes each. Takes about limit_us, one pass of each setting whatever
// that takes. pages: of page_tokens, of the pool. The pool is empty afterwards, but backend_info's pages_peak and attend_bytes
// count what was done. Nothing may run on the backend meanwhile. RESOURCE_EXHAUSTED: the pool or the batch is too small.
enum { ATTEND_MEASURE_CONTEXT = 1024, ATTEND_MEASURE_SEQUENCES = 256 };

struct attend_measure {
    const struct backend_ops *ops;
    struct backend *backend;
    struct backend_batch *batch;
    const struct model_shape *shape;
    uint64_t pages;
    uint32_t page_tokens, max_rows, context_tokens; // as the backend was opened with
};

enum status backend_measure_attention(const struct attend_measure *what, uint64_t limit_us, struct kv_costs *out,
                                      struct error *error) MUST_CHECK;

#endif
