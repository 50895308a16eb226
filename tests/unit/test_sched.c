// test_sched.c: the scheduling core, rule by rule: steps, chunks, the queue, places. Failures: test_sched_failures.c.
//
// Every tick also runs the checks of test_sched_mesh.h.
#include "tests/unit/test_sched_mesh.h"

static struct mesh mesh;

static struct mesh *start(struct sched_config config)
{
    mesh_init(&mesh, &config, 1);
    mesh_s_part_up(&mesh);
    mesh_place_up(&mesh, 0, 1000);
    return &mesh;
}

// The n-th STEP among the actions of the last tick.
static const struct sched_step_action *step_of(const struct mesh *m, size_t count, uint32_t n)
{
    for (size_t i = 0; i < count; i++) {
        if (m->actions[i].kind == SCHED_STEP && n-- == 0)
            return &m->actions[i].step;
    }
    return NULL;
}

static void a_lone_request_is_planned_ahead(void **state)
{
    struct mesh *m = start(mesh_config);
    struct mesh_seq *q = mesh_arrive(m, 10, 4, 0);
    size_t count = mesh_tick(m);
    const struct sched_step_action *first = step_of(m, count, 0), *second = step_of(m, count, 1);
    assert_non_null(first);
    assert_non_null(second);
    assert_null(step_of(m, count, 2)); // two in flight, not more
    assert_int_equal(first->runs[0].count, 10);
    assert_true(first->runs[0].sample && first->runs[0].open && !first->runs[0].use_last_sampled);
    assert_int_equal(second->runs[0].position, 10);
    assert_true(second->runs[0].use_last_sampled && !second->runs[0].open);
    mesh_end(m, 10000);
    assert_int_equal(q->reason, SCHED_LENGTH);
    assert_int_equal(m->steps, 4); // one a token: nothing was planned beyond the limit
}

static void an_unseen_end_costs_one_row(void **state)
{
    struct mesh *m = start(mesh_config);
    struct mesh_seq *q = mesh_arrive(m, 10, 50, 5);
    mesh_run(m, 1000);
    assert_int_equal(q->reason, SCHED_EOS);
    assert_int_equal(mesh_stats(m).wasted_rows, 1);
    assert_int_equal(m->steps, 6);
    mesh_end(m, 10000);
}

static void decodes_and_chunk_fill_tiles(void **state)
{
    struct sched_config config = mesh_config;
    config.plan_ahead = 1;
    config.chunk_tokens = 100;
    struct mesh *m = start(config);
    for (int i = 0; i < 5; i++)
        mesh_arrive(m, 3, 100, 0);
    m->calm = true;
    for (int i = 0; i < 3; i++)
        mesh_next_tick(m);
    mesh_arrive(m, 400, 10, 0);
    for (int i = 0; i < 3; i++) {
        const struct sched_step_action *step = step_of(m, mesh_next_tick(m), 0);
        assert_non_null(step);
        assert_int_equal(step->row_count, 96); // 5 decodes, and 91 of the 100 that the chunk may have
        assert_int_equal(step->run_count, 6);
        assert_int_equal(step->runs[5].count, step->row_count - 5);
    }
    mesh_end(m, 10000);
}

static void a_fixed_chunk_is_kept_and_shared(void **state)
{
    struct sched_config config = mesh_config;
    config.chunk_tokens = 32;
    config.plan_ahead = 1;
    struct mesh *m = start(config);
    mesh_arrive(m, 40, 1, 0);
    mesh_arrive(m, 20, 1, 0);
    const struct sched_step_action *step = step_of(m, mesh_tick(m), 0);
    assert_int_equal(step->row_count, 32);
    step = step_of(m, mesh_next_tick(m), 0);
    assert_int_equal(step->run_count, 2); // the rest of the first, and all that fits of the second
    assert_int_equal(step->runs[0].count, 8);
    assert_true(step->runs[0].sample);
    assert_int_equal(step->runs[1].count, 20);
    mesh_end(m, 10000);
}

