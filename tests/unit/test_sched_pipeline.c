// test_sched_pipeline.c: the core with several stages: what one stage must not notice, what workers may read, and which rows steps have.
#include <math.h>

#include "common/sched/state.h"
#include "tests/unit/test_sched_mesh.h"

static struct mesh mesh;

static struct sched_config config_of(uint32_t stages, uint32_t mini_batches, enum sched_micro_batch micro_batch)
{
    return (struct sched_config){
        .max_sequences = 60,
        .max_waiting = 60,
        .max_waiting_batch = 60,
        .max_batch_rows = 64,
        .mini_batches = mini_batches,
        .plan_ahead = 2,
        .stages = stages,
        .micro_batch = micro_batch,
        .page_tokens = 8,
        .context_tokens = 200,
        .max_places = MESH_PLACES,
        .balance = true,
        .layers = 4,
        .kv_bytes_per_token = 1000,
    };
}

// Runs some sequences to their end, with places and kinds by a seed. Returns a hash of all that the core decided.
static uint64_t decisions_of(const struct sched_config *config, uint64_t seed, bool stages_reported)
{
    struct mesh *m = &mesh;
    mesh_init(m, config, seed);
    m->stages_reported = stages_reported;
    m->shares_cores = seed % 3 == 0;
    m->batch_permille = 300;
    m->s_part_us = seed % 2 ? UINT32_MAX : 900;
    m->jitter_permille = 100;
    mesh_s_part_up(m);
    for (uint32_t p = 0; p <= seed % MESH_PLACES; p++)
        mesh_place_up(m, p, 60 + 400 * (seed % 2));
    for (uint32_t i = 0; i < 50; i++) {
        struct mesh_seq *q = mesh_arrive(m, 1 + mesh_random(m, 90), 1 + mesh_random(m, 40), 0);
        if (mesh_chance(m, m->batch_permille))
            q->class = m->events[m->event_count - 1].arrive.class = SCHED_CLASS_BATCH;
        for (uint32_t k = mesh_random(m, 8); k > 0; k--) {
            mesh_tick(m);
            m->now_us += 300;
        }
    }
    mesh_run(m, 30000);
    mesh_check_end(m);
    uint64_t decisions = m->decisions;
    mesh_fini(m);
    return decisions;
}

// A single stage is no pipeline: nothing that is said of stages changes what the core decides.
static void one_stage_decides_as_if_there_were_none(void **state)
{
    for (uint64_t seed = 1; seed <= 120; seed++) {
        struct sched_config none = config_of(0, 1 + (uint32_t)(seed % 4), 0), one = none;
        none.mini_batch_auto = one.mini_batch_auto = seed / 4 % 2;
        one.stages = 1;
        uint64_t wanted = decisions_of(&none, seed, false);
        assert_true(wanted != 0 && decisions_of(&one, seed, true) == wanted);
    }
}

// --- what workers may read --------------------------------------------------------------------------------------------

// Returns the load limit of a mini-batch with a worker elsewhere, of `stages` stages of so many microseconds each.
static double limit_of(uint32_t stages, double each_us, uint32_t link_us)
{
    struct mesh *m = &mesh;
    struct sched_config config = config_of(stages, 2 * stages, 0);
    config.max_running = 4 * stages;
    mesh_init(m, &config, 1);
    const struct sched_time all[] = {{1, stages * each_us}, {64, stages * each_us}}, own[] = {{1, each_us}, {64, each_us}};
    struct sched_stage_up of[SCHED_STAGES_MAX];
    for (uint32_t i = 0; i < stages; i++)
        of[i] = (struct sched_stage_up){own, 2};
    mesh_s_part_up(m);
    m->events[0].s_part_up.layers = all;
    m->events[0].s_part_up.layer_count = 2;
    m->events[0].s_part_up.stages = of;
    m->events[0].s_part_up.stage_count = stages;
    mesh_place_up(m, 1, 100000);
    m->events[1].place_up.bytes_per_second = 1000000000; // a token in a microsecond
    m->events[1].place_up.link_us = link_us;
    mesh_arrive(m, 1, 4, 0);
    mesh_tick(m);
    double limit = (double)sched_load_limit(m->sched, 0);
    mesh_run(m, 1000);
    mesh_fini(m);
    return limit;
}

