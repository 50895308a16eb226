/* test_cuda_backend.c: the CUDA backend's entries beside the CPU's, step by step, on a tiny model: two mini-batches in flight, rows of the
 * local pool and of a worker (who answers with o = q), shared pages, steps that are refused and begun again. On the emulated device
 * what is queued runs late and in an order between streams that a seed draws; on a real one as it comes (`make check-gpu`).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "kernels/backend/device.h"
#include "kernels/dispatch/kernels.h"
#include "tests/unit/gguf_build.h"

extern const struct device_library fastdecode_device;

enum { ROWS = 48, SIDES = 2, CPU = 0, CUDA = 1, BATCHES = 2, PAGES = 24, STEP_ROWS = 40, LOGITS_MAX = 2 };

/* f16 beside f32, on random weights: 0.031 is the largest that was seen; a wrong page or row is some tenths. */
#define LIMIT 0.04f

/* cmocka's would let NaN pass. */
static void near(float got, float want)
{
    if (!(fabsf(got - want) <= LIMIT))
        fail_msg("%.6g for %.6g", (double)got, (double)want);
}

static struct model *model;
static struct thread_pool *pool;

/* One backend with its mini-batches, and what its steps gave. */
struct side {
    const struct backend_ops *ops;
    struct backend *backend;
    struct backend_batch *batches[BATCHES];
    float *o[BATCHES][ROWS], *q[BATCHES][ROWS], *k[BATCHES][ROWS], *v[BATCHES][ROWS];
    struct backend_links links[BATCHES];
    float *logits[BATCHES]; /* [LOGITS_MAX][vocab] */
};

static struct side sides[SIDES];

static void open_side(struct side *side, const struct backend_ops *ops, enum compute_mode compute)
{
    const struct model_shape *shape = &model->shape;
    struct backend_config config = {.model = model,
                                    .compute = compute,
                                    .pool = pool,
                                    .max_rows = ROWS,
                                    .max_batches = BATCHES,
                                    .context_tokens = shape->context_length,
                                    .kv_type = 1,
                                    .page_tokens = 16,
                                    .max_sequences = 16};
    struct backend_plan plan;
    struct error error;

    *side = (struct side){.ops = ops};
    assert_int_equal(ops->plan(&config, &plan, &error), STATUS_OK);
    config.local_pool_bytes = PAGES * plan.pool_page_bytes;
    assert_int_equal(ops->plan(&config, &plan, &error), STATUS_OK);
    assert_int_equal(plan.pool_pages, PAGES);
    assert_int_equal(ops->open(&config, &side->backend, &error), STATUS_OK);
    for (uint32_t b = 0; b < BATCHES; b++) {
        assert_int_equal(ops->batch_open(side->backend, &side->batches[b], &error), STATUS_OK);
        for (uint32_t row = 0; row < ROWS; row++) {
            side->o[b][row] = side->q[b][row] = calloc(shape->heads * shape->head_dim, 4); /* the worker answers with q */
            side->k[b][row] = calloc(shape->kv_heads * shape->head_dim, 4);
            side->v[b][row] = calloc(shape->kv_heads * shape->head_dim, 4);
        }
        side->links[b] = (struct backend_links){(const float *const *)side->o[b], side->q[b], side->k[b], side->v[b]};
        side->logits[b] = calloc(LOGITS_MAX * shape->vocab, sizeof(float));
    }
}

static void close_side(struct side *side)
{
    for (uint32_t b = 0; b < BATCHES; b++) {
        side->ops->batch_close(side->batches[b]);
        for (uint32_t row = 0; row < ROWS; row++)
            free(side->q[b][row] ? side->q[b][row] : side->o[b][row]), free(side->k[b][row]), free(side->v[b][row]);
        free(side->logits[b]);
    }
    side->ops->close(side->backend);
}

static void wait_for(struct side *side, uint32_t b)
{
    while (!side->ops->done(side->batches[b])) {}
}

