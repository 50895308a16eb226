/* test_cuda_quant.c: matrices in 4- and 8-bit groups: what is packed beside the source's values, products and panels beside plain loops over
 * those in double, and whole models with packed weights beside the CPU.
 */
#include "tests/cuda/backend_rig.h"

#include "kernels/quant/dequant.h"

/* --- one matrix -------------------------------------------------------------------------------------------------------------- */

struct matrix {
    const struct source_type *source;
    struct gpu_quant quant; /* on the device */
    float *values;          /* [outputs][inputs] the source's */
};

static struct matrix matrix_open(const struct source_type *source, uint32_t outputs, uint32_t inputs, uint64_t seed)
{
    struct matrix m = {.source = source, .values = malloc((size_t)outputs * inputs * sizeof(float))};
    uint8_t *bytes = random_source(source, outputs, inputs, &seed);
    uint64_t row_bytes = inputs / source->block_values * source->block_bytes;

    assert_non_null(m.values);
    dequantize((enum tensor_type)source->type, bytes, (uint64_t)outputs * inputs, m.values);
    gpu_quant_plan(gpu_form_of(source->type), outputs, inputs, &m.quant);
    uint8_t *tiles = test_alloc(m.quant.tiles * m.quant.tile_bytes);
    for (uint32_t tile = 0; tile < m.quant.tiles; tile++)
        gpu_quant_pack_tile(&m.quant, source->type, bytes + tile * GPU_TILE_OUTPUTS * row_bytes, row_bytes,
                            MIN((uint32_t)GPU_TILE_OUTPUTS, outputs - tile * GPU_TILE_OUTPUTS), tiles + tile * m.quant.tile_bytes);
    m.quant.data = on_device(tiles, m.quant.tiles * m.quant.tile_bytes);
    free(tiles);
    free(bytes);
    return m;
}

static void matrix_close(struct matrix *m)
{
    cudaFree((void *)(uintptr_t)m->quant.data);
    free(m->values);
}

/* Sums in f32 of exact products: each of the inputs' few hundred terms, and of the groups' sums, may cost a rounding (the tensor cores'
 * own add cuts off: twice that). */
static double sum_limit(double size) { return size * 0x1p-19 + 1e-30; }

static void check_row(const struct matrix *m, enum gpu_type type, const uint16_t *x, const float *y, const uint16_t *y_wide,
                      const float *before)
{
    for (uint32_t o = 0; o < m->quant.outputs; o++) {
        double want = before ? (double)before[o] : 0, size = fabs(want);
        for (uint32_t i = 0; i < m->quant.inputs; i++) {
            double term = (double)m->values[(size_t)o * m->quant.inputs + i] * (double)widened(type, x[i]);
            want += term, size += fabs(term);
        }
        double got = (double)(y ? y[o] : widened(type, y_wide[o]));
        double limit = sum_limit(size) * 8 + (y ? 0 : fabs(want) * (type == GPU_F16 ? 0x1.01p-11 : 0x1.01p-8) + 1e-7);
        if (!(fabs(got - want) <= limit))
            fail_msg("%s: output %u of %u, %u inputs: %.9g for %.9g, limit %.3g", m->source->name, o, m->quant.outputs,
                     m->quant.inputs, got, want, limit);
    }
}

enum { ROWS_MAX = 130, GAP = 5 };

