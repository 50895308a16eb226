/* test_cuda.c: the kernels of rows.cu, and products, beside plain loops in double, on odd sizes. Attention: test_cuda_attention.c. */
#include "tests/cuda/device_rig.h"

#include "kernels/norm_rope/norm_rope.h"

/* Half a unit of the last place of the type, times slightly more than one. */
static double rounding(enum gpu_type type, double x) { return fabs(x) * (type == GPU_F16 ? 0x1.01p-11 : 0x1.01p-8) + 1e-7; }

static void near_wide(enum gpu_type type, uint16_t got, double want, double more)
{
    double value = (double)widened(type, got);
    if (!(fabs(value - want) <= rounding(type, want) + more))
        fail_msg("%.9g for %.9g", value, want);
}

/* --- rows ------------------------------------------------------------------------------------------------------------------ */

static void test_embed(void **state)
{
    enum { VOCAB = 37, HIDDEN = 129, ROWS = 5 };
    const uint32_t token[ROWS] = {0, 36, 7, 7, 20};
    float *values = random_values(VOCAB * HIDDEN, 1), got[ROWS * HIDDEN];
    uint16_t wide[VOCAB * HIDDEN];
    for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++) {
        for (size_t i = 0; i < VOCAB * HIDDEN; i++)
            wide[i] = narrowed(type, values[i]);
        void *table = on_device(wide, sizeof wide), *tokens = on_device(token, sizeof token), *x = on_device(NULL, sizeof got);
        gpu_embed(type, table, tokens, ROWS, HIDDEN, x, rig_stream);
        to_host(got, x, sizeof got);
        for (uint32_t row = 0; row < ROWS; row++)
            for (uint32_t i = 0; i < HIDDEN; i++)
                assert_true(got[row * HIDDEN + i] == widened(type, wide[token[row] * HIDDEN + i]));
        cudaFree(table), cudaFree(tokens), cudaFree(x);
    }
    free(values);
}

static void norm_of(enum gpu_type type, uint32_t hidden, uint32_t rows, const uint32_t *index)
{
    const uint32_t held = rows + 3;
    float *x = random_values((size_t)held * hidden, hidden), *weight = random_values(hidden, 5);
    uint16_t *got = malloc((size_t)rows * hidden * sizeof *got);
    void *x_at = on_device(x, (size_t)held * hidden * 4), *weight_at = on_device(weight, hidden * 4ul),
         *index_at = index ? on_device(index, rows * 4ul) : NULL, *out = on_device(NULL, (size_t)rows * hidden * 2);
    gpu_rms_norm(type, x_at, index_at, weight_at, 1e-5f, rows, hidden, out, rig_stream);
    to_host(got, out, (size_t)rows * hidden * 2);
    for (uint32_t row = 0; row < rows; row++) {
        const float *from = x + (size_t)(index ? index[row] : row) * hidden;
        double sum = 0;
        for (uint32_t i = 0; i < hidden; i++)
            sum += (double)from[i] * (double)from[i];
        double scale = 1 / sqrt(sum / hidden + 1e-5);
        for (uint32_t i = 0; i < hidden; i++)
            near_wide(type, got[(size_t)row * hidden + i], (double)from[i] * scale * (double)weight[i],
                      2e-6 * fabs((double)from[i]));
    }
    cudaFree(x_at), cudaFree(weight_at), cudaFree(index_at), cudaFree(out);
    free(x), free(weight), free(got);
}

static void test_norm(void **state)
{
    const uint32_t sizes[] = {1, 31, 33, 256, 576, 2049, 4096, 4104, 8200}, index[] = {6, 0, 3, 3};
    for (size_t i = 0; i < ARRAY_COUNT(sizes); i++)
        for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++) {
            norm_of(type, sizes[i], 5, NULL);
            norm_of(type, sizes[i], 4, index);
        }
}

