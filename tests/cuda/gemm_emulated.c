/* gemm_emulated.c: gemm.h without a device: the operands as f32, by OpenBLAS. Weights are widened once: a matrix is known by where it
 * lies, until gpu_gemm_close. Batch-invariant: each row by itself, and NaN into those that a device pads the last piece with, so that who
 * reads them, or has no room for them, is seen. */
#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/cuda/gemm.h"
#include "kernels/dispatch/half.h"

enum { WEIGHTS_MAX = 4096 };

struct gpu_gemm {
    enum gpu_type type;
    bool invariant;
    uint32_t count;
    struct {
        const void *wide;
        float *values;
    } weights[WEIGHTS_MAX];
};

enum status gpu_gemm_open(enum gpu_type type, uint32_t max_rows, struct gpu_gemm **out, struct error *error)
{
    (void)error, (void)max_rows;
    *out = calloc(1, sizeof **out);
    assert_always(*out);
    (*out)->type = type;
    return STATUS_OK;
}

void gpu_gemm_invariant(struct gpu_gemm *gemm) { gemm->invariant = true; }

void gpu_gemm_try(struct gpu_gemm *gemm, const struct gpu_trial *trials, uint32_t count, void *workspace, cudaStream_t stream)
{
    (void)gemm, (void)workspace, (void)stream;
    for (uint32_t i = 0; i < count; i++)
        assert_always(trials[i].w_count && trials[i].w[trials[i].w_count - 1] && trials[i].product.x && trials[i].product.y);
}

void gpu_gemm_close(struct gpu_gemm *gemm)
{
    for (uint32_t i = 0; gemm && i < gemm->count; i++)
        free(gemm->weights[i].values);
    free(gemm);
}

static float *widened(const struct gpu_gemm *gemm, const uint16_t *from, size_t count)
{
    float *to = malloc((count + 1) * sizeof *to);
    assert_always(to);
    for (size_t i = 0; i < count; i++)
        to[i] = gemm->type == GPU_F16 ? f16_to_float(from[i]) : bf16_to_float(from[i]);
    return to;
}

static const float *weights(struct gpu_gemm *gemm, const void *wide, size_t count)
{
    for (uint32_t i = 0; i < gemm->count; i++)
        if (gemm->weights[i].wide == wide)
            return gemm->weights[i].values;
    assert_always(gemm->count < WEIGHTS_MAX);
    gemm->weights[gemm->count].wide = wide;
    gemm->weights[gemm->count].values = widened(gemm, wide, count);
    return gemm->weights[gemm->count++].values;
}

struct work {
    struct gpu_gemm *gemm;
    struct gpu_product product;
};

static void run(void *arg)
{
    struct work *work = arg;
    struct gpu_gemm *gemm = work->gemm;
    const struct gpu_product *p = &work->product;
    size_t count = (size_t)p->rows * p->outputs;
    const float *w = weights(gemm, p->w, (size_t)p->outputs * p->inputs);
    float *x = widened(gemm, p->x, (size_t)p->rows * p->inputs), *y = p->y_wide ? malloc(count * sizeof *y) : p->y;

    assert_always(y);
    for (uint32_t row = 0, rows = gemm->invariant ? 1 : p->rows; row < p->rows; row += rows)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)p->outputs, (int)p->inputs, 1,
                    x + (size_t)row * p->inputs, (int)p->inputs, w, (int)p->inputs, p->add ? 1 : 0, y + (size_t)row * p->outputs,
                    (int)p->outputs);
    for (size_t i = 0; p->y_wide && i < count; i++)
        ((uint16_t *)p->y)[i] = gemm->type == GPU_F16 ? f16_from_float(y[i]) : bf16_from_float(y[i]);
    if (gemm->invariant) {
        size_t tiles = (p->rows + GPU_GEMM_TILE_ROWS - 1) / GPU_GEMM_TILE_ROWS, bytes = p->y_wide ? 2 : 4;
        memset((unsigned char *)p->y + count * bytes, 0xff, (tiles * GPU_GEMM_TILE_ROWS * p->outputs - count) * bytes);
    }
    if (p->y_wide)
        free(y);
    free(x);
}

void gpu_gemm_run(struct gpu_gemm *gemm, const struct gpu_product *p, void *workspace, cudaStream_t stream)
{
    const struct work work = {gemm, *p};
    (void)workspace;
    assert_always(p->rows && !(p->add && p->y_wide));
    emulate_queue(stream, run, &work, sizeof work);
}
