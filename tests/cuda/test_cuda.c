/* test_cuda.c: the kernels of rows.cu and attend.cu beside plain loops in double, on odd sizes, and rows alone beside rows in company. */
#include "tests/cuda/device_rig.h"

#include "kernels/norm_rope/norm_rope.h"

extern bool gemm_emulated_invariant __attribute__((weak)); /* a real device has none */

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
    (void)state;
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
    (void)state;
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
    (void)state;
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
    (void)state;
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
    (void)state;
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
    (void)state;
    for (size_t i = 0; i < ARRAY_COUNT(widths); i++)
        for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++)
            activation_of(type, widths[i]);
}

/* What comes out of an activation in double. */
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
    (void)state;
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
    (void)state;
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
    (void)state;
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
    (void)state;
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

/* --- attention --------------------------------------------------------------------------------------------------------------- */

enum { LAYERS = 2, LAYER = 1, SEQUENCES = 3 };

struct attention {
    struct gpu_pool pool;
    uint32_t q_width, kv_width, width, page_count;
    uint32_t lengths[SEQUENCES], table_begin[SEQUENCES], table_words;
    uint32_t *tables;        /* [table_words], pages of one sequence in no order */
    float *kv[SEQUENCES];    /* [positions][2][kv_width], as stored: rounded to f16 */
    float *qkv;              /* [rows][width] */
    float *qkv_at, *scratch; /* of the device */
};

/* Stores all positions but what is in the last row of each sequence, page tables shuffled. */
static void fill(struct attention *a, uint32_t heads, uint32_t kv_heads, uint32_t head_dim, const uint32_t *lengths)
{
    uint32_t longest = 0;
    *a = (struct attention){.pool = {.layers = LAYERS, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim}};
    a->q_width = heads * head_dim, a->kv_width = kv_heads * head_dim, a->width = a->q_width + 2 * a->kv_width;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        a->lengths[s] = lengths[s];
        a->table_begin[s] = a->table_words;
        a->table_words += pages_for(lengths[s]);
        longest = MAX(longest, lengths[s]);
    }
    a->page_count = a->table_words;
    a->tables = malloc(a->table_words * sizeof *a->tables);
    random_order(a->tables, a->page_count, heads * 1000u + head_dim);
    a->pool.pages = on_device(NULL, (size_t)a->page_count * LAYERS * kv_heads * 2 * GPU_PAGE_TOKENS * head_dim * 2);
    for (uint32_t s = 0; s < SEQUENCES; s++)
        a->kv[s] = random_halves((size_t)lengths[s] * 2 * a->kv_width, 100 + s);
    a->qkv = random_values((size_t)longest * SEQUENCES * a->width, 7);
    a->qkv_at = on_device(NULL, (size_t)longest * SEQUENCES * a->width * 4);
    a->scratch = on_device(NULL, gpu_attend_scratch(&a->pool, longest * SEQUENCES, longest) * 4);
}

static void release(struct attention *a)
{
    for (uint32_t s = 0; s < SEQUENCES; s++)
        free(a->kv[s]);
    free(a->tables), free(a->qkv);
    cudaFree(a->pool.pages), cudaFree(a->qkv_at), cudaFree(a->scratch);
}

