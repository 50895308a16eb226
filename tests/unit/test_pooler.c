/* test_pooler.c: what a prompt's hidden states become: the same bytes whatever the chunks, and though rows come again. */
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/s-part/step/pooler.h"
#include "tests/cmocka.h"

enum { HIDDEN = 24, PROMPT = 37 };

static float rows[PROMPT][HIDDEN];
static float output[2][HIDDEN], output_bias[2], dense[HIDDEN][HIDDEN], dense_bias[HIDDEN];
static struct model model;
static struct pooler *pooler;

static struct tensor_view view(const void *data, uint32_t row_count, uint32_t columns)
{
    return (struct tensor_view){
        .data = data, .type = TENSOR_F32, .rows = row_count, .columns = columns, .bytes = 4ull * row_count * columns};
}

static float value(uint32_t seed) { return (float)((int)(seed * 2654435761u >> 8) % 2000) / 317.0f; }

static int open_model(void **state)
{
    for (uint32_t p = 0; p < PROMPT; p++)
        for (uint32_t i = 0; i < HIDDEN; i++)
            rows[p][i] = value(p * HIDDEN + i);
    for (uint32_t i = 0; i < HIDDEN; i++) {
        output[0][i] = value(7000 + i) / 10;
        output[1][i] = value(8000 + i) / 10;
        dense_bias[i] = value(9000 + i) / 50;
        for (uint32_t k = 0; k < HIDDEN; k++)
            dense[i][k] = value(10000 + i * HIDDEN + k) / 100;
    }
    output_bias[0] = 0.5f;
    output_bias[1] = -1;
    model = (struct model){.shape = {.hidden = HIDDEN, .logit_scale = 1}};
    return 0;
}

static void open_pooler(struct model_pooling pooling)
{
    struct error error;
    pooling.yes_token = pooling.no_token = MODEL_NO_TOKEN;
    if (pooler_open(&model, &pooling, &pooler, &error))
        fail_msg("%s", error.text);
}

static struct pooled_sequence *open_sequence(enum model_pool kind)
{
    struct pooled_sequence *pooled;
    struct error error;
    if (pooled_open(pooler, kind, PROMPT, &pooled, &error))
        fail_msg("%s", error.text);
    return pooled;
}

/* As the engine does it: only rows that are wanted, and nothing of a run with a gap before it. */
static bool run(struct pooled_sequence *pooled, uint32_t position, uint32_t count)
{
    if (pooled_lacks(pooled, position))
        return false;
    for (uint32_t p = position; p < position + count && p < PROMPT; p++)
        if (pooled_wants(pooled, p))
            pooled_take(pooled, p, rows[p]);
    return true;
}

static const float *result_of(const struct pooled_sequence *pooled, uint32_t want_count)
{
    uint32_t count;
    const float *result = pooled_result(pooled, &count);
    assert_int_equal(count, want_count);
    return result;
}

static void mean_is_the_same_in_any_chunks(void **state)
{
    float want[HIDDEN];
    for (uint32_t i = 0; i < HIDDEN; i++) {
        double sum = 0;
        for (uint32_t p = 0; p < PROMPT; p++)
            sum += (double)rows[p][i];
        want[i] = (float)(sum / PROMPT);
    }
    open_pooler((struct model_pooling){.kind = MODEL_POOL_MEAN});
    for (uint32_t chunk = 1; chunk <= PROMPT; chunk += 5) {
        struct pooled_sequence *pooled = open_sequence(MODEL_POOL_MEAN);
        for (uint32_t p = 0; p < PROMPT; p += chunk) {
            assert_null(result_of(pooled, HIDDEN));
            assert_true(run(pooled, p, chunk));
        }
        assert_memory_equal(result_of(pooled, HIDDEN), want, sizeof want);
        pooled_close(pooled);
    }
    pooler_close(pooler);
}

