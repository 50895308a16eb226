// test_scheduler_names.c: the place of a worker that has long been gone is the next new name's; nobody else loses one.
#include "common/base/checked.h"
#include "common/base/random.h"
#include "services/scheduler/registration.h"
#include "tests/cmocka.h"

enum { MOST = 9, CASES = 20000 };

static const uint64_t now_us = 10 * NAMES_KEPT_US;

static void long_gone_before_new_before_lately_gone(void **state)
{
    struct names_place places[] = {
        {.heard_us = 0},                                           // up, or the s-part's
        {.is_free = true, .heard_us = now_us - NAMES_KEPT_US},     // not yet
        {.is_free = true, .heard_us = now_us - 1000000},           // a moment ago
        {.is_free = true, .heard_us = now_us - NAMES_KEPT_US - 2}, // long gone ...
        {.is_free = true, .heard_us = now_us - NAMES_KEPT_US - 3}, // ... and longer
    };
    assert_int_equal(names_choose(places, 5, 9, now_us), 4);
    assert_int_equal(names_choose(places, 4, 9, now_us), 3);
    assert_int_equal(names_choose(places, 3, 9, now_us), 3);
    assert_int_equal(names_choose(places, 3, 3, now_us), 1);
    assert_int_equal(names_choose(places, 1, 1, now_us), NAMES_NO_PLACE);
    assert_int_equal(names_choose(places, 0, 1, now_us), 0);
}

// Whatever the places are.
static void whatever_the_places_are(void **state)
{
    uint64_t random = 7;
    uint32_t reused = 0, added = 0, none = 0;
    for (uint32_t i = 0; i < CASES; i++) {
        struct names_place places[MOST];
        const uint32_t count = (uint32_t)(random_next(&random) % (MOST + 1));
        bool any_free = false, any_old = false;
        for (uint32_t p = 0; p < count; p++) {
            const uint64_t ago_us = random_next(&random) % (2 * NAMES_KEPT_US);
            places[p] = (struct names_place){random_next(&random) % 3 == 0, now_us - ago_us};
            any_free |= places[p].is_free;
            any_old |= places[p].is_free && ago_us > NAMES_KEPT_US;
        }
        const uint32_t index = names_choose(places, count, MOST, now_us);
        none += index == NAMES_NO_PLACE;
        added += index == count;
        reused += index < count;
        assert_int_equal(index == NAMES_NO_PLACE, count == MOST && !any_free);
        assert_int_equal(index == count, count < MOST && !any_old);
        for (uint32_t p = 0; p < count && index < count; p++)
            assert_true(places[index].is_free && (!places[p].is_free || places[p].heard_us >= places[index].heard_us));
    }
    assert_true(reused > CASES / 20 && added > CASES / 20 && none > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_gone_before_new_before_lately_gone),
        cmocka_unit_test(whatever_the_places_are),
    };
    return cmocka_run_group_tests_name("scheduler names", tests, NULL, NULL);
}