/* Products of the first `rows` rows of x, as f32, f32 with add, and wide. */
static void check_product(const struct matrix *m, enum gpu_type type, const uint16_t *x, const void *x_at, uint32_t rows)
{
    static float first_row[4096];
    const uint32_t outputs = m->quant.outputs, stride = outputs + GAP;
    const size_t count = (size_t)rows * stride;
    float *before = random_values(count, 77), *y = malloc(count * sizeof *y);
    uint16_t *wide = malloc(count * sizeof *wide), *wide_before = narrowed_values(type, before, count);

    assert_true(y && wide && outputs <= ARRAY_COUNT(first_row));
    for (int kind = 0; kind < 3; kind++) { /* f32, added to, wide */
        void *y_at = kind == 2 ? on_device(wide_before, count * 2) : on_device(before, count * 4);
        const struct gpu_quant_product product = {x_at, y_at, rows, stride, kind == 2, kind == 1};
        gpu_quant_multiply(type, &m->quant, &product, rig_stream);
        to_host(kind == 2 ? (void *)wide : (void *)y, y_at, count * (kind == 2 ? 2 : 4));
        for (uint32_t row = 0; row < rows; row++) {
            const size_t at = (size_t)row * stride;
            check_row(m, type, x + (size_t)row * m->quant.inputs, kind == 2 ? NULL : y + at, wide + at,
                      kind == 1 ? before + at : NULL);
            for (uint32_t i = outputs; i < stride; i++) /* what lies beyond is another's */
                assert_true(kind == 2 ? wide[at + i] == wide_before[at + i] : y[at + i] == before[at + i]);
        }
        if (kind == 0 && rows == 1)
            memcpy(first_row, y, outputs * sizeof *y);
        else if (kind == 0) /* a row alone and in company: the same bits */
            assert_memory_equal(first_row, y, outputs * sizeof *y);
        cudaFree(y_at);
    }
    free(before), free(y), free(wide), free(wide_before);
}

/* x rounded; of 0 the sign is free. */
static uint16_t want_bits(enum gpu_type type, float x, uint16_t got)
{
    uint16_t want = narrowed(type, x);
    return (want | got) & 0x7fff ? want : got;
}

static void check_values(const struct matrix *m, enum gpu_type type)
{
    const uint32_t outputs = m->quant.outputs, inputs = m->quant.inputs;
    uint16_t *wide = malloc((size_t)outputs * inputs * sizeof *wide);
    const uint32_t token[] = {outputs - 1, 0, outputs / 2, outputs / 2, MIN(outputs - 1, 9u)};
    float *x = malloc(ARRAY_COUNT(token) * inputs * sizeof *x);
    void *wide_at = on_device(NULL, (size_t)outputs * inputs * 2), *token_at = on_device(token, sizeof token),
         *x_at = on_device(NULL, ARRAY_COUNT(token) * inputs * 4);

    assert_true(wide && x);
    /* panels: all at once, then from the second tile on */
    for (uint32_t first = 0; first < outputs; first += GPU_TILE_OUTPUTS * 2 - first) {
        gpu_quant_expand(type, &m->quant, first, outputs - first, wide_at, rig_stream);
        to_host(wide, wide_at, (size_t)(outputs - first) * inputs * 2);
        for (size_t i = 0; i < (size_t)(outputs - first) * inputs; i++)
            if (wide[i] != want_bits(type, m->values[(size_t)first * inputs + i], wide[i]))
                fail_msg("%s: value %zu is %#x", m->source->name, i, wide[i]);
        if (first)
            break;
    }
    gpu_quant_embed(&m->quant, token_at, ARRAY_COUNT(token), x_at, rig_stream);
    to_host(x, x_at, ARRAY_COUNT(token) * inputs * 4);
    for (uint32_t row = 0; row < ARRAY_COUNT(token); row++)
        for (uint32_t i = 0; i < inputs; i++)
            assert_true(x[row * inputs + i] == m->values[(size_t)token[row] * inputs + i]);
    cudaFree(wide_at), cudaFree(token_at), cudaFree(x_at);
    free(wide), free(x);
}

