// gemm.c: products by cuBLASLt, with algorithms that were tried at start. cuBLASLt counts in columns: our row-major y [rows][outputs] is its column-major outputs x rows, so that
// A is w transposed (inputs x outputs, leading dimension inputs) and B is x (inputs x rows).
#include "kernels/cuda/gemm.h"

#include <cublasLt.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm_choice.h"

enum { SHAPES_MAX = 64, RUNS = 3, FILLS = 2, TRIAL_BUDGET_US = 1500000, PATTERN = 0x2c /* 0.065 in f16 */ };

// A shape and the algorithms found for it.
struct shape {
    struct gpu_product like;
    bool known[GPU_CLASSES_MAX], tried[GPU_CLASSES_MAX];
    uint32_t good_rows[GPU_CLASSES_MAX]; // for which the algorithm was checked last, where that was not done at start
    cublasLtMatmulAlgo_t algorithm[GPU_CLASSES_MAX];
};

struct gpu_gemm {
    cublasLtHandle_t handle;
    cudaDataType_t type;
    uint32_t max_rows, classes, class_rows[GPU_CLASSES_MAX];
    bool invariant;
    uint64_t workspace; // that algorithms may want
    cublasLtMatmulDesc_t multiply;
    cublasLtMatmulPreference_t preference;
    struct shape shapes[SHAPES_MAX];
    uint32_t shape_count;
};

// Descriptors as plain values, so that a product allocates nothing.
struct layouts {
    cublasLtMatrixLayoutOpaque_t w, x, y;
};

