// test_sched_failures.c: the scheduling core when something fails, restarts or drains. The rules: test_sched.c.
//
// Every tick also runs the checks of test_sched_mesh.h.
#include "common/sched/state.h"
#include "common/sched/tuning.h"
#include "tests/unit/test_sched_mesh.h"

static struct mesh mesh;

// No local pool: two workers.
static struct mesh *start(const struct sched_config *config)
{
    mesh_init(&mesh, config, 3);
    mesh_s_part_up(&mesh);
    mesh_place_up(&mesh, 1, 1000);
    mesh_place_up(&mesh, 2, 1000);
    return &mesh;
}

static void end(struct mesh *m)
{
    mesh_end(m, 10000);
    for (uint32_t i = 0; i < m->seq_count; i++) {
        const struct mesh_seq *q = &m->seqs[i];
        if (q->reason == SCHED_LENGTH)
            assert_int_equal(q->log, q->prompt + q->max_new);
    }
}

static void a_dead_worker_costs_its_own_sequences_a_rebuild(void **state)
{
    struct mesh *m = start(&mesh_config);
    for (int i = 0; i < 16; i++)
        mesh_arrive(m, 64, 60, 0);
    for (int i = 0; i < 30; i++)
        mesh_next_tick(m);
    uint32_t lost = mesh_place_info(m, 1).sequences, lost_tokens = 0;
    assert_true(lost >= 6 && lost <= 10);
    uint64_t prefill = mesh_stats(m).prefill_rows;
    struct mesh_seq *survivor = NULL;
    for (uint32_t i = 0; i < m->seq_count; i++) {
        survivor = m->seqs[i].place == 2 ? &m->seqs[i] : survivor;
        lost_tokens += m->seqs[i].place == 1 ? m->seqs[i].log : 0;
    }
    m->silent[1] = true;
    mesh_place_lose(m, 1); // the steps in flight say LOST before the worker is reported down
    uint32_t before = survivor->log;
    for (int i = 0; i < 4; i++)
        mesh_next_tick(m);
    assert_true(survivor->log >= before + 3);             // the others go on meanwhile
    assert_int_equal(mesh_place_info(m, 1).sequences, 0); // and nothing is rebuilt where it was lost
    m->silent[1] = false;
    mesh_place_down(m, 1);
    mesh_run(m, 1000);
    assert_int_equal(mesh_stats(m).rebuilt, lost);
    assert_true(mesh_stats(m).prefill_rows - prefill <= lost_tokens);
    assert_true(mesh_stats(m).rebuilt_tokens <= lost_tokens);
    end(m);
}

/* Nobody says that it is down: each sequence that goes there waits for nothing. */
static void a_place_that_loses_rows_again_is_avoided_for_longer(void **state)
{
    struct mesh *m = start(&mesh_config);
    struct sched_place *place = &m->sched->places.of[1];
    const uint64_t first_us = TUNE_PLACE_LOST_AVOID_US, most_us = first_us << TUNE_PLACE_LOST_DOUBLINGS;
    for (int i = 0; i < 2; i++)
        mesh_arrive(m, 64, 900, 0);
    for (int i = 0; i < 10; i++)
        mesh_next_tick(m);
    m->silent[1] = true;
    mesh_place_lose(m, 1);
    for (int i = 0; i < TUNE_PLACE_LOST_DOUBLINGS + 2; i++) {
        while (place->avoid_until_us <= m->now_us)
            mesh_next_tick(m);
        assert_int_equal(place->avoid_until_us - m->sched->now_us, MIN(first_us << i, most_us));
        m->now_us = place->avoid_until_us;
        mesh_arrive(m, 16, 5, 0);
    }
    m->silent[1] = false; // a row there counts again
    m->up[1] = true;
    while (place->losses > 0)
        mesh_next_tick(m);
    m->silent[1] = true;
    mesh_place_lose(m, 1);
    mesh_arrive(m, 16, 5, 0);
    while (place->avoid_until_us <= m->now_us)
        mesh_next_tick(m);
    assert_int_equal(place->avoid_until_us - m->sched->now_us, first_us);
    m->silent[1] = false;
    mesh_place_down(m, 1);
    end(m);
}

