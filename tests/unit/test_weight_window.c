// test_weight_window.c: which weights stay and which stream, and in what order they are read, for random mini-batches: all get what they need, and
// those that are together share each read.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/backend/weight_stream.h"
#include "tests/cmocka.h"

static uint64_t random_of(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

// --- tiers ---

static void tiers_keep_to_the_memory(void **state)
{
    uint64_t seed = 7, bytes[64];
    uint32_t chosen = 0, refused = 0;

    for (uint32_t round = 0; round < 3000; round++) {
        const uint32_t count = 1 + (uint32_t)(random_of(&seed) % 64);
        uint64_t sum = 0, largest = 0, always = random_of(&seed) % 1000;
        for (uint32_t s = 0; s < count; s++) {
            bytes[s] = 100 + random_of(&seed) % (round % 2 ? 100 : 1);
            sum += bytes[s];
            largest = MAX(largest, bytes[s]);
        }
        const uint64_t memory = random_of(&seed) % (always + sum + 200);
        struct weight_tiers tiers;
        struct error error;
        if (weight_tiers_choose(bytes, count, always, memory, &tiers, &error)) {
            assert_true(memory < always + sum && memory < always + WEIGHT_SLOTS_MAX * largest);
            refused++;
            continue;
        }
        assert_true(weight_tiers_bytes(&tiers) <= memory);
        uint64_t resident = always, streamed = 0;
        uint32_t streams = 0;
        for (uint32_t s = 0; s < count; s++) {
            const bool is = weight_tiers_streams(&tiers, s);
            streams += is;
            *(is ? &streamed : &resident) += bytes[s];
            assert_true(!is || bytes[s] <= tiers.slot_bytes);
        }
        assert_int_equal(resident, tiers.resident_bytes);
        assert_int_equal(streamed, tiers.streamed_bytes);
        assert_int_equal(streams, tiers.streamed_count);
        assert_int_equal(streams == 0, always + sum <= memory); // nothing streams that need not
        if (streams)
            assert_true(streams > tiers.slots && tiers.slots >= WEIGHT_SLOTS_MIN && tiers.slots <= WEIGHT_SLOTS_MAX);
        chosen++;
    }
    assert_true(chosen > 1000 && refused > 200);
}

// Between two streamed segments lie as many resident ones as between any others, or one more or fewer.
static void streamed_segments_are_spread_evenly(void **state)
{
    uint64_t bytes[33];

    for (uint32_t s = 0; s < 33; s++)
        bytes[s] = 100;
    for (uint64_t memory = 400; memory < 3300; memory += 50) {
        struct weight_tiers tiers;
        uint32_t last = UINT32_MAX, least = UINT32_MAX, most = 0;
        assert_int_equal(weight_tiers_choose(bytes, 33, 0, memory, &tiers, NULL), STATUS_OK);
        for (uint32_t s = 0; s < 33; s++)
            if (weight_tiers_streams(&tiers, s)) {
                if (last != UINT32_MAX) {
                    least = MIN(least, s - last);
                    most = MAX(most, s - last);
                }
                last = s;
            }
        if (tiers.streamed_count > 1)
            assert_true(most - least <= 1);
    }
}

static void the_refusal_has_the_numbers(void **state)
{
    const uint64_t bytes[] = {10 << 20, 20 << 20, 20 << 20, 20 << 20, 20 << 20, 10 << 20};
    struct weight_tiers tiers;
    struct error error;

    assert_int_equal(weight_tiers_choose(bytes, 6, 5 << 20, 40 << 20, &tiers, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(error.text, "the weights need 45.0 MiB of memory even if all layers are fetched anew each step, there are "
                                    "40.0 MiB for them");
    assert_int_equal(weight_tiers_choose(bytes, 6, 5 << 20, 45 << 20, &tiers, &error), STATUS_OK);
    assert_int_equal(tiers.streamed_count, 6);
    assert_int_equal(tiers.slots, 2);
}

// --- the window ---

enum { SEGMENTS = 21 };

// Mini-batches that step through the segments; the disk takes its time.
struct run {
    struct weight_tiers tiers;
    struct weight_window window;
    uint32_t held[WEIGHT_SLOTS_MAX]; // by slot: the segment that is there or being read; WEIGHT_NONE
    bool there[WEIGHT_SLOTS_MAX];
    uint32_t users, at[WEIGHT_USERS_MAX]; // the segment that each needs next; WEIGHT_NONE: idle
    uint64_t steps[WEIGHT_USERS_MAX];
    uint64_t reads;
};

static void run_begin(struct run *run, uint32_t users, uint32_t streamed, uint32_t slots)
{
    *run = (struct run){.users = users, .tiers = {.segment_count = SEGMENTS, .streamed_count = streamed, .slots = slots}};
    weight_window_init(&run->window, &run->tiers);
    for (uint32_t i = 0; i < WEIGHT_SLOTS_MAX; i++)
        run->held[i] = WEIGHT_NONE;
    for (uint32_t u = 0; u < users; u++)
        run->at[u] = WEIGHT_NONE;
}

static void want(struct run *run, uint32_t user, uint32_t segment)
{
    run->at[user] = segment;
    weight_window_want(&run->window, user, segment);
}

static void read_ahead(struct run *run)
{
    uint32_t slot;
    weight_window_give_up(&run->window);
    while ((slot = weight_window_free_slot(&run->window)) != WEIGHT_NONE && (run->held[slot] == WEIGHT_NONE || run->there[slot])) {
        run->held[slot] = weight_window_take(&run->window);
        run->there[slot] = false;
        run->reads++;
    }
}

static void one_read_ends(struct run *run, uint64_t *seed)
{
    for (uint32_t i = 0, slot = (uint32_t)random_of(seed); i < run->tiers.slots; i++, slot++)
        if (run->held[slot % run->tiers.slots] != WEIGHT_NONE && !run->there[slot % run->tiers.slots]) {
            run->there[slot % run->tiers.slots] = true;
            return;
        }
}

static bool can_run(const struct run *run, uint32_t user, uint32_t *age)
{
    const uint32_t s = run->at[user], slot = s < SEGMENTS ? weight_window_find(&run->window, s, age) : WEIGHT_NONE;
    if (s == WEIGHT_NONE)
        return false;
    if (s == SEGMENTS || !weight_tiers_streams(&run->tiers, s))
        return true;
    if (slot != WEIGHT_NONE)
        assert_int_equal(run->held[slot], s);
    return slot != WEIGHT_NONE && run->there[slot];
}

// The one that an engine takes: with the smallest age; WEIGHT_NONE: nobody can run.
static uint32_t choose(const struct run *run)
{
    uint32_t best = WEIGHT_NONE, best_age = UINT32_MAX, age = 0;
    for (uint32_t u = 0; u < run->users; u++)
        if (can_run(run, u, &age) && age < best_age)
            best = u, best_age = age;
    return best;
}

static void advance(struct run *run, uint32_t user)
{
    if (run->at[user] < SEGMENTS) {
        want(run, user, run->at[user] + 1);
        return;
    }
    run->steps[user]++; // the head is done
    want(run, user, WEIGHT_NONE);
}

// The one whose turn it is advances; a read ends where nobody can.
static void go_on(struct run *run, uint64_t *seed)
{
    read_ahead(run);
    const uint32_t user = choose(run);
    if (user == WEIGHT_NONE)
        one_read_ends(run, seed);
    else
        advance(run, user);
}

// Steps begin and end at random, users are delayed at random: everyone goes on, and within the reads that a turn takes.
static void everyone_goes_on(void **state)
{
    uint64_t seed = 11;

    for (uint32_t round = 0; round < 300; round++) {
        struct run run;
        const uint32_t slots = 2 + round % 2, streamed = slots + 1 + (uint32_t)(random_of(&seed) % (SEGMENTS - slots));
        uint64_t waited_since[WEIGHT_USERS_MAX] = {0};
        run_begin(&run, 1 + (uint32_t)(random_of(&seed) % 16), streamed, slots);
        for (uint32_t turn = 0; turn < 4000; turn++) {
            uint32_t user = (uint32_t)(random_of(&seed) % run.users), age;
            if (run.at[user] == WEIGHT_NONE && random_of(&seed) % 8 == 0) {
                want(&run, user, 0);
                waited_since[user] = run.reads;
            }
            read_ahead(&run);
            if (can_run(&run, user, &age)) { // at random, not the best: workers answer as they like
                advance(&run, user);
                waited_since[user] = run.reads;
            }
            one_read_ends(&run, &seed);
            // Users elsewhere may hold the window while they are delayed, but what is read is what is needed.
            for (uint32_t u = 0; u < run.users; u++)
                if (run.at[u] != WEIGHT_NONE)
                    assert_true(run.reads - waited_since[u] <= 2ull * streamed + slots);
        }
        for (uint32_t u = 0; u < run.users; u++)
            assert_true(run.steps[u] > 0);
    }
}

// The zig-zag: mini-batches that step all the time share each read, however many they are.
static void reads_do_not_grow_with_mini_batches(void **state)
{
    enum { STEPS = 20 };
    uint64_t seed = 3;

    for (uint32_t slots = 2; slots <= 3; slots++)
        for (uint32_t streamed = slots + 1; streamed <= SEGMENTS; streamed += 3)
            for (uint32_t users = 1; users <= 16; users *= 2) {
                struct run run;
                run_begin(&run, users, streamed, slots);
                while (run.steps[users - 1] < STEPS) {
                    for (uint32_t u = 0; u < users; u++)
                        if (run.at[u] == WEIGHT_NONE)
                            want(&run, u, 0); // the next step was queued
                    go_on(&run, &seed);
                }
                assert_in_range(run.reads, (STEPS - 1) * streamed, (STEPS + 1) * streamed + slots);
                for (uint32_t u = 0; u < users; u++)
                    assert_in_range(run.steps[u], STEPS - 1, STEPS);
            }
}

// One that comes late, when the others are in mid-step, goes together with them from their next step on.
static void a_late_one_falls_into_step(void **state)
{
    uint64_t seed = 3, before = 0;
    struct run run;

    run_begin(&run, 2, 12, 3);
    for (uint32_t turn = 0; run.steps[0] < 10; turn++) {
        if (run.at[0] == WEIGHT_NONE)
            want(&run, 0, 0);
        if (run.at[1] == WEIGHT_NONE && (run.at[0] == 9 || run.steps[1] > 0))
            want(&run, 1, 0);
        go_on(&run, &seed);
        if (run.steps[0] == 3)
            before = run.reads;
    }
    assert_in_range(run.reads - before, 6 * 12, 7 * 12 + 3);
    assert_in_range(run.steps[1], 8, 10);
}

static void the_window_rests_at_the_beginning(void **state)
{
    uint64_t seed = 5;
    struct run run;
    uint32_t age;

    run_begin(&run, 2, 10, 3);
    want(&run, 0, 0);
    while (run.steps[0] == 0)
        go_on(&run, &seed);
    for (uint32_t i = 0; i < 10; i++) {
        read_ahead(&run);
        one_read_ends(&run, &seed);
    }
    assert_int_equal(run.reads, 10 + 3); // read ahead for the next step while the head ran, and not further
    for (uint32_t i = 0; i < 3; i++)
        assert_int_not_equal(weight_window_find(&run.window, run.window.segments[i], &age), WEIGHT_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiers_keep_to_the_memory),
                                       cmocka_unit_test(streamed_segments_are_spread_evenly),
                                       cmocka_unit_test(the_refusal_has_the_numbers),
                                       cmocka_unit_test(everyone_goes_on),
                                       cmocka_unit_test(reads_do_not_grow_with_mini_batches),
                                       cmocka_unit_test(a_late_one_falls_into_step),
                                       cmocka_unit_test(the_window_rests_at_the_beginning)};
    return cmocka_run_group_tests_name("weight window", tests, NULL, NULL);
}