// How an algorithm may add up partial sums, and the memory for that.
static void set_reduction(struct gpu_gemm *gemm, uint32_t mask, uint64_t workspace)
{
    gemm->workspace = workspace;
    cublasLtMatmulPreferenceSetAttribute(gemm->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    cublasLtMatmulPreferenceSetAttribute(gemm->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
}

enum status gpu_gemm_open(enum gpu_type type, uint32_t max_rows, struct gpu_gemm **out, struct error *error)
{
    struct gpu_gemm *gemm = calloc(1, sizeof *gemm);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    const uint32_t y_alignment = 16; // y may begin at any head of a row; w and x are aligned to 256, as is taken for granted

    if (!gemm)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for cuBLASLt");
    gemm->type = type == GPU_F16 ? CUDA_R_16F : CUDA_R_16BF;
    gemm->max_rows = max_rows;
    gemm->classes = gpu_classes(max_rows, gemm->class_rows);
    if (cublasLtCreate(&gemm->handle) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulDescCreate(&gemm->multiply, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceCreate(&gemm->preference) != CUBLAS_STATUS_SUCCESS) {
        gpu_gemm_close(gemm);
        return error_set(error, STATUS_UNAVAILABLE, "cuBLASLt does not start on this device");
    }
    cublasLtMatmulDescSetAttribute(gemm->multiply, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    set_reduction(gemm, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                  GPU_GEMM_WORKSPACE); // parts of a sum are added in f32, whatever y is
    cublasLtMatmulPreferenceSetAttribute(gemm->preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y_alignment,
                                         sizeof y_alignment);
    cublasLtMatmulPreferenceSetAttribute(gemm->preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y_alignment,
                                         sizeof y_alignment);
    *out = gemm;
    return STATUS_OK;
}

void gpu_gemm_invariant(struct gpu_gemm *gemm)
{
    gemm->invariant = true;
    gemm->classes = 1; // one algorithm a shape
    gemm->class_rows[0] = GPU_GEMM_TILE_ROWS;
    set_reduction(gemm, CUBLASLT_REDUCTION_SCHEME_NONE, 0); // without memory blocks have nowhere to leave a part of a sum
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

static void make_layouts(const struct gpu_gemm *gemm, const struct gpu_product *p, uint32_t rows, struct layouts *out)
{
    must(cublasLtMatrixLayoutInit(&out->w, gemm->type, p->inputs, p->outputs, p->inputs), p);
    must(cublasLtMatrixLayoutInit(&out->x, gemm->type, p->inputs, rows, p->inputs), p);
    must(cublasLtMatrixLayoutInit(&out->y, p->y_wide ? gemm->type : CUDA_R_32F, p->outputs, rows, gpu_y_stride(p)), p);
}

// --- algorithms ---

// One pass over the inputs by one block for each output: what batch invariance asks of an algorithm.
static bool is_unsplit(const cublasLtMatmulAlgo_t *algorithm)
{
    int32_t splits = 0;
    uint32_t reduction = ~0u;
    size_t written;
    return cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof splits, &written) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, sizeof reduction,
                                                &written) == CUBLAS_STATUS_SUCCESS &&
           splits <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

// The library's best guesses, in its order.
static uint32_t ask_candidates(struct gpu_gemm *gemm, struct layouts *l, cublasLtMatmulAlgo_t *out, uint32_t wanted)
{
    cublasLtMatmulHeuristicResult_t results[GPU_CANDIDATES_MAX];
    int found = 0;
    uint32_t count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(gemm->handle, gemm->multiply, &l->w, &l->x, &l->y, &l->y,
                                                           gemm->preference, GPU_CANDIDATES_MAX, results, &found);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found && count < wanted; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= gemm->workspace &&
            (!gemm->invariant || is_unsplit(&results[i].algo)))
            out[count++] = results[i].algo;
    return count;
}

static bool fits(struct gpu_gemm *gemm, const struct gpu_product *p, uint32_t rows, const cublasLtMatmulAlgo_t *algorithm)
{
    cublasLtMatmulHeuristicResult_t check;
    struct layouts l;
    make_layouts(gemm, p, rows, &l);
    return cublasLtMatmulAlgoCheck(gemm->handle, gemm->multiply, &l.w, &l.x, &l.y, &l.y, algorithm, &check) ==
               CUBLAS_STATUS_SUCCESS &&
           check.workspaceSize <= gemm->workspace;
}

static struct shape *shape_of(struct gpu_gemm *gemm, const struct gpu_product *p)
{
    for (uint32_t i = 0; i < gemm->shape_count; i++)
        if (gpu_same_shape(&gemm->shapes[i].like, p))
            return &gemm->shapes[i];
    struct shape *shape = &gemm->shapes[gemm->shape_count < SHAPES_MAX ? gemm->shape_count++ : SHAPES_MAX - 1];
    *shape = (struct shape){.like = *p};
    return shape;
}

// The algorithm for the product's rows. Looked up and checked here only where that was not done at start.
static const cublasLtMatmulAlgo_t *algorithm_of(struct gpu_gemm *gemm, const struct gpu_product *p, struct layouts *exact)
{
    struct shape *shape = shape_of(gemm, p);
    const uint32_t c = gpu_class_of(gemm->class_rows, gemm->classes, p->rows);
    struct layouts most;

    if (shape->known[c] &&
        (gemm->invariant || shape->good_rows[c] == p->rows || (shape->tried[c] && gpu_rows_checked(p->rows, gemm->max_rows))))
        return &shape->algorithm[c];
    if (!shape->known[c]) {
        make_layouts(gemm, p, gemm->class_rows[c], &most);
        shape->known[c] = ask_candidates(gemm, &most, &shape->algorithm[c], 1) > 0;
    }
    if ((!shape->known[c] || !fits(gemm, p, p->rows, &shape->algorithm[c])) &&
        !ask_candidates(gemm, exact, &shape->algorithm[c], 1))
        must(CUBLAS_STATUS_NOT_SUPPORTED, p);
    shape->known[c] = true;
    shape->tried[c] = false; // the class has another algorithm than the one that was checked, or was never tried
    shape->good_rows[c] = p->rows;
    return &shape->algorithm[c];
}

// --- products ---

static cublasStatus_t start(struct gpu_gemm *gemm, const struct gpu_product *p, struct layouts *l,
                            const cublasLtMatmulAlgo_t *algorithm, void *workspace, cudaStream_t stream)
{
    const float one = 1, y_before = p->add ? 1 : 0;
    return cublasLtMatmul(gemm->handle, gemm->multiply, &one, p->w, &l->w, p->x, &l->x, &y_before, p->y, &l->y, p->y, &l->y,
                          algorithm, workspace, gemm->workspace, stream);
}

// A capture that lacks a product must give no graph: waiting for the stream ends it with an error, and so does whatever comes then.
static bool ends_a_capture(cudaStream_t stream)
{
    cudaError_t said = cudaStreamSynchronize(stream);
    return said == cudaErrorStreamCaptureUnsupported || said == cudaErrorStreamCaptureInvalidated;
}

static void run_piece(struct gpu_gemm *gemm, const struct gpu_product *p, void *workspace, cudaStream_t stream)
{
    struct layouts l;

    make_layouts(gemm, p, p->rows, &l);
    cublasStatus_t status = start(gemm, p, &l, algorithm_of(gemm, p, &l), workspace, stream);
    if (status != CUBLAS_STATUS_SUCCESS && !ends_a_capture(stream))
        must(status, p);
}

void gpu_gemm_run(struct gpu_gemm *gemm, const struct gpu_product *p, void *workspace, cudaStream_t stream)
{
    struct gpu_product piece = *p;

    assert_always(p->rows && p->rows <= gemm->max_rows && !(p->add && p->y_wide));
    if (!gemm->invariant) {
        run_piece(gemm, p, workspace, stream);
        return;
    }
    piece.rows = GPU_GEMM_TILE_ROWS;
    for (uint32_t first = 0; first < p->rows; first += GPU_GEMM_TILE_ROWS) {
        piece.x = (const uint16_t *)p->x + (size_t)first * p->inputs;
        piece.y = p->y_wide ? (void *)((uint16_t *)p->y + (size_t)first * gpu_y_stride(p))
                            : (void *)((float *)p->y + (size_t)first * gpu_y_stride(p));
        run_piece(gemm, &piece, workspace, stream);
    }
}

// --- trials ---

struct trials {
    struct gpu_gemm *gemm;
    const struct gpu_trial *all;
    void *workspace;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    uint32_t next_w; // over all shapes: whose turn it is
    // times of the pair that is being tried
    struct gpu_product product;
    const struct gpu_trial *trial;
    struct layouts layouts;
    cublasLtMatmulAlgo_t candidates[GPU_CANDIDATES_MAX];
};

static uint32_t trial_candidates(void *user, uint32_t shape, uint32_t rows)
{
    struct trials *t = user;
    t->trial = &t->all[shape];
    t->product = t->trial->product;
    t->product.rows = rows;
    make_layouts(t->gemm, &t->product, rows, &t->layouts);
    return ask_candidates(t->gemm, &t->layouts, t->candidates, GPU_CANDIDATES_MAX);
}

// Returns the mean microseconds of `runs` runs; negative: the algorithm does not start.
static double timed_us(struct trials *t, uint32_t candidate, uint32_t runs)
{
    float ms = 0;
    for (uint32_t i = 0; i < FILLS;
         i++) // so that all runs are queued when the clock starts: a launch takes as long as a small product
        cuda_must(cudaMemsetAsync(t->workspace, 0, GPU_GEMM_WORKSPACE, t->stream), "trying products");
    cuda_must(cudaEventRecord(t->begin, t->stream), "trying products");
    for (uint32_t i = 0; i < runs; i++) {
        t->product.w = t->trial->w[t->next_w++ % t->trial->w_count];
        if (start(t->gemm, &t->product, &t->layouts, &t->candidates[candidate], t->workspace, t->stream) != CUBLAS_STATUS_SUCCESS) {
            (void)cudaGetLastError();
            return -1;
        }
    }
    cuda_must(cudaEventRecord(t->end, t->stream), "trying products");
    cuda_must(cudaEventSynchronize(t->end), "trying products");
    cuda_must(cudaEventElapsedTime(&ms, t->begin, t->end), "trying products");
    return (double)ms * 1e3 / runs;
}

// Runs an algorithm once, which loads its kernel.
static double trial_time_us(void *user, uint32_t candidate, double best_us)
{
    struct trials *t = user;
    double us = timed_us(t, candidate, 1);
    if (us >= 0)
        us = timed_us(t, candidate, 1);
    return us < 0 || (best_us > 0 && us > 2 * best_us) ? us : timed_us(t, candidate, RUNS);
}

static bool trial_fits(void *user, uint32_t candidate, uint32_t rows)
{
    struct trials *t = user;
    return fits(t->gemm, &t->product, rows, &t->candidates[candidate]);
}

static uint64_t trial_now_us(void *user)
{
    (void)user;
    return clock_now_us();
}

static void trial_keep(void *user, uint32_t shape, uint32_t row_class, uint32_t candidate)
{
    struct trials *t = user;
    struct shape *kept = shape_of(t->gemm, &t->all[shape].product);
    kept->algorithm[row_class] = t->candidates[candidate];
    kept->known[row_class] = kept->tried[row_class] = true;
    log_debug("PRODUCT-CHOSEN", "outputs=%u inputs=%u rows=%u candidate=%u", kept->like.outputs, kept->like.inputs,
              t->gemm->class_rows[row_class], candidate);
}

static void open_trials(struct trials *t, uint32_t count)
{
    cuda_must(cudaEventCreateWithFlags(&t->begin, cudaEventDefault), "an event");
    cuda_must(cudaEventCreateWithFlags(&t->end, cudaEventDefault), "an event");
    for (uint32_t i = 0; i < count; i++) { // something finite, not zero: zeros take less power and run faster
        const struct gpu_product *p = &t->all[i].product;
        cuda_must(cudaMemsetAsync((void *)p->x, PATTERN, (size_t)p->rows * p->inputs * 2, t->stream), "trying products");
    }
}

// Batch-invariant: the library's first for a tile, which the next start finds as well.
static void look_up(struct gpu_gemm *gemm, const struct gpu_trial *trials, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct gpu_product tile = trials[i].product;
        struct layouts l;
        tile.rows = GPU_GEMM_TILE_ROWS;
        make_layouts(gemm, &tile, tile.rows, &l);
        algorithm_of(gemm, &tile, &l);
    }
}

void gpu_gemm_try(struct gpu_gemm *gemm, const struct gpu_trial *trials, uint32_t count, void *workspace, cudaStream_t stream)
{
    struct trials t = {.gemm = gemm, .all = trials, .workspace = workspace, .stream = stream};
    const struct gpu_trial_calls calls = {
        .candidates = trial_candidates, .time_us = trial_time_us, .fits = trial_fits, .now_us = trial_now_us, .user = &t};
    struct gpu_run_rows run_rows[SHAPES_MAX];
    // 0: the library's first, so that two backends choose alike, which tests that compare bytes want
    const char *budget = getenv("FD_CUDA_TRIAL_MS");
    const uint64_t budget_us = budget ? strtoul(budget, NULL, 10) * 1000ull : TRIAL_BUDGET_US;
    struct gpu_choices made;

    assert_always(count <= SHAPES_MAX);
    if (gemm->invariant) {
        look_up(gemm, trials, count);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        run_rows[i] = (struct gpu_run_rows){trials[i].least_rows, trials[i].product.rows};
    log_info("PRODUCTS-TRIED-NOW", "shapes=%u classes_of_rows=%u at_most_ms=%llu", count, gemm->classes,
             (unsigned long long)budget_us / 1000);
    open_trials(&t, count);
    gpu_choose(&calls, run_rows, count, gemm->max_rows, budget_us, trial_keep, &made);
    cuda_must(cudaStreamSynchronize(stream), "trying products");
    cudaEventDestroy(t.begin);
    cudaEventDestroy(t.end);
    log_info("PRODUCTS-TRIED", "chosen=%u by_the_library=%u missing=%u ms=%llu", made.timed, made.untimed, made.missing,
             (unsigned long long)made.took_us / 1000);
}
