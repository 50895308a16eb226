// gemm_choice.c: to how many rows a step is rounded up, and which algorithm a product runs with. Pure.
#include "kernels/cuda/gemm_choice.h"

#include "common/base/checked.h"
#include "common/base/status.h"

// --- buckets ---

static const uint32_t buckets[GPU_BUCKETS_MAX] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, GPU_BUCKET_ROWS_MAX};

uint32_t gpu_class_of(const uint32_t *rows, uint32_t count, uint32_t wanted)
{
    uint32_t i = 0;
    while (i < count && rows[i] < wanted)
        i++;
    return i;
}

uint32_t gpu_buckets(uint32_t max_rows, uint32_t rows[GPU_BUCKETS_MAX])
{
    uint32_t count = 0;
    while (count < GPU_BUCKETS_MAX && (count == 0 || rows[count - 1] < max_rows)) {
        rows[count] = MIN(buckets[count], max_rows);
        count++;
    }
    return count;
}

uint32_t gpu_padded_rows(uint32_t rows, uint32_t max_rows)
{
    uint64_t padded = rows <= GPU_BUCKET_ROWS_MAX ? buckets[gpu_class_of(buckets, GPU_BUCKETS_MAX, rows)]
                                                  : (rows + (uint64_t)GPU_ROWS_STEP - 1) / GPU_ROWS_STEP * GPU_ROWS_STEP;
    return (uint32_t)MIN(padded, (uint64_t)max_rows);
}

uint32_t gpu_classes(uint32_t max_rows, uint32_t rows[GPU_CLASSES_MAX])
{
    uint32_t count = gpu_buckets(max_rows, rows);
    while (rows[count - 1] < max_rows) {
        bool last = count == GPU_CLASSES_MAX - 1; // whatever is beyond
        rows[count] = last ? max_rows : (uint32_t)MIN(2ull * rows[count - 1], (uint64_t)max_rows);
        count++;
    }
    return count;
}

#define WORTH 0.98 // of the time of one that comes before

bool gpu_rows_checked(uint32_t rows, uint32_t max_rows)
{
    return rows <= GPU_BUCKET_ROWS_MAX || rows % GPU_ROWS_STEP == 0 || rows == max_rows;
}

// For every count from `least` to `most` that gpu_rows_checked promises.
static bool fits_all(const struct gpu_trial_calls *calls, uint32_t candidate, uint32_t least, uint32_t most, uint32_t max_rows)
{
    for (uint32_t rows = least; rows <= most; rows++)
        if (gpu_rows_checked(rows, max_rows) && !calls->fits(calls->user, candidate, rows))
            return false;
    return true;
}

// The best of those that are left (us >= 0).
static uint32_t best_of(const double *us, uint32_t count)
{
    uint32_t best = GPU_NO_CANDIDATE;
    for (uint32_t i = 0; i < count; i++)
        if (us[i] >= 0 && (best == GPU_NO_CANDIDATE || us[i] < WORTH * us[best]))
            best = i;
    return best;
}

static uint32_t choose_one(const struct gpu_trial_calls *calls, uint32_t count, bool timed, uint32_t least, uint32_t most,
                           uint32_t max_rows)
{
    double us[GPU_CANDIDATES_MAX], best_us = 0;
    uint32_t best;

    for (uint32_t i = 0; i < count; i++) {
        us[i] = timed ? calls->time_us(calls->user, i, best_us) : 0;
        if (us[i] >= 0 && (best_us == 0 || us[i] < best_us))
            best_us = us[i];
    }
    while ((best = best_of(us, count)) != GPU_NO_CANDIDATE && !fits_all(calls, best, least, most, max_rows))
        us[best] = -1;
    return best;
}

void gpu_choose(const struct gpu_trial_calls *calls, const struct gpu_run_rows *run_rows, uint32_t shapes, uint32_t max_rows,
                uint64_t budget_us, void (*keep)(void *user, uint32_t shape, uint32_t row_class, uint32_t candidate),
                struct gpu_choices *out)
{
    const uint64_t began_us = calls->now_us(calls->user);

    *out = (struct gpu_choices){.classes = 0};
    out->classes = gpu_classes(max_rows, out->class_rows);
    for (uint32_t c = 0; c < out->classes; c++)
        for (uint32_t shape = 0; shape < shapes; shape++) {
            uint32_t least = MAX(c ? out->class_rows[c - 1] + 1 : 1, run_rows[shape].least);
            uint32_t most = MIN(out->class_rows[c], run_rows[shape].most);
            if (least > most)
                continue;
            uint32_t count = calls->candidates(calls->user, shape, most);
            bool timed = calls->now_us(calls->user) - began_us < budget_us && count > 1;
            assert_always(count <= GPU_CANDIDATES_MAX);
            uint32_t best = choose_one(calls, count, timed, least, most, max_rows);
            if (best == GPU_NO_CANDIDATE) {
                out->missing++;
                continue;
            }
            *(timed ? &out->timed : &out->untimed) += 1;
            keep(calls->user, shape, c, best);
        }
    out->took_us = calls->now_us(calls->user) - began_us;
}
