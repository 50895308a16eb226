// test_id_map.c: ids and their slots, beside a plain list of them.
#include <stdlib.h>

#include "common/base/id_map.h"
#include "tests/cmocka.h"

enum { CAPACITY = 28, IDS = 60, DRAWS = 200000 };

static uint64_t state = 0x243f6a8885a308d3u;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

// Ids as sequences have them (an incarnation above, a counter below), small ones, and the ends of the range.
static uint64_t id_of(uint32_t i)
{
    return i == 0 ? 0 : i == 1 ? UINT64_MAX : i < 20 ? i : UINT64_C(0x19a2b3c4d5) << 20 | (uint64_t)i << 3;
}

static void slots_stay(void **unused)
{
    struct id_map map;
    uint32_t slot_of[IDS], generation_of[IDS], count = 0, refused = 0;

    assert_int_equal(id_map_open(CAPACITY, &map), STATUS_OK);
    for (uint32_t i = 0; i < IDS; i++)
        slot_of[i] = ID_MAP_NONE;
    for (uint32_t n = 0; n < DRAWS; n++) {
        const uint32_t i = draw(IDS);
        if (slot_of[i] == ID_MAP_NONE && draw(4)) {
            const uint32_t slot = id_map_add(&map, id_of(i));
            assert_int_equal(slot == ID_MAP_NONE, count == CAPACITY);
            refused += slot == ID_MAP_NONE;
            if (slot == ID_MAP_NONE)
                continue;
            assert_true(slot < CAPACITY);
            for (uint32_t k = 0; k < IDS; k++)
                assert_true(slot_of[k] != slot);
            slot_of[i] = slot;
            generation_of[i] = map.generations[slot];
            count++;
        } else if (slot_of[i] != ID_MAP_NONE) {
            id_map_remove(&map, id_of(i));
            assert_false(id_map_is_current(&map, slot_of[i], generation_of[i]));
            slot_of[i] = ID_MAP_NONE;
            count--;
        }
        const uint32_t other = draw(IDS); // of any other, the slot is what it was
        assert_int_equal(id_map_find(&map, id_of(other)), slot_of[other]);
        if (slot_of[other] != ID_MAP_NONE)
            assert_true(id_map_is_current(&map, slot_of[other], generation_of[other]) && map.ids[slot_of[other]] == id_of(other));
        assert_int_equal(map.count, count);
    }
    assert_true(refused > DRAWS / 1000); // it was full now and then
    id_map_close(&map);
}

static void generations_tell(void **unused)
{
    struct id_map map;

    assert_int_equal(id_map_open(2, &map), STATUS_OK);
    const uint32_t slot = id_map_add(&map, 7), before = map.generations[slot];
    assert_true(id_map_is_current(&map, slot, before));
    id_map_remove(&map, 7);
    assert_false(id_map_is_current(&map, slot, map.generations[slot])); // a free slot is nobody's
    assert_int_equal(id_map_add(&map, 8), slot);                        // the slot that was given back goes first
    assert_false(id_map_is_current(&map, slot, before));
    id_map_close(&map);
}

static void all_are_listed(void **unused)
{
    struct id_map map;
    uint32_t cursor = 0, slot, seen = 0;

    assert_int_equal(id_map_open(CAPACITY, &map), STATUS_OK);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(id_map_add(&map, 100 + i), i); // low numbers first
    id_map_remove(&map, 103);
    while ((slot = id_map_next(&map, &cursor)) != ID_MAP_NONE) {
        assert_true(slot != 3 && map.ids[slot] == 100 + slot);
        seen++;
        if (slot % 2)
            id_map_remove(&map, map.ids[slot]); // while they are listed
    }
    assert_int_equal(seen, 8);
    assert_int_equal(map.count, 5);
    id_map_close(&map);
    id_map_close(&map); // an empty one too
}

// The map is slow, but right, when many ids fall together. With ids of sequences it is not slow: few look-ups go far from home.
static void ids_of_sequences_are_spread(void **unused)
{
    enum { MANY = 16384 };
    struct id_map map;
    uint64_t probes = 0;

    assert_int_equal(id_map_open(MANY, &map), STATUS_OK);
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(id_map_add(&map, UINT64_C(0x19a2b3c4d5e) << 20 | i), i);
    for (uint32_t begin = 0; begin <= map.bucket_mask; begin++) { // the mean length of a run, weighted by its length
        uint32_t length = 0;
        while (begin + length <= map.bucket_mask && map.buckets[begin + length])
            length++;
        probes += (uint64_t)length * length;
        begin += length;
    }
    assert_true(probes / MANY < 16);
    assert_true(id_map_bytes(MANY) >= (uint64_t)MANY * (8 + 4 + 4) + 2ull * MANY * 4);
    id_map_close(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_stay),
        cmocka_unit_test(generations_tell),
        cmocka_unit_test(all_are_listed),
        cmocka_unit_test(ids_of_sequences_are_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
