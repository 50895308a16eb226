/* test_buddy.c: blocks of powers of two, beside a plain map of which 4 KiB are whose. */
#include <stdlib.h>
#include <string.h>

#include "common/base/alloc.h"
#include "common/base/checked.h"
#include "tests/cmocka.h"

enum { UNIT = 1 << BUDDY_ORDER_LEAST, UNITS = 77, HELD = 40, DRAWS = 200000 };

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

struct held {
    uint64_t at;
    uint32_t order;
};

static void mark(unsigned char *map, const struct held *block, unsigned char from, unsigned char to)
{
    for (uint64_t unit = block->at / UNIT; unit < (block->at + ((uint64_t)1 << block->order)) / UNIT; unit++) {
        assert_true(unit < UNITS);
        assert_int_equal(map[unit], from);
        map[unit] = to;
    }
}

/* A block that would fit, whole and where such may begin. */
static bool there_is_one(const unsigned char *map, uint32_t order)
{
    const uint32_t size = (uint32_t)(((uint64_t)1 << order) / UNIT);
    for (uint32_t at = 0; at + size <= UNITS; at += size) {
        uint32_t unit = 0;
        while (unit < size && !map[at + unit])
            unit++;
        if (unit == size)
            return true;
    }
    return false;
}

static void taken_and_given(void **unused)
{
    struct buddy *buddy;
    struct held held[HELD];
    unsigned char map[UNITS] = {0};
    uint32_t count = 0, refused = 0;
    uint64_t used = 0;

    assert_int_equal(buddy_open((uint64_t)UNITS * UNIT + UNIT / 2, &buddy), STATUS_OK);
    for (uint32_t i = 0; i < DRAWS; i++) {
        if (count < HELD && draw(2)) {
            struct held block = {.order = BUDDY_ORDER_LEAST + draw(5)};
            block.at = buddy_take(buddy, block.order);
            assert_int_equal(block.at != BUDDY_NONE, there_is_one(map, block.order)); /* halves become one again */
            refused += block.at == BUDDY_NONE;
            if (block.at == BUDDY_NONE)
                continue;
            assert_int_equal(block.at % ((uint64_t)1 << block.order), 0);
            mark(map, &block, 0, 1);
            used += (uint64_t)1 << block.order;
            held[count++] = block;
        } else if (count) {
            const uint32_t gone = draw(count);
            mark(map, &held[gone], 1, 0);
            buddy_give(buddy, held[gone].at);
            used -= (uint64_t)1 << held[gone].order;
            held[gone] = held[--count];
        }
        assert_int_equal(buddy_free_bytes(buddy), (uint64_t)UNITS * UNIT - used);
    }
    assert_true(refused > DRAWS / 100); /* it was full now and then */
    buddy_close(buddy);
}

static void the_edges(void **unused)
{
    struct buddy *buddy;

    assert_int_equal(buddy_open(UNIT - 1, &buddy), STATUS_OK);
    assert_true(buddy_take(buddy, 0) == BUDDY_NONE);
    buddy_close(buddy);
    assert_int_equal(buddy_open(UNIT, &buddy), STATUS_OK);
    assert_true(buddy_take(buddy, BUDDY_ORDER_LEAST + 1) == BUDDY_NONE && buddy_take(buddy, 60) == BUDDY_NONE);
    assert_int_equal(buddy_take(buddy, 0), 0); /* less than the least is that */
    assert_true(buddy_take(buddy, 0) == BUDDY_NONE);
    buddy_give(buddy, 0);
    assert_int_equal(buddy_take(buddy, BUDDY_ORDER_LEAST), 0);
    buddy_close(buddy);
    assert_int_equal(buddy_open(UINT64_MAX, &buddy), STATUS_RESOURCE_EXHAUSTED);
    buddy_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(taken_and_given), cmocka_unit_test(the_edges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