static void check_matrix(const struct source_type *source, uint32_t outputs, uint32_t inputs, const uint32_t *rows,
                         uint32_t row_counts)
{
    struct matrix m = matrix_open(source, outputs, inputs, outputs * 1000 + inputs);
    float *values = random_values((size_t)ROWS_MAX * inputs, inputs);

    for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++) {
        uint16_t *x = narrowed_values(type, values, (size_t)ROWS_MAX * inputs);
        void *x_at = on_device(x, (size_t)ROWS_MAX * inputs * 2);
        check_values(&m, type);
        for (uint32_t i = 0; i < row_counts; i++)
            check_product(&m, type, x, x_at, rows[i]);
        cudaFree(x_at);
        free(x);
    }
    free(values);
    matrix_close(&m);
}

static void test_matrices(void **state)
{
    const uint32_t sizes[][2] = {{1, 32}, {16, 64}, {37, 160}, {50, 544}, {23, 1120}, {17, 256}, {33, 768}, {5, 2304}};
    const uint32_t all[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 130}, some[] = {1, 3, 8, 9, 17};
    uint32_t forms = 0;

    for (size_t s = 0; s < ARRAY_COUNT(source_types); s++) {
        const struct source_type *source = &source_types[s];
        if (gpu_form_of(source->type) == GPU_WIDE)
            continue;
        forms |= 1u << gpu_form_of(source->type);
        bool whole = false; /* all counts of rows with one size, a few with the others */
        for (size_t i = 0; i < ARRAY_COUNT(sizes); i++)
            if (sizes[i][1] % source->block_values == 0) {
                bool now = !whole && sizes[i][0] > 16;
                check_matrix(source, sizes[i][0], sizes[i][1], now ? all : some, now ? ARRAY_COUNT(all) : ARRAY_COUNT(some));
                whole |= now;
            }
    }
    assert_int_equal(forms, (1u << GPU_FORMS) - 2); /* every packed form was there */
}

/* Weights at their ends: bytes of all values, a large and tiny scales, x at the end of f16. */
static void test_extremes(void **state)
{
    enum { INPUTS = 256, OUTPUTS = 16 };
    const struct source_type *source = &source_types[7]; /* Q8_0: bytes 0 to 255 in a row of 256 */
    uint8_t bytes[OUTPUTS][INPUTS / 32][34];
    uint16_t x[INPUTS];
    struct matrix m = matrix_open(source, OUTPUTS, INPUTS, 1);

    assert_string_equal(source->name, "Q8_0");
    for (uint32_t o = 0; o < OUTPUTS; o++)
        for (uint32_t i = 0; i < INPUTS; i++) {
            uint16_t scale = o % 3 == 0 ? 0x0001 : o % 3 == 1 ? 0x3c00 : 0x8200; /* 2^-24, 1, a negative subnormal */
            memcpy(bytes[o][i / 32], &scale, 2);
            bytes[o][i / 32][2 + i % 32] = (uint8_t)(i + o);
        }
    dequantize(TENSOR_Q8_0, bytes, OUTPUTS * INPUTS, m.values);
    uint8_t *tile = test_alloc(m.quant.tile_bytes);
    gpu_quant_pack_tile(&m.quant, TENSOR_Q8_0, bytes, sizeof bytes[0], OUTPUTS, tile);
    cudaFree((void *)(uintptr_t)m.quant.data);
    m.quant.data = on_device(tile, m.quant.tile_bytes);
    for (enum gpu_type type = GPU_F16; type <= GPU_BF16; type++) {
        for (uint32_t i = 0; i < INPUTS; i++)
            x[i] = narrowed(type, i % 5 ? 65504.0f : -0x1p-24f);
        void *x_at = on_device(x, sizeof x), *y_at = on_device(NULL, OUTPUTS * 4);
        const struct gpu_quant_product product = {x_at, y_at, 1, OUTPUTS, false, false};
        float y[OUTPUTS];
        gpu_quant_multiply(type, &m.quant, &product, rig_stream);
        to_host(y, y_at, sizeof y);
        check_row(&m, type, x, y, NULL, NULL);
        check_values(&m, type);
        cudaFree(x_at), cudaFree(y_at);
    }
    free(tile);
    matrix_close(&m);
}

