// test_sched_extents.c: sequences that are split because no place can hold them: random workloads against the checks of test_sched_mesh.h,
// and single promises.
//
// FD_SCHED_SEEDS sets how many workloads, FD_SCHED_SEED runs one alone.
#define MESH_PLACES 12
#include "tests/unit/test_sched_mesh.h"

static struct mesh mesh;

static struct {
    uint64_t whole_preempted, extents_moved, frozen, rebuilt, preempted, recomputed, drained, split_finished,
        reasons[SCHED_NO_SPACE + 1];
    uint32_t extents;
} seen;

static struct sched_config config_of(uint32_t page_tokens, uint32_t ranges_of_pages)
{
    return (struct sched_config){
        .max_sequences = 80,
        .max_waiting = 80,
        .max_waiting_batch = 80,
        .max_batch_rows = 64,
        .mini_batches = 1,
        .plan_ahead = 2,
        .step_target_us = 2000,
        .page_tokens = page_tokens,
        .extent_tokens = page_tokens * ranges_of_pages,
        .context_tokens = 4000,
        .max_places = MESH_PLACES,
        .layers = 4,
        .kv_bytes_per_token = 1000,
    };
}

// Starts a mesh of so many workers, each with so many pages, at which no other place is expected any more.
static void start(struct mesh *m, const struct sched_config *config, uint32_t workers, uint32_t pages)
{
    mesh_init(m, config, 1);
    mesh_s_part_up(m);
    for (uint32_t p = 1; p <= workers; p++)
        mesh_place_up(m, p, pages);
    mesh_tick(m);
    m->now_us += 100000000;
}

static void until_tokens(struct mesh *m, const struct mesh_seq *q, uint32_t tokens)
{
    for (uint32_t tick = 0; q->log < q->prompt + tokens; tick++) {
        assert_true(tick < 100000 && !q->finished);
        mesh_next_tick(m);
    }
}

// --- single promises ------------------------------------------------------------------------------------------------

// Four workers of 60 pages and a prompt of 170: every worker reads a part, and the ledger and the loads are the sum of the parts.
static void a_prompt_larger_than_any_place_is_dealt_out(void **state)
{
    struct mesh *m = &mesh;
    struct sched_config config = config_of(4, 4);
    start(m, &config, 4, 60);
    struct mesh_seq *q = mesh_arrive(m, 680, 40, 0);
    until_tokens(m, q, 2);
    uint64_t load = 0, pages = 0;
    for (uint32_t p = 1; p <= 4; p++) {
        const struct sched_place_info info = mesh_place_info(m, p);
        assert_in_range(info.pages_used, 40, 48); // 170 pages, evenly
        assert_int_equal(info.sequences, 1);
        load += info.load[0];
        pages += info.pages_used;
    }
    assert_in_range(load, q->log, q->log + 2);
    assert_in_range(pages, mesh_pages(m, q->log), mesh_pages(m, q->log) + 4);
    assert_int_equal(mesh_stats(m).split, 1);
    assert_int_equal(mesh_stats(m).extents, 3);
    mesh_run(m, 10000);
    assert_int_equal(q->reason, SCHED_LENGTH);
    assert_int_equal(mesh_stats(m).prefill_rows, 680);
    mesh_check_end(m);
    mesh_fini(m);
}

// A sequence that has filled its place goes on at the next, and the next. What it computes again is behind the last boundary of a place
// whose pages are no whole number of ranges: here 62 = 15 * 4 + 2.
static void a_sequence_that_fills_its_place_goes_on_at_another(void **state)
{
    for (uint32_t odd = 0; odd <= 2; odd += 2) {
        struct mesh *m = &mesh;
        struct sched_config config = config_of(4, 4);
        start(m, &config, 4, 60 + odd);
        struct mesh_seq *q = mesh_arrive(m, 10, 900, 0);
        mesh_run(m, 10000);
        assert_int_equal(q->reason, SCHED_LENGTH);
        assert_int_equal(m->extents_seen, 3);
        assert_int_equal(m->recomputed, odd == 0 ? 0 : 8);
        assert_int_equal(mesh_stats(m).rebuilt + mesh_stats(m).preempted, 0);
        mesh_check_end(m);
        mesh_fini(m);
    }
}

