/* test_rate.c: a sliding minute: beside a plain list of what was taken when. */
#include <stdlib.h>

#include "common/base/checked.h"
#include "services/gateway/http/keys.h"
#include "tests/cmocka.h"

enum { STEPS = 4000, LIMIT = 100 };

struct taken {
    uint64_t second, amount;
};

static uint64_t sum_of(const struct taken *list, uint32_t count, uint64_t now)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += list[i].second + RATE_SECONDS > now ? list[i].amount : 0;
    return sum;
}

static void test_beside_a_list(void **state)
{
    static struct taken list[STEPS];
    for (unsigned seed = 1; seed < 20; seed++) {
        struct rate rate = {.limit = LIMIT};
        uint32_t count = 0;
        uint64_t now = 1000;
        srand(seed);
        for (uint32_t i = 0; i < STEPS; i++) {
            now += (uint64_t)(rand() % 8 ? rand() % 2 : rand() % 90);
            uint64_t amount = (uint64_t)(rand() % (rand() % 10 ? 12 : 130));
            bool fits = amount <= LIMIT && sum_of(list, count, now) + amount <= LIMIT;
            assert_int_equal(rate_left(&rate, now), LIMIT - sum_of(list, count, now));
            uint32_t wait = rate_wait_s(&rate, now, amount);
            assert_int_equal(wait == 0, fits || amount == 0);
            if (amount <= LIMIT) { /* then, and not a second before */
                assert_true(sum_of(list, count, now + wait) + amount <= LIMIT);
                assert_true(wait == 0 || sum_of(list, count, now + wait - 1) + amount > LIMIT);
            }
            assert_int_equal(rate_take(&rate, now, amount), fits);
            if (fits)
                list[count++] = (struct taken){now, amount};
            if (count > 0 && rand() % 4 == 0) {
                struct taken *back = &list[(uint32_t)rand() % count];
                uint64_t part = back->amount ? (uint64_t)rand() % (back->amount + 1) : 0;
                rate_give_back(&rate, now, back->second, part);
                if (back->second + RATE_SECONDS > now)
                    back->amount -= part;
            }
        }
    }
}

static void test_without_limit(void **state)
{
    struct rate rate = {0};
    assert_true(rate_take(&rate, 5, UINT32_MAX));
    assert_true(rate_left(&rate, 5) == UINT64_MAX);
    assert_int_equal(rate_wait_s(&rate, 5, UINT32_MAX), 0);
    rate.limit = 10; /* lowered below what was taken */
    assert_int_equal(rate_left(&rate, 6), 0);
    assert_int_equal(rate_wait_s(&rate, 6, 1), RATE_SECONDS - 1);
    assert_false(rate_take(&rate, 64, 1));
    assert_true(rate_take(&rate, 65, 10));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_a_list),
        cmocka_unit_test(test_without_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