/* --- what chooses between them ------------------------------------------------------------------------------------------------ */

enum { PARTS = 3, LINEAR_ROWS = 70, LINEAR_INPUTS = 256 };

/* A linear of three forms beside loops over the source's values; before NULL: not added to. */
static void check_linear(struct backend_batch *batch, const struct matrix *parts, const struct cuda_linear *linear,
                         const uint16_t *x, uint32_t rows, bool wide, const float *before)
{
    const size_t count = (size_t)rows * linear->outputs;
    float *y = malloc(count * sizeof *y), *y_at = on_device(before, count * sizeof *y);
    void *x_at = on_device(x, (size_t)rows * LINEAR_INPUTS * 2);

    assert_non_null(y);
    cuda_product(batch, linear, x_at, rows, y_at, wide, before != NULL);
    to_host(y, y_at, count * (wide ? 2 : sizeof *y));
    for (size_t row = 0; row < rows; row++)
        for (size_t part = 0, o = 0; part < PARTS; o += parts[part].quant.outputs, part++) {
            const size_t at = row * linear->outputs + o;
            for (uint32_t i = 0; i < parts[part].quant.outputs; i++) {
                double want = before ? (double)before[at + i] : 0, size = fabs(want);
                for (uint32_t k = 0; k < LINEAR_INPUTS; k++) {
                    double term = (double)parts[part].values[i * LINEAR_INPUTS + k] *
                                  (double)f16_to_float(x[row * LINEAR_INPUTS + k]);
                    want += term, size += fabs(term);
                }
                double got = (double)(wide ? f16_to_float(((uint16_t *)y)[at + i]) : y[at + i]);
                if (!(fabs(got - want) <= size * 0x1p-11 + 1e-6)) /* expanded weights are rounded to f16 */
                    fail_msg("part %zu, output %u, %u rows: %.9g for %.9g", part, i, rows, got, want);
            }
        }
    cudaFree(y_at), cudaFree(x_at);
    free(y);
}

static void test_linear(void **state)
{
    const uint32_t all_rows[] = {1, GPU_QUANT_DIRECT_ROWS, GPU_QUANT_DIRECT_ROWS + 1, LINEAR_ROWS}, panels[] = {20, 130, 400};
    struct matrix parts[PARTS] = {matrix_open(&source_types[8], 48, LINEAR_INPUTS, 5),
                                  matrix_open(&source_types[10], 296, LINEAR_INPUTS, 6),
                                  matrix_open(&source_types[3], 57, LINEAR_INPUTS, 7)};
    const size_t values = (size_t)LINEAR_ROWS * (48 + 296 + 57);
    struct cuda_linear linear = {.part_count = PARTS, .outputs = 48 + 296 + 57, .inputs = LINEAR_INPUTS};
    struct backend backend = {.type = GPU_F16};
    struct backend_batch batch = {.backend = &backend, .stream = rig_stream};
    float *before = random_values(values, 8), *x_values = random_values((size_t)LINEAR_ROWS * LINEAR_INPUTS, 9);
    uint16_t *x = narrowed_values(GPU_F16, x_values, (size_t)LINEAR_ROWS * LINEAR_INPUTS),
             *wide = narrowed_values(GPU_F16, parts[1].values, (size_t)296 * LINEAR_INPUTS);
    struct error error;

    assert_int_equal(gpu_gemm_open(GPU_F16, LINEAR_ROWS, &backend.gemm, &error), STATUS_OK);
    batch.workspace = on_device(NULL, GPU_GEMM_WORKSPACE);
    batch.panel = on_device(NULL, 400 * LINEAR_INPUTS * 2);
    for (uint32_t i = 0; i < PARTS; i++)
        linear.parts[i] = parts[i].quant;
    for (uint32_t i = 0; i < ARRAY_COUNT(panels) * ARRAY_COUNT(all_rows); i++) {
        batch.panel_bytes = panels[i / ARRAY_COUNT(all_rows)] * LINEAR_INPUTS * 2;
        check_linear(&batch, parts, &linear, x, all_rows[i % ARRAY_COUNT(all_rows)], false, NULL);
        check_linear(&batch, parts, &linear, x, all_rows[i % ARRAY_COUNT(all_rows)], false, before);
        check_linear(&batch, parts, &linear, x, all_rows[i % ARRAY_COUNT(all_rows)], true, NULL);
    }
    linear.parts[1] = (struct gpu_quant){
        .form = GPU_WIDE, .outputs = 296, .inputs = LINEAR_INPUTS, .data = on_device(wide, 296 * LINEAR_INPUTS * 2)};
    check_linear(&batch, parts, &linear, x, 3, false, before);
    cudaFree((void *)(uintptr_t)linear.parts[1].data);
    gpu_gemm_close(backend.gemm);
    cudaFree(batch.workspace), cudaFree(batch.panel);
    for (uint32_t i = 0; i < PARTS; i++)
        matrix_close(&parts[i]);
    free(before), free(x_values), free(x), free(wide);
}