/* A mean far from 0 costs no digits; with a bias and without. */
static void layer_norm_of(enum gpu_type type, uint32_t hidden, uint32_t rows, const uint32_t *index, bool biased)
{
    const uint32_t held = rows + 3;
    float *x = random_values((size_t)held * hidden, hidden), *weight = random_values(hidden, 5), *bias = random_values(hidden, 6);
    uint16_t *got = malloc((size_t)rows * hidden * sizeof *got);
    for (size_t i = 0; i < (size_t)held * hidden; i++)
        x[i] += 20;
    void *x_at = on_device(x, (size_t)held * hidden * 4), *weight_at = on_device(weight, hidden * 4ul),
         *bias_at = biased ? on_device(bias, hidden * 4ul) : NULL, *index_at = index ? on_device(index, rows * 4ul) : NULL,
         *out = on_device(NULL, (size_t)rows * hidden * 2);
    gpu_layer_norm(type, x_at, index_at, weight_at, bias_at, 1e-5f, rows, hidden, out, rig_stream);
    to_host(got, out, (size_t)rows * hidden * 2);
    for (uint32_t row = 0; row < rows; row++) {
        const float *from = x + (size_t)(index ? index[row] : row) * hidden;
        double sum = 0, squares = 0;
        for (uint32_t i = 0; i < hidden; i++)
            sum += (double)from[i];
        for (uint32_t i = 0; i < hidden; i++)
            squares += ((double)from[i] - sum / hidden) * ((double)from[i] - sum / hidden);
        double scale = 1 / sqrt(squares / hidden + 1e-5);
        for (uint32_t i = 0; i < hidden; i++)
            near_wide(type, got[(size_t)row * hidden + i],
                      ((double)from[i] - sum / hidden) * scale * (double)weight[i] + (biased ? (double)bias[i] : 0),
                      1e-5 * scale * fabs((double)weight[i]));
    }
    cudaFree(x_at), cudaFree(weight_at), cudaFree(bias_at), cudaFree(index_at), cudaFree(out);
    free(x), free(weight), free(bias), free(got);
}

static void test_layer_norm(void **state)
{
    const uint32_t sizes[] = {2, 31, 33, 256, 576, 2049, 4104, 8200}, index[] = {6, 0, 3, 3};
    for (size_t i = 0; i < ARRAY_COUNT(sizes); i++)
        for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++) {
            layer_norm_of(type, sizes[i], 5, NULL, true);
            layer_norm_of(type, sizes[i], 4, index, false);
        }
}

/* (x + bias) / sqrt(mean of squares + epsilon) * weight * factor in place; without a weight (x + bias) * factor. */
static void norm_in_double(double *x, uint32_t count, const float *bias, const float *weight, double factor)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        x[i] += bias ? (double)bias[i] : 0;
        sum += x[i] * x[i];
    }
    for (uint32_t i = 0; i < count; i++)
        x[i] *= factor * (weight ? (double)weight[i] / sqrt(sum / count + 1e-5) : 1);
}

static void heads_of(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, bool whole, bool normed, bool biased, float factor)
{
    enum { ROWS = 3 };
    const uint32_t q = heads * head_dim, kv = kv_heads * head_dim, width = q + 2 * kv;
    const uint32_t q_size = whole ? q : head_dim, k_size = whole ? kv : head_dim;
    float *qkv = random_values((size_t)ROWS * width, heads), *bias = random_values(width, 9), *weight = random_values(width, 10),
          *got = malloc((size_t)ROWS * width * sizeof *got);
    double *want = malloc(width * sizeof *want);
    float *bias_at = on_device(bias, width * 4ul), *weight_at = on_device(weight, width * 4ul);
    void *at = on_device(qkv, (size_t)ROWS * width * 4);
    const struct gpu_heads h = {.q_bias = biased ? bias_at : NULL,
                                .k_bias = biased ? bias_at + q : NULL,
                                .q_norm = normed ? weight_at : NULL,
                                .k_norm = normed ? weight_at + q : NULL,
                                .epsilon = 1e-5f,
                                .q_factor = factor,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = head_dim,
                                .whole = whole};
    gpu_heads(&h, ROWS, at, rig_stream);
    to_host(got, at, (size_t)ROWS * width * 4);
    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t i = 0; i < width; i++)
            want[i] = (double)qkv[row * width + i];
        for (uint32_t i = 0; i < q; i += q_size)
            norm_in_double(want + i, q_size, biased ? bias + i : NULL, normed ? weight : NULL, (double)factor);
        for (uint32_t i = 0; i < kv; i += k_size)
            norm_in_double(want + q + i, k_size, biased ? bias + q + i : NULL, normed ? weight + q : NULL, 1);
        for (uint32_t i = 0; i < width; i++)
            near(got[row * width + i], want[i], i < q + kv ? 3e-6 * (1 + fabs(want[i])) : 0); /* v stays as it is */
    }
    cudaFree(bias_at), cudaFree(weight_at), cudaFree(at);
    free(qkv), free(bias), free(weight), free(got), free(want);
}

