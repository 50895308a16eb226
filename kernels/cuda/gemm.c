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
    uint32_t row_class, outputs, inputs, y_stride; /* row_class: rows are below 2^row_class */
    bool y_wide, add;
    cublasLtMatmulAlgo_t algorithm; /* found for the most rows of the class */
    uint32_t good_rows;             /* for which it was checked last */
};

struct gpu_gemm {
    cublasLtHandle_t handle;
    cudaDataType_t type;
    uint32_t max_rows;
    cublasLtMatmulDesc_t multiply;
    cublasLtMatmulPreference_t preference;
    struct plan plans[PLANS_MAX];
    uint32_t plan_count;
};

/* Plain values, so that a product allocates nothing. */
struct layouts {
    cublasLtMatrixLayoutOpaque_t w, x, y;
};

enum status gpu_gemm_open(enum gpu_type type, uint32_t max_rows, struct gpu_gemm **out, struct error *error)
{
    struct gpu_gemm *gemm = calloc(1, sizeof *gemm);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    const size_t workspace = GPU_GEMM_WORKSPACE;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* parts of a sum are added in f32, whatever y is */
    const uint32_t y_alignment = 16; /* y may begin at any head of a row; w and x are aligned to 256, as is taken for granted */

    if (!gemm)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for cuBLASLt");
    gemm->type = type == GPU_F16 ? CUDA_R_16F : CUDA_R_16BF;
    gemm->max_rows = max_rows;
    if (cublasLtCreate(&gemm->handle) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulDescCreate(&gemm->multiply, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceCreate(&gemm->preference) != CUBLAS_STATUS_SUCCESS) {
        gpu_gemm_close(gemm);
        return error_set(error, STATUS_UNAVAILABLE, "cuBLASLt does not start on this device");
    }
    cublasLtMatmulDescSetAttribute(gemm->multiply, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    cublasLtMatmulPreferenceSetAttribute(gemm->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    cublasLtMatmulPreferenceSetAttribute(gemm->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                                         sizeof reduction);
    cublasLtMatmulPreferenceSetAttribute(gemm->preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y_alignment,
                                         sizeof y_alignment);
    cublasLtMatmulPreferenceSetAttribute(gemm->preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y_alignment,
                                         sizeof y_alignment);
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

static void must(cublasStatus_t status, const struct gpu_product *p)
{
    if (status != CUBLAS_STATUS_SUCCESS)
        cuda_die("cuBLASLt: status %d for a product of %u rows, %u outputs, %u inputs", (int)status, p->rows, p->outputs,
                 p->inputs);
}

static uint32_t y_stride(const struct gpu_product *p) { return p->y_stride ? p->y_stride : p->outputs; }

static void make_layouts(const struct gpu_gemm *gemm, const struct gpu_product *p, uint32_t rows, struct layouts *out)
{
    must(cublasLtMatrixLayoutInit(&out->w, gemm->type, p->inputs, p->outputs, p->inputs), p);
    must(cublasLtMatrixLayoutInit(&out->x, gemm->type, p->inputs, rows, p->inputs), p);
    must(cublasLtMatrixLayoutInit(&out->y, p->y_wide ? gemm->type : CUDA_R_32F, p->outputs, rows, y_stride(p)), p);
}

static bool find_algorithm(struct gpu_gemm *gemm, struct layouts *l, cublasLtMatmulAlgo_t *out)
{
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(gemm->handle, gemm->multiply, &l->w, &l->x, &l->y, &l->y,
                                                           gemm->preference, 1, &result, &found);
    if (status != CUBLAS_STATUS_SUCCESS || !found)
        return false;
    *out = result.algo;
    return true;
}

/* The plan of the product's shape and class of rows, its algorithm good for exactly these rows. */
static struct plan *plan_of(struct gpu_gemm *gemm, const struct gpu_product *p, struct layouts *exact)
{
    const uint32_t row_class = 32 - (uint32_t)__builtin_clz(p->rows);
    struct plan *plan = NULL;
    struct layouts most;

    for (uint32_t i = 0; !plan && i < gemm->plan_count; i++) {
        struct plan *known = &gemm->plans[i];
        if (known->row_class == row_class && known->outputs == p->outputs && known->inputs == p->inputs &&
            known->y_stride == y_stride(p) && known->y_wide == p->y_wide && known->add == p->add)
            plan = known;
    }
    if (!plan) {
        plan = &gemm->plans[gemm->plan_count < PLANS_MAX ? gemm->plan_count++ : PLANS_MAX - 1];
        *plan = (struct plan){.row_class = row_class,
                              .outputs = p->outputs,
                              .inputs = p->inputs,
                              .y_stride = y_stride(p),
                              .y_wide = p->y_wide,
                              .add = p->add};
        make_layouts(gemm, p, MAX(p->rows, MIN((1u << row_class) - 1, gemm->max_rows)), &most);
        if (!find_algorithm(gemm, &most, &plan->algorithm) && !find_algorithm(gemm, exact, &plan->algorithm))
            must(CUBLAS_STATUS_NOT_SUPPORTED, p);
    }
    if (plan->good_rows == p->rows)
        return plan;
    cublasLtMatmulHeuristicResult_t check;
    cublasStatus_t status =
        cublasLtMatmulAlgoCheck(gemm->handle, gemm->multiply, &exact->w, &exact->x, &exact->y, &exact->y, &plan->algorithm, &check);
    if ((status != CUBLAS_STATUS_SUCCESS || check.workspaceSize > GPU_GEMM_WORKSPACE) &&
        !find_algorithm(gemm, exact, &plan->algorithm))
        must(CUBLAS_STATUS_NOT_SUPPORTED, p);
    plan->good_rows = p->rows;
    return plan;
}

void gpu_gemm_run(struct gpu_gemm *gemm, const struct gpu_product *p, void *workspace, cudaStream_t stream)
{
    const float one = 1, y_before = p->add ? 1 : 0;
    struct layouts l;

    assert_always(p->rows && !(p->add && p->y_wide));
    make_layouts(gemm, p, p->rows, &l);
    const struct plan *plan = plan_of(gemm, p, &l);
    must(cublasLtMatmul(gemm->handle, gemm->multiply, &one, p->w, &l.w, p->x, &l.x, &y_before, p->y, &l.y, p->y, &l.y,
                        &plan->algorithm, workspace, GPU_GEMM_WORKSPACE, stream),
         p);
}