static void what_all_places_together_cannot_hold_is_refused(void **state)
{
    struct mesh *m = &mesh;
    struct sched_config config = config_of(4, 4);
    start(m, &config, 4, 60);
    struct mesh_seq *largest = mesh_arrive(m, 950, 10, 0), *more = mesh_arrive(m, 961, 10, 0), *grows = mesh_arrive(m, 900, 200, 0);
    mesh_run(m, 20000);
    assert_int_equal(largest->reason, SCHED_LENGTH);
    assert_int_equal(more->reason, SCHED_NO_SPACE);
    assert_int_equal(grows->reason, SCHED_NO_SPACE);
    assert_in_range(grows->log, 945, 961); // as far as there were pages
    mesh_check_end(m);
    mesh_fini(m);
}

// Eleven workers: eight extents and a tail are the most.
static void a_sequence_has_nine_places_at_most(void **state)
{
    struct mesh *m = &mesh;
    struct sched_config config = config_of(4, 4);
    start(m, &config, 11, 20);
    struct mesh_seq *fits = mesh_arrive(m, 9 * 80 - 10, 10, 0), *more = mesh_arrive(m, 9 * 80 + 1, 10, 0);
    mesh_run(m, 20000);
    assert_int_equal(fits->reason, SCHED_LENGTH);
    assert_int_equal(m->extents_seen, 8);
    assert_int_equal(more->reason, SCHED_NO_SPACE);
    mesh_check_end(m);
    mesh_fini(m);
}

// Whichever place dies: what lies before its part stays, and no more is computed again than from there on.
static void a_lost_extent_is_rebuilt_from_its_first_position_on(void **state)
{
    for (uint32_t dies = 1; dies <= 5; dies++) {
        struct mesh *m = &mesh;
        struct sched_config config = config_of(4, 4);
        start(m, &config, 5, 60);
        struct mesh_seq *q = mesh_arrive(m, 400, 60, 0);
        until_tokens(m, q, 10);
        struct sched_stats before = mesh_stats(m);
        uint32_t first = q->kv_first[dies], known = q->log;
        bool used = q->kv[dies] > 0;
        mesh_place_down(m, dies);
        mesh_run(m, 10000);
        struct sched_stats after = mesh_stats(m);
        assert_int_equal(q->reason, SCHED_LENGTH);
        assert_int_equal(after.rebuilt - before.rebuilt, used);
        if (used)
            assert_in_range(after.prefill_rows - before.prefill_rows, known - first - 1, known - first + 4);
        mesh_check_end(m);
        mesh_fini(m);
    }
}

// A drain hands over the part that is there, and nothing is computed again.
static void a_place_that_drains_hands_its_extent_over(void **state)
{
    for (uint32_t drains = 1; drains <= 4; drains++) {
        struct mesh *m = &mesh;
        struct sched_config config = config_of(4, 4);
        start(m, &config, 4, 60);
        struct mesh_seq *q = mesh_arrive(m, 680, 60, 0);
        until_tokens(m, q, 10);
        mesh_place_up(m, 5, 60);
        mesh_place_drain(m, drains);
        mesh_run(m, 10000);
        assert_true(m->drained[drains]);
        assert_int_equal(q->reason, SCHED_LENGTH);
        assert_int_equal(mesh_stats(m).moved, 1);
        assert_int_equal(mesh_stats(m).prefill_rows, 680);
        mesh_check_end(m);
        mesh_fini(m);
    }
}

// Places report after a restart what they held, part by part: it is used as far as the parts follow one another, and the rest is released.
static void parts_that_are_still_held_are_used(void **state)
{
    for (uint32_t gap = 0; gap < 2; gap++) {
        struct mesh *m = &mesh;
        struct sched_config config = config_of(4, 4);
        start(m, &config, 5, 60);
        struct mesh_seq *q = mesh_arrive(m, 640, 60, 0);
        struct sched_arrive *a = &m->events[m->event_count - 1].arrive;
        const struct sched_held parts[] = {{3, 160, 336, 0}, {2, gap ? 352 : 320, 500, 0}};
        a->held_place = 1;
        a->held_positions = 160;
        q->kv[1] = q->held = 160;
        a->more_count = 2;
        for (uint32_t i = 0; i < 2; i++) {
            a->more[i] = parts[i];
            q->kv_first[parts[i].place] = parts[i].first;
            q->kv[parts[i].place] = parts[i].positions;
            if (parts[i].first <= q->held)
                q->held = parts[i].positions;
        }
        q->next = q->held;
        q->place = 2;
        mesh_run(m, 10000);
        assert_int_equal(q->reason, SCHED_LENGTH);
        assert_int_equal(mesh_stats(m).prefill_rows, gap ? 640 - 336 : 640 - 496); // whole ranges
        mesh_check_end(m);
        mesh_fini(m);
    }
}

