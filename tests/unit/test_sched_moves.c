// test_sched_moves.c: answers to moves that come late. Every tick also runs the checks of test_sched_mesh.h.
#include "tests/unit/test_sched_mesh.h"

static struct mesh mesh;

static struct sched_stats stats_of(const struct mesh *m)
{
    struct sched_stats stats;
    sched_get_stats(m->sched, &stats);
    return stats;
}

// Until it is on its way from place 1 to place 2, where the answer will not come by itself.
static void await_move(struct mesh *m, struct mesh_seq *q)
{
    for (int i = 0; i < 100 && q->moving_until == 0; i++)
        mesh_next_tick(m);
    assert_true(q->moving_until != 0);
    assert_int_equal(q->move_from, 1);
    assert_int_equal(q->move_to, 2);
    q->moving_until = UINT64_MAX;
}

// The place that takes it goes down, comes back, and is to take it again: an answer to the first MOVE is no answer to the second.
static void a_late_answer_is_not_taken_for_a_later_ones(void **state)
{
    static const struct sched_config config = {
        .max_sequences = 64,
        .max_waiting = 64,
        .max_batch_rows = 256,
        .mini_batches = 1,
        .mini_batch_fill = 1,
        .plan_ahead = 2,
        .tile_rows = 16,
        .step_target_us = 50000,
        .page_tokens = 16,
        .context_tokens = 1024,
        .max_places = MESH_PLACES,
        .layers = 10,
        .kv_bytes_per_token = 1000,
    };

    for (int ok = 0; ok < 2; ok++) {
        struct mesh *m = &mesh;
        mesh_init(m, &config, 3);
        mesh_s_part_up(m);
        mesh_place_up(m, 1, 1000);
        struct mesh_seq *q = mesh_arrive(m, 64, 200, 0);
        for (int i = 0; i < 20; i++)
            mesh_next_tick(m);
        mesh_place_up(m, 2, 1000);
        m->draining[1] = true;
        mesh_event(m, SCHED_PLACE_DRAIN)->place = 1;
        await_move(m, q);
        const uint64_t first = q->move_id;
        mesh_place_down(m, 2);
        for (int i = 0; i < 5; i++)
            mesh_next_tick(m);
        mesh_place_up(m, 2, 1000);
        await_move(m, q);
        assert_true(q->move_id > first);

        const uint64_t ignored = stats_of(m).ignored_events;
        mesh_event(m, SCHED_MOVED)->moved = (struct sched_moved){q->id, first, q->held, ok};
        mesh_next_tick(m);
        assert_int_equal(stats_of(m).ignored_events, ignored + 1);
        assert_int_equal(stats_of(m).moved, 0);
        assert_true(q->moving_until != 0); // nor has it been asked for anew
        q->moving_until = m->now_us;
        mesh_run(m, 10000);
        assert_int_equal(stats_of(m).moved, 1);
        assert_int_equal(stats_of(m).rebuilt, 0);
        mesh_check_end(m);
        mesh_fini(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_answer_is_not_taken_for_a_later_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
