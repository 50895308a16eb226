// test_expiry.c: by which time things expire, with both clocks played.
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "tests/cmocka.h"

enum { DAY_S = 86400, LOOK_S = 30, HOUR_S = 3600 };
static const uint64_t NOW_S = 1800000000, BOOTED_US = 5000000;

// A clock and a moment; `ahead_s` is the wall clock's error.
struct played {
    struct expiry_clock clock;
    uint64_t monotonic_us;
    int64_t ahead_s;
};

static uint64_t true_s(const struct played *p) { return NOW_S + (p->monotonic_us - BOOTED_US) / 1000000; }

static void play(struct played *p, uint32_t seconds)
{
    for (uint32_t s = 0; s < seconds; s += LOOK_S) {
        p->monotonic_us += LOOK_S * UINT64_C(1000000);
        expiry_look(&p->clock, p->monotonic_us, (uint64_t)((int64_t)true_s(p) + p->ahead_s) * 1000000);
    }
}

static struct played begin(int64_t ahead_s)
{
    struct played p = {.monotonic_us = BOOTED_US, .ahead_s = ahead_s};
    play(&p, LOOK_S);
    return p;
}

static void nothing_that_was_there_expires_soon_after_a_start(void **state)
{
    struct played p = {0};
    assert_int_equal(expiry_time_s(&p.clock, NOW_S), 0);
    p = begin(0);
    play(&p, HOUR_S - LOOK_S);
    assert_int_equal(expiry_time_s(&p.clock, 0), 0);
    assert_int_equal(expiry_time_s(&p.clock, NOW_S - 1), 0);
    assert_int_equal(expiry_time_s(&p.clock, true_s(&p)), true_s(&p)); // what was made since is timed by the same clock
    play(&p, LOOK_S);
    assert_int_equal(expiry_time_s(&p.clock, 0), true_s(&p));
}

static void a_leap_does_not_count_until_it_has_stood(void **state)
{
    struct played p = begin(0);
    play(&p, 2 * HOUR_S);
    p.ahead_s = 31 * DAY_S;
    play(&p, HOUR_S);
    assert_int_equal(expiry_time_s(&p.clock, 0), true_s(&p));
    p.ahead_s = 0; // it is put right
    play(&p, LOOK_S);
    p.ahead_s = 31 * DAY_S; // and wrong again: the time before does not count
    play(&p, HOUR_S);
    assert_int_equal(expiry_time_s(&p.clock, 0), true_s(&p));
    p.ahead_s = 2 * DAY_S; // less wrong: what has stood for so long is the least of both
    play(&p, LOOK_S);
    assert_int_equal(expiry_time_s(&p.clock, 0), true_s(&p) + 2 * DAY_S);
}

static void a_step_back_counts_at_once(void **state)
{
    struct played p = begin(31 * DAY_S);
    play(&p, HOUR_S / 2);
    p.ahead_s = 0;
    play(&p, LOOK_S);
    assert_int_equal(expiry_time_s(&p.clock, 0), 0);
    play(&p, HOUR_S);
    assert_int_equal(expiry_time_s(&p.clock, 0), true_s(&p));
}

// Clocks are put right in small steps.
static void a_slow_clock_is_followed(void **state)
{
    struct played p = begin(0);
    play(&p, 2 * HOUR_S);
    for (uint32_t i = 0; i < 100; i++) {
        p.ahead_s++;
        play(&p, LOOK_S);
        assert_int_equal(expiry_time_s(&p.clock, 0), true_s(&p) + (uint64_t)p.ahead_s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_that_was_there_expires_soon_after_a_start),
        cmocka_unit_test(a_leap_does_not_count_until_it_has_stood),
        cmocka_unit_test(a_step_back_counts_at_once),
        cmocka_unit_test(a_slow_clock_is_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