static void the_chosen_chunk_keeps_the_step_target(void **state)
{
    struct sched_config config = mesh_config; // the mesh reports 1,000 us + 50 us a row
    config.plan_ahead = 1;
    config.max_batch_rows = 1024;
    config.step_target_us = 6000; // so there is room for 100 rows
    struct mesh *m = start(config);
    for (int i = 0; i < 4; i++)
        mesh_arrive(m, 5 + 30 * i, 300, 0);
    for (int i = 0; i < 30; i++)
        mesh_next_tick(m);
    assert_true(mesh_stats(m).row_us > 45 && mesh_stats(m).row_us < 75);
    mesh_arrive(m, 900, 5, 0);
    const struct sched_step_action *step = step_of(m, mesh_next_tick(m), 0);
    assert_true(step->row_count >= 64 && step->row_count <= 100);
    assert_int_equal(step->row_count % config.tile_rows, 0); // with the rows that decode
    mesh_end(m, 10000);
    // Alone it delays no other: the whole cap.
    m = start(config);
    mesh_arrive(m, 900, 5, 0);
    step = step_of(m, mesh_tick(m), 0);
    assert_int_equal(step->row_count, 512);
    mesh_end(m, 10000);
}

// Four run. The default target is stretched while more wait than run; one that was set is not.
static void those_who_wait_count_as_those_who_run(void **state)
{
    static const struct {
        uint32_t target_us, waiting, least, most;
    } cases[] = {{0, 1, 24, 40}, {0, 40, 120, 200}, {16000, 40, 200, 310}}; // 2.2 x 1.2 ms: 32 rows; 4 times that: 191; 16 ms: 300
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sched_config config = mesh_config;
        config.plan_ahead = 1;
        config.max_batch_rows = 1024;
        config.step_target_us = cases[i].target_us;
        struct mesh *m = start(config);
        for (int k = 0; k < 4; k++)
            mesh_arrive(m, 5 + 80 * k, 300, 0);
        for (int k = 0; k < 30; k++)
            mesh_next_tick(m);
        for (uint32_t k = 0; k < cases[i].waiting; k++)
            mesh_arrive(m, 900, 5, 0);
        const struct sched_step_action *step = step_of(m, mesh_next_tick(m), 0);
        assert_in_range(step->row_count, cases[i].least, cases[i].most);
        mesh_end(m, 10000);
    }
}

// If decoding alone takes longer than the target, prefill still gets a share of the time beside it.
static void a_full_batch_does_not_starve_prompts(void **state)
{
    struct sched_config config = mesh_config;
    config.plan_ahead = 1;
    config.max_batch_rows = 1024;
    config.step_target_us = 1000; // one decode row takes that
    struct mesh *m = start(config);
    for (int i = 0; i < 40; i++)
        mesh_arrive(m, 5 + i, 300, 0);
    while (mesh_stats(m).decode_rows < 40 * 20)
        mesh_next_tick(m);
    mesh_arrive(m, 900, 5, 0);
    const struct sched_step_action *step = step_of(m, mesh_next_tick(m), 0);
    // 1,000 + 40 x 50 us for decoding, 1.4 times as much for 84 rows
    assert_true(step->row_count >= 40 + 60 && step->row_count <= 40 + 100);
    mesh_end(m, 10000);
}

// Steps that are all nearly alike show only noise, not the cost of a row more: still no step may be far too long.
static void noise_does_not_make_the_chunk_large(void **state)
{
    struct sched_config config = mesh_config;
    config.plan_ahead = 1;
    config.max_batch_rows = 1024;
    config.step_target_us = 5000; // room for 80 rows
    for (uint32_t seed = 0; seed < 50; seed++) {
        struct mesh *m = start(config);
        m->jitter_permille = 200;
        m->rng += seed;
        for (int i = 0; i < 16; i++)
            mesh_arrive(m, 5, 360 + 12 * i, 0); // 16 rows a step, and fewer towards the end
        for (int i = 0; i < 430; i++)
            mesh_next_tick(m);
        mesh_arrive(m, 900, 5, 0);
        for (int i = 0; i < 5; i++) {
            const struct sched_step_action *step = step_of(m, mesh_next_tick(m), 0);
            assert_in_range(1000 + 50 * step->row_count, 1000 + 50 * 16, 1.5 * config.step_target_us);
        }
        mesh_end(m, 10000);
    }
}