// A step has room for the partial results of two rows, and three sequences have grown beyond their places: they take turns.
static void rows_that_a_step_has_no_room_for_come_first_in_the_next(void **state)
{
    struct mesh *m = &mesh;
    struct sched_config config = config_of(4, 4);
    config.max_partials = 4;
    config.span_ranges = 1000;
    start(m, &config, 6, 60);
    struct mesh_seq *q[3];
    for (uint32_t i = 0; i < 3; i++)
        q[i] = mesh_arrive(m, 10, 400, 0);
    for (uint32_t i = 0; i < 3; i++)
        until_tokens(m, q[i], 300);
    assert_int_equal(mesh_stats(m).split, 3);
    until_tokens(m, q[0], 380);
    for (uint32_t i = 1; i < 3; i++)
        assert_true(q[i]->log > q[i]->prompt + 340);
    mesh_end(m, 10000);
}

// --- random workloads -----------------------------------------------------------------------------------------------

static void random_config(struct mesh *m, uint64_t seed, struct sched_config *c)
{
    m->rng = seed * UINT64_C(0x2545f4914f6cdd1d) + 99;
    *c = config_of(1 + mesh_random(m, 8), 1 + mesh_random(m, 6));
    c->max_sequences = 40 + mesh_random(m, 60);
    c->max_running = mesh_chance(m, 300) ? 1 + mesh_random(m, 8) : 0;
    c->max_batch_rows = 8 + mesh_random(m, 56);
    c->mini_batches = 1 + mesh_random(m, 3);
    c->mini_batch_auto = mesh_chance(m, 500);
    c->mini_batch_fill = 1 + mesh_random(m, 3);
    c->plan_ahead = 1 + mesh_random(m, 3);
    c->chunk_tokens = mesh_chance(m, 500) ? 1 + mesh_random(m, 40) : 0;
    c->tile_rows = 1 + mesh_random(m, 16);
    c->context_tokens = 200 + mesh_random(m, 400);
    c->max_moves = 1 + mesh_random(m, 4);
    c->span_ranges = 1 + mesh_random(m, 8);
    c->max_partials = mesh_chance(m, 300) ? 1 + mesh_random(m, 200) : 0;
    c->max_extents = mesh_chance(m, 200) ? 1 + mesh_random(m, 12) : 0;
    c->balance = mesh_chance(m, 500);
    c->release_ack = mesh_chance(m, 500);
    if (mesh_chance(m, 600)) {
        c->page_names = mesh_page_names;
        c->max_kept = mesh_chance(m, 700) ? 1 + mesh_random(m, 40) : 0;
        c->page_tokens = 3 + mesh_random(m, 6);
        c->extent_tokens = c->page_tokens * (1 + mesh_random(m, 6));
    }
    if (mesh_chance(m, 500)) {
        c->drafts = mesh_drafts;
        c->draft_tokens = 1 + mesh_random(m, 12);
    }
}

static uint32_t random_pages(struct mesh *m) { return 1 + (40 + mesh_random(m, 160)) / m->config.page_tokens; }

static void random_arrival(struct mesh *m)
{
    bool large = mesh_chance(m, 300);
    uint32_t prompt = 1 + mesh_random(m, large ? m->config.context_tokens : 60),
             max_new = mesh_random(m, mesh_chance(m, 200) ? 300 : 40);
    struct mesh_seq *q = mesh_arrive(m, prompt, max_new, mesh_chance(m, 300) ? 1 + mesh_random(m, 40) : 0);
    struct sched_arrive *a = &m->events[m->event_count - 1].arrive;
    if (mesh_chance(m, m->batch_permille))
        q->class = a->class = SCHED_CLASS_BATCH;
    if (mesh_chance(m, 700)) {
        q->family = 1 + mesh_random(m, 3);
        q->alike = mesh_random(m, mesh_chance(m, 300) ? 600 : 80);
    }
    if (mesh_chance(m, 100))
        q->score = a->score_prompt = true;
    if (mesh_chance(m, 80))
        a->deadline_us = m->now_us + 1 + mesh_random(m, 200000);
}

