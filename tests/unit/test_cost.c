// test_cost.c: the performance model against values worked out by hand.
#include <math.h>

#include "common/plan/cost.h"
#include "tests/cmocka.h"

#define assert_near(value, wanted) assert_true(fabs((value) - (wanted)) <= 1e-9)

static void a_curve_between_and_beyond_its_points(void **state)
{
    struct cost_curve curve = {0};

    assert_near(cost_curve_at(&curve, 5), 0);
    cost_curve_add(&curve, 32, 140);
    assert_near(cost_curve_at(&curve, 1), 140);
    assert_near(cost_curve_at(&curve, 1000), 140);
    cost_curve_add(&curve, 1, 100); // in any order
    cost_curve_add(&curve, 64, 240);
    assert_near(cost_curve_at(&curve, 0), 100);
    assert_near(cost_curve_at(&curve, 1), 100);
    assert_near(cost_curve_at(&curve, 16.5), 120);
    assert_near(cost_curve_at(&curve, 32), 140);
    assert_near(cost_curve_at(&curve, 48), 190);
    assert_near(cost_curve_at(&curve, 128), 440);
    cost_curve_add(&curve, 64, 204); // measured again
    assert_int_equal(curve.count, 3);
    assert_near(cost_curve_at(&curve, 96), 268);
}

static void a_step_is_its_segments(void **state)
{
    struct cost_s_part s = {.layers = 3, .first_share = 0.25, .step_us = 7};
    double segments_us = 0;

    cost_curve_add(&s.layer, 1, 100);
    cost_curve_add(&s.head, 1, 50);
    cost_curve_add(&s.head, 11, 60);
    for (uint32_t i = 0; i <= s.layers; i++)
        segments_us += cost_segment_us(&s, i, 8);
    assert_near(segments_us, 300);
    assert_near(cost_s_part_step_us(&s, 8, 6), 300 + 55 + 7);
    assert_near(cost_s_part_step_us(&s, 8, 0), 300 + 7);
}

static void attention_is_a_sum(void **state)
{
    const struct cost_r_part r = {.token_us = 0.08, .prefill_us = 0.01, .row_us = 0.5, .link_us = 60, .link_row_us = 1.5};

    assert_near(cost_attend_us(&r, &(struct cost_work){0}), 0);
    assert_near(cost_attend_us(&r, &(struct cost_work){.load = 16384, .rows = 64}), 60 + 128 + 1310.72);
    assert_near(cost_attend_us(&r, &(struct cost_work){.prefill_pairs = 1000, .rows = 2}), 60 + 4 + 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_curve_between_and_beyond_its_points),
        cmocka_unit_test(a_step_is_its_segments),
        cmocka_unit_test(attention_is_a_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