static void few_sequences_use_one_mini_batch(void **state)
{
    struct sched_config config = mesh_config;
    config.mini_batches = 2;
    config.mini_batch_fill = 2;
    struct mesh *m = start(config);
    mesh_arrive(m, 30, 400, 0);
    mesh_arrive(m, 30, 400, 0);
    mesh_tick(m);
    assert_int_equal(m->flight_count[1], 0);
    for (int i = 0; i < 18; i++)
        mesh_arrive(m, 30, 400, 0);
    for (int i = 0; i < 10; i++)
        mesh_next_tick(m);
    struct sched_place_info info = mesh_place_info(m, 0);
    assert_true(info.load[0] > 0 && info.load[1] > 0);
    assert_true(info.load[0] < info.load[1] * 5 / 4 && info.load[1] < info.load[0] * 5 / 4);
    mesh_end(m, 10000);
}

static void the_local_pool_comes_first_and_workers_take_over(void **state)
{
    struct mesh *m = start(mesh_config);
    mesh_place_up(m, 0, 20);
    mesh_place_up(m, 1, 1000);
    mesh_arrive(m, 100, 20, 0);
    mesh_tick(m);
    assert_int_equal(mesh_place_info(m, 0).sequences, 1);
    for (int i = 0; i < 3; i++)
        mesh_arrive(m, 100, 20, 0);
    mesh_next_tick(m);
    assert_int_equal(mesh_place_info(m, 0).sequences, 2); // 9 pages each: two fit with a page to grow
    assert_int_equal(mesh_place_info(m, 1).sequences, 2);
    mesh_end(m, 10000);
}

// Lets worker 2 turn out three times as slow as worker 1, then adds 50 requests. Returns the load of 1 over that of 2.
static double load_after_measuring(bool shares_cores)
{
    struct sched_config config = mesh_config;
    config.kv_bytes_per_token = 20000;
    struct mesh *m = start(config);
    m->shares_cores = shares_cores;
    mesh_place_down(m, 0);
    mesh_place_up(m, 1, 4000);
    mesh_place_up(m, 2, 4000);
    mesh_arrive(m, 600, 900, 0);
    mesh_tick(m);
    struct sched_place_time times[2] = {{.place = 1, .r_part_us = 20600, .tokens_read = 10000},
                                        {.place = 2, .r_part_us = 60600, .tokens_read = 10000}};
    for (int i = 0; i < 200; i++) {
        m->now_us = m->flight[0][0].done_us;
        mesh_tick(m);
        if (m->flight_count[0] == 0)
            break;
        struct mesh_step s = m->flight[0][0]; // answered here, with times
        m->flight[0][0] = m->flight[0][1];
        m->flight_count[0]--;
        struct sched_result result = {.outcome = SCHED_DONE, .sampled = s.a.runs[0].sample};
        struct mesh_seq *q = mesh_find(m, s.a.runs[0].sequence);
        struct sched_run run = s.a.runs[0];
        q->in_flight--;
        q->kv[run.place] = run.position + run.count;
        struct sched_event *e = mesh_event(m, SCHED_STEP_DONE);
        e->step_done =
            (struct sched_step_done){.step = s.a.step, .results = &result, .result_count = 1, .places = times, .place_count = 2};
        size_t count = sched_step(m->sched, m->now_us, m->events, m->event_count, m->actions, MESH_ACTIONS);
        m->event_count = 0;
        mesh_taken(m, &run, &result, true);
        for (size_t k = 0; k < count; k++)
            mesh_take_action(m, &m->actions[k]);
    }
    assert_true(mesh_place_info(m, 2).token_us > 2.5 * mesh_place_info(m, 1).token_us);
    for (int i = 0; i < 50; i++)
        mesh_arrive(m, 100, 30, 0);
    for (int i = 0; i < 30 && mesh_stats(m).running < 51; i++)
        mesh_next_tick(m);
    double ratio = (double)mesh_place_info(m, 1).load[0] / (double)mesh_place_info(m, 2).load[0];
    mesh_end(m, 10000);
    return ratio;
}

