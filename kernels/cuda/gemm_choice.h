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

#include "kernels/cuda/buckets.h"

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
