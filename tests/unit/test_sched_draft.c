// test_sched_draft.c: rows of guessed tokens: when there are any, and what they may not do. Their answers under all that goes wrong:
// test_sched_property.c.
//
// Every tick also runs the checks of test_sched_mesh.h.
#include "tests/unit/test_sched_mesh.h"

static struct mesh mesh;

// The guesser: it always guesses the most, with this chance, for one sequence (0: for all) or for all but one.
static struct {
    uint64_t sequence, never;
    double chance;
    uint32_t asked;
} guesser;

static uint32_t guess(void *user, uint64_t sequence, uint32_t most, double *chance)
{
    guesser.asked++;
    *chance = guesser.chance;
    return sequence != guesser.never && (guesser.sequence == 0 || guesser.sequence == sequence) ? most : 0;
}

static const struct sched_config base = {
    .max_sequences = 64,
    .max_waiting = 64,
    .max_batch_rows = 256,
    .mini_batches = 1,
    .plan_ahead = 2,
    .chunk_tokens = 16,
    .tile_rows = 8,
    .page_tokens = 16,
    .context_tokens = 1024,
    .max_places = MESH_PLACES,
    .layers = 10,
    .kv_bytes_per_token = 1000,
    .drafts = guess,
};

// A step takes the s-part 500 us and row_us for each row; 0: 900, however many. What is guessed is right.
static struct mesh *start(double chance, uint32_t row_us)
{
    guesser.sequence = guesser.never = 0;
    guesser.chance = chance;
    guesser.asked = 0;
    mesh_init(&mesh, &base, 1);
    mesh.s_part_row_us = row_us;
    mesh.s_part_us = 900;
    mesh.draft_right_permille = 1000;
    mesh_s_part_up(&mesh);
    mesh_place_up(&mesh, 0, 1000);
    return &mesh;
}

// Until they have so many tokens.
static void run_to(struct mesh *m, const struct mesh_seq *q, uint32_t log)
{
    for (uint32_t tick = 0; q->log < log; tick++) {
        assert_true(tick < 20000);
        mesh_next_tick(m);
    }
}

static void where_rows_are_cheap_steps_carry_drafts(void **state)
{
    struct mesh *m = start(0.9, 0);
    struct mesh_seq *q = mesh_arrive(m, 10, 400, 0);
    run_to(m, q, 60);
    uint64_t steps = m->steps, tokens = q->log;
    run_to(m, q, 360);
    assert_in_range(m->steps - steps, 1, (q->log - tokens) / 6);
    assert_int_equal(m->flight_count[0], 1); // each waits for the one before
    mesh_end(m, 20000);
}

// Most of a step is spent waiting for a worker far away, which costs the same whatever the rows. Long without guesses, the core must
// neither take one row's time for that of each row, nor forget what a row costs.
static void after_a_time_without_guesses_they_are_tried_again(void **state)
{
    struct mesh *m = start(0.9, 0);
    m->slow_us = 15000;
    struct mesh_seq *q = mesh_arrive(m, 10, 800, 0);
    for (uint32_t part = 0; part < 2; part++) {
        guesser.sequence = UINT64_MAX; // nobody's
        run_to(m, q, q->log + 200);
        guesser.sequence = 0;
        run_to(m, q, q->log + 50);
        uint64_t steps = m->steps, tokens = q->log;
        run_to(m, q, q->log + 100);
        assert_in_range(m->steps - steps, 1, (q->log - tokens) / 4);
    }
    mesh_end(m, 20000);
}

// One of the first steps is slow, as when another program runs: that is not believed for ever. Even ones: at the s-part.
static void one_disturbed_step_does_not_end_guesses(void **state)
{
    for (uint32_t disturbed = 0; disturbed < 40; disturbed++) {
        struct mesh *m = start(0.9, 0);
        uint32_t *us = disturbed % 2 == 0 ? &m->s_part_us : &m->slow_us;
        m->slow_us = 15000;
        struct mesh_seq *q = mesh_arrive(m, 34, 900, 0);
        while (m->steps < disturbed / 2)
            mesh_next_tick(m);
        *us += 300000;
        while (m->steps == disturbed / 2)
            mesh_next_tick(m);
        *us -= 300000;
        run_to(m, q, 300);
        uint64_t steps = m->steps;
        run_to(m, q, 400);
        assert_in_range(m->steps - steps, 1, 60);
        mesh_end(m, 20000);
    }
}

static void where_guesses_are_wrong_steps_are_sent_ahead(void **state)
{
    struct mesh *m = start(0.02, 0);
    struct mesh_seq *q = mesh_arrive(m, 10, 400, 0);
    run_to(m, q, 60);
    uint64_t drafted = m->drafted;
    for (uint32_t tick = 0; tick < 100; tick++) {
        mesh_next_tick(m);
        assert_int_equal(m->flight_count[0], 2);
    }
    assert_int_equal(m->drafted, drafted);
    assert_true(guesser.asked > 100); // whether that is still so
    mesh_end(m, 20000);
}

