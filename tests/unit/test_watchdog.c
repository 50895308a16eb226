/* test_watchdog.c: when a device counts as one that hangs. */
#include "common/base/clock.h"
#include "services/s-part/calibrate.h"
#include "services/s-part/engine/watchdog.h"
#include "tests/cmocka.h"

enum { LIMIT = 10000000, SECOND = 1000000 };

/* Asked every second, as the service does. Returns the second at which it bites; `seconds` if it does not. */
static uint32_t bites_after(struct watchdog *watchdog, uint64_t from_us, uint32_t seconds)
{
    uint64_t stuck_us;
    for (uint32_t i = 0; i < seconds; i++)
        if (watchdog_bites(watchdog, from_us + (uint64_t)i * SECOND, LIMIT, &stuck_us)) {
            assert_true(stuck_us > LIMIT && stuck_us <= (uint64_t)(i + 1) * SECOND);
            return i;
        }
    return seconds;
}

/* A CPU computes on the engine's thread, which is in its loop before a segment and after it. */
static void a_cpu_is_watched(void **state)
{
    struct watchdog watchdog = {0};
    uint64_t now_us = clock_now_us();
    watchdog_turn(&watchdog);
    watchdog_begun(&watchdog, now_us);
    uint32_t after = bites_after(&watchdog, now_us, 1000);
    assert_true(after >= 11 && after <= 13);
}

/* The limit of a CPU is a multiple of what its slowest part was measured to take, not less than what the user has set. */
static void a_slow_machine_is_given_time(void **state)
{
    struct calibration fast = {.done = true,
                               .times = {.layer_count = 2,
                                         .layer_rows = {1, 512},
                                         .layer_us = {100, 5000},
                                         .head_count = 1,
                                         .head_rows = {128},
                                         .head_us = {9000}},
                               .kv = {.call_us = 5, .prefill_row_us = 1, .pair_us = 0.001}},
                       slow = fast;
    slow.times.layer_us[1] = 5e6;
    const uint64_t least = calibration_slowest_us(&fast, 1024, 8192), most = calibration_slowest_us(&slow, 1024, 8192);
    assert_in_range(least, 2 * 5000 + 1024 + 1024 * 8192 / 1000, 2 * 5000 + 9 * 8000 + 1024 + 1024 * 8192 / 1000 + 5);
    assert_true(most >= 2 * 5000000);
    assert_int_equal(calibration_slowest_us(&(struct calibration){0}, 1024, 8192), 0);
}

/* Without work it may stay silent, as long as the engine's thread comes round; before that has begun nothing is said. */
static void who_has_no_work_does_not_hang(void **state)
{
    struct watchdog watchdog = {0};
    uint64_t now_us = clock_now_us(), stuck_us;
    assert_int_equal(bites_after(&watchdog, now_us, 1000), 1000);
    watchdog_begun(&watchdog, now_us);
    watchdog_done(&watchdog, now_us + SECOND);
    assert_int_equal(bites_after(&watchdog, now_us + 1000ull * SECOND, 1000), 1000);
    watchdog = (struct watchdog){0};
    watchdog_turn(&watchdog);
    assert_false(watchdog_bites(&watchdog, clock_now_us(), LIMIT, &stuck_us));
}

static void work_that_does_not_end_is_seen(void **state)
{
    struct watchdog watchdog = {0};
    uint64_t now_us = clock_now_us();
    watchdog_begun(&watchdog, now_us);
    watchdog_begun(&watchdog, now_us); // the other mini-batch
    watchdog_done(&watchdog, now_us + SECOND);
    // A second after it was last heard of, the limit, the first second beyond it, and asked once more.
    assert_int_equal(bites_after(&watchdog, now_us, 1000), 13);
}

/* The thread sits in the device's library, and can say nothing. */
static void a_thread_that_does_not_come_back_is_seen(void **state)
{
    struct watchdog watchdog = {0};
    uint64_t now_us = clock_now_us();
    watchdog_turn(&watchdog);
    uint32_t after = bites_after(&watchdog, now_us + SECOND, 1000);
    assert_true(after >= 10 && after <= 12);
}

/* This process was stopped, and goes on: the first look finds that nothing was done, the next that it is. */
static void a_stopped_process_is_not_a_device_that_hangs(void **state)
{
    struct watchdog watchdog = {0};
    uint64_t now_us = clock_now_us(), stuck_us;
    watchdog_begun(&watchdog, now_us);
    assert_false(watchdog_bites(&watchdog, now_us + 3600ull * SECOND, LIMIT, &stuck_us));
    assert_false(watchdog_bites(&watchdog, now_us + 3600ull * SECOND + SECOND / 4, LIMIT, &stuck_us)); // too soon
    watchdog_done(&watchdog, now_us + 3600ull * SECOND + SECOND / 4);
    watchdog_begun(&watchdog, now_us + 3600ull * SECOND + SECOND / 4);
    assert_int_equal(bites_after(&watchdog, now_us + 3601ull * SECOND, 8), 8);
}

// A segment that this process was stopped in goes on where it was: only the time in which it ran counts.
static void a_segment_goes_on_where_it_was_stopped(void **state)
{
    struct watchdog watchdog = {0};
    uint64_t now_us = clock_now_us(), stuck_us;
    watchdog_turn(&watchdog);
    watchdog_begun(&watchdog, now_us);
    assert_int_equal(bites_after(&watchdog, now_us, 4), 4);
    now_us += 3600ull * SECOND;
    assert_int_equal(bites_after(&watchdog, now_us, 4), 4);
    now_us += 3600ull * SECOND; // once more, in the same segment
    for (uint32_t i = 0; i < 2; i++)
        assert_false(watchdog_bites(&watchdog, now_us + (uint64_t)i * SECOND, LIMIT, &stuck_us));
    for (uint32_t i = 2; !watchdog_bites(&watchdog, now_us + (uint64_t)i * SECOND, LIMIT, &stuck_us); i++)
        assert_true(i < 6); // but no longer than the limit
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cpu_is_watched),
        cmocka_unit_test(a_slow_machine_is_given_time),
        cmocka_unit_test(who_has_no_work_does_not_hang),
        cmocka_unit_test(work_that_does_not_end_is_seen),
        cmocka_unit_test(a_thread_that_does_not_come_back_is_seen),
        cmocka_unit_test(a_stopped_process_is_not_a_device_that_hangs),
        cmocka_unit_test(a_segment_goes_on_where_it_was_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