/* --- a loaded model ------------------------------------------------------------------------------------------------------ */

enum { MODEL_ROWS = 80, MODEL_LOGITS = 3 };

/* Opens the rig's model. v_type: of layer 1's V, as files of K types have it. */
static void load(enum tensor_type type, enum tensor_type embedding_type, bool tied, enum tensor_type v_type)
{
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;

    tiny.type = type, tiny.embedding_type = embedding_type, tiny.tied = tied, tiny.biases = true;
    tiny.hidden = 256, tiny.heads = 8, tiny.kv_heads = 2, tiny.head_dim = 32, tiny.ffn = 512;
    build.drop = "blk.1.attn_v.weight";
    gguf_build_llama(&build, &tiny);
    build.drop = NULL;
    gguf_build_tensor_of(&build, "blk.1.attn_v.weight", v_type, tiny.hidden, tiny.kv_heads * tiny.head_dim, 0.1f, false, NULL);
    rig_model_open(&build);
}

/* The prompt in one step, then a row a step; logits of each step's last rows. */
static void run_model(const struct backend_ops *ops, uint32_t prompt, float *logits, char *level)
{
    const uint32_t vocab = rig_model->shape.vocab;
    struct backend_config config = rig_config(MODEL_ROWS);
    struct backend_row rows[MODEL_ROWS];
    struct backend_info info;
    struct rig rig;
    uint32_t position = 0;

    config.context_tokens = 128, config.max_sequences = 4;
    rig_open(&rig, ops, config, 128);
    ops->info(rig.backend, &info);
    snprintf(level, 32, "%s", info.level);
    for (uint32_t step = 0; step < MODEL_LOGITS; step++) {
        const uint32_t count = rig_rows(rows, 0, 1, position, step ? 1 : prompt, true), last = count - 1;
        position += count;
        rig_layers(&rig, rows, count);
        rig_head(&rig, &last, 1);
        rig_wait(&rig);
        memcpy(logits + step * vocab, rig.logits, vocab * sizeof *logits);
    }
    rig_close(&rig);
}

/* Packed weights beside f32 on the CPU, of the same file: what is left is f16 of activations and of K and V. Of the largest logit, 0.0006 is
 * the most that was seen (with f16 weights; packed 0.0005), with bf16 0.0045; a wrong scale or column is some tenths. */
