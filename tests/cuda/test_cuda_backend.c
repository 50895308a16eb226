/* test_cuda_backend.c: the CUDA backend's entries beside the CPU's, step by step, on a tiny model: two mini-batches in flight, rows of the
 * local pool and of a worker (who answers with o = q), shared pages, steps that are refused and begun again. On the emulated device
 * what is queued runs late and in an order between streams that a seed draws; on a real one as it comes (`make check-gpu`).
 */
#include "tests/cuda/backend_rig.h"

enum { ROWS = 48, SIDES = 2, CPU = 0, CUDA = 1, BATCHES = 2, PAGES = 24, STEP_ROWS = 40, LOGITS_MAX = 2 };

/* f16 beside f32, on random weights: 0.031 is the largest that was seen; a wrong page or row is some tenths. */
#define LIMIT 0.04f

static struct rig sides[SIDES][BATCHES]; /* their mini-batches */

static int open_sides(void **state)
{
    struct backend_config config = rig_config(ROWS);
    config.max_batches = BATCHES, config.max_sequences = 16;
    rig_open(&sides[CPU][0], &backend_cpu, config, PAGES);
    rig_open(&sides[CUDA][0], fastdecode_device.ops, config, PAGES);
    for (uint32_t s = 0; s < SIDES; s++)
        rig_join(&sides[s][1], &sides[s][0]);
    return 0;
}

static int close_sides(void **state)
{
    for (uint32_t s = 0; s < SIDES; s++)
        rig_close(&sides[s][1]), rig_close(&sides[s][0]);
    return 0;
}

struct step {
    struct backend_row rows[STEP_ROWS];
    uint32_t count, outputs, output[LOGITS_MAX];
};

/* Runs the steps, one a mini-batch, through all layers, interleaved. */
static void run(struct rig *side, const struct step *steps)
{
    for (uint32_t b = 0; b < BATCHES; b++)
        if (steps[b].count)
            rig_begin_step(&side[b], steps[b].rows, steps[b].count);
    for (uint32_t s = 0; s <= rig_model->shape.layers; s++) {
        for (uint32_t b = 0; b < BATCHES; b++) { /* both queued before either is waited for */
            if (!steps[b].count)
                continue;
            if (s > 0)
                rig_wait(&side[b]); /* attention of the layer before */
            side[b].ops->segment(side[b].batch, s, &side[b].links);
        }
        for (uint32_t b = 0; b < BATCHES; b++)
            if (steps[b].count) {
                rig_wait(&side[b]);
                if (s < rig_model->shape.layers)
                    side[b].ops->attend(side[b].batch, s);
            }
    }
    for (uint32_t b = 0; b < BATCHES; b++) {
        if (steps[b].outputs)
            rig_head(&side[b], steps[b].output, steps[b].outputs);
        rig_wait(&side[b]);
    }
}

static void run_both(const struct step *steps)
{
    for (uint32_t s = 0; s < SIDES; s++)
        run(sides[s], steps);
    for (uint32_t b = 0; b < BATCHES; b++)
        rig_near(&sides[CUDA][b], &sides[CPU][b], steps[b].outputs, LIMIT);
    /* what workers were sent of the last layer */
    for (uint32_t b = 0; b < BATCHES; b++)
        for (uint32_t row = 0; row < steps[b].count; row++)
            for (uint32_t i = 0; !steps[b].rows[row].local && i < sides[CPU][b].kv_width; i++) {
                near(sides[CUDA][b].k[row][i], (double)sides[CPU][b].k[row][i], LIMIT);
                near(sides[CUDA][b].v[row][i], (double)sides[CPU][b].v[row][i], LIMIT);
            }
}

