/* test_measure.c: what measuring gives: figures that can be, in the time it was given. How exact they are is the bench's to show. */
#include <math.h>

#include "common/base/clock.h"
#include "common/base/measure.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/kv/kv_store.h"
#include "tests/cmocka.h"
#include "tests/integration/pace.h"

enum { LIMIT_US = 20000, MEMORY = 2 << 20 };

static const struct kv_shape shape = {
    .layers = 30, .heads = 9, .kv_heads = 3, .head_dim = 64, .page_tokens = 16, .type = KV_F16, .max_sequences = 4};

static struct thread_pool *open_pool(uint32_t threads)
{
    struct thread_pool *pool;
    struct error error;

    assert_int_equal(kernels_init(NULL, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(threads, &pool), STATUS_OK);
    return pool;
}

static void memory_is_read_at_some_rate(void **state)
{
    struct thread_pool *pool = open_pool(2);

    double rate = read_rate_measure(pool, MEMORY, 5, LIMIT_US);
    assert_true(rate > 1e6 && rate < 1e13);
    thread_pool_close(pool);
}

static void attention_has_costs(void **state)
{
    for (uint32_t threads = 1; threads <= 2; threads++) {
        struct thread_pool *pool = open_pool(threads);
        struct kv_costs costs = {0};
        struct error error;
        struct pace_deadline deadline = pace_deadline(10000000);

        assert_int_equal(kv_measure(&shape, MEMORY, pool, LIMIT_US, &costs, &error), STATUS_OK);
        assert_false(pace_passed(&deadline)); /* one pass of each at least */
        assert_true(costs.token_us > 0 && isfinite(costs.token_us));
        assert_true(costs.pair_us > 0 && isfinite(costs.pair_us));
        assert_true(costs.call_us >= 0 && costs.row_us >= 0 && costs.prefill_row_us >= 0);
        thread_pool_close(pool);
    }
}

static void a_shape_that_cannot_be_is_refused(void **state)
{
    struct thread_pool *pool = open_pool(1);
    struct kv_shape bad = shape;
    struct kv_costs costs;
    struct error error;

    bad.head_dim = 7;
    assert_int_equal(kv_measure(&bad, MEMORY, pool, LIMIT_US, &costs, &error), STATUS_INVALID_ARGUMENT);
    thread_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_read_at_some_rate),
        cmocka_unit_test(attention_has_costs),
        cmocka_unit_test(a_shape_that_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
