/* test_sched_stops.c: the load-stabilizing schedule where clients end their sequences (stop strings, or they leave) long before
 * max_tokens. */
#include "common/base/checked.h"
#include "tests/unit/test_sched_mesh.h"

enum { RUNNING = 8, SEQUENCES = MESH_SEQS, PROMPT = 20, MOST = 1000, STOP_AT = 40 };

static struct mesh mesh;

/* Their places are taken again at once, though nobody ever ended by itself or reached max_tokens. */
static void who_is_cancelled_makes_room(void **state)
{
    const struct sched_config config = {
        .max_sequences = SEQUENCES + 8,
        .max_running = RUNNING,
        .max_waiting = SEQUENCES,
        .max_batch_rows = 256,
        .mini_batches = 1,
        .mini_batch_fill = 1,
        .plan_ahead = 1,
        .tile_rows = 8,
        .page_tokens = 16,
        .context_tokens = 2048,
        .max_places = MESH_PLACES,
        .layers = 10,
        .kv_bytes_per_token = 1000,
    };
    struct mesh *m = &mesh;
    uint64_t running = 0, steps = 0, over = 0;
    (void)state;

    mesh_init(m, &config, 1);
    mesh_s_part_up(m);
    mesh_place_up(m, 1, 10000);
    for (int i = 0; i < SEQUENCES; i++)
        mesh_arrive(m, PROMPT, MOST, 0);
    while (over < SEQUENCES * 3 / 4) {
        uint64_t next = mesh_next_us(m);
        m->now_us = next != SCHED_NEVER && next > m->now_us ? next : m->now_us;
        size_t count = mesh_tick(m);
        for (size_t i = 0; i < count; i++) {
            if (m->actions[i].kind != SCHED_STEP || over < SEQUENCES / 4)
                continue;
            running += m->actions[i].step.run_count;
            steps++;
        }
        over = 0;
        for (uint32_t i = 0; i < m->seq_count; i++) {
            struct mesh_seq *q = &m->seqs[i];
            if (!q->cancelled && q->log >= PROMPT + STOP_AT)
                mesh_cancel(m, q);
            over += q->cancelled;
        }
        assert_true(m->steps < 100000);
    }
    printf("%.1f of %d run\n", (double)running / (double)steps, RUNNING);
    assert_true((double)running / (double)steps >= 0.9 * RUNNING);
    mesh_fini(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_is_cancelled_makes_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
