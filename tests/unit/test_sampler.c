/* test_sampler.c: the order of the filters, the draw's purity, log-probabilities, ties and hostile logits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/sampler/sampler.h"
#include "common/sampler/softmax.h"
#include "tests/cmocka.h"

enum { VOCAB = 1000 };

static struct sampler_scratch *scratch;

static struct sampler_params plain(void) { return (struct sampler_params){.top_p = 1, .repetition_penalty = 1}; }

static struct sampler *open_sampler(struct sampler_params params)
{
    struct sampler *sampler = NULL;
    struct error error;
    assert_int_equal(sampler_open(&params, VOCAB, 4096, &sampler, &error), STATUS_OK);
    return sampler;
}

static void fill(float *logits, unsigned seed)
{
    for (int i = 0; i < VOCAB; i++) {
        seed = seed * 1664525u + 1013904223u;
        logits[i] = (float)(seed >> 8) / (float)(1 << 24) * 12.0f - 6.0f;
    }
}

static uint32_t sample_once(struct sampler_params params, const float *logits, uint32_t index)
{
    struct sampler *sampler = open_sampler(params);
    struct sampler_result result;
    sampler_sample(sampler, logits, NULL, index, scratch, &result);
    sampler_close(sampler);
    return result.token;
}

static void ties_go_to_the_lowest_id(void **state)
{
    float logits[VOCAB] = {0};
    logits[700] = logits[701] = logits[20] = 3;
    assert_int_equal(sample_once(plain(), logits, 0), 20);
}

static void the_draw_is_a_pure_function_of_seed_choice_and_index(void **state)
{
    float logits[VOCAB];
    struct sampler_params params = plain();
    unsigned differs = 0;
    fill(logits, 1);
    params.temperature = 1;
    params.seed = 42;
    for (uint32_t index = 0; index < 50; index++) {
        uint32_t first = sample_once(params, logits, index);
        assert_int_equal(first, sample_once(params, logits, index));
        params.choice = 1;
        differs += first != sample_once(params, logits, index);
        params.choice = 0;
    }
    assert_true(differs > 40);
}

static void frequencies_follow_the_softmax(void **state)
{
    float logits[VOCAB];
    unsigned counts[3] = {0};
    struct sampler_params params = plain();
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -50;
    logits[5] = logf(0.5f), logits[6] = logf(0.3f), logits[7] = logf(0.2f);
    params.temperature = 1;
    struct sampler *sampler = open_sampler(params);
    for (uint32_t index = 0; index < 20000; index++) {
        struct sampler_result result;
        sampler_sample(sampler, logits, NULL, index, scratch, &result);
        assert_in_range(result.token, 5, 7);
        counts[result.token - 5]++;
    }
    sampler_close(sampler);
    assert_in_range(counts[0], 9700, 10300);
    assert_in_range(counts[1], 5700, 6300);
    assert_in_range(counts[2], 3700, 4300);
}

/* Which tokens can be drawn at all: counted over many draws. */
static unsigned reachable(struct sampler_params params, const float *logits)
{
    bool hit[VOCAB] = {0};
    unsigned count = 0;
    struct sampler *sampler = open_sampler(params);
    for (uint32_t index = 0; index < 4000; index++) {
        struct sampler_result result;
        sampler_sample(sampler, logits, NULL, index, scratch, &result);
        hit[result.token] = true;
    }
    sampler_close(sampler);
    for (int i = 0; i < VOCAB; i++)
        count += hit[i];
    return count;
}

static void filters_keep_what_they_say(void **state)
{
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -40;
    for (int i = 0; i < 8; i++)
        logits[100 + i] = 0; /* eight equal ones */
    struct sampler_params params = plain();
    params.temperature = 1;
    assert_int_equal(reachable(params, logits), 8);
    params.top_k = 3;
    assert_int_equal(reachable(params, logits), 3);
    params.top_k = 0, params.top_p = 0.5f;
    assert_int_equal(reachable(params, logits), 4);
    params.top_k = 4, params.top_p = 0.5f; /* top-p of what top-k left */
    assert_int_equal(reachable(params, logits), 2);
    params = plain();
    params.temperature = 1;
    logits[103] = 1.2f; /* exp(-1.2) = 0.30 */
    params.min_p = 0.5f;
    assert_int_equal(reachable(params, logits), 1);
    params.min_p = 0.25f;
    assert_int_equal(reachable(params, logits), 8);
    params.min_p = 0, params.top_p = 1e-6f;
    assert_int_equal(reachable(params, logits), 1);
}

