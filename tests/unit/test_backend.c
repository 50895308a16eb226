/* test_backend.c: what the CPU backend says of a model before anything is loaded, and that rows which the head is not asked for change
 * nothing for the others; and what models with matrices of every type compute.
 */
#include <math.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "kernels/dispatch/kernels.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"

static enum status plan(uint32_t head_dim, struct error *error)
{
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct backend_config config = {.max_rows = 16, .max_batches = 1, .context_tokens = 64, .kv_type = 1, .page_tokens = 16};
    struct backend_plan plan;
    struct model *model;
    size_t count;

    tiny.head_dim = head_dim;
    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    assert_int_equal(model_open_memory("tiny.gguf", bytes, count, &model, error), STATUS_OK);
    assert_int_equal(thread_pool_open(1, &config.pool), STATUS_OK);
    config.model = model;
    enum status status = backend_cpu.plan(&config, &plan, error);
    thread_pool_close(config.pool);
    model_close(model);
    free(bytes);
    return status;
}

static void heads_that_attention_cannot_take_are_refused(void **state)
{
    struct error error;

    assert_int_equal(plan(16, &error), STATUS_OK);
    assert_int_equal(plan(48, &error), STATUS_OK);
    assert_int_equal(plan(100, &error), STATUS_UNIMPLEMENTED);
    assert_string_equal(error.text, "tiny.gguf: heads of 100 dimensions: supported are multiples of 16 up to 256");
    assert_int_equal(plan(272, &error), STATUS_UNIMPLEMENTED);
}

/* --- how a file is computed ---------------------------------------------------------------------------------------------------- */

struct choice {
    enum tensor_type type;
    enum compute_mode compute;
    uint32_t quantize_bits;
    const char *name;
    bool alike;
};

/* Checks the plan for a file whose matrices are all of a type, and what the backend calls itself. Returns the bytes of weights. */
static uint64_t check_choice(const struct choice *choice, struct thread_pool *pool)
{
    struct backend_config config = {.compute = choice->compute,
                                    .quantize_bits = choice->quantize_bits,
                                    .pool = pool,
                                    .max_rows = 16,
                                    .max_batches = 1,
                                    .context_tokens = 64,
                                    .kv_type = 1,
                                    .page_tokens = 16};
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct backend_plan plan;
    struct backend_info info;
    struct backend *backend;
    struct model *model;
    struct error error;
    char level[32], kind[32];
    size_t size;

    tiny.type = tiny.embedding_type = choice->type;
    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &size);
    assert_int_equal(model_open_memory("tiny.gguf", bytes, size, &model, &error), STATUS_OK);
    config.model = model;
    assert_int_equal(backend_cpu.plan(&config, &plan, &error), STATUS_OK);
    const uint64_t weight_bytes = plan.weight_bytes;
    assert_int_equal(plan.rows_alike, choice->alike);
    snprintf(kind, sizeof kind, choice->quantize_bits ? "%s-%ubit" : "%s", choice->name, choice->quantize_bits);
    assert_string_equal(plan.weights_kind, kind);
    assert_int_equal(backend_cpu.open(&config, &backend, &error), STATUS_OK);
    backend_cpu.info(backend, &info);
    snprintf(level, sizeof level, "%s/%s", choice->name, kernels_level_name());
    assert_string_equal(info.level, level);
    backend_cpu.close(backend);
    config.batch_invariant = true;
    assert_int_equal(backend_cpu.plan(&config, &plan, &error), choice->alike ? STATUS_OK : STATUS_INVALID_ARGUMENT);
    model_close(model);
    free(bytes);
    return weight_bytes;
}

static void floats_stay_packed_unless_f32_is_asked_for(void **state)
{
    static const struct choice choices[] = {
        {TENSOR_F16, COMPUTE_AUTO, 0, "f16w", true},  {TENSOR_BF16, COMPUTE_AUTO, 0, "bf16w", true},
        {TENSOR_F32, COMPUTE_AUTO, 0, "f32w", true},  {TENSOR_F16, COMPUTE_INT8, 0, "f16w", true},
        {TENSOR_F16, COMPUTE_F32, 0, "f32", false},   {TENSOR_Q4_0, COMPUTE_F32, 0, "f32", false},
        {TENSOR_Q4_0, COMPUTE_AUTO, 0, "int8", true}, {TENSOR_F16, COMPUTE_AUTO, 8, "int8", true},
        {TENSOR_BF16, COMPUTE_F32, 4, "f32", false},
    };
    uint64_t bytes[ARRAY_COUNT(choices)];
    struct thread_pool *pool;

    assert_int_equal(thread_pool_open(1, &pool), STATUS_OK);
    for (size_t i = 0; i < ARRAY_COUNT(choices); i++)
        bytes[i] = check_choice(&choices[i], pool);
    thread_pool_close(pool);
    assert_true(bytes[0] == bytes[1] && bytes[0] == bytes[3] && bytes[2] == bytes[4]);
    assert_in_range(bytes[0], bytes[4] / 2, bytes[4] / 2 + 64 * 1024); /* norms and padding */
}

