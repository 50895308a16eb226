// test_kv_choice.c: what --kv-type auto chooses from its figures, how much text it reads, and that types are compared by their speed.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/checked.h"
#include "common/kv/kv_measure.h"
#include "kernels/dispatch/kernels.h"
#include "services/s-part/kv_choice.h"

static void codes_are_for_models_that_lose_little_and_gain_time(void **state)
{
    (void)state;
    assert_int_equal(kv_choice_of(4.1e-4, 0, 1.2), KV_INT8);
    assert_int_equal(kv_choice_of(1.3e-3, 8e-4, 1.2), KV_INT8); // of which 8e-4 are the compute mode's
    assert_int_equal(kv_choice_of(9.9e-4, 0, 1.2), KV_INT8);
    assert_int_equal(kv_choice_of(1.01e-3, 0, 1.2), KV_F16);
    assert_int_equal(kv_choice_of(4.6e-3, 3.3e-3, 1.2), KV_F16);
    assert_int_equal(kv_choice_of(0.2, 0, 3), KV_F16);
    assert_int_equal(kv_choice_of(4.1e-4, 0, 0.98), KV_F16);
    assert_int_equal(kv_choice_of(4.1e-4, 0, 1), KV_F16);
}

static void figures_that_are_none_mean_f16(void **state)
{
    (void)state;
    assert_int_equal(kv_choice_of((double)NAN, 0, 2), KV_F16);
    assert_int_equal(kv_choice_of(0, (double)INFINITY, 2), KV_F16);
    assert_int_equal(kv_choice_of(0, (double)NAN, 2), KV_F16);
    assert_int_equal(kv_choice_of(0, 0, (double)INFINITY), KV_F16);
    assert_int_equal(kv_choice_of(0, 0, (double)NAN), KV_F16);
}

static void large_models_read_less(void **state)
{
    (void)state;
    assert_int_equal(kv_choice_tokens(0), KV_CHOICE_TOKENS_MOST);
    assert_int_equal(kv_choice_tokens(135000000), KV_CHOICE_TOKENS_MOST);
    assert_int_equal(kv_choice_tokens(2000000000), 100);
    assert_int_equal(kv_choice_tokens(70000000000), KV_CHOICE_TOKENS_LEAST);
    assert_int_equal(kv_choice_tokens(UINT64_MAX), KV_CHOICE_TOKENS_LEAST);
}

// A type is about as fast as itself, on any machine; a type that there is not is refused.
static void a_type_is_as_fast_as_itself(void **state)
{
    const struct kv_shape shape = {.layers = 2, .heads = 6, .kv_heads = 2, .head_dim = 64, .page_tokens = 16};
    const enum kv_type same[2] = {KV_INT8, KV_INT8}, odd[2] = {KV_F16, (enum kv_type)77};
    struct thread_pool *pool;
    struct error error;
    double ratio = 0;

    (void)state;
    assert_int_equal(kernels_init(NULL, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(1, &pool), 0);
    assert_int_equal(kv_compare(&shape, same, 4 << 20, pool, 0, &ratio, &error), STATUS_OK);
    assert_true(ratio > 0.2 && ratio < 5);
    assert_int_equal(kv_compare(&shape, odd, 4 << 20, pool, 0, &ratio, &error), STATUS_INVALID_ARGUMENT);
    thread_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_for_models_that_lose_little_and_gain_time),
        cmocka_unit_test(figures_that_are_none_mean_f16),
        cmocka_unit_test(large_models_read_less),
        cmocka_unit_test(a_type_is_as_fast_as_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