// It was cut off, and what it held is still there: a sequence that could be nowhere else goes on with it.
static void a_place_that_comes_back_gives_back_what_it_holds(void **state)
{
    struct mesh *m = start(&mesh_config);
    mesh_place_down(m, 2);
    struct mesh_seq *q = mesh_arrive(m, 100, 60, 0), *other = mesh_arrive(m, 100, 60, 0);
    for (int i = 0; i < 20; i++)
        mesh_next_tick(m);
    uint32_t held = q->held;
    assert_true(held > 100);
    mesh_place_down(m, 1);
    while (q->in_flight > 0 || other->in_flight > 0 || !sched_awaits_rebuild(m->sched, q->id))
        mesh_next_tick(m);
    uint64_t prefill = mesh_stats(m).prefill_rows;
    mesh_place_up(m, 1, 1000);
    struct sched_event *e = mesh_event(m, SCHED_RECLAIM);
    e->reclaim.sequence = q->id;
    e->reclaim.held.place = 1;
    e->reclaim.held.positions = held;
    q->kv[1] = q->held = q->next = held;
    q->place = 1;
    mesh_event(m, SCHED_RECLAIM)->reclaim.sequence = 12345; // nobody's
    mesh_run(m, 10000);
    assert_int_equal(mesh_stats(m).reclaimed, 1);
    assert_in_range(mesh_stats(m).prefill_rows - prefill, 100, 100 + 60 + 2); // the other one's
    end(m);
}

static void what_is_rebuilt_comes_before_what_is_new(void **state)
{
    struct sched_config config = mesh_config;
    config.max_running = 2;
    struct mesh *m = start(&config);
    mesh_place_down(m, 2);
    struct mesh_seq *old = mesh_arrive(m, 64, 60, 0);
    mesh_arrive(m, 64, 60, 0);
    for (int i = 0; i < 5; i++)
        mesh_arrive(m, 64, 60, 0);
    for (int i = 0; i < 10; i++)
        mesh_next_tick(m);
    mesh_place_down(m, 1);
    mesh_tick(m);
    mesh_place_up(m, 1, 1000);
    for (int i = 0; i < 4; i++)
        mesh_next_tick(m);
    assert_true(old->in_flight > 0);
    assert_int_equal(m->seqs[2].in_flight, 0);
    end(m);
}

// Until a sequence whose KV was lost is back in the queue, its turn and its pages are free; they are not for newcomers.
static void what_is_coming_back_keeps_its_turn(void **state)
{
    struct sched_config config = mesh_config;
    config.max_running = 1;
    struct mesh *m = start(&config);
    struct mesh_seq *old = mesh_arrive(m, 64, 60, 0);
    for (int i = 0; i < 10; i++)
        mesh_next_tick(m);
    assert_true(old->in_flight > 0);
    struct mesh_seq *newcomer = mesh_arrive(m, 64, 60, 0);
    mesh_place_down(m, old->place); // the other one has room for both
    mesh_tick(m);
    for (int i = 0; i < 2000 && !old->finished; i++) {
        assert_int_equal(newcomer->in_flight, 0);
        mesh_next_tick(m);
    }
    assert_true(old->finished);
    end(m);
}

static void an_unknown_sequence_is_opened_again(void **state)
{
    struct mesh *m = start(&mesh_config);
    struct mesh_seq *q = mesh_arrive(m, 40, 20, 0);
    for (int i = 0; i < 5; i++)
        mesh_next_tick(m);
    uint32_t held = q->held;
    uint64_t prefill = mesh_stats(m).prefill_rows;
    m->unknown_permille = 1000;
    mesh_next_tick(m);
    m->unknown_permille = 0;
    size_t count = mesh_next_tick(m); // the step planned ahead comes back too, and does not count
    const struct sched_run *run = NULL;
    for (size_t i = 0; i < count && run == NULL; i++)
        run = m->actions[i].kind == SCHED_STEP ? m->actions[i].step.runs : NULL;
    assert_non_null(run);
    assert_int_equal(run->position, held);
    assert_true(run->open && !run->use_last_sampled);
    end(m);
    assert_int_equal(prefill, 40);
}