/* --- rows without output -------------------------------------------------------------------------------------------------------- */

enum { ROWS = 32, VOCAB = 320, Q_WIDTH = 256, KV_WIDTH = 64, STEPS = 12, SEQUENCES = 4 };

/* A mini-batch whose workers answer with o = q. Widths are the largest of all models here. */
struct mesh {
    struct backend *backend;
    struct backend_batch *batch;
    float sent[ROWS][Q_WIDTH + 2 * KV_WIDTH];
    float logits[ROWS][VOCAB];
};

static void open_mesh(struct mesh *mesh, const struct model *model, struct thread_pool *pool, enum compute_mode compute)
{
    struct backend_config config = {.model = model,
                                    .compute = compute,
                                    .pool = pool,
                                    .max_rows = ROWS,
                                    .max_batches = 1,
                                    .context_tokens = 256,
                                    .kv_type = 1,
                                    .page_tokens = 16,
                                    .max_sequences = SEQUENCES,
                                    .local_pool_bytes = 1 << 20};
    struct error error;
    assert_int_equal(backend_cpu.open(&config, &mesh->backend, &error), STATUS_OK);
    assert_int_equal(backend_cpu.batch_open(mesh->backend, &mesh->batch, &error), STATUS_OK);
}

/* All layers, then the logits of those that need output in `asked`. */
static void step(struct mesh *mesh, const struct backend_row *rows, const struct backend_row *asked, uint32_t count)
{
    static struct backend_sample samples[ROWS];
    static struct sampler_result results[ROWS];
    uint32_t index[ROWS], outputs = 0, bad;
    float *q[ROWS], *k[ROWS], *v[ROWS];
    const float *o[ROWS];
    const struct backend_links links = {o, q, k, v};
    struct error error;

    for (uint32_t row = 0; row < count; row++) {
        o[row] = q[row] = mesh->sent[row];
        k[row] = q[row] + Q_WIDTH, v[row] = k[row] + KV_WIDTH;
        if (!asked[row].needs_output)
            continue;
        samples[outputs] = (struct backend_sample){.token = 7, .result = &results[outputs], .logits = mesh->logits[outputs]};
        index[outputs++] = row;
    }
    assert_int_equal(backend_cpu.begin(mesh->batch, rows, count, &bad, &error), STATUS_OK);
    for (uint32_t s = 0; s <= 2; s++) {
        backend_cpu.segment(mesh->batch, s, &links);
        if (s < 2)
            backend_cpu.attend(mesh->batch, s);
    }
    if (outputs)
        backend_cpu.head(mesh->batch, index, samples, outputs);
}

/* Runs of each sequence, every other one at a worker; which rows need output is drawn, in one step all and in another none. */
static uint32_t draw_rows(uint32_t number, uint64_t *seed, uint32_t *positions, struct backend_row *rows)
{
    uint32_t count = 0;
    for (uint32_t id = 1; id <= SEQUENCES; id++)
        for (uint64_t left = random_next(seed) % (ROWS / SEQUENCES + 1); left > 0; left--)
            rows[count++] = (struct backend_row){.sequence = id,
                                                 .token = (uint32_t)(random_next(seed) % VOCAB),
                                                 .position = positions[id - 1]++,
                                                 .local = id % 2 == 0,
                                                 .needs_output = number == 3 || (number != 4 && random_next(seed) % 3 == 0)};
    return count;
}