static void load_follows_measured_speed(void **state)
{
    double ratio = load_after_measuring(false);
    assert_true(ratio > 2 && ratio < 4.5);
}

static void workers_on_shared_cores_hold_the_same(void **state)
{
    double ratio = load_after_measuring(true);
    assert_true(ratio > 0.8 && ratio < 1.25);
}

// `up --device auto`: only the s-part knows whether it computes on the cores of the workers beside it, and the next one may not.
static void cores_are_shared_with_an_s_part_that_computes_on_them(void **state)
{
    struct mesh *m = start(mesh_config);
    m->shares_cores = true;
    mesh_place_up(m, 1, 1000);
    mesh_tick(m);
    assert_true(mesh_place_info(m, 1).shares_cores && !mesh_place_info(m, 0).shares_cores);
    mesh_s_part_down(m);
    m->device_permille = 1000;
    mesh_s_part_up(m);
    mesh_place_up(m, 2, 1000);
    mesh_tick(m);
    assert_false(mesh_place_info(m, 1).shares_cores || mesh_place_info(m, 2).shares_cores);
    mesh_s_part_down(m);
    m->device_permille = 0;
    mesh_s_part_up(m);
    mesh_tick(m);
    assert_true(mesh_place_info(m, 1).shares_cores && mesh_place_info(m, 2).shares_cores);
    mesh_end(m, 10000);
}

static void out_of_pages_pauses_the_youngest(void **state)
{
    struct sched_config config = mesh_config;
    config.page_tokens = 4;
    struct mesh *m = start(config);
    mesh_place_up(m, 0, 24); // 96 tokens for three sequences that will want 60 each
    struct mesh_seq *q[3];
    for (int i = 0; i < 3; i++)
        q[i] = mesh_arrive(m, 10, 50, 0);
    uint64_t ended[3] = {0};
    for (int tick = 0; tick < 2000 && ended[2] == 0; tick++) {
        mesh_next_tick(m);
        for (int i = 0; i < 3; i++)
            ended[i] = ended[i] == 0 && q[i]->finished ? m->now_us : ended[i];
    }
    assert_true(ended[0] > 0 && ended[0] < ended[1] && ended[1] < ended[2]);
    assert_true(mesh_stats(m).preempted >= 1 && mesh_stats(m).preempted <= 8);
    for (int i = 0; i < 3; i++)
        assert_int_equal(q[i]->log, 60);
    mesh_end(m, 10000);
}

static void what_never_fits_is_told_apart(void **state)
{
    struct mesh *m = start(mesh_config);
    mesh_place_up(m, 0, 4); // 64 tokens
    struct mesh_seq *too_long = mesh_arrive(m, 1024, 5, 0);
    struct mesh_seq *no_space = mesh_arrive(m, 100, 5, 0);
    struct mesh_seq *outgrows = mesh_arrive(m, 40, 100, 0);
    struct mesh_seq *fits = mesh_arrive(m, 40, 20, 0);
    mesh_run(m, 1000);
    assert_int_equal(too_long->reason, SCHED_TOO_LONG);
    assert_int_equal(no_space->reason, SCHED_NO_SPACE);
    assert_int_equal(outgrows->reason, SCHED_NO_SPACE);
    assert_int_equal(outgrows->log, 65); // all that its place could hold, and the token sampled from that
    assert_int_equal(fits->reason, SCHED_LENGTH);
    mesh_end(m, 10000);
}

