/* gemm_emulated.c: gemm.h without a device: the operands as f32, each sum in one order (emulated_dot.h). Weights are widened once: a
 * matrix is known by where it lies and what it holds (packed weights come through one place a panel at a time), until gpu_gemm_close. Batch-invariant: NaN into the rows
 * that a device pads the last piece with, so that who reads them, or has no room for them, is seen. */
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/cuda/gemm.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/simd/half.h"
#include "tests/cuda/emulated_dot.h"

bool gemm_emulated_invariant; /* the one that was opened last; for tests/cuda/test_cuda_invariant.c */

enum { WEIGHTS_MAX = 4096, TRIED_MAX = 64, COLUMNS = 16 /* of which the weights stay in the cache */ };

struct gpu_gemm {
    enum gpu_type type;
    bool invariant;
    struct gpu_trial tried[TRIED_MAX];
    uint32_t tried_count; /* 0: nothing is said of what will be run */
    uint32_t count;
    struct {
        const void *wide;
        uint16_t *held; /* what it was */
        size_t count;
        float *values;
    } weights[WEIGHTS_MAX];
};

enum status gpu_gemm_open(enum gpu_type type, uint32_t max_rows, struct gpu_gemm **out, struct error *error)
{
    (void)error, (void)max_rows;
    *out = calloc(1, sizeof **out);
    assert_always(*out);
    (*out)->type = type;
    gemm_emulated_invariant = false;
    return STATUS_OK;
}

void gpu_gemm_invariant(struct gpu_gemm *gemm) { gemm_emulated_invariant = gemm->invariant = true; }

void gpu_gemm_try(struct gpu_gemm *gemm, const struct gpu_trial *trials, uint32_t count, void *workspace, cudaStream_t stream)
{
    (void)workspace, (void)stream;
    for (uint32_t i = 0; i < count; i++) {
        assert_always(trials[i].w_count && trials[i].w[trials[i].w_count - 1] && trials[i].product.x && trials[i].product.y);
        assert_always(gemm->tried_count < TRIED_MAX);
        gemm->tried[gemm->tried_count++] = trials[i];
    }
}

/* A step asks for nothing whose algorithm was not looked up at start. */
static bool was_tried(const struct gpu_gemm *gemm, const struct gpu_product *p)
{
    for (uint32_t i = 0; i < gemm->tried_count; i++) {
        const struct gpu_product *q = &gemm->tried[i].product;
        if (gpu_same_shape(q, p) && p->rows >= gemm->tried[i].least_rows && p->rows <= q->rows)
            return true;
    }
    return gemm->tried_count == 0;
}

void gpu_gemm_close(struct gpu_gemm *gemm)
{
    for (uint32_t i = 0; gemm && i < gemm->count; i++)
        free(gemm->weights[i].values), free(gemm->weights[i].held);
    free(gemm);
}

static float *widened(const struct gpu_gemm *gemm, const uint16_t *from, size_t count)
{
    enum { PIECE = 1 << 20 };
    float *to = malloc((count + 1) * sizeof *to);
    assert_always(to);
    for (size_t at = 0; at < count; at += PIECE)
        (gemm->type == GPU_F16 ? kernels->f16_to_f32 : kernels->bf16_to_f32)(from + at, (uint32_t)MIN((size_t)PIECE, count - at),
                                                                             to + at);
    return to;
}

static const float *weights(struct gpu_gemm *gemm, const void *wide, size_t count)
{
    uint32_t i = 0;
    while (i < gemm->count && gemm->weights[i].wide != wide)
        i++;
    if (i < gemm->count && gemm->weights[i].count == count && memcmp(gemm->weights[i].held, wide, count * sizeof(uint16_t)) == 0)
        return gemm->weights[i].values;
    assert_always(i < WEIGHTS_MAX);
    gemm->count = MAX(gemm->count, i + 1);
    free(gemm->weights[i].values), free(gemm->weights[i].held);
    gemm->weights[i].wide = wide, gemm->weights[i].count = count;
    gemm->weights[i].held = malloc((count + 1) * sizeof(uint16_t));
    assert_always(gemm->weights[i].held);
    memcpy(gemm->weights[i].held, wide, count * sizeof(uint16_t));
    return gemm->weights[i].values = widened(gemm, wide, count);
}

struct work {
    struct gpu_gemm *gemm;
    struct gpu_product product;
};

static void spoil_padding(const struct gpu_product *p, uint32_t stride)
{
    const size_t bytes = p->y_wide ? 2 : 4, end = (p->rows + GPU_GEMM_TILE_ROWS - 1) / GPU_GEMM_TILE_ROWS * GPU_GEMM_TILE_ROWS;
    for (size_t row = p->rows; row < end; row++)
        memset((unsigned char *)p->y + row * stride * bytes, 0xff, p->outputs * bytes);
}

static void run(void *arg)
{
    struct work *work = arg;
    struct gpu_gemm *gemm = work->gemm;
    const struct gpu_product *p = &work->product;
    uint32_t stride = gpu_y_stride(p);
    const float *w = weights(gemm, p->w, (size_t)p->outputs * p->inputs);
    float *x = widened(gemm, p->x, (size_t)p->rows * p->inputs);
    float *y = p->y_wide ? malloc((size_t)p->rows * stride * sizeof *y) : p->y;

    assert_always(y && stride >= p->outputs);
    for (size_t first = 0; first < p->outputs; first += COLUMNS)
        for (size_t row = 0; row < p->rows; row++)
            for (size_t column = first; column < MIN(first + COLUMNS, p->outputs); column++) {
                float *to = &y[row * stride + column];
                *to = (p->add ? *to : 0) + emulated_dot(x + row * p->inputs, w + column * p->inputs, p->inputs);
            }
    for (size_t row = 0; p->y_wide && row < p->rows; row++)
        for (size_t at = row * stride; at < row * stride + p->outputs; at++)
            ((uint16_t *)p->y)[at] = gemm->type == GPU_F16 ? f16_from_float(y[at]) : bf16_from_float(y[at]);
    if (gemm->invariant)
        spoil_padding(p, stride);
    if (p->y_wide)
        free(y);
    free(x);
}

void gpu_gemm_run(struct gpu_gemm *gemm, const struct gpu_product *p, void *workspace, cudaStream_t stream)
{
    const struct work work = {gemm, *p};
    (void)workspace;
    assert_always(p->rows && !(p->add && p->y_wide) && was_tried(gemm, p));
    emulate_queue(stream, run, &work, sizeof work, (size_t)p->outputs * p->inputs * sizeof(uint16_t));
}
