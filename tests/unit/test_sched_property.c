// test_sched_property.c: thousands of random workloads against the checks of test_sched_mesh.h.
//
// FD_SCHED_SEEDS sets how many, FD_SCHED_SEED runs one alone.
#include "common/base/checked.h"
#include "tests/unit/test_sched_mesh.h"

static struct mesh mesh;

// Counts what the workloads together made happen: a promise about something that never happens is empty.
static struct {
    uint64_t steps, beside, rebuilt, preempted, moved, to_local, from_local, relabelled, wasted, failed, rejected;
    uint64_t reasons[SCHED_NO_SPACE + 1], tokens, scored, drained;
    uint64_t shared, shared_tokens, kept, evicted, drafted, drafts_right;
    uint64_t late_rows, own_rows[SCHED_CLASSES], rolled;
    uint64_t decisions;
} seen;

static void random_config(struct mesh *m, uint64_t seed, struct sched_config *c)
{
    m->rng = seed * UINT64_C(0x2545f4914f6cdd1d) + 99;
    *c = (struct sched_config){
        .max_sequences = 40 + mesh_random(m, 60),
        .max_running = mesh_chance(m, 300) ? 1 + mesh_random(m, 8) : 0,
        .max_waiting = mesh_chance(m, 300) ? mesh_random(m, 6) : 80,
        .max_waiting_batch = 80,
        .max_batch_rows = mesh_chance(m, 200) ? 1 + mesh_random(m, 8) : 16 + mesh_random(m, 48),
        .mini_batches = 1 + mesh_random(m, 3),
        .mini_batch_auto = mesh_chance(m, 500),
        .mini_batch_fill = 1 + mesh_random(m, 3),
        .plan_ahead = 1 + mesh_random(m, 3),
        .chunk_tokens = mesh_chance(m, 500) ? 1 + mesh_random(m, 40) : 0,
        .tile_rows = 1 + mesh_random(m, 16),
        .step_target_us = 2000,
        .page_tokens = 1 + mesh_random(m, 16),
        .context_tokens = 40 + mesh_random(m, 160),
        .max_places = MESH_PLACES,
        .max_moves = 1 + mesh_random(m, 4),
        .balance = mesh_chance(m, 500),
        .layers = 4,
        .kv_bytes_per_token = 1000,
        .release_ack = mesh_chance(m, 500),
    };
    if (mesh_chance(m, 600)) {
        c->page_names = mesh_page_names;
        c->max_kept = mesh_chance(m, 700) ? 1 + mesh_random(m, 40) : 0;
        c->max_named_pages = mesh_chance(m, 200) ? 1 + mesh_random(m, 60) : 0;
        c->page_tokens = 1 + mesh_random(m, 8);
    }
    if (mesh_chance(m, 500)) {
        c->drafts = mesh_drafts;
        c->draft_tokens = 1 + mesh_random(m, 12);
    }
    c->admission = mesh_random(m, 3);
    c->spacing_steps = c->admission != SCHED_GREEDY && mesh_chance(m, 300) ? 1 + mesh_random(m, 60) : 0;
}

static uint32_t random_pages(struct mesh *m)
{
    uint32_t tokens = mesh_chance(m, 400) ? 60 + mesh_random(m, 150) : 1000 + mesh_random(m, 2000);
    return 1 + tokens / m->config.page_tokens;
}

