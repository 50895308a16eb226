// test_sched_time.c: the formula by which the core predicts steps.
#include <math.h>

#include "common/sched/step_time.h"
#include "tests/cmocka.h"

#define assert_about(value, wanted) assert_true(fabs((value) - (wanted)) < 1e-9)

// S, H, R and L of the example in step_time.h.
static struct sched_round example(double s_us, double here_us, double away_us, double link_us)
{
    struct sched_round round = {.s_part_us = s_us};
    sched_round_add(&round, true, here_us, 0);
    sched_round_add(&round, false, away_us, link_us);
    return round;
}

static void each_part_may_be_the_longest(void **state)
{
    struct sched_round round = example(10, 2, 7, 1);
    assert_about(sched_round_us(&round, 1), 18); // the worker answers last
    assert_about(sched_round_us(&round, 2), 24); // the s-part has no pause
    round = example(10, 20, 7, 1);
    assert_about(sched_round_us(&round, 1), 30); // the local pool is slower than the worker
    round = example(2, 0, 10, 1);
    assert_about(sched_round_us(&round, 1), 13);
    assert_about(sched_round_us(&round, 2), 20); // the worker has no pause
}

// Weights are read once for all mini-batches, while they compute.
static void weights_are_read_once_a_round(void **state)
{
    struct sched_round round = example(10, 2, 7, 1);
    round.stream_us = 15;
    assert_about(sched_round_us(&round, 1), 18);
    round.stream_us = 30;
    assert_about(sched_round_us(&round, 1), 30);
    assert_about(sched_round_us(&round, 2), 30);
    assert_about(sched_round_us(&round, 3), 36);
}

// Work on the s-part's cores adds up and its round trip counts once; of workers elsewhere the slowest counts.
static void places_add_up_or_overlap(void **state)
{
    struct sched_round round = {.s_part_us = 0};
    sched_round_add(&round, true, 3, 2);
    sched_round_add(&round, true, 4, 1);
    assert_about(sched_round_attend_us(&round), 9);
    sched_round_add(&round, false, 8, 1);
    assert_about(sched_round_attend_us(&round), 9);
    sched_round_add(&round, false, 5, 7);
    assert_about(sched_round_attend_us(&round), 12); // the farther one answers later though it reads less
    assert_about(sched_round_us(&round, 3), 27);
}

// With several stages the slowest one sets the pace, a step takes the sum of all, and each does its own layers' attention.
static void stages_work_at_once(void **state)
{
    struct sched_round round = {.s_part_us = 40, .stages = 4, .slowest_us = 13};
    assert_about(sched_round_us(&round, 1), 40);
    assert_about(sched_round_us(&round, 4), 52);
    sched_round_add(&round, true, 8, 0);
    assert_about(sched_round_us(&round, 1), 48);
    assert_about(sched_round_us(&round, 4), 60);
    sched_round_add(&round, false, 20, 2); // longer than a stage's turn
    assert_about(sched_round_us(&round, 1), 62);
    assert_about(sched_round_us(&round, 8), 160);
    round.stages = 1; // as if nothing were said of stages
    assert_about(sched_round_us(&round, 8), 8 * 48);
}

// The most that is found to fit a limit fits it, and no more does.
static void a_limit_is_used_up(void **state)
{
    for (uint32_t batches = 1; batches <= 4; batches++) {
        double most_us = sched_round_away_most_us(20, 4, 1, batches);
        struct sched_round full = example(4, 0, most_us, 1), over = example(4, 0, most_us + 1, 1);
        assert_true(sched_round_us(&full, batches) <= 20);
        assert_true(sched_round_us(&over, batches) > 20);
    }
    assert_true(sched_round_away_most_us(20, 20, 1, 1) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_may_be_the_longest), cmocka_unit_test(weights_are_read_once_a_round),
        cmocka_unit_test(places_add_up_or_overlap),     cmocka_unit_test(stages_work_at_once),
        cmocka_unit_test(a_limit_is_used_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