static void a_full_queue_refuses_with_a_time(void **state)
{
    struct sched_config config = mesh_config;
    config.max_running = 2;
    config.max_waiting = 3;
    struct mesh *m = start(config);
    struct mesh_seq *q[8];
    for (int i = 0; i < 6; i++)
        q[i] = mesh_arrive(m, 10, 20, 0);
    mesh_tick(m);
    for (int i = 0; i < 6; i++)
        assert_int_equal(q[i]->rejected, i == 5); // two run, three wait
    assert_true(sched_predicted_wait_us(m->sched, SCHED_CLASS_INTERACTIVE) > 0);
    mesh_arrive(m, 10, 20, 0);
    // A sequence that was answered in part already is not rejected.
    struct mesh_seq *again = mesh_arrive(m, 10, 20, 0);
    again->log += 5;
    m->events[m->event_count - 1].arrive.generated_tokens = 5;
    // Neither is one that was accepted and then lost with its scheduler.
    struct mesh_seq *accepted = mesh_arrive(m, 10, 20, 0);
    m->events[m->event_count - 1].arrive.resubmitted = true;
    size_t count = mesh_tick(m);
    uint64_t retry_us = 0;
    for (size_t i = 0; i < count; i++)
        retry_us = m->actions[i].kind == SCHED_REJECT ? m->actions[i].reject.retry_after_us : retry_us;
    assert_true(retry_us > 0);
    assert_false(again->rejected);
    assert_false(accepted->rejected);
    mesh_run(m, 1000);
    assert_int_equal(again->reason, SCHED_LENGTH);
    assert_int_equal(accepted->reason, SCHED_LENGTH);
    mesh_end(m, 10000);
}

static void deadlines_end_what_waits_and_what_runs(void **state)
{
    struct sched_config config = mesh_config;
    config.max_running = 1;
    struct mesh *m = start(config);
    struct mesh_seq *runs = mesh_arrive(m, 10, 500, 0);
    m->events[m->event_count - 1].arrive.deadline_us = 60000;
    struct mesh_seq *waits = mesh_arrive(m, 10, 500, 0);
    m->events[m->event_count - 1].arrive.deadline_us = 30000;
    mesh_tick(m);
    assert_true(sched_next_wake_us(m->sched) == 30000);
    mesh_run(m, 1000);
    assert_int_equal(runs->reason, SCHED_DEADLINE);
    assert_int_equal(waits->reason, SCHED_DEADLINE);
    assert_true(runs->log > 40 && waits->log == 10);
    mesh_end(m, 10000);
}

static void a_cancelled_sequence_leaves_at_once(void **state)
{
    struct sched_config config = mesh_config;
    config.max_running = 2;
    config.chunk_tokens = 16;
    struct mesh *m = start(config);
    struct mesh_seq *decodes = mesh_arrive(m, 10, 500, 0), *prefills = mesh_arrive(m, 900, 5, 0);
    struct mesh_seq *waits = mesh_arrive(m, 10, 5, 0), *other = mesh_arrive(m, 10, 5, 0);
    for (int i = 0; i < 4; i++)
        mesh_next_tick(m);
    mesh_cancel(m, decodes);
    mesh_cancel(m, prefills);
    mesh_cancel(m, waits);
    mesh_tick(m); // no row of theirs from here on, and no RELEASE under a step in flight: the mesh checks both
    assert_true(decodes->finished && prefills->finished && waits->finished && waits->last);
    assert_false(decodes->last || prefills->last);
    uint64_t first = m->last_step;
    for (int i = 0; i < 2; i++)
        mesh_next_tick(m);
    assert_true(decodes->last && prefills->last);
    assert_true(m->last_step <= first + 2);
    mesh_run(m, 100);
    assert_int_equal(other->reason, SCHED_LENGTH);
    assert_int_equal(waits->log, 10);
    mesh_end(m, 10000);
}

static void prompt_scores_come_once(void **state)
{
    struct sched_config config = mesh_config;
    config.chunk_tokens = 16;
    struct mesh *m = start(config);
    struct mesh_seq *echo = mesh_arrive(m, 50, 0, 0);
    echo->score = m->events[m->event_count - 1].arrive.score_prompt = true;
    struct mesh_seq *nothing = mesh_arrive(m, 50, 0, 0);
    mesh_end(m, 10000);
    assert_int_equal(echo->reason, SCHED_LENGTH);
    assert_int_equal(echo->scored, 50);
    assert_int_equal(echo->log, 50);
    assert_int_equal(nothing->reason, SCHED_LENGTH);
    assert_int_equal(m->last_step, 4);
}