/* Rows of one sequence from `first` on. */
static uint32_t rows_of(struct backend_row *rows, uint32_t at, uint64_t sequence, uint32_t first, uint32_t count, bool local)
{
    for (uint32_t i = 0; i < count; i++)
        rows[at + i] = (struct backend_row){.sequence = sequence,
                                            .token = (uint32_t)(sequence * 37 + (first + i) * 11) % 300 + 5,
                                            .position = first + i,
                                            .local = local};
    return at + count;
}

struct step {
    struct backend_row rows[STEP_ROWS];
    uint32_t count, outputs, output[LOGITS_MAX];
};

/* Runs the steps, one a mini-batch, through all layers, interleaved. */
static void run(struct side *side, const struct step *steps)
{
    const struct backend_ops *ops = side->ops;
    struct sampler_result result[LOGITS_MAX];
    struct error error;
    uint32_t bad;

    for (uint32_t b = 0; b < BATCHES; b++)
        if (steps[b].count)
            if (ops->begin(side->batches[b], steps[b].rows, steps[b].count, &bad, &error))
                fail_msg("begin: %s", error.text);
    for (uint32_t s = 0; s <= model->shape.layers; s++) {
        for (uint32_t b = 0; b < BATCHES; b++) { /* both queued before either is waited for */
            if (!steps[b].count)
                continue;
            if (s > 0)
                wait_for(side, b); /* attention of the layer before */
            ops->segment(side->batches[b], s, &side->links[b]);
        }
        for (uint32_t b = 0; b < BATCHES; b++)
            if (steps[b].count) {
                wait_for(side, b);
                if (s < model->shape.layers)
                    ops->attend(side->batches[b], s);
            }
    }
    for (uint32_t b = 0; b < BATCHES; b++) {
        struct backend_sample samples[LOGITS_MAX];
        for (uint32_t i = 0; i < steps[b].outputs; i++)
            samples[i] = (struct backend_sample){
                .token = 7, .top_count = 2, .result = &result[i], .logits = side->logits[b] + i * model->shape.vocab};
        if (steps[b].outputs)
            ops->head(side->batches[b], steps[b].output, samples, steps[b].outputs);
        while (!ops->done(side->batches[b])) {}
    }
}

static void run_both(const struct step *steps)
{
    for (uint32_t s = 0; s < SIDES; s++)
        run(&sides[s], steps);
    for (uint32_t b = 0; b < BATCHES; b++)
        for (uint32_t i = 0; i < steps[b].outputs * model->shape.vocab; i++)
            near(sides[CUDA].logits[b][i], sides[CPU].logits[b][i]);
    /* what workers were sent of the last layer */
    for (uint32_t b = 0; b < BATCHES; b++)
        for (uint32_t row = 0; row < steps[b].count; row++)
            for (uint32_t i = 0; !steps[b].rows[row].local && i < model->shape.kv_heads * model->shape.head_dim; i++) {
                near(sides[CUDA].k[b][row][i], sides[CPU].k[b][row][i]);
                near(sides[CUDA].v[b][row][i], sides[CPU].v[b][row][i]);
            }
}

static uint64_t pages_used(const struct side *side)
{
    struct backend_info info;
    side->ops->info(side->backend, &info);
    return info.pages_used;
}

static void test_steps(void **state)
{
    struct step steps[BATCHES] = {0};
    uint32_t at;
    (void)state;

    /* prompts: local and a worker's rows in one step, another sequence in the other mini-batch */
    at = rows_of(steps[0].rows, 0, 1, 0, 20, true);
    steps[0].count = rows_of(steps[0].rows, at, 2, 0, 13, false);
    steps[0].outputs = 2, steps[0].output[0] = 19, steps[0].output[1] = 32;
    steps[1].count = rows_of(steps[1].rows, rows_of(steps[1].rows, 0, 3, 0, 7, true), 6, 0, 18, true);
    run_both(steps);                                /* the second has no output */
    for (uint32_t token = 0; token < 15; token++) { /* decode, over the end of a page */
        at = rows_of(steps[0].rows, 0, 1, 20 + token, 1, true);
        steps[0].count = rows_of(steps[0].rows, at, 2, 13 + token, 1, false);
        steps[0].output[0] = 0, steps[0].output[1] = 1;
        steps[1].count = rows_of(steps[1].rows, rows_of(steps[1].rows, 0, 3, 7 + token, 1, true), 6, 18 + token, 1, true);
        steps[1].outputs = 2, steps[1].output[0] = 0, steps[1].output[1] = 1;
        run_both(steps);
    }
    assert_int_equal(pages_used(&sides[CUDA]), 3 + 2 + 3);
    assert_int_equal(pages_used(&sides[CUDA]), pages_used(&sides[CPU]));
}