static void check_model(enum tensor_type type, enum tensor_type embedding_type, bool tied, enum tensor_type v_type, uint32_t prompt,
                        const char *want_level)
{
    load(type, embedding_type, tied, v_type);
    const uint32_t vocab = rig_model->shape.vocab;
    float *got = calloc(MODEL_LOGITS * vocab, sizeof *got), *want = calloc(MODEL_LOGITS * vocab, sizeof *want), largest = 0,
          off = 0;
    char level[32];

    assert_true(got && want);
    run_model(&backend_cpu, prompt, want, level);
    run_model(fastdecode_device.ops, prompt, got, level);
    assert_string_equal(level, want_level);
    for (uint32_t i = 0; i < MODEL_LOGITS * vocab; i++) {
        largest = fmaxf(largest, fabsf(want[i]));
        off = got[i] == got[i] ? fmaxf(off, fabsf(got[i] - want[i])) : INFINITY;
    }
    if (!(off <= (strstr(level, "bf16") ? 8e-3f : 1e-3f) * largest))
        fail_msg("%s: off by %.4g of %.4g", want_level, (double)off, (double)largest);
    free(got), free(want);
    rig_model_close();
}

static void test_models(void **state)
{
    static const struct {
        enum tensor_type type, embedding_type;
        bool tied;
        enum tensor_type v_type;
        uint32_t prompt;
        const char *level;
    } models[] = {
        {TENSOR_Q4_1, TENSOR_Q8_0, true, TENSOR_Q4_1, 20, "4-bit/f16/cuda"},
        {TENSOR_Q8_0, TENSOR_Q8_0, false, TENSOR_Q5_0, 33, "8-bit/f16/cuda"},
        {TENSOR_Q6_K, TENSOR_Q6_K, true, TENSOR_Q6_K, 70, "8-bit/f16/cuda"}, /* expanded, then as they are */
        {TENSOR_Q4_K, TENSOR_F16, false, TENSOR_Q6_K, 20, "4-bit/f16/cuda"}, /* q, k, v of two forms */
        {TENSOR_Q4_K, TENSOR_F16, false, TENSOR_F16, 40, "4-bit/f16/cuda"},
        {TENSOR_Q5_0, TENSOR_Q5_1, true, TENSOR_Q8_0, 40, "8-bit/f16/cuda"},
        {TENSOR_F16, TENSOR_F32, true, TENSOR_F16, 20, "f16/cuda"},
        {TENSOR_Q3_K, TENSOR_IQ4_NL, true, TENSOR_IQ4_XS, 20, "8-bit/f16/cuda"},
        {TENSOR_Q2_K, TENSOR_MXFP4, true, TENSOR_Q8_K, 20, "f16/cuda"}, /* have no packed form */
        {TENSOR_BF16, TENSOR_Q4_0, true, TENSOR_BF16, 4, "4-bit/bf16/cuda"},
    };
    for (uint32_t i = 0; i < ARRAY_COUNT(models); i++)
        if (rig_sample(i, 3))
            check_model(models[i].type, models[i].embedding_type, models[i].tied, models[i].v_type, models[i].prompt,
                        models[i].level);
}

/* --- memory ---------------------------------------------------------------------------------------------------------------- */

static struct cuda_weights_plan weights_plan(const struct backend_config *config, const struct layer_range *range)
{
    struct cuda_weights_plan plan;
    uint64_t blob_bytes[64];
    struct error error;

    assert_true(range->count < ARRAY_COUNT(blob_bytes));
    assert_int_equal(cuda_plan_weights(config, range, &plan, blob_bytes, &error), STATUS_OK);
    return plan;
}