// r·W·P/N = T(b): of P equal stages a mini-batch may read what takes a P-th of all layers' time, and a layer's round trip passes while its
// stage works on the other mini-batch.
static void stages_share_the_workers(void **state)
{
    for (uint32_t stages = 1; stages <= SCHED_STAGES_MAX; stages *= 2) {
        assert_true(fabs(limit_of(stages, 8000, 0) - 8000) < 2);
        assert_true(fabs(limit_of(stages, 8000, 100) - (8000 - 4 * 100.0 / stages)) < 2);
    }
}

// --- rows of steps ----------------------------------------------------------------------------------------------------

// A prompt's rows are all in one step; short prompts go together.
static void whole_prompts_are_never_cut(void **state)
{
    struct mesh *m = &mesh;
    struct sched_config config = config_of(2, 2, SCHED_MICRO_BATCH_WHOLE);
    config.chunk_tokens = 20;
    mesh_init(m, &config, 3);
    mesh_s_part_up(m);
    mesh_place_up(m, 0, 1000);
    for (uint32_t i = 0; i < 30; i++)
        mesh_arrive(m, 1 + mesh_random(m, i % 2 ? 50 : 9), 1 + mesh_random(m, 10), 0);
    uint32_t together = 0, steps = 0;
    for (uint32_t tick = 0; tick < 20000 && (tick == 0 || mesh_next_us(m) != SCHED_NEVER); tick++) {
        size_t count = mesh_next_tick(m);
        for (size_t a = 0; a < count; a++) {
            if (m->actions[a].kind != SCHED_STEP)
                continue;
            const struct sched_step_action *step = &m->actions[a].step;
            uint32_t prompts = 0, rows = 0;
            for (uint32_t r = 0; r < step->run_count; r++) {
                const struct mesh_seq *q = mesh_find(m, step->runs[r].sequence);
                if (step->runs[r].position >= q->prompt)
                    continue;
                assert_true(step->runs[r].position == 0 && step->runs[r].count == q->prompt);
                prompts++;
                rows += q->prompt;
            }
            assert_true(prompts <= 1 || rows <= 20);
            together += prompts > 1;
            steps++;
        }
    }
    mesh_check_end(m);
    mesh_fini(m);
    assert_true(together > 0 && steps > 20);
}

// Every step of a mini-batch that has prompts has the rows of all others, decode rows first, and rows of class batch keep to it.
static void uniform_steps_have_equal_rows(void **state)
{
    struct mesh *m = &mesh;
    for (uint32_t stages = 1; stages <= SCHED_STAGES_MAX; stages++) {
        struct sched_config config = config_of(stages, stages, SCHED_MICRO_BATCH_UNIFORM);
        config.chunk_tokens = 24;
        config.max_running = 10 * stages;
        mesh_init(m, &config, stages);
        mesh_s_part_up(m);
        mesh_place_up(m, 0, 4000);
        for (uint32_t i = 0; i < 60; i++)
            mesh_arrive(m, 60 + mesh_random(m, 60), 1 + mesh_random(m, 12), 0);
        uint32_t equal = 0, unequal = 0;
        for (uint32_t tick = 0; tick < 20000 && (tick == 0 || mesh_next_us(m) != SCHED_NEVER); tick++) {
            size_t count = mesh_next_tick(m);
            const struct sched_stats stats = mesh_stats(m);
            for (size_t a = 0; a < count; a++) {
                if (m->actions[a].kind != SCHED_STEP)
                    continue;
                assert_true(m->actions[a].step.row_count <= 24);
                equal += stats.waiting > 0 && m->actions[a].step.row_count == 24;
                unequal += stats.waiting > 0 && m->actions[a].step.row_count < 24;
            }
        }
        mesh_check_end(m);
        mesh_fini(m);
        assert_true(equal > 20 && unequal == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stage_decides_as_if_there_were_none),
        cmocka_unit_test(stages_share_the_workers),
        cmocka_unit_test(whole_prompts_are_never_cut),
        cmocka_unit_test(uniform_steps_have_equal_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