static void test_sharing(void **state)
{
    struct step steps[BATCHES] = {0};
    struct error error;
    (void)state;

    for (uint32_t s = 0; s < SIDES; s++) {
        assert_int_equal(sides[s].ops->pool_share(sides[s].backend, 1, 18, 4, &error), STATUS_OK);
        assert_int_equal(sides[s].ops->pool_share(sides[s].backend, 77, 1, 5, &error), STATUS_FAILED_PRECONDITION);
    }
    /* both go on, in mini-batches of their own: the half page is copied, and neither sees what the other writes */
    for (uint32_t token = 0; token < 4; token++) {
        steps[0].count = rows_of(steps[0].rows, 0, 1, 35 + token, 1, true);
        steps[1].count = rows_of(steps[1].rows, 0, 4, 18 + token, 1, true);
        steps[0].outputs = steps[1].outputs = 1;
        run_both(steps);
    }
    for (uint32_t s = 0; s < SIDES; s++)
        sides[s].ops->pool_release(sides[s].backend, 1);
    steps[0].count = 0;
    steps[0].outputs = 0;
    steps[1].count = rows_of(steps[1].rows, 0, 4, 22, 1, true);
    run_both(steps); /* on pages of its own and on one that was the other's */
    assert_int_equal(pages_used(&sides[CUDA]), pages_used(&sides[CPU]));
}

static void test_refused_steps(void **state)
{
    struct step steps[BATCHES] = {0};
    struct error error;
    uint32_t bad;
    (void)state;

    for (uint32_t s = 0; s < SIDES; s++) {
        struct side *side = &sides[s];
        uint64_t before = pages_used(side);
        uint32_t at = rows_of(steps[0].rows, 0, 3, 22, 1, true);
        at = rows_of(steps[0].rows, at, 9, 5, 1, true); /* not held */
        assert_int_equal(side->ops->begin(side->batches[0], steps[0].rows, at, &bad, &error), STATUS_FAILED_PRECONDITION);
        assert_int_equal(bad, 1);
        side->ops->pool_release(side->backend, 9);
        rows_of(steps[0].rows, 0, 10, 0, 1, true);
        steps[0].rows[0].token = model->shape.vocab;
        assert_int_equal(side->ops->begin(side->batches[0], steps[0].rows, 1, &bad, &error), STATUS_INVALID_ARGUMENT);
        for (uint64_t id = 20; id < 20 + PAGES; id++) { /* the pool fills up */
            at = rows_of(steps[1].rows, 0, id, 0, 32, true);
            enum status status = side->ops->begin(side->batches[1], steps[1].rows, at, &bad, &error);
            if (status) {
                assert_int_equal(status, STATUS_RESOURCE_EXHAUSTED);
                assert_true(id > 24);
                break;
            }
            wait_for(side, 1);
        }
        for (uint64_t id = 20; id < 20 + PAGES; id++)
            side->ops->pool_release(side->backend, id);
        assert_int_equal(pages_used(side), before);
    }
    steps[0].count = rows_of(steps[0].rows, 0, 3, 22, 1, true); /* without the other it goes on */
    steps[0].outputs = 1, steps[0].output[0] = 0;
    steps[1].count = 0;
    run_both(steps);
}