static void test_heads(void **state)
{
    for (int whole = 0; whole < 2; whole++)
        for (int biased = 0; biased < 2; biased++) {
            heads_of(4, 2, 32, whole, true, biased, 1);
            heads_of(5, 1, 80, whole, true, biased, 2.5f);
            heads_of(3, 3, 8, whole, true, biased, 1);
            heads_of(12, 4, 128, whole, true, biased, 0.5f);
            heads_of(1, 1, 256, whole, true, biased, 1);
            heads_of(9, 3, 64, whole, false, biased, 1.6f);
        }
}

static void rope_of(bool neox, uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t dims, bool biased)
{
    enum { ROWS = 4, POSITIONS = 70 };
    const uint32_t position[ROWS] = {0, 1, 33, 69}, q = heads * head_dim, kv = kv_heads * head_dim, width = q + 2 * kv;
    const struct rope_params params = {.style = neox ? ROPE_NEOX : ROPE_PAIRS, .dims = dims, .base = 10000};
    float *table = malloc(POSITIONS * rope_row_floats(&params) * sizeof *table), *qkv = random_values((size_t)ROWS * width, dims),
          *bias = random_values(width, 9), *got = malloc((size_t)ROWS * width * sizeof *got);
    const struct kernels *ref = kernels_of_level(ISA_REF);
    rope_table_build(&params, 0, POSITIONS, table);
    float *bias_at = on_device(bias, width * 4ul);
    struct gpu_rope rope = {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .dims = dims, .neox = neox};
    rope.table = on_device(table, POSITIONS * rope_row_floats(&params) * 4);
    rope.position = on_device(position, sizeof position);
    void *at = on_device(qkv, (size_t)ROWS * width * 4);
    gpu_rope(&rope, biased ? bias_at : NULL, biased ? bias_at + q : NULL, biased ? bias_at + q + kv : NULL, ROWS, at, rig_stream);
    to_host(got, at, (size_t)ROWS * width * 4);
    for (uint32_t row = 0; row < ROWS; row++) {
        float *want = qkv + (size_t)row * width;
        const float *angles = table + position[row] * rope_row_floats(&params);
        for (uint32_t i = 0; biased && i < width; i++)
            want[i] += bias[i];
        (neox ? ref->rope_neox : ref->rope_pairs)(want, heads, head_dim, dims, angles);
        (neox ? ref->rope_neox : ref->rope_pairs)(want + q, kv_heads, head_dim, dims, angles);
        for (uint32_t i = 0; i < width; i++)
            near(got[(size_t)row * width + i], (double)want[i], 1e-5);
    }
    cudaFree(bias_at), cudaFree((void *)rope.table), cudaFree((void *)rope.position), cudaFree(at);
    free(table), free(qkv), free(bias), free(got);
}

static void test_rope(void **state)
{
    for (int neox = 0; neox < 2; neox++)
        for (int biased = 0; biased < 2; biased++) {
            rope_of(neox, 9, 3, 64, 64, biased);
            rope_of(neox, 2, 2, 16, 16, biased);
            rope_of(neox, 5, 1, 80, 32, biased); /* the rest of a head is not rotated */
            rope_of(neox, 2, 1, 48, 0, biased);  /* nothing is: only biases are added */
            rope_of(neox, 1, 1, 256, 256, biased);
        }
}