static void a_failed_step_is_planned_again(void **state)
{
    struct mesh *m = start(&mesh_config);
    struct mesh_seq *q = mesh_arrive(m, 40, 20, 0);
    for (int i = 0; i < 5; i++)
        mesh_next_tick(m);
    m->failed_permille = 1000;
    mesh_next_tick(m);
    m->failed_permille = 0;
    mesh_run(m, 100);
    assert_int_equal(mesh_stats(m).steps_failed, 1);
    assert_int_equal(mesh_stats(m).wasted_rows, 2); // its row, and that of the step planned upon it
    assert_int_equal(mesh_stats(m).prefill_rows, 40);
    assert_int_equal(q->reason, SCHED_LENGTH);
    end(m);
}

static void an_s_part_that_restarts_keeps_what_workers_hold(void **state)
{
    struct mesh *m = start(&mesh_config);
    mesh_place_up(m, 0, 6);
    struct mesh_seq *local = mesh_arrive(m, 60, 20, 0), *remote = mesh_arrive(m, 64, 20, 0);
    for (int i = 0; i < 6; i++)
        mesh_next_tick(m);
    assert_int_equal(local->place, 0);
    assert_int_not_equal(remote->place, 0);
    uint32_t held = remote->held, known = local->log;
    uint64_t prefill = mesh_stats(m).prefill_rows;
    mesh_s_part_down(m);
    assert_int_equal(mesh_tick(m), 0);
    assert_true(sched_next_wake_us(m->sched) == SCHED_NEVER);
    mesh_s_part_up(m);
    mesh_place_up(m, 0, 6);
    mesh_tick(m);
    assert_int_equal(remote->held, held); // the mesh checks that its next row is the one after what is held
    mesh_run(m, 1000);
    assert_int_equal(mesh_stats(m).prefill_rows - prefill, known);
    assert_int_equal(mesh_stats(m).rebuilt, 1);
    end(m);
}

static void late_and_repeated_answers_count_for_nothing(void **state)
{
    struct mesh *m = start(&mesh_config);
    struct mesh_seq *q = mesh_arrive(m, 40, 3, 0);
    mesh_tick(m);
    struct sched_result result = {.outcome = SCHED_DONE, .sampled = true, .ended = true};
    struct sched_event *e = mesh_event(m, SCHED_STEP_DONE);
    e->step_done.step = 999;
    e->step_done.results = &result;
    e->step_done.result_count = 1;
    mesh_tick(m);
    assert_false(result.taken);
    uint64_t first = m->flight[0][0].a.step;
    mesh_next_tick(m);
    e = mesh_event(m, SCHED_STEP_DONE);
    e->step_done.step = first;
    e->step_done.results = &result;
    e->step_done.result_count = 1;
    mesh_event(m, SCHED_STEP_FAILED)->step = first;
    mesh_event(m, SCHED_RELEASED)->released.sequence = q->id;
    mesh_event(m, SCHED_CANCEL)->sequence = 12345;
    mesh_tick(m);
    assert_false(result.taken);
    assert_int_equal(mesh_stats(m).ignored_events, 5);
    mesh_run(m, 100);
    assert_int_equal(q->reason, SCHED_LENGTH);
    end(m);
}

static void an_answer_out_of_order_voids_those_before_it(void **state)
{
    struct mesh *m = start(&mesh_config);
    mesh_arrive(m, 40, 9, 0);
    mesh_tick(m);
    uint64_t first = m->flight[0][0].a.step, second = m->flight[0][1].a.step;
    for (int i = 0; i < 2; i++) {
        struct sched_result result = {.outcome = SCHED_DONE, .sampled = true};
        struct sched_event event = {.kind = SCHED_STEP_DONE};
        event.step_done.step = i == 0 ? second : first;
        event.step_done.results = &result;
        event.step_done.result_count = 1;
        size_t count = sched_step(m->sched, m->now_us, &event, 1, m->actions, MESH_ACTIONS);
        assert_false(result.taken); // neither the row that was built on a lost one, nor the lost one when it comes late
        if (i == 0)
            assert_int_equal(m->actions[0].step.runs[0].position, 0);
        else
            assert_int_equal(count, 0);
    }
    assert_int_equal(mesh_stats(m).steps_failed, 1);
    mesh_fini(m);
}