/* A worker that is lost in mid-step: its rows go nowhere, the others are as ever. */
static void test_lost_rows(void **state)
{
    struct step steps[BATCHES] = {0};
    (void)state;

    for (uint32_t s = 0; s < SIDES; s++)
        sides[s].q[0][1] = NULL;
    steps[0].count = rows_of(steps[0].rows, rows_of(steps[0].rows, 0, 3, 23, 1, true), 2, 28, 1, false);
    steps[0].outputs = 1, steps[0].output[0] = 0;
    for (uint32_t s = 0; s < SIDES; s++)
        run(&sides[s], steps);
    for (uint32_t i = 0; i < model->shape.vocab; i++)
        near(sides[CUDA].logits[0][i], sides[CPU].logits[0][i]);
    for (uint32_t s = 0; s < SIDES; s++)
        sides[s].q[0][1] = sides[s].o[0][1];
}

/* Chunks, short and single rows in one step, a worker's between them; one chunk behind a prefix that is shared up to the middle of a
 * page. */
static void test_mixed_step(void **state)
{
    struct step steps[BATCHES] = {0};
    struct error error;
    uint32_t at;
    (void)state;

    steps[0].count = rows_of(steps[0].rows, 0, 50, 0, 20, true);
    run_both(steps);
    for (uint32_t s = 0; s < SIDES; s++)
        assert_int_equal(sides[s].ops->pool_share(sides[s].backend, 50, 18, 51, &error), STATUS_OK);
    at = rows_of(steps[0].rows, 0, 50, 20, 1, true);
    at = rows_of(steps[0].rows, at, 51, 18, 17, true);
    at = rows_of(steps[0].rows, at, 52, 0, 3, true);
    at = rows_of(steps[0].rows, at, 53, 0, 5, false);
    steps[0].count = rows_of(steps[0].rows, at, 54, 0, 6, true);
    steps[0].outputs = 2;
    for (uint32_t output = 0; output < steps[0].count; output += 2) { /* the step again: writing twice is harmless */
        steps[0].output[0] = output, steps[0].output[1] = MIN(output + 1, steps[0].count - 1);
        run_both(steps);
    }
    for (uint32_t s = 0; s < SIDES; s++)
        for (uint64_t id = 50; id <= 54; id++)
            sides[s].ops->pool_release(sides[s].backend, id);
}

static void test_what_it_refuses(void **state)
{
    struct backend_config config = {
        .model = model, .pool = pool, .max_rows = 16, .max_batches = 1, .context_tokens = 64, .kv_type = 1, .page_tokens = 32};
    struct backend_plan plan;
    struct error error;
    (void)state;

    assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(error.text, "pages of 32 tokens"));
    config.page_tokens = 16, config.context_tokens = 1 << 24;
    assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_UNIMPLEMENTED);
    config.context_tokens = 64, config.compute = COMPUTE_F32;
    assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_UNIMPLEMENTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps),         cmocka_unit_test(test_sharing),
                                       cmocka_unit_test(test_refused_steps), cmocka_unit_test(test_lost_rows),
                                       cmocka_unit_test(test_mixed_step),    cmocka_unit_test(test_what_it_refuses)};
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct error error;
    char name[200];
    size_t count;

    if (fastdecode_device.probe(0, name, sizeof name, &error)) {
        printf("%s: skipped\n", error.text);
        return 0;
    }
    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    if (kernels_init(NULL, &error) || model_open_memory("tiny.gguf", bytes, count, &model, &error) || thread_pool_open(2, &pool))
        return 1;
    open_side(&sides[CPU], &backend_cpu, COMPUTE_F32);
    open_side(&sides[CUDA], fastdecode_device.ops, COMPUTE_AUTO);
    int failed = cmocka_run_group_tests_name("cuda backend", tests, NULL, NULL);
    close_side(&sides[CPU]);
    close_side(&sides[CUDA]);
    thread_pool_close(pool);
    model_close(model);
    free(bytes);
    return failed;
}