// A place of a sequence that is split, of one that is being handed over if there is any.
static uint32_t place_of_a_split_one(struct mesh *m)
{
    uint32_t place = mesh_random(m, MESH_PLACES);
    for (uint32_t i = 0; i < m->seq_count; i++) {
        const struct mesh_seq *q = &m->seqs[i];
        for (uint32_t p = 0; p < MESH_PLACES; p++) {
            if (q->kv_first[p] > 0 && (q->moving_until != 0 || mesh_chance(m, 300)))
                place = mesh_chance(m, 300) ? q->place : mesh_chance(m, 300) && q->moving_until != 0 ? q->move_to : p;
        }
    }
    return place;
}

static void random_trouble(struct mesh *m)
{
    uint32_t place = mesh_chance(m, 600) ? place_of_a_split_one(m) : mesh_random(m, MESH_PLACES);
    switch (mesh_random(m, 12)) {
    case 8:
    case 0:
        if (m->up[place])
            mesh_place_down(m, place);
        break;
    case 1:
    case 2:
    case 3:
        if (!m->up[place] && (place != 0 || m->s_part_up))
            mesh_place_up(m, place, random_pages(m));
        break;
    case 4:
    case 9:
    case 10:
    case 11: mesh_place_drain(m, place); break;
    case 5: m->s_part_up ? mesh_s_part_down(m) : mesh_s_part_up(m); break;
    case 6: mesh_cancel_any(m); break;
    default: mesh_place_suspect(m, place, m->now_us + mesh_random(m, 20000));
    }
}

static void one_workload(uint64_t seed)
{
    struct mesh *m = &mesh;
    struct sched_config config;
    random_config(m, seed, &config);
    mesh_init(m, &config, seed);
    m->local_moves = mesh_chance(m, 500);
    m->draft_chance_permille = mesh_random(m, 1000);
    m->draft_right_permille = mesh_random(m, 1000);
    m->slow_permille = 300;
    m->batch_permille = seed % 2 == 0 ? 300 : 0;
    bool troubled = mesh_chance(m, 700);
    uint32_t sequences = 1 + mesh_random(m, 40), ticks = 0, trouble_permille = troubled ? 1 + mesh_random(m, 40) : 0;
    if (troubled) {
        m->unknown_permille = mesh_random(m, 10);
        m->lost_permille = mesh_random(m, 5);
        m->failed_permille = mesh_random(m, 20);
        m->move_fails_permille = mesh_random(m, 300);
    }
    mesh_s_part_up(m);
    for (uint32_t p = 0; p < MESH_PLACES; p++) {
        if (p == 1 || mesh_chance(m, seed % 3 == 0 ? 1000 : 500))
            mesh_place_up(m, p, random_pages(m));
    }
    mesh_tick(m);
    m->now_us += 100000000;
    while (m->seq_count < sequences) {
        assert_true(ticks++ < 200000);
        mesh_tick(m);
        uint64_t next = mesh_next_us(m);
        m->now_us += next > m->now_us && next - m->now_us < 300 ? next - m->now_us : 300;
        if (mesh_chance(m, 60))
            random_arrival(m);
        if (mesh_chance(m, trouble_permille))
            random_trouble(m);
    }
    mesh_tick(m);
    mesh_mend(m, 1 + 200 / m->config.page_tokens);
    mesh_run(m, 60000);
    mesh_check_end(m);
    struct sched_stats stats = mesh_stats(m);
    assert_int_equal(stats.split + stats.extents, 0);
    seen.frozen += stats.frozen;
    seen.rebuilt += stats.rebuilt;
    seen.preempted += stats.preempted;
    seen.drained += m->drains;
    seen.extents_moved += m->extents_moved;
    seen.recomputed += m->recomputed;
    seen.extents = seen.extents > m->extents_seen ? seen.extents : m->extents_seen;
    for (uint32_t i = 0; i < m->seq_count; i++) {
        seen.reasons[m->seqs[i].finished ? m->seqs[i].reason : 0]++;
        seen.split_finished += m->extents_seen > 0 && m->seqs[i].reason == SCHED_LENGTH;
    }
    mesh_fini(m);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(1099511628211);
    return hash ^ hash >> 29;
}

static uint64_t hash_action(uint64_t hash, const struct sched_action *a)
{
    hash = mix(hash, a->kind);
    if (a->kind == SCHED_RELEASE)
        return mix(mix(hash, a->release.sequence), a->release.place);
    if (a->kind == SCHED_FINISHED)
        return mix(mix(hash, a->finished.sequence), a->finished.reason);
    if (a->kind == SCHED_MOVE)
        return mix(mix(mix(hash, a->move.sequence), a->move.from), a->move.to);
    for (uint32_t i = 0; a->kind == SCHED_STEP && i < a->step.run_count; i++) {
        const struct sched_run *run = &a->step.runs[i];
        hash = mix(mix(mix(mix(hash, run->sequence), run->position), run->count), run->place);
    }
    return hash;
}