static void activation_of(enum gpu_type type, uint32_t ffn)
{
    enum { ROWS = 3 };
    float *values = random_values(ROWS * 2ul * ffn, 3);
    uint16_t *wide = malloc(ROWS * 2ul * ffn * sizeof *wide), *got = malloc(ROWS * 1ul * ffn * sizeof *got);
    for (size_t i = 0; i < ROWS * 2ul * ffn; i++)
        wide[i] = narrowed(type, 4 * values[i]);
    void *from = on_device(wide, ROWS * 2ul * ffn * sizeof *wide), *to = on_device(NULL, ROWS * 1ul * ffn * sizeof *got);
    gpu_silu_mul(type, from, ROWS, ffn, to, rig_stream);
    to_host(got, to, ROWS * 1ul * ffn * sizeof *got);
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < ffn; i++) {
            double gate = (double)widened(type, wide[row * 2 * ffn + i]), up = (double)widened(type, wide[(row * 2 + 1) * ffn + i]);
            near_wide(type, got[row * ffn + i], gate / (1 + exp(-gate)) * up, 1e-5);
        }
    cudaFree(from), cudaFree(to);
    free(values), free(wide), free(got);
}

static void test_activation(void **state)
{
    static const uint32_t widths[] = {1, 8, 301, 1040, 1536}; /* eight at a time where they divide it */
    for (size_t i = 0; i < ARRAY_COUNT(widths); i++)
        for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++)
            activation_of(type, widths[i]);
}

/* Computes an activation in double. */
static double activated(enum gpu_activation activation, double gate, double up)
{
    switch (activation) {
    case GPU_SILU: return gate / (1 + exp(-gate)) * up;
    case GPU_GELU_PLAIN:
    case GPU_GELU: return gate * (1 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) / 2 * up;
    case GPU_RELU: break;
    }
    return gate < 0 ? 0 : gate;
}

static void mlp_of(enum gpu_type type, enum gpu_activation activation, uint32_t ffn, bool biased)
{
    enum { ROWS = 3 };
    const uint32_t halves = activation == GPU_RELU || activation == GPU_GELU_PLAIN ? 1 : 2;
    const size_t count = (size_t)ROWS * halves * ffn;
    float *values = random_values(count, 3), *bias = random_values(2ul * ffn, 8);
    uint16_t *wide = malloc(count * sizeof *wide), *got = malloc(ROWS * 1ul * ffn * sizeof *got);
    for (size_t i = 0; i < count; i++)
        wide[i] = narrowed(type, 4 * values[i]);
    float *bias_at = on_device(bias, 8ul * ffn);
    void *from = on_device(wide, count * sizeof *wide), *to = on_device(NULL, ROWS * 1ul * ffn * sizeof *got);
    const struct gpu_mlp mlp = {activation, ffn, from, biased ? bias_at : NULL, biased && halves == 2 ? bias_at + ffn : NULL, to};
    gpu_activate(type, &mlp, ROWS, rig_stream);
    to_host(got, to, ROWS * 1ul * ffn * sizeof *got);
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < ffn; i++) {
            const uint16_t *at = wide + (size_t)row * halves * ffn + i;
            double gate = (double)widened(type, at[0]) + (biased ? (double)bias[i] : 0),
                   up = halves == 2 ? (double)widened(type, at[ffn]) + (biased ? (double)bias[ffn + i] : 0) : 1;
            near_wide(type, got[row * ffn + i], activated(activation, gate, up), 1e-5);
        }
    cudaFree(bias_at), cudaFree(from), cudaFree(to);
    free(values), free(bias), free(wide), free(got);
}

/* Infinities, as a product beyond f16 gives them, do not become NaN, and NaN stays. */
static void extreme_mlp_of(enum gpu_type type, enum gpu_activation activation)
{
    enum { FFN = 8 };
    const float gates[FFN] = {INFINITY, -INFINITY, NAN, 0, -60000, 60000, -3, 3};
    uint16_t wide[2 * FFN], got[FFN];
    for (uint32_t i = 0; i < FFN; i++)
        wide[i] = narrowed(type, gates[i]), wide[FFN + i] = narrowed(type, 1);
    wide[0] = type == GPU_F16 ? 0x7c00 : 0x7f80, wide[1] = wide[0] | 0x8000;
    void *from = on_device(wide, sizeof wide), *to = on_device(NULL, sizeof got);
    const struct gpu_mlp mlp = {activation, FFN, from, NULL, NULL, to};
    gpu_activate(type, &mlp, 1, rig_stream);
    to_host(got, to, sizeof got);
    for (uint32_t i = 0; i < FFN; i++)
        assert_int_equal(isnan(widened(type, got[i])), i == 2);
    assert_true(widened(type, got[0]) >= 65504 && widened(type, got[1]) == 0 && widened(type, got[4]) == 0);
    cudaFree(from), cudaFree(to);
}