static void test_steps(void **state)
{
    struct step steps[BATCHES] = {0};
    uint32_t at;

    /* prompts: local and a worker's rows in one step, another sequence in the other mini-batch */
    at = rig_rows(steps[0].rows, 0, 1, 0, 20, true);
    steps[0].count = rig_rows(steps[0].rows, at, 2, 0, 13, false);
    steps[0].outputs = 2, steps[0].output[0] = 19, steps[0].output[1] = 32;
    steps[1].count = rig_rows(steps[1].rows, rig_rows(steps[1].rows, 0, 3, 0, 7, true), 6, 0, 18, true);
    run_both(steps);                                /* the second has no output */
    for (uint32_t token = 0; token < 15; token++) { /* decode, over the end of a page */
        at = rig_rows(steps[0].rows, 0, 1, 20 + token, 1, true);
        steps[0].count = rig_rows(steps[0].rows, at, 2, 13 + token, 1, false);
        steps[0].output[0] = 0, steps[0].output[1] = 1;
        steps[1].count = rig_rows(steps[1].rows, rig_rows(steps[1].rows, 0, 3, 7 + token, 1, true), 6, 18 + token, 1, true);
        steps[1].outputs = 2, steps[1].output[0] = 0, steps[1].output[1] = 1;
        run_both(steps);
    }
    assert_int_equal(rig_pages_used(sides[CUDA]), 3 + 2 + 3);
    assert_int_equal(rig_pages_used(sides[CUDA]), rig_pages_used(sides[CPU]));
}

static void test_sharing(void **state)
{
    struct step steps[BATCHES] = {0};
    struct error error;

    for (uint32_t s = 0; s < SIDES; s++) {
        assert_int_equal(sides[s]->ops->pool_share(sides[s]->backend, 1, 18, 4, &error), STATUS_OK);
        assert_int_equal(sides[s]->ops->pool_share(sides[s]->backend, 77, 1, 5, &error), STATUS_FAILED_PRECONDITION);
    }
    /* both go on, in mini-batches of their own: the half page is copied, and neither sees what the other writes */
    for (uint32_t token = 0; token < 4; token++) {
        steps[0].count = rig_rows(steps[0].rows, 0, 1, 35 + token, 1, true);
        steps[1].count = rig_rows(steps[1].rows, 0, 4, 18 + token, 1, true);
        steps[0].outputs = steps[1].outputs = 1;
        run_both(steps);
    }
    for (uint32_t s = 0; s < SIDES; s++)
        sides[s]->ops->pool_release(sides[s]->backend, 1);
    steps[0].count = 0;
    steps[0].outputs = 0;
    steps[1].count = rig_rows(steps[1].rows, 0, 4, 22, 1, true);
    run_both(steps); /* on pages of its own and on one that was the other's */
    assert_int_equal(rig_pages_used(sides[CUDA]), rig_pages_used(sides[CPU]));
}

static void test_refused_steps(void **state)
{
    struct step steps[BATCHES] = {0};
    struct error error;
    uint32_t bad;

    for (uint32_t s = 0; s < SIDES; s++) {
        struct rig *side = sides[s];
        uint64_t before = rig_pages_used(side);
        uint32_t at = rig_rows(steps[0].rows, 0, 3, 22, 1, true);
        at = rig_rows(steps[0].rows, at, 9, 5, 1, true); /* not held */
        assert_int_equal(side->ops->begin(side[0].batch, steps[0].rows, at, &bad, &error), STATUS_FAILED_PRECONDITION);
        assert_int_equal(bad, 1);
        side->ops->pool_release(side->backend, 9);
        rig_rows(steps[0].rows, 0, 10, 0, 1, true);
        steps[0].rows[0].token = rig_model->shape.vocab;
        assert_int_equal(side->ops->begin(side[0].batch, steps[0].rows, 1, &bad, &error), STATUS_INVALID_ARGUMENT);
        for (uint64_t id = 20; id < 20 + PAGES; id++) { /* the pool fills up */
            at = rig_rows(steps[1].rows, 0, id, 0, 32, true);
            enum status status = side->ops->begin(side[1].batch, steps[1].rows, at, &bad, &error);
            if (status) {
                assert_int_equal(status, STATUS_RESOURCE_EXHAUSTED);
                assert_true(id > 24);
                break;
            }
            rig_wait(&side[1]);
        }
        for (uint64_t id = 20; id < 20 + PAGES; id++)
            side->ops->pool_release(side->backend, id);
        assert_int_equal(rig_pages_used(side), before);
    }
    steps[0].count = rig_rows(steps[0].rows, 0, 3, 22, 1, true); /* without the other it goes on */
    steps[0].outputs = 1, steps[0].output[0] = 0;
    steps[1].count = 0;
    run_both(steps);
}