/* top-p is of what top-k left, min-p comes after both: what min-p will drop still counts in top-p's total. */
static void min_p_comes_after_top_p(void **state)
{
    float logits[VOCAB];
    struct sampler_params params = plain();
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -40;
    logits[100] = logf(1.0f), logits[101] = logf(0.6f); /* of the kept 3.0: 0.33, 0.53, then 0.07 for each other */
    for (int i = 2; i < 9; i++)
        logits[100 + i] = logf(0.2f);
    params.temperature = 1;
    params.top_k = 9, params.top_p = 0.5f;
    assert_int_equal(reachable(params, logits), 2);
    params.min_p = 0.3f; /* drops the seven: both others stay */
    assert_int_equal(reachable(params, logits), 2);
    params.top_k = 2; /* of the kept 1.6 the first alone is 0.63 */
    assert_int_equal(reachable(params, logits), 1);
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static void top_k_agrees_with_a_full_sort(void **state)
{
    for (unsigned seed = 1; seed < 60; seed++) {
        float logits[VOCAB], sorted[VOCAB];
        struct sampler_params params = plain();
        fill(logits, seed);
        if (seed % 3 == 0)
            for (int i = 0; i < VOCAB; i++)
                logits[i] = roundf(logits[i]); /* many ties */
        memcpy(sorted, logits, sizeof logits);
        qsort(sorted, VOCAB, sizeof *sorted, descending);
        params.temperature = 5;
        params.top_k = 1 + seed * 7 % 90;
        struct sampler *sampler = open_sampler(params);
        for (uint32_t index = 0; index < 200; index++) {
            struct sampler_result result;
            sampler_sample(sampler, logits, NULL, index, scratch, &result);
            assert_true(logits[result.token] >= sorted[params.top_k - 1]);
        }
        sampler_close(sampler);
    }
}

static void penalties_count_what_they_should(void **state)
{
    float logits[VOCAB] = {0};
    struct sampler_params params = plain();
    struct sampler_result result;
    logits[1] = 2, logits[2] = 1.9f, logits[3] = 1.8f;
    params.presence_penalty = 0.15f;
    struct sampler *sampler = open_sampler(params);
    sampler_see_prompt(sampler, 1); /* presence does not count the prompt */
    sampler_sample(sampler, logits, NULL, 0, scratch, &result);
    assert_int_equal(result.token, 1);
    sampler_see_generated(sampler, 1);
    sampler_sample(sampler, logits, NULL, 1, scratch, &result);
    assert_int_equal(result.token, 2);
    sampler_close(sampler);

    params = plain();
    params.repetition_penalty = 1.2f; /* counts the prompt */
    sampler = open_sampler(params);
    sampler_see_prompt(sampler, 1);
    sampler_sample(sampler, logits, NULL, 0, scratch, &result);
    assert_int_equal(result.token, 2);
    sampler_close(sampler);

    params = plain();
    params.frequency_penalty = 0.06f;
    sampler = open_sampler(params);
    sampler_see_generated(sampler, 1);
    sampler_sample(sampler, logits, NULL, 0, scratch, &result);
    assert_int_equal(result.token, 1);
    sampler_see_generated(sampler, 1);
    sampler_sample(sampler, logits, NULL, 0, scratch, &result);
    assert_int_equal(result.token, 2);
    sampler_close(sampler);
}

static void bias_decides_but_logprobs_are_raw(void **state)
{
    float logits[VOCAB] = {0};
    struct sampler_bias bias = {9, 100};
    struct sampler_params params = plain();
    struct sampler_result result;
    logits[1] = 3;
    params.bias = &bias, params.bias_count = 1, params.logprobs = true, params.top_logprobs = 2;
    struct sampler *sampler = open_sampler(params);
    sampler_sample(sampler, logits, NULL, 0, scratch, &result);
    sampler_close(sampler);
    double total = log(exp(3) + VOCAB - 1);
    assert_int_equal(result.token, 9);
    assert_true(fabs((double)result.logprob + total) < 1e-5);
    assert_int_equal(result.top_count, 2);
    assert_int_equal(result.top[0].token, 1);
    assert_true(fabs((double)result.top[0].logprob - (3 - total)) < 1e-5);
    assert_int_equal(result.top[1].token, 0); /* lowest id of the tie */
}

static void hostile_logits_give_a_token(void **state)
{
    float logits[VOCAB];
    struct sampler_params params = plain();
    params.temperature = 0.7f, params.top_p = 0.9f, params.top_k = 10, params.min_p = 0.05f;
    for (int i = 0; i < VOCAB; i++)
        logits[i] = NAN;
    assert_true(sample_once(params, logits, 0) < VOCAB);
    assert_true(sample_once(plain(), logits, 0) < VOCAB);
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -INFINITY;
    logits[77] = 1e30f;
    assert_int_equal(sample_once(params, logits, 0), 77);
    logits[3] = NAN;
    assert_int_equal(sample_once(params, logits, 1), 77);
    assert_int_equal(sample_once(plain(), logits, 1), 77);
    logits[0] = NAN;
    struct sampler_result result;
    sampler_score(logits, VOCAB, 77, 3, scratch, &result);
    assert_int_equal(result.top[0].token, 77);
    assert_true(result.top[0].logprob == 0 && result.top[1].logprob == -INFINITY);
}

static void exp_is_close_to_libm(void **state)
{
    for (float x = 0; x > -86; x -= 0.0371f) {
        float value[16] = {x}, weight[16];
        for (int i = 0; i < 16; i++)
            value[i] = x;
        softmax_weights(value, 16, 0, 1, weight);
        assert_true(fabs((double)weight[3] / exp((double)x) - 1) < 4e-7);
    }
}

static void bad_parameters_are_named(void **state)
{
    struct sampler *sampler;
    struct error error;
    struct sampler_params params = plain();
    params.top_p = 0;
    assert_int_equal(sampler_open(&params, VOCAB, 10, &sampler, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "top_p"));
    params = plain();
    params.temperature = NAN;
    assert_int_equal(sampler_open(&params, VOCAB, 10, &sampler, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "temperature"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_go_to_the_lowest_id),         cmocka_unit_test(the_draw_is_a_pure_function_of_seed_choice_and_index),
        cmocka_unit_test(frequencies_follow_the_softmax),   cmocka_unit_test(filters_keep_what_they_say),
        cmocka_unit_test(min_p_comes_after_top_p),          cmocka_unit_test(top_k_agrees_with_a_full_sort),
        cmocka_unit_test(penalties_count_what_they_should), cmocka_unit_test(bias_decides_but_logprobs_are_raw),
        cmocka_unit_test(hostile_logits_give_a_token),      cmocka_unit_test(exp_is_close_to_libm),
        cmocka_unit_test(bad_parameters_are_named),
    };
    assert_always(sampler_scratch_open(VOCAB, &scratch) == STATUS_OK);
    int failed = cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
    sampler_scratch_close(scratch);
    return failed;
}
