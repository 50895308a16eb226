/* test_median.c: what stands for a few measured values. */
#include "common/base/measure.h"
#include "tests/cmocka.h"

static void in_any_order(void **state)
{
    double odd[] = {5, -1, 3, 1e300, 2}, even[] = {4, 1, 3, 2}, alike[] = {7, 7, 7};

    assert_true(median_of(odd, 5) == 3);
    assert_true(quartile_of(odd, 5) == 2);
    for (uint32_t i = 1; i < 5; i++)
        assert_true(odd[i - 1] <= odd[i]);
    assert_true(median_of(even, 4) == 3);
    assert_true(quartile_of(even, 4) == 2);
    assert_true(median_of(alike, 3) == 7);
}

static void of_one(void **state)
{
    double value = 0.5;

    assert_true(median_of(&value, 1) == 0.5);
    assert_true(quartile_of(&value, 1) == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_any_order),
        cmocka_unit_test(of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
