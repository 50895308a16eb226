/* test_divergence.c: KL divergence, log-probabilities and their sums, against values worked out by hand. */
#include <math.h>

#include "common/sampler/softmax.h"
#include "tests/cmocka.h"

#define assert_near(value, wanted) assert_true(fabs((value) - (wanted)) <= 1e-9)

static void two_coins(void **state)
{
    /* p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 log 3/2 + 1/4 log 1/2 */
    const float p[] = {logf(3), 0}, q[] = {7, 7};
    struct divergence d;

    divergence_of(p, q, 2, 1, &d);
    assert_true(fabs(d.kl - (0.75 * log(1.5) + 0.25 * log(0.5))) < 1e-7);
    assert_true(fabs(d.reference_log_probability - log(0.25)) < 1e-7);
    assert_near(d.log_probability, log(0.5));
    assert_true(d.same_best); /* of equals the lowest id */
}

static void logits_know_no_origin(void **state)
{
    const float p[] = {1, -2, 0.5f, 3}, q[] = {101, 98, 100.5f, 103};
    struct divergence d;

    divergence_of(p, q, 4, 2, &d);
    assert_near(d.kl, 0);
    assert_near(d.log_probability, d.reference_log_probability);
    divergence_of(p, p, 4, 2, &d);
    assert_true(d.kl == 0);
}

static void what_is_impossible_counts_nothing_and_what_became_so_is_infinite(void **state)
{
    const float p[] = {0, -INFINITY}, q[] = {0, 0}, n[] = {0, NAN};
    struct divergence d;

    divergence_of(p, q, 2, 0, &d);
    assert_near(d.kl, log(2));
    divergence_of(q, p, 2, 0, &d);
    assert_true(isinf(d.kl) && d.kl > 0);
    divergence_of(q, n, 2, 0, &d);
    assert_true(isnan(d.kl));
}

static void sums(void **state)
{
    const struct divergence items[] = {{0.1, -1, -2, true}, {0.5, -2, -3, false}, {0.3, -3, -4, true}};
    struct divergence_summary sum;

    divergence_sum(items, 3, &sum);
    assert_int_equal(sum.positions, 3);
    assert_near(sum.kl_mean, 0.3);
    assert_near(sum.kl_error, 0.2 / sqrt(3));
    assert_near(sum.kl_max, 0.5);
    assert_int_equal(sum.kl_max_at, 1);
    assert_near(sum.same_best, 2.0 / 3);
    assert_near(sum.reference_perplexity, exp(2));
    assert_near(sum.perplexity, exp(3));
    divergence_sum(items, 1, &sum);
    assert_true(sum.kl_error == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_coins),
        cmocka_unit_test(logits_know_no_origin),
        cmocka_unit_test(what_is_impossible_counts_nothing_and_what_became_so_is_infinite),
        cmocka_unit_test(sums),
    };
    return cmocka_run_group_tests_name("divergence", tests, NULL, NULL);
}
