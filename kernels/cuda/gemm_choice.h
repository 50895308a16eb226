// gemm_choice.h: which algorithm a product runs with: of the candidates that the library offers for a shape and a class of rows, the
// one that was fastest when it was tried at start. Pure: what the library, the device and the clock say comes through functions, so
// that the rule is tested without a GPU.
//
//     for each class of rows, few rows first: decoding; for each shape:
//         up to 8 candidates ─▶ each timed ─▶ by time, the first that fits every count of rows of the class
//
// A candidate that is less than 1 in 50 faster than one that the library puts before it does not displace it: such differences come
// and go with the clock of the chip. When the time for trials is over, what is left gets the library's first; the classes come in
// the order of their rows, so that is the long prompts', where the library's estimate is at its best and a trial takes longest.
// Shapes are tried only at rows that they are ever run with (the output matrix: up to a block of the head; a panel of packed weights: where
// they are expanded).
#ifndef FD_KERNELS_CUDA_GEMM_CHOICE_H
#define FD_KERNELS_CUDA_GEMM_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

// --- buckets: to how many rows a step is rounded up ---
//
// The rows of a step are padded to a few counts, so that a graph that was captured for such a count serves all below it (cuda_segment.c),
// and each product has an algorithm that was tried at start for its class of rows:
//
//     1 2 4 8 16 24 32 48 64 96 128 192 256       buckets: a graph a segment
//     320 384 448 …                               beyond them multiples of 64: prompts, without graphs
//
// Up to some 200 rows (H200: 790 TFLOP/s at 4 TB/s) a product of 16-bit weights waits for the weights, so padding costs next to nothing
// there, and twice the rows is a step that is small enough; from 16 on there is one in the middle, because what is done to each row
// by itself (norms, activation) does grow. From 8 on all are multiples of 8, the rows of a tensor core's tile. Beyond 256 a product's
// tiles have 64 rows or more: it would compute them anyway.

enum { GPU_BUCKETS_MAX = 13, GPU_BUCKET_ROWS_MAX = 256, GPU_ROWS_STEP = 64, GPU_CLASSES_MAX = 24 };

// The buckets of a mini-batch, ascending; the last is max_rows where that is below the largest. Returns how many.
uint32_t gpu_buckets(uint32_t max_rows, uint32_t rows[GPU_BUCKETS_MAX]);

// Rows that a step of `rows`, at most max_rows, is computed with: at least one, at most max_rows.
uint32_t gpu_padded_rows(uint32_t rows, uint32_t max_rows);

// Classes of rows that have an algorithm each: the most rows of each, ascending: the buckets, then twice and twice again up to max_rows.
uint32_t gpu_classes(uint32_t max_rows, uint32_t rows[GPU_CLASSES_MAX]);

// Index of the first of `rows` that is at least `wanted`; count: none is.
uint32_t gpu_class_of(const uint32_t *rows, uint32_t count, uint32_t wanted);

// --- the choice of an algorithm ---

enum { GPU_CANDIDATES_MAX = 8, GPU_NO_CANDIDATE = GPU_CANDIDATES_MAX };

// Answers for the shape and rows that `candidates` was last called for.
struct gpu_trial_calls {
    uint32_t (*candidates)(void *user, uint32_t shape,
                           uint32_t rows); // how many there are, at most GPU_CANDIDATES_MAX, best guess first
    // A run's time; it may give up on one that takes twice best_us (0: nothing is known yet) and say so much. Negative: it failed.
    double (*time_us)(void *user, uint32_t candidate, double best_us);
    bool (*fits)(void *user, uint32_t candidate, uint32_t rows); // it can be run with so many
    uint64_t (*now_us)(void *user);
    void *user;
};

struct gpu_choices {
    uint32_t classes, class_rows[GPU_CLASSES_MAX];
    uint32_t timed, untimed, missing; // (shape, class) pairs: tried, given the library's first, without one that fits
    uint64_t took_us;
};

// Rows that a shape is run with.
struct gpu_run_rows {
    uint32_t least, most;
};

// Chooses for all shapes and calls `keep` for each pair that has a candidate which fits. budget_us: no trial is begun after it.
void gpu_choose(const struct gpu_trial_calls *calls, const struct gpu_run_rows *run_rows, uint32_t shapes, uint32_t max_rows,
                uint64_t budget_us, void (*keep)(void *user, uint32_t shape, uint32_t row_class, uint32_t candidate),
                struct gpu_choices *out);

// Counts of rows of a class for which a choice was checked: all up to the largest bucket, beyond it what steps are padded to.
bool gpu_rows_checked(uint32_t rows, uint32_t max_rows);

#endif
