/* gemm.c: see gemm.h. cuBLASLt counts in columns: our row-major y [rows][outputs] is its column-major outputs x rows, so that
 * A is w transposed (inputs x outputs, leading dimension inputs) and B is x (inputs x rows). */
#include "kernels/cuda/gemm.h"

#include <cublasLt.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { PLANS_MAX = 512 };

/* What is known of a shape: made on first use. */
struct plan {
    uint32_t row_class, outputs, inputs; /* row_class: rows are below 2^row_class */
    bool y_wide, add;
    cublasLtMatmulAlgo_t algorithm;
    bool has_algorithm;
};

struct gpu_gemm {
    cublasLtHandle_t handle;
    cudaDataType_t type;
    cublasLtMatmulDesc_t multiply;
    cublasLtMatmulPreference_t preference;
    struct plan plans[PLANS_MAX];
    uint32_t plan_count;
};

enum status gpu_gemm_open(enum gpu_type type, struct gpu_gemm **out, struct error *error)
{
    struct gpu_gemm *gemm = calloc(1, sizeof *gemm);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    const size_t workspace = GPU_GEMM_WORKSPACE;

    if (!gemm)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for cuBLASLt");
    gemm->type = type == GPU_F16 ? CUDA_R_16F : CUDA_R_16BF;
    if (cublasLtCreate(&gemm->handle) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulDescCreate(&gemm->multiply, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceCreate(&gemm->preference) != CUBLAS_STATUS_SUCCESS) {
        gpu_gemm_close(gemm);
        return error_set(error, STATUS_UNAVAILABLE, "cuBLASLt does not start on this device");
    }
    cublasLtMatmulDescSetAttribute(gemm->multiply, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    cublasLtMatmulPreferenceSetAttribute(gemm->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    *out = gemm;
    return STATUS_OK;
}

void gpu_gemm_close(struct gpu_gemm *gemm)
{
    if (!gemm)
        return;
    if (gemm->preference)
        cublasLtMatmulPreferenceDestroy(gemm->preference);
    if (gemm->multiply)
        cublasLtMatmulDescDestroy(gemm->multiply);
    if (gemm->handle)
        cublasLtDestroy(gemm->handle);
    free(gemm);
}

struct layouts {
    cublasLtMatrixLayout_t w, x, y;
};

static void must(cublasStatus_t status, const struct gpu_product *p)
{
    if (status != CUBLAS_STATUS_SUCCESS)
        cuda_die("cuBLASLt: status %d for a product of %u rows, %u outputs, %u inputs", (int)status, p->rows, p->outputs,
                 p->inputs);
}

static void make_layouts(const struct gpu_gemm *gemm, const struct gpu_product *p, struct layouts *out)
{
    must(cublasLtMatrixLayoutCreate(&out->w, gemm->type, p->inputs, p->outputs, p->inputs), p);
    must(cublasLtMatrixLayoutCreate(&out->x, gemm->type, p->inputs, p->rows, p->inputs), p);
    must(cublasLtMatrixLayoutCreate(&out->y, p->y_wide ? gemm->type : CUDA_R_32F, p->outputs, p->rows, p->outputs), p);
}

static struct plan *plan_of(struct gpu_gemm *gemm, const struct gpu_product *p, const struct layouts *layouts)
{
    const uint32_t row_class = 32 - (uint32_t)__builtin_clz(p->rows);
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;

    for (uint32_t i = 0; i < gemm->plan_count; i++) {
        struct plan *plan = &gemm->plans[i];
        if (plan->row_class == row_class && plan->outputs == p->outputs && plan->inputs == p->inputs && plan->y_wide == p->y_wide &&
            plan->add == p->add)
            return plan;
    }
    struct plan *plan = &gemm->plans[gemm->plan_count < PLANS_MAX ? gemm->plan_count++ : PLANS_MAX - 1];
    *plan = (struct plan){.row_class = row_class, .outputs = p->outputs, .inputs = p->inputs, .y_wide = p->y_wide, .add = p->add};
    if (cublasLtMatmulAlgoGetHeuristic(gemm->handle, gemm->multiply, layouts->w, layouts->x, layouts->y, layouts->y,
                                       gemm->preference, 1, &result, &found) == CUBLAS_STATUS_SUCCESS &&
        found) {
        plan->algorithm = result.algo;
        plan->has_algorithm = true;
    }
    return plan;
}

void gpu_gemm_run(struct gpu_gemm *gemm, const struct gpu_product *p, void *workspace, cudaStream_t stream)
{
    const float one = 1, y_before = p->add ? 1 : 0;
    struct layouts layouts = {0};

    assert_always(!(p->add && p->y_wide));
    make_layouts(gemm, p, &layouts);
    const struct plan *plan = plan_of(gemm, p, &layouts);
    must(cublasLtMatmul(gemm->handle, gemm->multiply, &one, p->w, layouts.w, p->x, layouts.x, &y_before, p->y, layouts.y, p->y,
                        layouts.y, plan->has_algorithm ? &plan->algorithm : NULL, workspace, GPU_GEMM_WORKSPACE, stream),
         p);
    cublasLtMatrixLayoutDestroy(layouts.w);
    cublasLtMatrixLayoutDestroy(layouts.x);
    cublasLtMatrixLayoutDestroy(layouts.y);
}
