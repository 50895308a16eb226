/* test_cuda_gemm.c: products whose algorithms were tried at start, and batch-invariant ones, at every count of rows that matters, beside sums
 * in double; and that a batch-invariant row has the same bytes alone, in company and in any place. What is chosen, and from what, is
 * test_gemm_choice.c's; here the library runs it, on a real device. On the emulated one there is nothing to choose.
 */
#include "tests/cuda/device_rig.h"

enum { OUTPUTS = 136, INPUTS = 200, MATRICES = 3, MAX_ROWS = 300, HELD = 384, LARGEST = HELD * OUTPUTS };

/* The operands of a product: x is [HELD][INPUTS], y is [HELD][OUTPUTS]. */
struct operands {
    enum gpu_type type;
    uint16_t w[MATRICES][OUTPUTS * INPUTS], x[HELD * INPUTS];
    float before[LARGEST];
    double want[MAX_ROWS * OUTPUTS]; /* of matrix 0, without y before */
    void *w_device[MATRICES], *x_device, *y_device, *workspace;
    struct gpu_gemm *gemm;
};

static struct operands *open_operands(enum gpu_type type, bool invariant)
{
    struct operands *o = calloc(1, sizeof *o);
    struct error error;
    uint64_t seed = 1;

    assert_non_null(o);
    o->type = type;
    for (uint32_t m = 0; m < MATRICES; m++) {
        for (uint32_t i = 0; i < OUTPUTS * INPUTS; i++)
            o->w[m][i] = narrowed(type, gguf_random_float(&seed));
        o->w_device[m] = on_device(o->w[m], sizeof o->w[m]);
    }
    for (uint32_t i = 0; i < HELD * INPUTS; i++)
        o->x[i] = narrowed(type, gguf_random_float(&seed));
    for (uint32_t i = 0; i < LARGEST; i++)
        o->before[i] = gguf_random_float(&seed);
    for (uint32_t row = 0; row < MAX_ROWS; row++)
        for (uint32_t out = 0; out < OUTPUTS; out++)
            for (uint32_t i = 0; i < INPUTS; i++)
                o->want[row * OUTPUTS + out] += (double)widened(type, o->w[0][out * INPUTS + i]) *
                                                (double)widened(type, o->x[row * INPUTS + i]);
    o->x_device = on_device(o->x, sizeof o->x);
    o->y_device = on_device(o->before, sizeof o->before);
    o->workspace = on_device(NULL, GPU_GEMM_WORKSPACE);
    assert_int_equal(gpu_gemm_open(type, MAX_ROWS, &o->gemm, &error), STATUS_OK);
    if (invariant)
        gpu_gemm_invariant(o->gemm);
    return o;
}

static void close_operands(struct operands *o)
{
    gpu_gemm_close(o->gemm);
    for (uint32_t m = 0; m < MATRICES; m++)
        cudaFree(o->w_device[m]);
    cudaFree(o->x_device), cudaFree(o->y_device), cudaFree(o->workspace);
    free(o);
}

static struct gpu_product product_of(const struct operands *o, uint32_t first, uint32_t rows, bool y_wide, bool add)
{
    return (struct gpu_product){.w = o->w_device[0],
                                .x = (const uint16_t *)o->x_device + (size_t)first * INPUTS,
                                .y = o->y_device,
                                .rows = rows,
                                .outputs = OUTPUTS,
                                .inputs = INPUTS,
                                .y_wide = y_wide,
                                .add = add};
}

static void try_all(struct operands *o)
{
    const void *const w[MATRICES] = {o->w_device[0], o->w_device[1], o->w_device[2]};
    struct gpu_trial trials[3];
    for (uint32_t i = 0; i < 3; i++)
        trials[i] = (struct gpu_trial){product_of(o, 0, MAX_ROWS, i == 1, i == 2), w, MATRICES, 1};
    gpu_gemm_try(o->gemm, trials, 3, o->workspace, rig_stream);
    to_device(o->x_device, o->x, sizeof o->x); /* it may overwrite x and y */
}

/* y of rows `first` on, `held` rows of it with what stands behind the product's own. */
static void *run(struct operands *o, uint32_t first, uint32_t rows, bool y_wide, bool add)
{
    const struct gpu_product p = product_of(o, first, rows, y_wide, add);
    to_device(o->y_device, o->before, sizeof o->before);
    gpu_gemm_run(o->gemm, &p, o->workspace, rig_stream);
    return on_host(o->y_device, sizeof o->before);
}

static void check(const struct operands *o, const void *got, uint32_t rows, bool y_wide, bool add)
{
    const double step = !y_wide ? 0 : o->type == GPU_F16 ? 0x1p-11 : 0x1p-8;
    for (uint32_t i = 0; i < rows * OUTPUTS; i++) {
        double want = o->want[i] + (add ? (double)o->before[i] : 0);
        double value = y_wide ? (double)widened(o->type, ((const uint16_t *)got)[i]) : (double)((const float *)got)[i];
        if (!(fabs(value - want) <= 1e-4 + 1.01 * step * fabs(want)))
            fail_msg("row %u, output %u: %.9g for %.9g", i / OUTPUTS, i % OUTPUTS, value, want);
    }
}

static void check_counts(struct operands *o, bool invariant)
{
    static const uint32_t more[] = {47, 48, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256, 257, 299, 300};
    for (uint32_t form = 0; form < 3; form++)
        for (uint32_t i = 1; i <= 40 + ARRAY_COUNT(more); i++) {
            uint32_t rows = i <= 40 ? i : more[i - 41], tiles = (rows + GPU_GEMM_TILE_ROWS - 1) / GPU_GEMM_TILE_ROWS;
            size_t end = (size_t)(invariant ? tiles * GPU_GEMM_TILE_ROWS : rows) * OUTPUTS * (form == 1 ? 2 : 4);
            unsigned char *got = run(o, 0, rows, form == 1, form == 2);
            check(o, got, rows, form == 1, form == 2);
            assert_memory_equal(got + end, (const unsigned char *)o->before + end, sizeof o->before - end);
            free(got);
        }
}

static void test_tried(void **state)
{
    for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++) {
        struct operands *o = open_operands(type, false);
        check_counts(o, false); /* as the library has them */
        try_all(o);
        check_counts(o, false);
        close_operands(o);
    }
}

static void test_invariant(void **state)
{
    for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++) {
        struct operands *o = open_operands(type, true);
        try_all(o);
        check_counts(o, true);
        for (uint32_t form = 0; form < 2; form++) {
            const size_t row_bytes = OUTPUTS * (form ? 2 : 4);
            unsigned char *all = run(o, 0, MAX_ROWS, form, false);
            for (uint32_t row = 0; row < 260; row += 13) /* alone, and as the first of some */
                for (uint32_t rows = 1; rows <= 37; rows += 12) {
                    unsigned char *got = run(o, row, rows, form, false);
                    assert_memory_equal(got, all + row * row_bytes, rows * row_bytes);
                    free(got);
                }
            free(all);
        }
        close_operands(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tried), cmocka_unit_test(test_invariant)};
    return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("products", tests, NULL, NULL)) : 0;
}
