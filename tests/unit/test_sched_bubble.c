// test_sched_bubble.c: the cause of a gap at a stage, and how much of it counts.
#include <string.h>

#include "common/sched/stage.h"
#include "tests/cmocka.h"

static uint64_t bubble_us(struct sched_gap gap)
{
    uint64_t us;
    (void)sched_bubble_of(&gap, &us);
    return us;
}

static void the_cause_follows_from_both_sides(void **state)
{
    for (int i = 0; i < 8; i++) {
        struct sched_gap gap = {.begin_us = 10, .end_us = 30, .left_us = UINT64_MAX};
        gap.prefill_before = i & 1;
        gap.prefill_after = i & 2;
        gap.waited = i & 4;
        uint64_t us;
        enum sched_bubble kind = sched_bubble_of(&gap, &us);
        static const char *const wanted[] = {"pb3", "pb2", "pb2", "pb1", "r", "r", "r", "r"};
        assert_string_equal(sched_bubble_name(kind), wanted[i]);
        assert_int_equal(us, 20);
    }
}

// Only time in which a micro-batch is in the pipeline counts: until the last one has left, and from the next one's entry on.
static void an_empty_pipeline_is_no_bubble(void **state)
{
    assert_int_equal(bubble_us((struct sched_gap){.begin_us = 10, .end_us = 30, .entered_us = 30, .left_us = 10}), 0);
    assert_int_equal(bubble_us((struct sched_gap){.begin_us = 10, .end_us = 30, .entered_us = 25, .left_us = 10}), 5);
    assert_int_equal(bubble_us((struct sched_gap){.begin_us = 10, .end_us = 30, .entered_us = 25, .left_us = 13}), 8);
    assert_int_equal(bubble_us((struct sched_gap){.begin_us = 10, .end_us = 30, .entered_us = 25, .left_us = 27}), 20);
    assert_int_equal(bubble_us((struct sched_gap){.begin_us = 10, .end_us = 30, .entered_us = 4, .left_us = 0}), 20);
    assert_int_equal(bubble_us((struct sched_gap){.begin_us = 10, .end_us = 30, .entered_us = 99, .left_us = 99}), 20);
    assert_int_equal(bubble_us((struct sched_gap){.begin_us = 30, .end_us = 10, .left_us = UINT64_MAX}),
                     0); // a clock that went back
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cause_follows_from_both_sides),
        cmocka_unit_test(an_empty_pipeline_is_no_bubble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