static void random_arrival(struct mesh *m)
{
    uint32_t prompt = 1 + (mesh_chance(m, 200) ? mesh_random(m, m->config.context_tokens + 8) : mesh_random(m, 60));
    uint32_t max_new = mesh_random(m, 40);
    uint32_t eos_at = mesh_chance(m, 500) ? 1 + mesh_random(m, 40) : 0;
    struct mesh_seq *q = mesh_arrive(m, prompt, max_new, eos_at);
    struct sched_arrive *a = &m->events[m->event_count - 1].arrive;
    if (m->batch_permille > 0 && mesh_chance(m, m->batch_permille))
        q->class = a->class = SCHED_CLASS_BATCH;
    if (mesh_chance(m, 700)) {
        q->family = 1 + mesh_random(m, 3);
        q->alike = mesh_random(m, mesh_chance(m, 300) ? 400 : 80); // all that it will ever be, or its beginning
    }
    if (mesh_chance(m, 150)) {
        q->score = a->score_prompt = true;
    } else if (mesh_chance(m, 200) && max_new > 1) { // a resubmission
        a->generated_tokens = mesh_random(m, max_new);
        if (eos_at != 0 && a->generated_tokens >= eos_at)
            a->generated_tokens = eos_at - 1;
        q->log += a->generated_tokens;
        uint32_t place = mesh_random(m, MESH_PLACES);
        uint32_t held = mesh_random(m, q->log + 1);
        const struct sched_place_info info = mesh_place_info(m, place);
        uint32_t used = 0;
        for (uint32_t i = 0; i < m->seq_count; i++)
            used += mesh_pages(m, m->seqs[i].kv[place]);
        if (m->up[place] && held > 0 && info.pages_used + 40 < info.pages_total && mesh_pages(m, held) < 40 &&
            used + 40 < m->pages_total[place] && m->event_count == 1) {
            a->held_place = place;
            a->held_positions = held;
            mesh_hold(m, q, place, held, NULL);
            q->place = place;
            q->held = q->next = held < q->log ? held : q->log - 1;
        }
    }
    if (mesh_chance(m, 80))
        a->deadline_us = m->now_us + 1 + mesh_random(m, 60000);
}

static void random_trouble(struct mesh *m)
{
    uint32_t place = mesh_random(m, MESH_PLACES);
    switch (mesh_random(m, 7)) {
    case 0:
        if (m->up[place])
            mesh_place_down(m, place);
        break;
    case 1:
    case 2:
        if (!m->up[place] && (place != 0 || m->s_part_up))
            mesh_place_up(m, place, random_pages(m));
        break;
    case 3: mesh_place_drain(m, place); break;
    case 4:
        if (m->s_part_up) {
            mesh_s_part_down(m);
        } else {
            mesh_s_part_up(m);
        }
        break;
    case 5: mesh_cancel_any(m); break;
    default: mesh_place_suspect(m, place, m->now_us + mesh_random(m, 20000));
    }
}

static void count_seen(const struct mesh *m)
{
    const struct sched_stats stats = mesh_stats(m);
    seen.steps += stats.steps;
    seen.beside += m->prefill_beside_decode;
    seen.rebuilt += stats.rebuilt;
    seen.preempted += stats.preempted;
    seen.moved += stats.moved;
    seen.to_local += m->moves_to_local;
    seen.from_local += m->moves_from_local;
    seen.relabelled += stats.relabelled;
    seen.wasted += stats.wasted_rows;
    seen.failed += stats.steps_failed;
    seen.rejected += stats.rejected;
    seen.drained += m->drains;
    seen.shared += m->shared;
    seen.shared_tokens += stats.shared_tokens;
    seen.kept += m->kept;
    seen.evicted += m->evicted;
    seen.drafted += m->drafted;
    seen.drafts_right += m->drafts_right;
    seen.late_rows += m->late_rows;
    seen.rolled += m->rolled;
    seen.decisions = (seen.decisions ^ m->decisions) *
                     UINT64_C(0x9e3779b97f4a7c15); // two builds with the same policy have the same
    for (enum sched_class class = 0; class < SCHED_CLASSES; class ++)
        seen.own_rows[class] += m->own_rows[class];
    for (uint32_t i = 0; i < m->seq_count; i++) {
        seen.reasons[m->seqs[i].finished ? m->seqs[i].reason : 0]++;
        seen.tokens += m->seqs[i].log - m->seqs[i].prompt;
        seen.scored += m->seqs[i].scored;
    }
}