/* A worker that is lost in mid-step: its rows go nowhere, the others are as ever. */
static void test_lost_rows(void **state)
{
    struct step steps[BATCHES] = {0};
    float *q[SIDES];

    for (uint32_t s = 0; s < SIDES; s++)
        q[s] = sides[s][0].q[1], sides[s][0].q[1] = NULL;
    steps[0].count = rig_rows(steps[0].rows, rig_rows(steps[0].rows, 0, 3, 23, 1, true), 2, 28, 1, false);
    steps[0].outputs = 1, steps[0].output[0] = 0;
    for (uint32_t s = 0; s < SIDES; s++)
        run(sides[s], steps);
    rig_near(sides[CUDA], sides[CPU], 1, LIMIT);
    for (uint32_t s = 0; s < SIDES; s++)
        sides[s][0].q[1] = q[s];
}

/* Chunks, short and single rows in one step, a worker's between them; one chunk behind a prefix that is shared up to the middle of a
 * page. */
static void test_mixed_step(void **state)
{
    struct step steps[BATCHES] = {0};
    struct error error;
    uint32_t at;

    steps[0].count = rig_rows(steps[0].rows, 0, 50, 0, 20, true);
    run_both(steps);
    for (uint32_t s = 0; s < SIDES; s++)
        assert_int_equal(sides[s]->ops->pool_share(sides[s]->backend, 50, 18, 51, &error), STATUS_OK);
    at = rig_rows(steps[0].rows, 0, 50, 20, 1, true);
    at = rig_rows(steps[0].rows, at, 51, 18, 17, true);
    at = rig_rows(steps[0].rows, at, 52, 0, 3, true);
    at = rig_rows(steps[0].rows, at, 53, 0, 5, false);
    steps[0].count = rig_rows(steps[0].rows, at, 54, 0, 6, true);
    steps[0].outputs = 2;
    for (uint32_t output = 0; output < steps[0].count; output += 2) { /* the step again: writing twice is harmless */
        steps[0].output[0] = output, steps[0].output[1] = MIN(output + 1, steps[0].count - 1);
        run_both(steps);
    }
    for (uint32_t s = 0; s < SIDES; s++)
        for (uint64_t id = 50; id <= 54; id++)
            sides[s]->ops->pool_release(sides[s]->backend, id);
}

static void test_what_it_refuses(void **state)
{
    struct backend_config config = rig_config(16);
    struct backend_plan plan;
    struct error error;

    config.page_tokens = 32;
    assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(error.text, "pages of 32 tokens"));
    config.page_tokens = GPU_PAGE_TOKENS, config.context_tokens = 1 << 24;
    assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_UNIMPLEMENTED);
    config.context_tokens = 64, config.compute = COMPUTE_F32;
    assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_INVALID_ARGUMENT); // a setting, not the model
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps),         cmocka_unit_test(test_sharing),
                                       cmocka_unit_test(test_refused_steps), cmocka_unit_test(test_lost_rows),
                                       cmocka_unit_test(test_mixed_step),    cmocka_unit_test(test_what_it_refuses)};
    const struct tiny_llama tiny = TINY_LLAMA;
    return rig_begin(&tiny) ? rig_end(cmocka_run_group_tests_name("cuda backend", tests, open_sides, close_sides)) : 0;
}