static void a_wrong_number_of_results_fails_the_step(void **state)
{
    struct mesh *m = start(&mesh_config);
    mesh_arrive(m, 40, 3, 0);
    mesh_tick(m);
    struct sched_result results[2] = {{.sampled = true}, {.sampled = true}};
    struct sched_event *e = mesh_event(m, SCHED_STEP_DONE);
    e->step_done.step = m->flight[0][0].a.step;
    e->step_done.results = results;
    e->step_done.result_count = 2;
    sched_step(m->sched, m->now_us, m->events, 1, m->actions, MESH_ACTIONS);
    assert_false(results[0].taken || results[1].taken);
    assert_int_equal(mesh_stats(m).steps_failed, 1);
    mesh_fini(m);
}

static void a_resubmission_reuses_what_its_worker_holds(void **state)
{
    struct mesh *m = start(&mesh_config);
    mesh_tick(m);
    for (int scored = 0; scored < 2; scored++) {
        struct mesh_seq *q = mesh_arrive(m, 100, 20, 0);
        struct sched_arrive *a = &m->events[m->event_count - 1].arrive;
        a->generated_tokens = scored ? 0 : 7;
        a->held_place = 2;
        a->held_positions = scored ? 100 : 106;
        q->score = a->score_prompt = scored;
        q->log += a->generated_tokens;
        q->kv[2] = a->held_positions;
        q->place = 2;
        q->held = q->next = scored ? 0 : 106;
        uint64_t prefill = mesh_stats(m).prefill_rows, decode = mesh_stats(m).decode_rows;
        mesh_run(m, 100);
        assert_int_equal(mesh_stats(m).prefill_rows - prefill, scored ? 100 : 0);
        assert_int_equal(mesh_stats(m).decode_rows - decode, scored ? 19 : 13);
    }
    end(m);
}

static void drain(struct mesh *m, uint32_t place)
{
    m->draining[place] = true;
    mesh_event(m, SCHED_PLACE_DRAIN)->place = place;
}

// Has place 1 drained while sequences run; says how many of them are there.
static uint32_t drain_amid_sequences(struct mesh *m, uint32_t sequences)
{
    for (uint32_t i = 0; i < sequences; i++)
        mesh_arrive(m, 64, 200, 0);
    for (int i = 0; i < 20; i++)
        mesh_next_tick(m);
    uint32_t there = mesh_place_info(m, 1).sequences;
    assert_true(there > 0);
    drain(m, 1);
    return there;
}

static void await_drained(struct mesh *m)
{
    for (int i = 0; i < 300 && !m->drained[1]; i++)
        mesh_next_tick(m);
    assert_true(m->drained[1]);
}

static void a_drain_hands_everything_over(void **state)
{
    struct sched_config config = mesh_config;
    config.release_ack = true;
    struct mesh *m = start(&config);
    uint32_t there = drain_amid_sequences(m, 16);
    uint64_t prefill = mesh_stats(m).prefill_rows;
    await_drained(m);
    assert_int_equal(mesh_stats(m).moved, there);
    assert_int_equal(mesh_stats(m).finished, 0);
    mesh_run(m, 1000);
    assert_int_equal(mesh_stats(m).prefill_rows, prefill); // nothing was computed again
    end(m);
}