/* A prompt that ends without a token may ask for its last row only. */
static void a_prompt_may_end_with_its_last_row(void **state)
{
    struct sched_config config = mesh_config;
    config.chunk_tokens = 16;
    struct mesh *m = start(config);
    struct mesh_seq *pooled = mesh_arrive(m, 50, 0, 0);
    struct sched_arrive *arrive = &m->events[m->event_count - 1].arrive;
    arrive->score_prompt = arrive->last_row_only = true;
    mesh_end(m, 10000);
    assert_int_equal(pooled->reason, SCHED_LENGTH);
    assert_int_equal(pooled->scored, 0);
    assert_int_equal(m->last_step, 4);
}

static void a_bad_configuration_is_named(void **state)
{
    struct sched_config config = mesh_config;
    struct sched *sched = (struct sched *)&mesh;
    struct error error;
    config.mini_batches = 17;
    assert_int_equal(sched_init(&config, &sched, &error), STATUS_INVALID_ARGUMENT);
    assert_null(sched);
    assert_non_null(strstr(error.text, "mini_batches is 17"));
    config = mesh_config;
    config.page_tokens = 0;
    assert_int_equal(sched_init(&config, &sched, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "page_tokens"));
}

// If clients end their sequences (by stop strings, or by leaving) long before max_tokens, their turns are taken again at once, though
// no sequence ever ended by itself or reached max_tokens: the load-stabilizing schedule has learned how short they are.
static void who_is_cancelled_makes_room(void **state)
{
    enum { RUNNING = 8, PROMPT = 20, MOST = 1000, STOP_AT = 40 };
    struct sched_config config = mesh_config;
    struct mesh *m = &mesh;
    uint64_t running = 0, steps = 0;
    uint32_t over = 0;

    config.max_sequences = 2 * MESH_SEQS;
    config.max_running = RUNNING;
    config.max_waiting = MESH_SEQS;
    mesh_init(m, &config, 1);
    mesh_s_part_up(m);
    mesh_place_up(m, 1, 10000);
    for (int i = 0; i < MESH_SEQS; i++)
        mesh_arrive(m, PROMPT, MOST, 0);
    while (over < MESH_SEQS * 3 / 4) { // first a quarter, and then is measured
        const struct sched_step_action *step = step_of(m, mesh_next_tick(m), 0);
        if (step && over >= MESH_SEQS / 4) {
            running += step->run_count;
            steps++;
        }
        for (uint32_t i = 0; i < m->seq_count; i++) {
            struct mesh_seq *q = &m->seqs[i];
            if (q->cancelled || q->log < PROMPT + STOP_AT)
                continue;
            mesh_cancel(m, q);
            over++;
        }
        assert_true(m->steps < 100000);
    }
    printf("%.1f of %d run\n", (double)running / (double)steps, RUNNING);
    assert_true((double)running / (double)steps >= 0.9 * RUNNING);
    mesh_fini(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_request_is_planned_ahead),
        cmocka_unit_test(an_unseen_end_costs_one_row),
        cmocka_unit_test(decodes_and_chunk_fill_tiles),
        cmocka_unit_test(a_fixed_chunk_is_kept_and_shared),
        cmocka_unit_test(the_chosen_chunk_keeps_the_step_target),
        cmocka_unit_test(those_who_wait_count_as_those_who_run),
        cmocka_unit_test(a_full_batch_does_not_starve_prompts),
        cmocka_unit_test(noise_does_not_make_the_chunk_large),
        cmocka_unit_test(few_sequences_use_one_mini_batch),
        cmocka_unit_test(the_local_pool_comes_first_and_workers_take_over),
        cmocka_unit_test(load_follows_measured_speed),
        cmocka_unit_test(workers_on_shared_cores_hold_the_same),
        cmocka_unit_test(cores_are_shared_with_an_s_part_that_computes_on_them),
        cmocka_unit_test(out_of_pages_pauses_the_youngest),
        cmocka_unit_test(what_never_fits_is_told_apart),
        cmocka_unit_test(a_full_queue_refuses_with_a_time),
        cmocka_unit_test(deadlines_end_what_waits_and_what_runs),
        cmocka_unit_test(a_cancelled_sequence_leaves_at_once),
        cmocka_unit_test(prompt_scores_come_once),
        cmocka_unit_test(a_prompt_may_end_with_its_last_row),
        cmocka_unit_test(a_bad_configuration_is_named),
        cmocka_unit_test(who_is_cancelled_makes_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
