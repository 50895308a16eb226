// test_kv_choice.c: what --kv-type auto chooses from its figures, and how much text it reads.
#include <math.h>

#include "services/s-part/kv_choice.h"
#include "tests/cmocka.h"

static void codes_are_for_models_that_lose_little(void **state)
{
    assert_int_equal(kv_choice_of(4.1e-4, 0), KV_INT8);
    assert_int_equal(kv_choice_of(1.3e-3, 8e-4), KV_INT8); // of which 8e-4 are the compute mode's
    assert_int_equal(kv_choice_of(9.9e-4, 0), KV_INT8);
    assert_int_equal(kv_choice_of(1.01e-3, 0), KV_F16);
    assert_int_equal(kv_choice_of(4.6e-3, 3.3e-3), KV_F16);
    assert_int_equal(kv_choice_of(0.2, 0), KV_F16);
}

static void figures_that_are_none_mean_f16(void **state)
{
    assert_int_equal(kv_choice_of((double)NAN, 0), KV_F16);
    assert_int_equal(kv_choice_of(0, (double)INFINITY), KV_F16);
    assert_int_equal(kv_choice_of(0, (double)NAN), KV_F16);
}

static uint32_t tokens_of(uint64_t parameters, uint32_t context)
{
    const struct model model = {.parameters = parameters, .shape.context_length = context};
    return kv_choice_tokens(&model);
}

static void large_models_read_less(void **state)
{
    assert_int_equal(tokens_of(0, 2048), KV_CHOICE_TOKENS_MOST);
    assert_int_equal(tokens_of(135000000, 2048), KV_CHOICE_TOKENS_MOST);
    assert_int_equal(tokens_of(135000000, 20), 20);
    assert_int_equal(tokens_of(2000000000, 2048), 100);
    assert_int_equal(tokens_of(70000000000, 2048), KV_CHOICE_TOKENS_LEAST);
    assert_int_equal(tokens_of(UINT64_MAX, 2048), KV_CHOICE_TOKENS_LEAST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_for_models_that_lose_little),
        cmocka_unit_test(figures_that_are_none_mean_f16),
        cmocka_unit_test(large_models_read_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