// If the place that was to take it is gone or cannot, it goes on where it is until another takes it. If that fails, too, it is rebuilt.
static void a_drain_tries_again(void **state)
{
    for (uint32_t failures = 1; failures <= 2; failures++) {
        struct mesh *m = start(&mesh_config);
        uint32_t there = drain_amid_sequences(m, 3);
        struct mesh_seq *moving = NULL;
        for (uint32_t failed = 0; failed < failures; failed++) {
            m->move_fails_permille = 1000;
            for (int i = 0; i < 100 && !(moving && moving->moving_until != 0); i++) {
                mesh_next_tick(m);
                for (uint32_t k = 0; k < m->seq_count; k++) {
                    if (m->seqs[k].moving_until != 0 && !moving)
                        moving = &m->seqs[k];
                    else if (m->seqs[k].moving_until != 0 && moving != &m->seqs[k])
                        m->seqs[k].moving_until = UINT64_MAX; // until it is its turn
                }
            }
            assert_true(moving && moving->moving_until != 0);
            moving->moving_until = m->now_us;
            mesh_next_tick(m);
        }
        m->move_fails_permille = 0;
        for (uint32_t k = 0; k < m->seq_count; k++)
            m->seqs[k].moving_until = m->seqs[k].moving_until != 0 ? m->now_us : 0;
        await_drained(m);
        assert_int_equal(mesh_stats(m).rebuilt, failures - 1);
        assert_int_equal(mesh_stats(m).moved, there - (failures - 1));
        mesh_run(m, 1000);
        end(m);
    }
}

// A sequence arrives at another place when the mini-batch that it was to be in is no longer used.
static void a_move_outlives_its_mini_batch(void **state)
{
    struct sched_config config = mesh_config;
    config.mini_batches = 2;
    config.mini_batch_auto = true;
    mesh_init(&mesh, &config, 1);
    struct mesh *m = &mesh;
    mesh_s_part_up(m);
    m->slow_permille = 1000;
    mesh_place_up(m, 1, 1000);
    mesh_place_up(m, 2, 1000);
    m->s_part_us = 10000; // beside as much at the workers: two mini-batches
    for (int i = 0; i < 8; i++)
        mesh_arrive(m, 20, 900, 0);
    for (int i = 0; i < 300 && mesh_stats(m).mini_batches < 2; i++)
        mesh_next_tick(m);
    assert_int_equal(mesh_stats(m).mini_batches, 2);
    drain(m, 1);
    uint32_t moving = 0;
    for (int i = 0; i < 100 && moving < 4; i++) {
        mesh_next_tick(m);
        moving = 0;
        for (uint32_t k = 0; k < m->seq_count; k++) {
            moving += m->seqs[k].moving_until != 0;
            m->seqs[k].moving_until *= m->seqs[k].moving_until != 0 ? 1000 : 1;
        }
    }
    assert_true(moving > 0);
    m->sched->batches.wanted = 1; // as if one were judged to be faster now
    for (int i = 0; i < 100 && mesh_stats(m).mini_batches > 1; i++)
        mesh_next_tick(m);
    assert_int_equal(mesh_stats(m).mini_batches, 1);
    m->s_part_us = 1000000; // and so for good
    for (uint32_t k = 0; k < m->seq_count; k++)
        m->seqs[k].moving_until = m->seqs[k].moving_until != 0 ? m->now_us : 0;
    mesh_end(m, 10000);
}

static void a_drain_without_a_taker_rebuilds(void **state)
{
    struct mesh *m = start(&mesh_config);
    mesh_place_down(m, 2);
    mesh_arrive(m, 64, 100, 0);
    for (int i = 0; i < 10; i++)
        mesh_next_tick(m);
    drain(m, 1);
    for (int i = 0; i < 10; i++)
        mesh_next_tick(m);
    assert_false(m->drained[1]); // nowhere to go: it decodes on
    assert_int_equal(mesh_stats(m).running, 1);
    mesh_place_up(m, 0, 100); // takes no pages over
    for (int i = 0; i < 10; i++)
        mesh_next_tick(m);
    assert_true(m->drained[1]);
    assert_int_equal(mesh_stats(m).rebuilt, 1);
    end(m);
}

static void pages_wait_for_the_word_that_they_are_free(void **state)
{
    struct sched_config config = mesh_config;
    config.release_ack = true;
    struct mesh *m = start(&config);
    mesh_place_down(m, 2);
    struct mesh_seq *q = mesh_arrive(m, 64, 3, 0);
    while (!q->last)
        mesh_next_tick(m);
    assert_true(mesh_is_releasing(q));
    assert_true(mesh_place_info(m, 1).pages_used > 0);
    end(m); // nothing is left once RELEASED has come
}