static void where_a_row_costs_what_a_token_is_worth_nobody_is_asked(void **state)
{
    struct mesh *m = start(1, 1000);
    struct mesh_seq *q = NULL;
    for (uint32_t i = 0; i < 16; i++)
        q = mesh_arrive(m, 10, 200, 0);
    run_to(m, q, 60);
    uint32_t asked = guesser.asked;
    uint64_t drafted = m->drafted;
    run_to(m, q, 160);
    assert_int_equal(guesser.asked, asked);
    assert_int_equal(m->drafted, drafted);
    mesh_end(m, 20000);
}

// A draft makes the step of four 1.2 times as long, which pays for four drafts but not for one.
static void who_has_no_drafts_is_not_made_slow(void **state)
{
    for (uint32_t all = 0; all < 2; all++) {
        struct mesh *m = start(1, 400);
        struct mesh_seq *q = NULL;
        for (uint32_t i = 0; i < 4; i++) {
            struct mesh_seq *next = mesh_arrive(m, 10, 400, 0);
            q = q ? q : next;
        }
        guesser.sequence = all ? 0 : q->id;
        run_to(m, q, 60);
        uint64_t drafted = m->drafted;
        run_to(m, q, 300);
        if (all)
            assert_true(m->drafted > drafted + 50);
        else
            assert_int_equal(m->drafted, drafted);
        mesh_end(m, 20000);
    }
}

// Even if all others have drafts that are right.
static void the_only_one_without_is_not_made_slow(void **state)
{
    struct mesh *m = start(0.97, 30);
    struct mesh_seq *q = mesh_arrive(m, 10, 700, 0);
    for (uint32_t i = 0; i < 7; i++)
        mesh_arrive(m, 10, 700, 0);
    guesser.never = q->id;
    run_to(m, q, 60);
    uint64_t drafted = m->drafted, steps = m->steps;
    run_to(m, q, 160);
    // Eight rows take 1,400 us, and each more 50.
    assert_in_range(1400 + 50 * (m->drafted - drafted) / (m->steps - steps), 1400, 1540);
    mesh_end(m, 20000);
}

// As for f32 products, whose order of sums depends on the number of rows.
static void where_rows_are_not_alike_nothing_is_guessed(void **state)
{
    struct mesh *m = start(0.9, 0);
    m->events[0].s_part_up.rows_alike = false;
    struct mesh_seq *q = mesh_arrive(m, 10, 200, 0);
    run_to(m, q, 150);
    assert_true(m->drafted == 0 && guesser.asked == 0);
    mesh_end(m, 20000);
}

// Steps with drafts do not show the time of a row's attention; enough steps are without.
static void a_slow_worker_is_noticed(void **state)
{
    struct mesh *m = start(0.95, 0);
    mesh_place_down(m, 0);
    mesh_place_up(m, 1, 1000);
    m->place_token_ns = 100;
    struct mesh_seq *q = mesh_arrive(m, 300, 700, 0), *other = mesh_arrive(m, 300, 700, 0);
    run_to(m, q, 500);
    const struct sched_place_info before = mesh_place_info(m, 1);
    m->place_token_ns = 800;
    uint64_t drafted = m->drafted;
    run_to(m, q, 990);
    const struct sched_place_info after = mesh_place_info(m, 1);
    assert_true(m->drafted > drafted + 300 && other->log > 600);
    assert_true(after.token_us > 1.3 * before.token_us);
    mesh_end(m, 20000);
}

static void prompts_come_first(void **state)
{
    struct mesh *m = start(0.9, 0);
    struct mesh_seq *q = mesh_arrive(m, 10, 700, 0);
    run_to(m, q, 60);
    struct mesh_seq *late = mesh_arrive(m, 600, 40, 0);
    uint64_t drafted = m->drafted;
    mesh_tick(m); // the step in flight may have some
    drafted = m->drafted;
    while (late->held < 600) {
        mesh_next_tick(m);
        assert_true(m->drafted == drafted || late->held >= 584);
    }
    run_to(m, q, 400);
    assert_true(m->drafted > drafted + 100);
    mesh_end(m, 20000);
}

// A guesser that claims more than it keeps makes steps slow, but not wrong.
static void wrong_drafts_change_nothing(void **state)
{
    struct mesh *m = start(0.99, 0);
    m->draft_right_permille = 0;
    struct mesh_seq *q = mesh_arrive(m, 10, 300, 0), *other = mesh_arrive(m, 30, 100, 50);
    run_to(m, q, 200);
    const struct sched_stats stats = mesh_stats(m);
    assert_true(stats.drafted > 500 && stats.drafts_right == 0);
    assert_int_equal(other->log, 80);
    mesh_end(m, 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_rows_are_cheap_steps_carry_drafts),
        cmocka_unit_test(after_a_time_without_guesses_they_are_tried_again),
        cmocka_unit_test(one_disturbed_step_does_not_end_guesses),
        cmocka_unit_test(where_guesses_are_wrong_steps_are_sent_ahead),
        cmocka_unit_test(where_a_row_costs_what_a_token_is_worth_nobody_is_asked),
        cmocka_unit_test(who_has_no_drafts_is_not_made_slow),
        cmocka_unit_test(the_only_one_without_is_not_made_slow),
        cmocka_unit_test(where_rows_are_not_alike_nothing_is_guessed),
        cmocka_unit_test(a_slow_worker_is_noticed),
        cmocka_unit_test(prompts_come_first),
        cmocka_unit_test(wrong_drafts_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
