// buckets.c: see buckets.h.
#include "kernels/cuda/buckets.h"

#include "common/base/checked.h"

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