static void a_suspect_place_gets_no_rows(void **state)
{
    struct mesh *m = start(&mesh_config);
    struct mesh_seq *a = mesh_arrive(m, 64, 300, 0), *b = mesh_arrive(m, 64, 300, 0);
    for (int i = 0; i < 10; i++)
        mesh_next_tick(m);
    assert_int_not_equal(a->place, b->place);
    struct sched_event *e = mesh_event(m, SCHED_PLACE_SUSPECT);
    e->suspect.place = a->place;
    e->suspect.until_us = m->now_us + 50000;
    uint64_t until = e->suspect.until_us;
    mesh_tick(m);
    for (int i = 0; i < 3; i++)
        mesh_next_tick(m);
    uint32_t stuck = a->log, going = b->log;
    while (m->now_us < until - 3000)
        mesh_next_tick(m);
    assert_int_equal(a->log, stuck);
    assert_true(b->log > going + 20);
    end(m);
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

// The place that takes it goes down and comes back. Nobody knows where its pages are until MOVE is answered; a second answer is ignored.
static void a_lost_taker_is_no_answer_to_a_move(void **state)
{
    for (int ok = 0; ok < 2; ok++) {
        struct mesh *m = &mesh;
        mesh_init(m, &mesh_config, 3);
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
        const uint32_t log = q->log;
        for (int i = 0; i < 5; i++)
            mesh_next_tick(m);
        assert_int_equal(q->log, log);
        assert_int_equal(q->move_id, first);

        m->move_fails_permille = ok ? 0 : 1000;
        q->moving_until = m->now_us;
        mesh_next_tick(m);
        m->move_fails_permille = 0;
        if (!ok) {
            await_move(m, q);
            assert_true(q->move_id > first);
        }
        const uint64_t ignored = mesh_stats(m).ignored_events;
        mesh_event(m, SCHED_MOVED)->moved = (struct sched_moved){q->id, first, q->held, true};
        mesh_next_tick(m);
        assert_int_equal(mesh_stats(m).ignored_events, ignored + 1);
        assert_int_equal(mesh_stats(m).moved, 0);
        if (!ok) {
            assert_true(q->moving_until != 0); // nor has it been asked for anew
            q->moving_until = m->now_us;
        }
        mesh_run(m, 10000);
        assert_int_equal(mesh_stats(m).moved, !ok);
        assert_int_equal(mesh_stats(m).rebuilt, ok);
        end(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dead_worker_costs_its_own_sequences_a_rebuild),
        cmocka_unit_test(a_place_that_loses_rows_again_is_avoided_for_longer),
        cmocka_unit_test(a_place_that_comes_back_gives_back_what_it_holds),
        cmocka_unit_test(what_is_rebuilt_comes_before_what_is_new),
        cmocka_unit_test(what_is_coming_back_keeps_its_turn),
        cmocka_unit_test(an_unknown_sequence_is_opened_again),
        cmocka_unit_test(a_failed_step_is_planned_again),
        cmocka_unit_test(an_s_part_that_restarts_keeps_what_workers_hold),
        cmocka_unit_test(late_and_repeated_answers_count_for_nothing),
        cmocka_unit_test(an_answer_out_of_order_voids_those_before_it),
        cmocka_unit_test(a_wrong_number_of_results_fails_the_step),
        cmocka_unit_test(a_resubmission_reuses_what_its_worker_holds),
        cmocka_unit_test(a_drain_hands_everything_over),
        cmocka_unit_test(a_drain_tries_again),
        cmocka_unit_test(a_move_outlives_its_mini_batch),
        cmocka_unit_test(a_drain_without_a_taker_rebuilds),
        cmocka_unit_test(pages_wait_for_the_word_that_they_are_free),
        cmocka_unit_test(a_suspect_place_gets_no_rows),
        cmocka_unit_test(a_lost_taker_is_no_answer_to_a_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