static void one_workload(uint64_t seed)
{
    struct mesh *m = &mesh;
    struct sched_config config;
    random_config(m, seed, &config);
    const bool pipeline = seed % 5 == 0; // by a dice of its own, which leaves all other workloads as they are
    if (pipeline) {
        config.stages = 1 + (uint32_t)(seed / 5 % SCHED_STAGES_MAX);
        config.micro_batch = (uint32_t)(seed / 40 % 3);
        config.mini_batches = config.stages * (1 + (uint32_t)(seed / 120 % 2));
    }
    if (!pipeline && seed % 3 == 1) { // likewise
        config.aside = true;
        config.mini_batches = 1;
        config.chunk_tokens = 0;
    }
    const uint32_t window = seed % 7 == 3 ? 1 + (uint32_t)(seed / 7 % 40) : 0; // likewise
    if (window > 0) {
        config.ring_rows = 5 + (uint32_t)(seed / 280 % 16);
        config.ring_pages = (window + config.plan_ahead * MAX(config.ring_rows, 13u)) / config.page_tokens + 2;
    }
    mesh_init(m, &config, seed);
    m->window = window;
    m->stages_reported = pipeline && seed / 240 % 4 != 0;
    m->local_moves = mesh_chance(m, 500);
    m->s_part_us = mesh_chance(m, 500) ? UINT32_MAX : 900; // of its own, that is: more rows cost it nothing
    m->draft_chance_permille = mesh_random(m, 1000);
    m->draft_right_permille = mesh_random(m, 1000);
    m->slow_permille = 300; // one mini-batch pays, then two
    m->shares_cores = seed % 3 == 0;
    m->batch_permille = seed % 2 == 0 ? 600 : 0;
    m->device_permille = 500;
    bool troubled = mesh_chance(m, 600), tight = mesh_chance(m, 400);
    uint32_t sequences = 1 + mesh_random(m, 60), ticks = 0;
    uint32_t trouble_permille = troubled ? 1 + mesh_random(m, 60) : 0;
    if (troubled) {
        m->unknown_permille = mesh_random(m, 20);
        m->lost_permille = mesh_random(m, 10);
        m->failed_permille = mesh_random(m, 20);
        m->move_fails_permille = mesh_random(m, 300);
    }
    m->step_us_max = 900 + mesh_random(m, 4000);
    mesh_s_part_up(m);
    for (uint32_t p = 0; p < MESH_PLACES; p++) {
        if (p == 1 || mesh_chance(m, 600))
            mesh_place_up(m, p, troubled || tight ? random_pages(m) : 20000);
    }
    if (seed % 8 != 0) { // it has stood for so long that no other place is expected
        mesh_tick(m);
        m->now_us += 10000000;
    }
    m->calm = !troubled && !tight && !config.balance && config.max_batch_rows >= config.max_sequences &&
              window == 0; // whose pages another begins with waits before it gives them back
    while (m->seq_count < sequences) {
        assert_true(ticks++ < 200000);
        mesh_tick(m);
        uint64_t next = mesh_next_us(m);
        m->now_us += next > m->now_us && next - m->now_us < 300 ? next - m->now_us : 300;
        if (mesh_chance(m, 150))
            random_arrival(m);
        while (mesh_chance(m, 50) && m->seq_count < sequences && config.max_waiting > 6)
            random_arrival(m);
        if (mesh_chance(m, trouble_permille))
            random_trouble(m);
    }
    mesh_tick(m);
    mesh_mend(m, m->calm ? 20000 : 300);
    mesh_run(m, 30000);
    mesh_check_end(m);
    count_seen(m);
    mesh_fini(m);
}