static void test_mlp(void **state)
{
    static const uint32_t widths[] = {1, 8, 301, 1040};
    for (enum gpu_activation activation = GPU_SILU; activation <= GPU_RELU; activation++)
        for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++) {
            for (size_t i = 0; i < ARRAY_COUNT(widths); i++)
                for (int biased = 0; biased < 2; biased++)
                    mlp_of(type, activation, widths[i], biased);
            extreme_mlp_of(type, activation);
        }
}

static void residual_of(uint32_t hidden, bool normed, bool biased, float factor)
{
    enum { ROWS = 3 };
    const size_t count = (size_t)ROWS * hidden;
    float *x = random_values(count, 1), *y = random_values(count, hidden), *bias = random_values(hidden, 2),
          *weight = random_values(hidden, 3), *got = malloc(count * sizeof *got);
    double *want = malloc(hidden * sizeof *want);
    float *x_at = on_device(x, count * 4), *y_at = on_device(y, count * 4), *bias_at = on_device(bias, hidden * 4ul),
          *weight_at = on_device(weight, hidden * 4ul);
    const struct gpu_residual residual = {biased ? bias_at : NULL, normed ? weight_at : NULL, 1e-5f, factor};
    gpu_add_scaled(&residual, ROWS, hidden, y_at, x_at, rig_stream);
    to_host(got, x_at, count * 4);
    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t i = 0; i < hidden; i++)
            want[i] = (double)y[row * hidden + i];
        norm_in_double(want, hidden, biased ? bias : NULL, normed ? weight : NULL, (double)factor);
        for (uint32_t i = 0; i < hidden; i++)
            near(got[row * hidden + i], (double)x[row * hidden + i] + want[i], 3e-6 * (1 + fabs(want[i])));
    }
    cudaFree(x_at), cudaFree(y_at), cudaFree(bias_at), cudaFree(weight_at);
    free(x), free(y), free(bias), free(weight), free(got), free(want);
}

static void test_residual(void **state)
{
    static const uint32_t sizes[] = {1, 33, 576, 2049, 4104};
    for (size_t i = 0; i < ARRAY_COUNT(sizes); i++)
        for (int biased = 0; biased < 2; biased++) {
            residual_of(sizes[i], true, biased, 1);
            residual_of(sizes[i], true, biased, 0.3f);
            residual_of(sizes[i], false, biased, 0.22f);
        }
}

static void test_place_and_logits(void **state)
{
    enum { ROWS = 5, HIDDEN = 301, POSITIONS = 7, COUNT = ROWS * HIDDEN };
    const uint32_t position[ROWS] = {6, 0, 3, 3, 1};
    float *x = random_values(COUNT, 1), *table = random_values(POSITIONS * HIDDEN, 2), got[COUNT];
    void *x_at = on_device(NULL, sizeof got), *table_at = on_device(table, POSITIONS * HIDDEN * 4),
         *position_at = on_device(position, sizeof position);
    for (int learned = 0; learned < 2; learned++) {
        to_device(x_at, x, sizeof got);
        gpu_place(12.5f, learned ? table_at : NULL, position_at, ROWS, HIDDEN, x_at, rig_stream);
        to_host(got, x_at, sizeof got);
        for (uint32_t i = 0; i < COUNT; i++)
            near(got[i], 12.5 * (double)x[i] + (learned ? (double)table[position[i / HIDDEN] * HIDDEN + i % HIDDEN] : 0), 1e-5);
    }
    x[7] = 3000, x[8] = -3000, x[9] = NAN;
    for (int capped = 0; capped < 2; capped++) {
        to_device(x_at, x, sizeof got);
        gpu_scale_logits(x_at, COUNT, 0.25f, capped ? 3.0f : 0, rig_stream);
        to_host(got, x_at, sizeof got);
        for (uint32_t i = 0; i < COUNT; i++)
            if (i == 9)
                assert_true(isnan(got[i]));
            else
                near(got[i], capped ? 3 * tanh(0.25 * (double)x[i] / 3) : 0.25 * (double)x[i], 1e-6);
    }
    cudaFree(x_at), cudaFree(table_at), cudaFree(position_at);
    free(x), free(table);
}