static void same_beside_kv_only(enum tensor_type type, enum compute_mode compute, float limit)
{
    static struct mesh plain, kv_only;
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    uint32_t positions[SEQUENCES] = {0};
    uint64_t seed = 5;
    struct thread_pool *pool;
    struct model *model;
    struct error error;
    size_t size;

    tiny.type = tiny.embedding_type = type;
    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &size);
    assert_int_equal(model_open_memory("tiny.gguf", bytes, size, &model, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(2, &pool), STATUS_OK);
    open_mesh(&plain, model, pool, compute);
    open_mesh(&kv_only, model, pool, compute);
    for (uint32_t number = 0; number < STEPS; number++) {
        struct backend_row rows[ROWS], all[ROWS];
        uint32_t count = draw_rows(number, &seed, positions, rows);
        for (uint32_t row = 0; row < count; row++)
            all[row] = rows[row], all[row].needs_output = true;
        step(&plain, all, rows, count);
        step(&kv_only, rows, rows, count);
        for (uint32_t row = 0; row < count; row++)
            for (uint32_t i = 0; i < VOCAB; i++)
                assert_true(fabsf(plain.logits[row][i] - kv_only.logits[row][i]) <= limit);
    }
    struct mesh *const both[] = {&plain, &kv_only};
    for (uint32_t i = 0; i < ARRAY_COUNT(both); i++) {
        backend_cpu.batch_close(both[i]->batch);
        backend_cpu.close(both[i]->backend);
    }
    thread_pool_close(pool);
    model_close(model);
    free(bytes);
}

static void others_do_not_notice_rows_without_output(void **state)
{
    same_beside_kv_only(TENSOR_Q4_0, COMPUTE_INT8, 0);
    same_beside_kv_only(TENSOR_Q8_0, COMPUTE_INT8, 0);
    same_beside_kv_only(TENSOR_F16, COMPUTE_AUTO, 0);
    same_beside_kv_only(TENSOR_BF16, COMPUTE_AUTO, 0);
    same_beside_kv_only(TENSOR_F32, COMPUTE_AUTO, 0);
    same_beside_kv_only(TENSOR_F32, COMPUTE_F32, 1e-5f);
}

/* --- every type ------------------------------------------------------------------------------------------------------------------ */

/* The largest difference of int8's logits from those of f32, in largest logits. */
static float int8_beside_f32(enum tensor_type type)
{
    static struct mesh int8, f32;
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct backend_row rows[ROWS];
    struct thread_pool *pool;
    struct model *model;
    struct error error;
    float off = 0, largest = 0;
    size_t size;

    tiny.type = tiny.embedding_type = type;
    tiny.hidden = 256, tiny.heads = 8, tiny.head_dim = 32, tiny.ffn = 512; /* whole blocks of 256 */
    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &size);
    assert_int_equal(model_open_memory("tiny.gguf", bytes, size, &model, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(2, &pool), STATUS_OK);
    open_mesh(&int8, model, pool, COMPUTE_INT8);
    open_mesh(&f32, model, pool, COMPUTE_F32);
    for (uint32_t row = 0; row < ROWS; row++)
        rows[row] = (struct backend_row){.sequence = 1, .token = row * 9, .position = row, .local = true, .needs_output = true};
    step(&int8, rows, rows, ROWS);
    step(&f32, rows, rows, ROWS);
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < VOCAB; i++) {
            float difference = fabsf(int8.logits[row][i] - f32.logits[row][i]);
            off = difference <= off ? off : difference; /* NaN too */
            largest = fmaxf(largest, fabsf(f32.logits[row][i]));
        }
    backend_cpu.batch_close(int8.batch), backend_cpu.batch_close(f32.batch);
    backend_cpu.close(int8.backend), backend_cpu.close(f32.backend);
    thread_pool_close(pool);
    model_close(model);
    free(bytes);
    return off / largest;
}

/* int8 differs from f32 by no more than the rounding of activations to 8 bits, whatever the type of the matrices. */
static void int8_is_near_f32_with_every_type(void **state)
{
    for (uint32_t type = 0; type < TENSOR_TYPE_END; type++) {
        float off = tensor_type_info(type) ? int8_beside_f32((enum tensor_type)type) : 0;
        if (!(off <= 0.02f))
            fail_msg("%s: off by %.4f of the largest logit", tensor_type_info(type)->name, (double)off);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(heads_that_attention_cannot_take_are_refused),
                                       cmocka_unit_test(floats_stay_packed_unless_f32_is_asked_for),
                                       cmocka_unit_test(others_do_not_notice_rows_without_output),
                                       cmocka_unit_test(int8_is_near_f32_with_every_type)};
    struct error error;

    assert_always(kernels_init(NULL, &error) == STATUS_OK);
    return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
