// test_sched_prefix.c: what sequences that begin alike save, and where they go for it (prefix.h). That no promise is broken
// on the way is test_sched_property.c's.
#include "tests/unit/test_sched_mesh.h"

enum { SYSTEM = 160, TAIL = 12, PAGE = 16 };

static struct mesh mesh;

static void begin(uint32_t places, uint32_t pages, uint32_t max_kept)
{
    const struct sched_config config = {.max_sequences = 64,
                                        .max_waiting = 64,
                                        .max_batch_rows = 64,
                                        .mini_batches = 1,
                                        .plan_ahead = 2,
                                        .chunk_tokens = 32,
                                        .tile_rows = 16,
                                        .page_tokens = PAGE,
                                        .context_tokens = 512,
                                        .max_places = MESH_PLACES,
                                        .layers = 4,
                                        .kv_bytes_per_token = 1000,
                                        .page_names = mesh_page_names,
                                        .max_kept = max_kept,
                                        .release_ack = true};
    mesh_init(&mesh, &config, 7);
    mesh.calm = true;
    mesh_s_part_up(&mesh);
    for (uint32_t p = 1; p <= places; p++)
        mesh_place_up(&mesh, p, pages);
}

static struct mesh_seq *arrive(uint32_t family, uint32_t prompt, uint32_t max_new)
{
    struct mesh_seq *q = mesh_arrive(&mesh, prompt, max_new, 0);
    q->family = family;
    q->alike = SYSTEM;
    return q;
}

static struct sched_stats end(void)
{
    mesh_run(&mesh, 20000);
    mesh_check_end(&mesh);
    return mesh_stats(&mesh);
}

static void those_that_come_together_compute_it_once(void **state)
{
    begin(2, 1000, 16);
    for (uint32_t i = 0; i < 32; i++)
        arrive(1, SYSTEM + TAIL, 4);
    struct sched_stats stats = end();
    assert_int_equal(stats.prefill_rows, SYSTEM + 32 * TAIL);
    assert_int_equal(stats.shared_tokens, 31 * SYSTEM);
    assert_int_equal(stats.kept, 1); // the others have nothing that the first has not
    mesh_fini(&mesh);
}

// The first is cancelled when it has computed some: the next goes on from there, and the others with it.
static void another_goes_on_where_the_first_has_left(void **state)
{
    begin(1, 1000, 16);
    struct mesh_seq *first = arrive(1, SYSTEM + TAIL, 5);
    for (uint32_t i = 0; i < 7; i++)
        arrive(1, SYSTEM + TAIL, 5);
    while (first->held < 2 * 32) {
        mesh_tick(&mesh);
        mesh.now_us = mesh_next_us(&mesh);
    }
    mesh_cancel(&mesh, first);
    struct sched_stats stats = end();
    assert_int_equal(stats.prefill_rows - stats.wasted_rows, SYSTEM + 7 * TAIL);
    mesh_fini(&mesh);
}

// A conversation: each turn begins with all full pages of the turn before, its answer's too.
static void a_turn_begins_with_the_one_before(void **state)
{
    begin(1, 1000, 4);
    uint32_t known = 40;
    uint64_t shared = 0, evicted = 0;
    for (uint32_t turn = 0; turn < 5; turn++) {
        struct mesh_seq *q = mesh_arrive(&mesh, known, 30, 0);
        q->family = 1;
        q->alike = 500;
        struct sched_stats stats = end();
        shared += turn == 0 ? 0 : (known - 20 - 1) / PAGE * PAGE; // of the turn before all but its last token were computed
        assert_int_equal(stats.shared_tokens, shared);
        assert_int_equal(stats.kept, 1); // what the last one has is all that there is
        evicted += turn > 0;
        assert_int_equal(stats.evicted, evicted);
        known += 30 + 20;
    }
    mesh_fini(&mesh);
}

