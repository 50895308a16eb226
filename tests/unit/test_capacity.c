// test_capacity.c: the search for the highest rate, against limits that are sharp and ones that are not; targets and verdicts.
#include <math.h>

#include "common/base/checked.h"
#include "services/fastdecode/capacity/capacity.h"
#include "tests/cmocka.h"

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

// Searches with a server that meets the target up to `limit`. Each trial sees another limit, by a lognormal factor of sigma `noise`, and
// goes the other way with probability `fluke`.
static struct rate_search search(double limit, double guess, bool confirm, double noise, double fluke, uint64_t *seed)
{
    struct rate_search s;
    double rate;

    rate_search_begin(&s, guess, 1e-3, 1e5, 0.05, confirm);
    while ((rate = rate_search_next(&s)) > 0) {
        double normal = sqrt(-2 * log(1 - uniform(seed))) * cos(6.283185307179586 * uniform(seed));
        bool met = rate <= limit * exp(noise * normal);
        rate_search_take(&s, uniform(seed) < fluke ? !met : met);
    }
    return s;
}

static void a_sharp_limit_is_found(void **state)
{
    uint64_t seed = 1;

    for (int i = 0; i < 2000; i++) {
        double limit = exp(log(0.01) + uniform(&seed) * log(1e6)), guess = exp(log(0.01) + uniform(&seed) * log(1e6));
        for (int confirm = 0; confirm < 2; confirm++) {
            struct rate_search s = search(limit, guess, confirm, 0, 0, &seed);
            double found = rate_search_found(&s);
            if (!(found <= limit && limit <= found * 1.05))
                fail_msg("limit %g, guess %g: found %g", limit, guess, found);
            assert_true(s.missed > limit && s.missed <= found * 1.05 && s.met_twice == confirm && s.missed_twice == confirm);
            assert_true(s.trials <= fabs(log2(limit / guess)) + log2(1 / 0.05) + 5);
        }
    }
}

static void the_ends_of_the_range(void **state)
{
    uint64_t seed = 1;

    struct rate_search none = search(1e-4, 1, true, 0, 0, &seed);
    assert_true(rate_search_found(&none) == 0 && none.missed == 1e-3);
    struct rate_search all = search(1e9, 1, true, 0, 0, &seed);
    assert_true(rate_search_found(&all) == 1e5 && all.missed == 0);
    rate_search_begin(&all, 500, 1, 2, 0.05, true); // a guess outside
    assert_true(rate_search_next(&all) == 2);
}

// Trials near the limit go either way: the middle of many searches is at the limit, and none is far from it.
static void a_limit_that_is_not_sharp_is_found(void **state)
{
    enum { SEARCHES = 2000 };
    double sum = 0, square = 0, trials = 0;
    uint64_t seed = 5;

    for (int i = 0; i < SEARCHES; i++) {
        struct rate_search s = search(100, 3 + 400 * uniform(&seed), true, 0.05, 0, &seed);
        double off = log(rate_search_found(&s) / 100);
        assert_true(fabs(off) < 0.25 && s.trials < RATE_TRIALS_MAX);
        sum += off / SEARCHES;
        square += off * off / SEARCHES;
        trials += (double)s.trials / SEARCHES;
    }
    assert_true(fabs(sum) < 0.05 && sqrt(square) < 0.07 && trials < 20);
}

// One trial in ten goes wrong, wherever it is: confirming keeps that from deciding.
static void a_fluke_does_not_decide(void **state)
{
    enum { SEARCHES = 4000 };
    uint32_t right[2] = {0};
    uint64_t seed = 9;

    for (int i = 0; i < SEARCHES; i++)
        for (int confirm = 0; confirm < 2; confirm++) {
            struct rate_search s = search(100, 10, confirm, 0, 0.1, &seed);
            right[confirm] += fabs(log(rate_search_found(&s) / 100)) < 0.1;
        }
    assert_true(right[0] < 0.6 * SEARCHES); // so that the next line says something
    assert_true(right[1] > 0.85 * SEARCHES);
}