static void random_workloads_keep_every_promise(void **state)
{
    const char *one = getenv("FD_SCHED_SEED"), *many = getenv("FD_SCHED_SEEDS");
    if (one != NULL) {
        one_workload(strtoull(one, NULL, 10));
        return;
    }
    // A sequence was kept without the page of the token that is computed again; without its first, which a wrong draft had overwritten;
    // interactive ones waited for one of class batch that was to begin with their pages, and that for them, or for its turn to go aside.
    static const uint64_t found[] = {13168, 39798, 215260, 336106};
    for (uint32_t i = 0; i < ARRAY_COUNT(found); i++)
        one_workload(found[i]);
    uint64_t count = many != NULL ? strtoull(many, NULL, 10) : 3000;
    for (uint64_t seed = 1; seed <= count; seed++) {
        mesh.last_step = seed; // for a debugger
        if (getenv("FD_SCHED_TRACE") != NULL)
            fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        one_workload(seed);
    }
    print_message(
        "steps %llu, with decode and prefill %llu, rebuilt %llu, preempted %llu, moved %llu (to the local pool %llu, from it %llu), relabelled %llu, drained %llu, "
        "wasted rows %llu, failed %llu, rejected %llu, tokens %llu, scored %llu; ends: length %llu, eos %llu, "
        "deadline %llu, cancelled %llu, too long %llu, no space %llu\n",
        (unsigned long long)seen.steps, (unsigned long long)seen.beside, (unsigned long long)seen.rebuilt,
        (unsigned long long)seen.preempted, (unsigned long long)seen.moved, (unsigned long long)seen.to_local,
        (unsigned long long)seen.from_local, (unsigned long long)seen.relabelled, (unsigned long long)seen.drained,
        (unsigned long long)seen.wasted, (unsigned long long)seen.failed, (unsigned long long)seen.rejected,
        (unsigned long long)seen.tokens, (unsigned long long)seen.scored, (unsigned long long)seen.reasons[SCHED_LENGTH],
        (unsigned long long)seen.reasons[SCHED_EOS], (unsigned long long)seen.reasons[SCHED_DEADLINE],
        (unsigned long long)seen.reasons[SCHED_CANCELLED], (unsigned long long)seen.reasons[SCHED_TOO_LONG],
        (unsigned long long)seen.reasons[SCHED_NO_SPACE]);
    print_message("begun with others' pages %llu (%llu tokens), kept %llu, evicted %llu\n", (unsigned long long)seen.shared,
                  (unsigned long long)seen.shared_tokens, (unsigned long long)seen.kept, (unsigned long long)seen.evicted);
    print_message("decisions %016llx\n", (unsigned long long)seen.decisions);
    print_message("drafts %llu, right %llu\n", (unsigned long long)seen.drafted, (unsigned long long)seen.drafts_right);
    print_message("rows: interactive %llu, of class batch %llu, behind interactive ones %llu\n",
                  (unsigned long long)seen.own_rows[SCHED_CLASS_INTERACTIVE], (unsigned long long)seen.own_rows[SCHED_CLASS_BATCH],
                  (unsigned long long)seen.late_rows);
    assert_true(seen.own_rows[SCHED_CLASS_BATCH] > 0 && seen.late_rows > 0);
    assert_true(seen.drafted > seen.drafts_right && seen.drafts_right > 0);
    print_message("pages given back %llu\n", (unsigned long long)seen.rolled);
    assert_true(seen.rolled > 0);
    assert_true(seen.shared > 0 && seen.kept > 0 && seen.evicted > 0);
    assert_true(seen.beside > 0 && seen.rebuilt > 0 && seen.preempted > 0 && seen.moved > 0 && seen.wasted > 0);
    assert_true(seen.to_local > 0 && seen.from_local > 0);
    assert_true(seen.failed > 0 && seen.rejected > 0 && seen.scored > 0 && seen.drained > 0 && seen.relabelled > 0);
    for (int reason = SCHED_LENGTH; reason <= SCHED_NO_SPACE; reason++)
        assert_true(seen.reasons[reason] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_workloads_keep_every_promise)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