// Eight places' worth of prompts at one that holds two: the least recently used go.
static void the_least_recently_used_goes_first(void **state)
{
    begin(1, 36, 64); // 11 pages each, and room to grow
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t family = 1; family <= 4; family++) {
            arrive(round == 0 || family > 1 ? 10 * round + family : 1, SYSTEM + TAIL, 5); // the first family comes again and again
            (void)end();
            arrive(1, SYSTEM + TAIL, 5);
            struct sched_stats stats = end();
            assert_true(stats.evicted == 0 || stats.kept >= 2);
        }
    }
    struct sched_stats stats = mesh_stats(&mesh);
    assert_true(stats.evicted > 0);
    assert_int_equal(stats.prefill_rows, 24 * TAIL + SYSTEM * (1 + 3 + 3 + 3)); // no family was computed twice
    mesh_fini(&mesh);
}

static uint32_t place_of(struct mesh_seq *q)
{
    while (q->next == 0) {
        mesh_tick(&mesh);
        mesh.now_us = mesh_next_us(&mesh) > mesh.now_us ? mesh_next_us(&mesh) : mesh.now_us;
    }
    return q->place;
}

// Rows saved are weighed with what is read longer for the rest of a life.
static void it_goes_where_its_beginning_is_unless_that_is_slow(void **state)
{
    begin(2, 1000, 16);
    struct mesh_seq *first = arrive(1, SYSTEM + TAIL, 5);
    (void)end();
    uint32_t there = first->place;
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(place_of(arrive(1, SYSTEM + TAIL, 60)), there);
    struct mesh_seq *other = arrive(2, SYSTEM + TAIL, 60);
    assert_int_equal(place_of(other), 3 - there); // the balance, for all that it knows
    (void)end();
    mesh_fini(&mesh);
}

// A scheduler that starts anew counts pages once a sequence: those that shared theirs do not all fit. What cannot be counted is
// released where it lies.
static void held_pages_that_cannot_be_counted_are_released(void **state)
{
    begin(1, 20, 16);
    mesh_tick(&mesh);
    struct mesh_seq *first = NULL;
    for (uint32_t i = 0; i < 4; i++) {
        struct mesh_seq *q = arrive(1, SYSTEM + TAIL, 40);
        q->log = q->prompt + 1;
        struct sched_arrive *a = &mesh.events[mesh.event_count - 1].arrive;
        a->generated_tokens = 1;
        a->held_place = 1;
        a->held_positions = SYSTEM + TAIL;
        if (first != NULL)
            mesh_hold(&mesh, q, 1, SYSTEM, first);
        mesh_hold(&mesh, q, 1, SYSTEM + TAIL, NULL);
        q->place = 1;
        q->held = q->next = SYSTEM + TAIL;
        first = first == NULL ? q : first;
    }
    uint32_t released = 0;
    size_t count = mesh_tick(&mesh);
    for (size_t i = 0; i < count; i++)
        released += mesh.actions[i].kind == SCHED_RELEASE && mesh.actions[i].release.place == 1;
    assert_int_equal(released, 3);
    mesh_fini(&mesh);
}

// Sequences whose pages are being released are not what the limit on sequences is about.
static void nobody_is_refused_while_the_cache_goes(void **state)
{
    begin(2, 1000, 100);
    for (uint32_t i = 0; i < 60; i++) {
        arrive(100 + i, 3 * PAGE, 1);
        (void)end();
    }
    struct sched_stats stats = mesh_stats(&mesh);
    assert_int_equal(stats.kept, 60);
    mesh.draining[1] = mesh.draining[2] = true;
    mesh_event(&mesh, SCHED_PLACE_DRAIN)->place = 1;
    mesh_event(&mesh, SCHED_PLACE_DRAIN)->place = 2;
    mesh_place_up(&mesh, 3, 1000);
    mesh_tick(&mesh);
    stats = mesh_stats(&mesh);
    assert_int_equal(stats.kept, 0);
    for (uint32_t i = 0; i < 20; i++)
        arrive(200 + i, 3 * PAGE, 1);
    stats = end();
    assert_int_equal(stats.rejected, 0);
    mesh_fini(&mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_come_together_compute_it_once),
        cmocka_unit_test(another_goes_on_where_the_first_has_left),
        cmocka_unit_test(a_turn_begins_with_the_one_before),
        cmocka_unit_test(the_least_recently_used_goes_first),
        cmocka_unit_test(it_goes_where_its_beginning_is_unless_that_is_slow),
        cmocka_unit_test(held_pages_that_cannot_be_counted_are_released),
        cmocka_unit_test(nobody_is_refused_while_the_cache_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