static void test_narrow_and_bias(void **state)
{
    enum { ROWS = 7, COLUMNS = 61, COUNT = ROWS * COLUMNS };
    float *values = random_values(COUNT, 4), *bias = random_values(COLUMNS, 6), sum[COUNT];
    uint16_t got[COUNT];
    values[5] = 70000.0f, values[6] = -0.0f, values[7] = NAN, values[8] = INFINITY;
    void *x = on_device(values, COUNT * 4), *bias_at = on_device(bias, COLUMNS * 4), *out = on_device(NULL, COUNT * 2);
    for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++) {
        gpu_narrow(type, x, COUNT, out, rig_stream);
        to_host(got, out, sizeof got);
        for (uint32_t i = 0; i < COUNT; i++)
            if (i == 7)
                assert_true(isnan(widened(type, got[i])));
            else
                assert_int_equal(got[i],
                                 type == GPU_F16 && values[i] > 65504.0f ? 0x7bff : narrowed(type, values[i])); /* saturates */
    }
    gpu_add_bias(x, bias_at, ROWS, COLUMNS, rig_stream);
    to_host(sum, x, sizeof sum);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_true(i == 7 || sum[i] == values[i] + bias[i % COLUMNS]);
    cudaFree(x), cudaFree(bias_at), cudaFree(out);
    free(values), free(bias);
}

/* --- products ---------------------------------------------------------------------------------------------------------------- */

static void product_of(enum gpu_type type, uint32_t rows, uint32_t outputs, uint32_t inputs, bool y_wide, bool add)
{
    size_t count = (size_t)rows * outputs, y_bytes = count * (y_wide ? 2 : 4);
    float *w = random_values((size_t)outputs * inputs, 1), *x = random_values((size_t)rows * inputs, 2),
          *before = random_values(count, 3);
    uint16_t *w_wide = narrowed_values(type, w, (size_t)outputs * inputs),
             *x_wide = narrowed_values(type, x, (size_t)rows * inputs);
    void *got = malloc(y_bytes);
    struct gpu_gemm *gemm;
    struct error error;
    assert_int_equal(gpu_gemm_open(type, rows, &gemm, &error), STATUS_OK);
    const struct gpu_product p = {.w = on_device(w_wide, (size_t)outputs * inputs * 2),
                                  .x = on_device(x_wide, (size_t)rows * inputs * 2),
                                  .y = on_device(y_wide ? NULL : before, y_bytes),
                                  .rows = rows,
                                  .outputs = outputs,
                                  .inputs = inputs,
                                  .y_wide = y_wide,
                                  .add = add};
    void *workspace = on_device(NULL, GPU_GEMM_WORKSPACE);
    gpu_gemm_run(gemm, &p, workspace, rig_stream);
    to_host(got, p.y, y_bytes);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t o = 0; o < outputs; o++) {
            size_t at = (size_t)row * outputs + o;
            double want = add ? (double)before[at] : 0;
            for (uint32_t i = 0; i < inputs; i++)
                want += (double)widened(type, w_wide[(size_t)o * inputs + i]) *
                        (double)widened(type, x_wide[(size_t)row * inputs + i]);
            if (y_wide)
                near_wide(type, ((uint16_t *)got)[at], want, 1e-4);
            else
                near(((float *)got)[at], want, 1e-4 * sqrt(inputs));
        }
    gpu_gemm_close(gemm);
    cudaFree((void *)p.w), cudaFree((void *)p.x), cudaFree(p.y), cudaFree(workspace);
    free(w), free(x), free(before), free(w_wide), free(x_wide), free(got);
}

static void test_products(void **state)
{
    for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++) {
        product_of(type, 1, 64, 64, false, false);
        product_of(type, 7, 192, 576, false, true);
        product_of(type, 33, 576, 192, true, false);
        product_of(type, 128, 96, 320, false, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_activation),
        cmocka_unit_test(test_mlp),
        cmocka_unit_test(test_residual),
        cmocka_unit_test(test_place_and_logits),
        cmocka_unit_test(test_narrow_and_bias),
        cmocka_unit_test(test_products),
    };
    return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("cuda kernels", tests, NULL, NULL)) : 0;
}