/* Bytes of the weights: the file's and a little for the edges of tiles and sections, not 16 bits a weight. */
static void test_memory_plan(void **state)
{
    const struct {
        enum tensor_type type;
        double bits;
    } types[] = {{TENSOR_Q4_0, 4.5},   {TENSOR_Q4_1, 5},        {TENSOR_Q4_K, 4.625}, {TENSOR_Q5_0, 8.5}, {TENSOR_Q5_1, 9},
                 {TENSOR_Q5_K, 8.625}, {TENSOR_Q6_K, 8.5625},   {TENSOR_Q8_0, 8.5},   {TENSOR_F16, 16},   {TENSOR_Q3_K, 8.5625},
                 {TENSOR_IQ4_NL, 8.5}, {TENSOR_IQ4_XS, 8.5625}, {TENSOR_MXFP4, 16}};
    for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
        load(types[i].type, types[i].type, true, types[i].type);
        const struct model_shape *shape = &rig_model->shape;
        uint64_t values = (uint64_t)shape->vocab * shape->hidden +
                          shape->layers * (uint64_t)shape->hidden *
                              (2 * shape->heads * shape->head_dim + 2 * shape->kv_heads * shape->head_dim + 3 * shape->ffn);
        uint64_t vectors = (shape->hidden * (3ull * shape->layers + 1) +
                            shape->layers * (shape->heads + 2ull * shape->kv_heads) * shape->head_dim +
                            128ull * 2 * shape->rope_dim) *
                           4,
                 edges = 256ull * (shape->layers * 10 + 3);
        double want = (double)values * types[i].bits / 8, tiles = (double)values / 16 / shape->hidden;
        const struct layer_range all = {.count = shape->layers, .is_first = true, .is_last = true};
        struct backend_config config = {.model = rig_model, .context_tokens = 128, .max_rows = GPU_QUANT_DIRECT_ROWS + 1};
        const struct cuda_weights_plan plan = weights_plan(&config, &all);
        double got = (double)weight_tiers_bytes(&plan.tiers);
        double most = want + (double)(vectors + edges) + tiles * 127;
        if (!(got >= want && got <= most))
            fail_msg("type %d: %.0f bytes, want %.0f to %.0f", (int)types[i].type, got, want, most);
        /* a panel for steps of many rows, at most the largest matrix; none for steps that multiply packed weights alone */
        assert_int_equal(plan.panel_bytes, types[i].bits == 16 ? 0 : 2ull * shape->hidden * 2 * shape->ffn);
        config.batch_invariant = true;
        assert_int_equal(weights_plan(&config, &all).panel_bytes, 0);
        config.batch_invariant = false, config.max_rows = GPU_QUANT_DIRECT_ROWS;
        assert_int_equal(weights_plan(&config, &all).panel_bytes, 0);
        rig_model_close();
    }
}

static void test_panels(void **state)
{
    struct gpu_quant quant;
    gpu_quant_plan(GPU_U4, 22016, 4096, &quant);
    assert_int_equal(cuda_panel_bytes(&quant), CUDA_PANEL_BYTES);
    gpu_quant_plan(GPU_U4, 100, 4096, &quant);
    assert_int_equal(cuda_panel_bytes(&quant), 100 * 4096 * 2);
    gpu_quant_plan(GPU_U4, 100, 1 << 21, &quant); /* a tile at the least */
    assert_int_equal(cuda_panel_bytes(&quant), 16ull * 2 << 21);
}

/* The bits that a memory plan counts on. */
static void test_bits(void **state)
{
    enum { SIDE = 4096 };
    for (uint32_t type = 0; type < TENSOR_TYPE_END; type++) {
        const struct tensor_type_info *info = tensor_type_info(type);
        const enum gpu_form form = info ? gpu_form_of(type) : GPU_WIDE;
        struct gpu_quant quant = {.tiles = SIDE, .tile_bytes = SIDE * 2}; /* rows of 16 bits */
        if (form != GPU_WIDE)
            gpu_quant_plan(form, SIDE, SIDE, &quant);
        const double bits = (double)quant.tiles * (double)quant.tile_bytes * 8 / SIDE / SIDE;
        if (info && bits != info->gpu_bits)
            fail_msg("%s: %.4f bits, not %.4f", info->name, bits, info->gpu_bits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_matrices),    cmocka_unit_test(test_extremes),
                                       cmocka_unit_test(test_linear),      cmocka_unit_test(test_models),
                                       cmocka_unit_test(test_memory_plan), cmocka_unit_test(test_panels),
                                       cmocka_unit_test(test_bits)};
    return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("cuda quant", tests, NULL, NULL)) : 0;
}