/* The rows (sequence, position) with their k and v in qkv, in a step of their own: stored, and attended if `o` is wanted. */
static void run_rows(struct attention *a, uint32_t count, const uint32_t *sequence, const uint32_t *position, float *o)
{
    uint32_t *words = malloc((3 * count + a->table_words) * sizeof *words), longest = 0;
    for (uint32_t i = 0; i < count; i++) {
        words[i] = i;
        words[count + i] = position[i];
        words[2 * count + i] = a->table_begin[sequence[i]];
        longest = MAX(longest, position[i] + 1);
        memcpy(a->qkv + (size_t)i * a->width + a->q_width, a->kv[sequence[i]] + (size_t)position[i] * 2 * a->kv_width,
               2 * a->kv_width * sizeof(float));
    }
    memcpy(words + 3 * count, a->tables, a->table_words * sizeof *words);
    uint32_t *at = on_device(words, (3 * count + a->table_words) * sizeof *words);
    const struct gpu_rows rows = {at, at + count, at + 2 * count, at + 3 * count, count, longest};
    to_device(a->qkv_at, a->qkv, (size_t)count * a->width * 4);
    gpu_store_kv(&a->pool, LAYER, &rows, a->qkv_at, rig_stream);
    if (o) {
        float *o_at = on_device(NULL, (size_t)count * a->q_width * 4);
        gpu_attend(&a->pool, LAYER, &rows, a->qkv_at, o_at, a->scratch, rig_stream);
        to_host(o, o_at, (size_t)count * a->q_width * 4);
        cudaFree(o_at);
    }
    cudaStreamSynchronize(rig_stream);
    cudaFree(at);
    free(words);
}

/* One head's attention in double. */
static void reference(const struct attention *a, uint32_t sequence, uint32_t position, const float *q, uint32_t kv_head,
                      double *out)
{
    const uint32_t dim = a->pool.head_dim;
    const float *k = a->kv[sequence] + (size_t)kv_head * dim;
    double scaled[GPU_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < dim; i++)
        scaled[i] = (double)q[i] * attend_scale(dim);
    attend_in_double(scaled, k, k + a->kv_width, 2 * a->kv_width, position + 1, dim, out);
}

static void attention_of(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, const uint32_t *lengths)
{
    enum { LAST = 3 }; /* rows of a sequence that are attended */
    struct attention a;
    uint32_t sequence[SEQUENCES * LAST], position[SEQUENCES * LAST], count = 0;

    fill(&a, heads, kv_heads, head_dim, lengths);
    for (uint32_t s = 0; s < SEQUENCES; s++)
        for (uint32_t at = 0, n; at < lengths[s]; at += n) { /* chunks of 50 */
            uint32_t in[50], where[50];
            for (n = 0; n < 50 && at + n < lengths[s]; n++)
                in[n] = s, where[n] = at + n;
            run_rows(&a, n, in, where, NULL);
        }
    for (uint32_t s = 0; s < SEQUENCES; s++)
        for (uint32_t i = MIN(lengths[s], (uint32_t)LAST); i > 0; i--)
            sequence[count] = s, position[count++] = lengths[s] - i;
    float *o = malloc((size_t)count * a.q_width * sizeof *o), *alone = malloc(a.q_width * sizeof *alone);
    double want[GPU_MAX_HEAD_DIM];
    run_rows(&a, count, sequence, position, o);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t h = 0; h < heads; h++) {
            reference(&a, sequence[i], position[i], a.qkv + (size_t)i * a.width + h * head_dim, h / (heads / kv_heads), want);
            for (uint32_t d = 0; d < head_dim; d++)
                if (!(fabs((double)o[(size_t)i * a.q_width + h * head_dim + d] - want[d]) < 2e-5))
                    fail_msg("%u heads, %u KV heads of %u: position %u, head %u, value %u: %.9g for %.9g", heads, kv_heads,
                             head_dim, position[i], h, d, (double)o[(size_t)i * a.q_width + h * head_dim + d], want[d]);
        }
    /* a row by itself has the same bits */
    for (uint32_t i = 0; i < count; i++) {
        memmove(a.qkv, a.qkv + (size_t)i * a.width, a.q_width * sizeof(float));
        if (i == 0 || i + 1 == count) {
            run_rows(&a, 1, &sequence[i], &position[i], alone);
            assert_memory_equal(alone, o + (size_t)i * a.q_width, a.q_width * sizeof(float));
        }
    }
    free(o), free(alone);
    release(&a);
}