// Returns a hash of all decisions of a workload in which every place can hold the longest sequence, if not two of them.
static uint64_t decisions(uint64_t seed, bool extents)
{
    struct mesh *m = &mesh;
    struct sched_config config;
    uint64_t hash = 1469598103934665603u, next;
    uint32_t ticks = 0;
    random_config(m, seed, &config);
    config.extent_tokens = extents ? config.extent_tokens : 0;
    config.page_names = NULL; // names are drawn as they are asked for
    config.max_kept = 0;
    mesh_init(m, &config, seed);
    m->slow_permille = 300;
    mesh_s_part_up(m);
    for (uint32_t p = 0; p < 4; p++)
        mesh_place_up(m, p, (config.context_tokens + mesh_random(m, 200)) / config.page_tokens + 4);
    while (m->seq_count < 30 || (next = mesh_next_us(m)) != SCHED_NEVER) {
        assert_true(ticks++ < 200000);
        for (uint32_t i = 0; i < 3 && m->seq_count < 30 && mesh_chance(m, 100); i++)
            random_arrival(m);
        size_t count = mesh_tick(m);
        for (size_t i = 0; i < count; i++)
            hash = hash_action(mix(hash, m->now_us), &m->actions[i]);
        next = mesh_next_us(m);
        m->now_us = next > m->now_us && next != SCHED_NEVER ? next : m->now_us + 300;
    }
    assert_int_equal(m->extents_seen, 0);
    seen.whole_preempted += mesh_stats(m).preempted;
    mesh_fini(m);
    return hash;
}

static void without_a_sequence_too_large_nothing_changes(void **state)
{
    for (uint64_t seed = 1; seed <= 100; seed++)
        assert_true(decisions(seed, false) == decisions(seed, true));
    assert_true(seen.whole_preempted > 0);
}

static void random_workloads_keep_every_promise(void **state)
{
    const char *one = getenv("FD_SCHED_SEED"), *many = getenv("FD_SCHED_SEEDS");
    if (one != NULL) {
        one_workload(strtoull(one, NULL, 10));
        return;
    }
    uint64_t count = many != NULL ? strtoull(many, NULL, 10) : 800;
    for (uint64_t seed = 1; seed <= count; seed++) {
        if (getenv("FD_SCHED_TRACE") != NULL)
            fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        one_workload(seed);
    }
    print_message(
        "frozen %llu, at most %u extents, computed again at boundaries %llu, rebuilt %llu, preempted %llu, drained %llu, moved %llu; "
        "ends: length %llu, eos %llu, deadline %llu, cancelled %llu, too long %llu, no space %llu\n",
        (unsigned long long)seen.frozen, seen.extents, (unsigned long long)seen.recomputed, (unsigned long long)seen.rebuilt,
        (unsigned long long)seen.preempted, (unsigned long long)seen.drained, (unsigned long long)seen.extents_moved,
        (unsigned long long)seen.reasons[SCHED_LENGTH], (unsigned long long)seen.reasons[SCHED_EOS],
        (unsigned long long)seen.reasons[SCHED_DEADLINE], (unsigned long long)seen.reasons[SCHED_CANCELLED],
        (unsigned long long)seen.reasons[SCHED_TOO_LONG], (unsigned long long)seen.reasons[SCHED_NO_SPACE]);
    assert_true(seen.frozen > 0 && seen.extents == SCHED_EXTENTS_MAX && seen.recomputed > 0 && seen.rebuilt > 0 &&
                seen.extents_moved > 0 && seen.preempted > 0 && seen.drained > 0 && seen.split_finished > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_larger_than_any_place_is_dealt_out),
        cmocka_unit_test(a_sequence_that_fills_its_place_goes_on_at_another),
        cmocka_unit_test(what_all_places_together_cannot_hold_is_refused),
        cmocka_unit_test(a_sequence_has_nine_places_at_most),
        cmocka_unit_test(a_lost_extent_is_rebuilt_from_its_first_position_on),
        cmocka_unit_test(a_place_that_drains_hands_its_extent_over),
        cmocka_unit_test(parts_that_are_still_held_are_used),
        cmocka_unit_test(rows_that_a_step_has_no_room_for_come_first_in_the_next),
        cmocka_unit_test(without_a_sequence_too_large_nothing_changes),
        cmocka_unit_test(random_workloads_keep_every_promise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