/* A lost sequence is computed again from its beginning: rows that were taken do not count twice, and what lies behind a gap not at all. */
static void rows_that_come_again_count_once(void **state)
{
    float want[HIDDEN];
    open_pooler((struct model_pooling){.kind = MODEL_POOL_MEAN});
    struct pooled_sequence *straight = open_sequence(MODEL_POOL_MEAN), *broken = open_sequence(MODEL_POOL_MEAN);
    assert_true(run(straight, 0, PROMPT));
    memcpy(want, result_of(straight, HIDDEN), sizeof want);
    assert_true(run(broken, 0, 10) && run(broken, 10, 10));
    assert_false(run(broken, 21, 5));
    assert_true(run(broken, 0, 15) && run(broken, 15, 8) && run(broken, 18, 10));
    assert_null(result_of(broken, HIDDEN));
    assert_true(run(broken, 28, 9));
    assert_memory_equal(result_of(broken, HIDDEN), want, sizeof want);
    assert_true(run(broken, 30, 7)); // the answer was lost: it is given again
    assert_memory_equal(result_of(broken, HIDDEN), want, sizeof want);
    pooled_close(straight);
    pooled_close(broken);
    pooler_close(pooler);
}

static void single_rows(void **state)
{
    open_pooler((struct model_pooling){.kind = MODEL_POOL_LAST});
    struct pooled_sequence *first = open_sequence(MODEL_POOL_CLS), *last = open_sequence(MODEL_POOL_LAST);
    assert_false(run(first, 1, 5));
    assert_true(run(first, 0, 20));
    assert_null(result_of(first, HIDDEN));
    assert_true(run(first, 20, 17) && run(last, 30, 7)); // what lies before the last row may have been held
    assert_memory_equal(result_of(first, HIDDEN), rows[0], sizeof rows[0]);
    assert_memory_equal(result_of(last, HIDDEN), rows[PROMPT - 1], sizeof rows[0]);
    pooled_close(first);
    pooled_close(last);
    pooler_close(pooler);
}

static void check_head(uint32_t outputs, bool has_dense)
{
    float h[HIDDEN];
    model.cls_output = view(output, outputs, HIDDEN);
    model.cls_output_bias = view(output_bias, 1, outputs);
    model.cls = has_dense ? view(dense, HIDDEN, HIDDEN) : (struct tensor_view){0};
    model.cls_bias = has_dense ? view(dense_bias, 1, HIDDEN) : (struct tensor_view){0};
    open_pooler((struct model_pooling){.kind = MODEL_POOL_RANK, .outputs = outputs});
    struct pooled_sequence *pooled = open_sequence(MODEL_POOL_RANK);
    assert_true(run(pooled, 0, PROMPT));
    const float *got = result_of(pooled, outputs);
    for (uint32_t i = 0; i < HIDDEN; i++) {
        double sum = (double)dense_bias[i];
        for (uint32_t k = 0; k < HIDDEN; k++)
            sum += (double)dense[i][k] * (double)rows[PROMPT - 1][k];
        h[i] = has_dense ? (float)tanh(sum) : rows[PROMPT - 1][i];
    }
    for (uint32_t o = 0; o < outputs; o++) {
        double want = (double)output_bias[o];
        for (uint32_t i = 0; i < HIDDEN; i++)
            want += (double)output[o][i] * (double)h[i];
        assert_true(fabs((double)got[o] - want) < 1e-5);
    }
    pooled_close(pooled);
    pooler_close(pooler);
}

static void heads(void **state)
{
    check_head(1, false);
    check_head(2, false);
    check_head(1, true);
}

static void a_rank_needs_a_head(void **state)
{
    struct pooled_sequence *pooled;
    struct error error;
    open_pooler((struct model_pooling){.kind = MODEL_POOL_MEAN});
    assert_int_equal(pooled_open(pooler, MODEL_POOL_RANK, PROMPT, &pooled, &error), STATUS_UNIMPLEMENTED);
    assert_int_equal(pooled_open(pooler, (enum model_pool)9, PROMPT, &pooled, &error), STATUS_UNIMPLEMENTED);
    pooler_close(pooler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_is_the_same_in_any_chunks),
        cmocka_unit_test(rows_that_come_again_count_once),
        cmocka_unit_test(single_rows),
        cmocka_unit_test(heads),
        cmocka_unit_test(a_rank_needs_a_head),
    };
    return cmocka_run_group_tests_name("pooler", tests, open_model, NULL);
}
