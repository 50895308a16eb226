// test_sched_placement.c: the local pool, the workers, or both.
#include "tests/unit/test_sched_mesh.h"

static struct mesh mesh;

static struct mesh *start(enum sched_placement placement)
{
    const struct sched_config config = {
        .max_sequences = 90,
        .max_waiting = 80,
        .max_batch_rows = 64,
        .mini_batches = 1,
        .chunk_tokens = 32,
        .tile_rows = 16,
        .step_target_us = 20000,
        .placement = placement,
        .page_tokens = 16,
        .context_tokens = 1000,
        .max_places = MESH_PLACES,
        .layers = 10,
        .kv_bytes_per_token = 10000,
        .plan_ahead = 2,
    };
    mesh_init(&mesh, &config, 1);
    mesh_s_part_up(&mesh);
    return &mesh;
}

// Even if the other would be faster, and although what does not fit has to wait.
static void kv_goes_where_it_is_told(void **state)
{
    const int ticks = 24;                                      // prefill of all, and nobody has ended
    const uint32_t local[] = {2, 2, 0}, workers[] = {4, 0, 6}; // pages for two sequences in the local pool
    for (int placement = SCHED_PLACE_AUTO; placement <= SCHED_PLACE_WORKERS; placement++) {
        struct mesh *m = start((enum sched_placement)placement);
        mesh_place_up(m, 0, 24);
        mesh_place_up(m, 1, 1000);
        for (int i = 0; i < 6; i++)
            mesh_arrive(m, 100, 60, 0);
        mesh_tick(m);
        for (int i = 0; i < ticks; i++) {
            m->now_us = mesh_next_us(m);
            mesh_tick(m);
        }
        assert_int_equal(mesh_place_info(m, 0).sequences, local[placement]);
        assert_int_equal(mesh_place_info(m, 1).sequences, workers[placement]);
        mesh_run(m, 10000);
        mesh_check_end(m);
        for (uint32_t i = 0; i < m->seq_count; i++)
            assert_int_equal(m->seqs[i].reason, SCHED_LENGTH);
        mesh_fini(m);
    }
}

// A worker on the same cores only measures noise beside the local pool: however fast it seems, its links gain nothing.
static void the_same_cores_are_no_faster_elsewhere(void **state)
{
    for (int shares_cores = 0; shares_cores <= 1; shares_cores++) {
        struct mesh *m = start(SCHED_PLACE_AUTO);
        m->shares_cores = shares_cores;
        mesh_place_up(m, 0, 1000);
        mesh_place_up(m, 1, 1000);
        m->events[m->event_count - 1].place_up.bytes_per_second *= 2; // the worker
        for (int i = 0; i < 16; i++)
            mesh_arrive(m, 400, 500, 0);
        for (int i = 0; i < 300; i++) { // prefill of all, and nobody has ended
            mesh_tick(m);
            m->now_us = mesh_next_us(m);
        }
        assert_int_equal(mesh_place_info(m, 0).sequences + mesh_place_info(m, 1).sequences, 16);
        if (shares_cores)
            assert_int_equal(mesh_place_info(m, 0).sequences, 16);
        else
            assert_true(mesh_place_info(m, 1).sequences > 0);
        mesh_end(m, 20000);
    }
}

static void what_the_only_place_cannot_hold_ends(void **state)
{
    struct mesh *m = start(SCHED_PLACE_LOCAL);
    mesh_place_up(m, 0, 5);
    mesh_place_up(m, 1, 1000);
    struct mesh_seq *q = mesh_arrive(m, 100, 60, 0);
    mesh_run(m, 1000);
    assert_int_equal(q->reason, SCHED_NO_SPACE);
    assert_true(m->now_us < 1000000); // nothing was waited for
    mesh_check_end(m);
    mesh_fini(m);
}

// When a mesh or its scheduler starts, more places follow the first one that comes up.
static void who_is_large_waits_for_places_that_start_later(void **state)
{
    for (int comes = 0; comes <= 3; comes++) {
        struct mesh *m = start(comes < 2 ? SCHED_PLACE_AUTO : SCHED_PLACE_WORKERS);
        m->now_us = comes < 2 ? 7000000 : 1000000;
        mesh_place_up(m, 0, comes < 2 ? 5 : 1000);
        mesh_tick(m);
        m->now_us = 7000000; // where all is at workers, the local pool is not the first
        if (comes >= 2)
            mesh_place_up(m, 2, 5);
        struct mesh_seq *q = mesh_arrive(m, 100, 60, 0);
        mesh_tick(m);
        assert_true(mesh_next_us(m) <= 7000000 + 5000000); // judged again without any event
        m->now_us += 4000000;
        if (comes % 2)
            mesh_place_up(m, 1, 1000);
        mesh_run(m, 1000);
        assert_int_equal(q->reason, comes % 2 ? SCHED_LENGTH : SCHED_NO_SPACE);
        assert_true(comes % 2 || m->now_us >= 7000000 + 5000000);
        mesh_check_end(m);
        mesh_fini(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_goes_where_it_is_told),
        cmocka_unit_test(the_same_cores_are_no_faster_elsewhere),
        cmocka_unit_test(what_the_only_place_cannot_hold_ends),
        cmocka_unit_test(who_is_large_waits_for_places_that_start_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
