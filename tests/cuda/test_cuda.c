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
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_activation),
        cmocka_unit_test(test_narrow_and_bias),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_products),
    };
    return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("cuda kernels", tests, NULL, NULL)) : 0;
}