static void targets_from_the_settings(void **state)
{
    struct capacity_targets t = capacity_targets_of(NULL, 0, 0, -1, 0.01, 0.004, 100);

    assert_true(fabs(t.tbt_p99_s - 0.02) < 1e-12 && t.delay_p50_s == 2 && t.ttft_p99_s == 0 && t.error_share == 0.01);
    t = capacity_targets_of("relaxed", 0, 3, -1, 0, 0.004, 10);
    assert_true(fabs(t.tbt_p99_s - 0.1) < 1e-12 && fabs(t.delay_p50_s - 0.2) < 1e-12 && t.ttft_p99_s == 3);
    t = capacity_targets_of("none", 0, 3, 0, 0, 0.004, 10);
    assert_true(t.tbt_p99_s == 0 && t.delay_p50_s == 0);
    t = capacity_targets_of(NULL, 0.5, 0, 7, 0, 0.004, 10);
    assert_true(t.tbt_p99_s == 0.5 && t.delay_p50_s == 7);
}

static void what_a_lone_prompt_takes(void **state)
{
    const struct capacity_undisturbed u = {.count = 3, .prompt_tokens = {100, 200, 400}, .ttft_s = {0.1, 0.3, 0.4}};
    static const double cases[][2] = {{1, 0.1}, {100, 0.1}, {150, 0.2}, {200, 0.3}, {300, 0.35}, {400, 0.4}, {800, 0.6}};

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++)
        assert_true(fabs(capacity_lone_ttft_s(&u, cases[i][0]) - cases[i][1]) < 1e-12);
    struct capacity_undisturbed one = u, equal = u, falls = u;
    one.count = 1;
    assert_true(capacity_lone_ttft_s(&one, 5000) == 0.1);
    equal.prompt_tokens[1] = equal.prompt_tokens[2] = 100;
    assert_true(capacity_lone_ttft_s(&equal, 150) == 0.4);
    falls.ttft_s[2] = 0.1;
    assert_true(capacity_lone_ttft_s(&falls, 5000) == 0.1);
    assert_true(capacity_lone_ttft_s(&(struct capacity_undisturbed){0}, 5) == 0);
}

static void times_of_a_few_values(void **state)
{
    double values[200];

    for (int i = 0; i < 200; i++)
        values[i] = (i * 77 % 200) + 1; // 1 to 200 in disorder
    struct sim_times t = capacity_times_of(values, 200);
    assert_true(t.count == 200 && fabs(t.mean_s - 100.5) < 1e-9 && t.p50_s == 101 && t.p99_s == 198 && t.max_s == 200);
    t = capacity_times_of(values, 1);
    assert_true(t.p50_s == 1 && t.p99_s == 1 && t.max_s == 1);
    t = capacity_times_of(values, 0);
    assert_true(t.count == 0 && t.p99_s == 0);
}

static void verdicts(void **state)
{
    const struct capacity_targets t = {.tbt_p99_s = 0.02, .ttft_p99_s = 5, .delay_p50_s = 2, .error_share = 0.01};
    const struct capacity_probe good = {
        .requests = 200, .failed = 1, .refused = 1, .tbt = {.p99_s = 0.02}, .ttft = {.p99_s = 5}, .delay = {.p50_s = 2}};
    struct capacity_probe p = good;

    assert_int_equal(capacity_judge(&t, &p), CAPACITY_MET);
    assert_int_equal(capacity_judge(&(struct capacity_targets){0}, &p), CAPACITY_ERRORS);
    p.failed++;
    assert_int_equal(capacity_judge(&t, &p), CAPACITY_ERRORS);
    p = good;
    p.tbt.p99_s = 0.021;
    assert_int_equal(capacity_judge(&t, &p), CAPACITY_TBT);
    p = good;
    p.delay.p50_s = 2.1;
    assert_int_equal(capacity_judge(&t, &p), CAPACITY_DELAY);
    p = good;
    p.ttft.p99_s = 5.1;
    assert_int_equal(capacity_judge(&t, &p), CAPACITY_TTFT);
    p.refused = p.failed = 0;
    assert_int_equal(capacity_judge(&(struct capacity_targets){0}, &p), CAPACITY_MET); // no target, no limit
    assert_string_equal(capacity_bound_name(CAPACITY_DELAY), "delay_p50");
    assert_null(capacity_bound_name(CAPACITY_MET));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sharp_limit_is_found),
        cmocka_unit_test(the_ends_of_the_range),
        cmocka_unit_test(a_limit_that_is_not_sharp_is_found),
        cmocka_unit_test(a_fluke_does_not_decide),
        cmocka_unit_test(targets_from_the_settings),
        cmocka_unit_test(what_a_lone_prompt_takes),
        cmocka_unit_test(times_of_a_few_values),
        cmocka_unit_test(verdicts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