/* What gpu_attend left in its scratch for a head, folded as attend.cu says: ranges of 256 within spans of 4,096, and spans in order. */
static void fold_parts(const float *parts, uint32_t position, uint32_t dim, float *out)
{
    float total[GPU_MAX_HEAD_DIM + 1] = {0}, best = -INFINITY;

    for (uint32_t begin = 0; begin <= position / 256; begin += 16) {
        const uint32_t end = MIN(begin + 16, position / 256 + 1);
        float span[GPU_MAX_HEAD_DIM + 1] = {0}, largest = -INFINITY;
        for (uint32_t r = begin; r < end; r++)
            largest = fmaxf(largest, parts[r * (dim + 2) + dim]);
        for (uint32_t r = begin; r < end; r++)
            for (uint32_t d = 0; d <= dim; d++) /* then the sum of weights */
                span[d] += expf(parts[r * (dim + 2) + dim] - largest) * parts[r * (dim + 2) + (d < dim ? d : dim + 1)];
        const float top = fmaxf(best, largest), kept = begin ? expf(best - top) : 0, gained = expf(largest - top);
        for (uint32_t d = 0; d <= dim; d++)
            total[d] = total[d] * kept + span[d] * gained;
        best = top;
    }
    for (uint32_t d = 0; d < dim; d++)
        out[d] = total[d] / total[dim];
}

/* Contexts of one span, of two and of three. A real device rounds otherwise (fused, its own exponential): there it is near. */
static void test_spans(void **state)
{
    enum { DIM = 32, HEADS = 2, ROWS = 3, RANGES = 34 };
    static const uint32_t lengths[SEQUENCES] = {8500, 1, 1}, sequence[ROWS] = {0, 0, 0}, position[ROWS] = {4095, 4300, 8499};
    struct attention a;
    float o[ROWS][HEADS * DIM], want[DIM];
    (void)state;

    fill(&a, HEADS, 1, DIM, lengths);
    for (uint32_t at = 0, n; at < lengths[0]; at += n) {
        uint32_t in[50] = {0}, where[50];
        for (n = 0; n < 50 && at + n < lengths[0]; n++)
            where[n] = at + n;
        run_rows(&a, n, in, where, NULL);
    }
    run_rows(&a, ROWS, sequence, position, o[0]);
    float *parts = malloc((size_t)ROWS * HEADS * RANGES * (DIM + 2) * sizeof *parts);
    to_host(parts, a.scratch, (size_t)ROWS * HEADS * RANGES * (DIM + 2) * sizeof *parts);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t h = 0; h < HEADS; h++) {
            fold_parts(parts + ((size_t)i * HEADS + h) * RANGES * (DIM + 2), position[i], DIM, want);
            for (uint32_t d = 0; d < DIM; d++)
                if (&gemm_emulated_invariant ? o[i][h * DIM + d] != want[d] : fabsf(o[i][h * DIM + d] - want[d]) > 1e-5f)
                    fail_msg("position %u, head %u, value %u: %a for %a", position[i], h, d, (double)o[i][h * DIM + d],
                             (double)want[d]);
        }
    free(parts);
    release(&a);
}

static void test_attention(void **state)
{
    static const uint32_t lengths[][SEQUENCES] = {{1, 16, 17}, {255, 256, 257}, {600, 3, 33}};
    (void)state;
    for (size_t i = 0; i < ARRAY_COUNT(lengths); i++) {
        attention_of(9, 3, 64, lengths[i]); /* the default model */
        attention_of(4, 4, 128, lengths[i]);
        attention_of(8, 1, 128, lengths[i]);
    }
    attention_of(16, 1, 96, lengths[2]); /* more heads than a block takes; lanes without values */
    attention_of(3, 3, 16, lengths[2]);
    attention_of(2, 1, 256, lengths[2]);
    attention_of(12, 2, 80, lengths[1]);
    attention_of(5, 1, 32, lengths[2]);
    attention_of(4, 2, 8, lengths[2]);
    attention_of(3, 1, 136, lengths[2]);
    attention_of(2, 2, 192, lengths[0]);
    attention_of(2, 1, 8, (const uint32_t[SEQUENCES]){8500, 5, 300}); /* more ranges than are merged at once */
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
    (void)state;
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
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_products),
    };
    return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("cuda kernels", tests, NULL, NULL)) : 0;
}
