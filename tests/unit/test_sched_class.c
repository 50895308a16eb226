// test_sched_class.c: latency class batch in the scheduling core: its rows take only the time that interactive ones leave.
//
// Rule by rule in the mesh of test_sched_mesh.h, whose checks run in every tick. How much time is left, over random cost models in the
// simulator: FD_CLASS_WORKLOADS says how many (100), FD_CLASS_WORKLOAD runs one alone. That no random workload of both classes breaks a
// promise, and that nobody starves, is in test_sched_property.c.
#include <math.h>

#include "common/base/random.h"
#include "common/sched/state.h"
#include "tests/unit/sim_of.h"
#include "tests/unit/test_sched_mesh.h"

static struct mesh mesh;

static struct sched_config base(void)
{
    struct sched_config config = mesh_config;
    config.max_sequences = 96;
    config.max_waiting_batch = 64;
    return config;
}

// A local pool of so many pages.
static struct mesh *start(struct sched_config config, uint32_t pages)
{
    mesh_init(&mesh, &config, 1);
    mesh_s_part_up(&mesh);
    mesh_place_up(&mesh, 0, pages);
    return &mesh;
}

static void ticks(struct mesh *m, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        mesh_next_tick(m);
}

// Whether a tick's actions give pages up of a sequence that goes on.
static bool gives_way(const struct mesh *m, size_t count, const struct mesh_seq *q)
{
    bool gives = false;
    for (size_t i = 0; i < count; i++)
        gives = gives ||
                (m->actions[i].kind == SCHED_RELEASE && !m->actions[i].release.last && m->actions[i].release.sequence == q->id);
    return gives;
}

// --- alone ------------------------------------------------------------------------------------------------------------

static uint64_t mixed(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211u; }

// Returns a hash of everything that the core decides in a random workload of one class.
static uint64_t decisions(uint64_t seed, enum sched_class class)
{
    uint64_t hash = seed;
    struct mesh *m = &mesh;
    struct sched_config config = base();
    uint64_t rng = seed;
    config.mini_batches = 1 + seed % 3;
    config.mini_batch_auto = seed % 2 == 0;
    config.balance = seed % 5 < 3;
    config.max_running = seed % 7 < 3 ? 12 : 0;
    config.max_waiting = config.max_waiting_batch = seed % 7 < 2 ? 8 : 64;
    config.step_target_us = 2000;
    config.page_names = seed % 3 == 0 ? mesh_page_names : NULL;
    config.drafts = seed % 4 == 0 ? mesh_drafts : NULL;
    mesh_init(m, &config, seed);
    m->s_part_row_us = 50;
    m->draft_chance_permille = m->draft_right_permille = 700;
    mesh_s_part_up(m);
    mesh_place_up(m, 0, seed % 6 < 2 ? 60 : 400);
    mesh_place_up(m, 1, 400);
    mesh_place_up(m, 2, 400);
    for (uint32_t tick = 0; mesh_next_us(m) != SCHED_NEVER || m->seq_count < 60; tick++) {
        assert_true(tick < 20000);
        for (uint32_t i = 0; i < 3 && m->seq_count < 60; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            if (rng >> 60 < 11)
                continue;
            struct mesh_seq *q = mesh_arrive(m, 1 + (rng >> 40) % 90, 1 + (rng >> 50) % 40, rng >> 63 ? 1 + (rng >> 33) % 40 : 0);
            q->class = m->events[m->event_count - 1].arrive.class = class;
            q->family = 1;
            q->alike = (rng >> 20) % 64;
        }
        size_t count = mesh_next_tick(m);
        for (size_t i = 0; i < count; i++) {
            const struct sched_action *a = &m->actions[i];
            hash = mixed(hash, a->kind);
            for (uint32_t r = 0; a->kind == SCHED_STEP && r < a->step.run_count; r++) {
                const struct sched_run *run = &a->step.runs[r];
                hash = mixed(mixed(mixed(hash, run->sequence), run->position),
                             (uint64_t)run->place << 32 | run->count << 8 | run->drafts);
            }
            hash = a->kind == SCHED_REJECT ? mixed(mixed(hash, a->reject.sequence), a->reject.retry_after_us) : hash;
            hash = a->kind == SCHED_MOVE ? mixed(mixed(hash, a->move.sequence), a->move.to) : hash;
        }
        hash = mixed(mixed(hash, mesh_stats(m).running > 0 ? sched_load_limit(m->sched, 0) : 0), m->now_us);
    }
    mesh_check_end(m);
    mesh_fini(m);
    return hash;
}

// A job alone is decided upon as interactive requests are, and so has their throughput.
static void alone_it_is_scheduled_as_interactive_requests_are(void **state)
{
    for (uint64_t seed = 1; seed <= 210; seed++) {
        if (decisions(seed, SCHED_CLASS_BATCH) != decisions(seed, SCHED_CLASS_INTERACTIVE))
            fail_msg("seed %llu", (unsigned long long)seed);
    }
}

// --- beside interactive sequences -------------------------------------------------------------------------------------

static void start_streams(struct mesh *m, uint32_t count, uint32_t tokens)
{
    for (uint32_t i = 0; i < count; i++)
        mesh_arrive(m, 10, tokens, 0);
}

// Rows cost as much as a step of 8 may become longer by, so the job gets one of each step at most, all of its sequences in turn, and
// none of its pages goes.
static void rows_wait_without_losing_pages(void **state)
{
    struct mesh *m = start(base(), 1000);
    struct mesh_seq *q[6];
    m->calm = true;
    m->s_part_row_us = 60; // of 500 + 8 x 60: a twelfth of it is 82
    for (int i = 0; i < 6; i++)
        q[i] = mesh_arrive_batch(m, 20, 300, 0);
    ticks(m, 12);
    uint64_t alone = mesh_stats(m).rows_of[SCHED_CLASS_BATCH];
    assert_true(alone >= 6 * 20);
    start_streams(m, 8, 200);
    ticks(m, 8); // their prompts
    struct sched_stats before = mesh_stats(m);
    uint32_t logs[6];
    for (int i = 0; i < 6; i++)
        logs[i] = q[i]->log;
    ticks(m, 120);
    struct sched_stats after = mesh_stats(m);
    uint64_t steps = after.steps - before.steps, rows = after.rows_of[SCHED_CLASS_BATCH] - before.rows_of[SCHED_CLASS_BATCH];
    assert_int_equal(after.rows_of[SCHED_CLASS_INTERACTIVE] - before.rows_of[SCHED_CLASS_INTERACTIVE], 8 * steps);
    assert_true(rows >= steps / 2 && rows <= steps);
    for (int i = 0; i < 6; i++) // in turn
        assert_in_range(q[i]->log - logs[i], rows / 6 - 2, rows / 6 + 2);
    mesh_end(m, 20000);
    assert_int_equal(after.preempted + after.rebuilt, 0);
    for (int i = 0; i < 6; i++)
        assert_true(q[i]->reason == SCHED_LENGTH && q[i]->log == 320);
}

// The rest of a job waits in the queue, where it holds no pages.
static void no_more_start_than_there_is_time_for(void **state)
{
    struct mesh *m = start(base(), 1000);
    m->s_part_row_us = 60;
    start_streams(m, 8, 300);
    ticks(m, 20);
    for (int i = 0; i < 30; i++)
        mesh_arrive_batch(m, 20, 300, 0);
    ticks(m, 200);
    assert_in_range(mesh_stats(m).running_of[SCHED_CLASS_BATCH], 1, 3);
    mesh_end(m, 20000);
}

// A step of 8 rows takes as long as weights are read, and computes for a twentieth of that: prompts of the job take the rest.
static void rows_are_free_while_weights_are_read(void **state)
{
    enum { STREAM_US = 20000, STREAMS = 8, PROMPTS = 12, PROMPT = 1000, STEPS = 64 };
    struct sched_config config = base();
    struct mesh *m = &mesh;
    config.max_batch_rows = config.chunk_max_tokens = 1000;
    mesh_init(m, &config, 1);
    m->calm = true;
    m->stream_us = STREAM_US;
    m->s_part_row_us = 50; // of 500 + 50 a row; 20 ms are 390 rows
    mesh_s_part_up(m);
    mesh_place_up(m, 0, 4000);
    mesh_arrive(m, 300, 5, 0);
    ticks(m, 10);
    start_streams(m, STREAMS, 900);
    ticks(m, 40);
    for (int i = 0; i < PROMPTS; i++)
        mesh_arrive_batch(m, PROMPT, 20, 0);
    struct sched_stats before = mesh_stats(m);
    uint64_t began_us = m->now_us;
    while (mesh_stats(m).steps - before.steps < STEPS)
        mesh_next_tick(m);
    struct sched_stats after = mesh_stats(m);
    // All of it in as many steps as it has prompts and tokens; by a twelfth of the time it would be 33 rows a step.
    assert_true(after.rows_of[SCHED_CLASS_BATCH] - before.rows_of[SCHED_CLASS_BATCH] > PROMPTS * PROMPT);
    assert_true(m->now_us - began_us < 1.1 * STEPS * STREAM_US);
    mesh_end(m, 20000);
}

// No row has time, yet in one of 128 steps there is one.
static void some_row_comes_at_last(void **state)
{
    struct mesh *m = start(base(), 1000);
    m->calm = true;
    m->s_part_row_us = 400;
    start_streams(m, 1, 900);
    ticks(m, 6);
    struct mesh_seq *q = mesh_arrive_batch(m, 3, 40, 0);
    ticks(m, 6 * TUNE_LATE_LEAST_STEPS);
    uint64_t rows = mesh_stats(m).rows_of[SCHED_CLASS_BATCH];
    assert_in_range(rows, 5, 7);
    assert_true(q->log > q->prompt);
    mesh_end(m, 20000);
}

// Interactive sequences are scheduled as if there were no job: same prompt rows in the same steps, same load limit.
static void it_teaches_neither_lengths_nor_load(void **state)
{
    uint64_t limits[2], chunks[2];
    double lengths[2];
    for (int job = 0; job < 2; job++) {
        struct sched_config config = base();
        mesh_init(&mesh, &config, 1);
        struct mesh *m = &mesh;
        mesh_s_part_up(m);
        mesh_place_up(m, 1, 4000);
        m->s_part_row_us = 20;
        for (int i = 0; i < 16 && job; i++)
            mesh_arrive_batch(m, 700, 300, 0);
        mesh_run(m, 20000);
        start_streams(m, 8, 50);
        mesh_run(m, 20000);
        start_streams(m, 2, 50);
        ticks(m, 10);
        mesh_arrive(m, 400, 8, 0);
        uint64_t before = mesh_stats(m).prefill_rows;
        ticks(m, 3);
        chunks[job] = mesh_stats(m).prefill_rows - before;
        limits[job] = sched_load_limit(m->sched, 0);
        lengths[job] = m->sched->load.of[SCHED_CLASS_INTERACTIVE].lengths.tokens;
        assert_true(job == (m->sched->load.of[SCHED_CLASS_BATCH].lengths.count > 0));
        mesh_end(m, 20000);
    }
    assert_true(lengths[0] == lengths[1] && chunks[0] == chunks[1]);
    // The s-part's own time is learned from all steps; by rows, a few parts in a thousand.
    assert_true(fabs((double)limits[0] - (double)limits[1]) <= 0.01 * (double)limits[0]);
}

// A class's queue may be full without closing the other's.
static void each_class_has_a_queue(void **state)
{
    struct sched_config config = base();
    config.max_running = 2;
    config.max_waiting = 2;
    config.max_waiting_batch = 4;
    struct mesh *m = start(config, 1000);
    struct mesh_seq *job[8], *q[5];
    for (int i = 0; i < 8; i++)
        job[i] = mesh_arrive_batch(m, 10, 60, 0);
    mesh_tick(m);
    for (int i = 0; i < 8; i++)
        assert_int_equal(job[i]->rejected, i >= 6); // two run, four wait
    for (int i = 0; i < 5; i++)
        q[i] = mesh_arrive(m, 10, 60, 0);
    mesh_tick(m);
    for (int i = 0; i < 5; i++)
        assert_int_equal(q[i]->rejected, i == 4); // two run beside the job's, two wait
    struct sched_stats stats = mesh_stats(m);
    assert_int_equal(stats.running_of[SCHED_CLASS_INTERACTIVE], 2);
    assert_int_equal(stats.waiting_of[SCHED_CLASS_INTERACTIVE], 2);
    assert_int_equal(stats.running_of[SCHED_CLASS_BATCH], 2);
    assert_int_equal(stats.waiting_of[SCHED_CLASS_BATCH], 4);
    assert_int_equal(stats.waiting_tokens[SCHED_CLASS_INTERACTIVE], 2 * 10);
    assert_int_equal(stats.waiting_tokens[SCHED_CLASS_BATCH], 4 * 10);
    assert_true(sched_predicted_wait_us(m->sched, SCHED_CLASS_BATCH) > sched_predicted_wait_us(m->sched, SCHED_CLASS_INTERACTIVE));
    mesh_end(m, 20000);
    for (int i = 0; i < 6; i++) // who is interactive is through first
        assert_true(i < 2 || job[i]->first_taken_us > q[3]->first_taken_us);
}

// --- pages ------------------------------------------------------------------------------------------------------------

// The job has all pages. A request comes: as many of the job's sequences give way as it takes, the youngest first.
static void it_gives_way_to_a_request(void **state)
{
    struct mesh *m = start(base(), 40);
    struct mesh_seq *job[4];
    for (int i = 0; i < 4; i++)
        job[i] = mesh_arrive_batch(m, 100, 20, 0); // 9 pages each with their margin
    ticks(m, 4);
    struct mesh_seq *q = mesh_arrive(m, 250, 40, 0); // 18, and one is spared: two must go
    bool gave[4] = {false};
    for (int tick = 0; tick < 10 && q->first_taken_us == 0; tick++) {
        size_t count = mesh_next_tick(m);
        for (int i = 0; i < 4; i++)
            gave[i] = gave[i] || gives_way(m, count, job[i]);
    }
    assert_true(q->first_taken_us > 0);
    assert_true(gave[3] && gave[2] && !gave[1] && !gave[0]);
    mesh_end(m, 20000);
    assert_int_equal(q->log, 290);
    for (int i = 0; i < 4; i++)
        assert_int_equal(job[i]->log, 120);
}

// Contexts outgrow the pool: interactive sequences lose nothing while one of the job has pages, whoever came first.
static void it_gives_way_first_when_pages_run_out(void **state)
{
    struct mesh *m = start(base(), 42);
    struct mesh_seq *job[3], *q[2];
    m->s_part_row_us = 5;
    for (int i = 0; i < 3; i++)
        job[i] = mesh_arrive_batch(m, 100, 100, 0);
    ticks(m, 3);
    for (int i = 0; i < 2; i++)
        q[i] = mesh_arrive(m, 60, 240, 0); // 19 pages each at their end
    uint32_t order[3] = {0}, next = 1;
    while (!q[0]->finished || !q[1]->finished) {
        size_t count = mesh_next_tick(m);
        for (int i = 0; i < 3; i++)
            order[i] = order[i] == 0 && gives_way(m, count, job[i]) ? next++ : order[i];
        assert_false(gives_way(m, count, q[0]) || gives_way(m, count, q[1]));
    }
    assert_true(order[2] > 0 && order[1] > order[2] && (order[0] == 0 || order[0] > order[1]));
    mesh_end(m, 20000);
}

// A request that begins as one of the job's does computes its beginning itself, because that one may have no time.
static void no_request_waits_for_pages_of_the_job(void **state)
{
    struct sched_config config = base();
    config.page_names = mesh_page_names;
    struct mesh *m = start(config, 1000);
    m->s_part_row_us = 400; // no row of the job has time
    start_streams(m, 1, 300);
    ticks(m, 6);
    struct mesh_seq *job = mesh_arrive_batch(m, 200, 5, 0);
    job->family = 1;
    job->alike = 200;
    ticks(m, 4);
    struct mesh_seq *q = mesh_arrive(m, 200, 5, 0);
    q->family = 1;
    q->alike = 200;
    ticks(m, 40);
    assert_true(q->finished && !job->finished);
    mesh_end(m, 20000);
}

// --- mini-batches -----------------------------------------------------------------------------------------------------

// When only one of two mini-batches has the request the job's sequences follow it there.
static void it_follows_the_requests(void **state)
{
    struct sched_config config = base();
    config.mini_batches = 2;
    struct mesh *m = start(config, 1000);
    m->calm = true;
    m->s_part_row_us = 2;
    struct mesh_seq *job[8];
    for (int i = 0; i < 8; i++)
        job[i] = mesh_arrive_batch(m, 20, 200, 0);
    ticks(m, 20);
    uint32_t in_second = 0;
    for (int i = 0; i < 8; i++)
        in_second += job[i]->mini_batch == 1;
    assert_true(in_second >= 3 && in_second <= 5);
    struct mesh_seq *q = mesh_arrive(m, 10, 300, 0);
    ticks(m, 20);
    uint32_t logs[8];
    for (int i = 0; i < 8; i++)
        logs[i] = job[i]->log;
    ticks(m, 60);
    for (int i = 0; i < 8; i++)
        assert_true(job[i]->mini_batch == q->mini_batch && job[i]->log > logs[i]);
    mesh_end(m, 20000);
}

// --- how much time is left --------------------------------------------------------------------------------------------

enum { STREAMS = 8, JOB = 200, LAYERS = 10, WORKERS_MAX = 3 };
static struct sim_request requests[STREAMS + JOB];
static struct sim_place places[1 + WORKERS_MAX];

static double uniform(uint64_t *rng) { return (double)(random_next(rng) >> 11) * 0x1p-53; }

// A mesh: an S-part whose rows cost little (a device) or much (CPUs), a pool or workers or both.
static struct sim_config draw(uint64_t *rng)
{
    uint32_t workers = (uint32_t)(uniform(rng) * (WORKERS_MAX + 1)), mini_batches = 1 + (uniform(rng) < 0.5);
    double layer_us = 100 + 900 * uniform(rng), row_us = layer_us * pow(10, -3 + 2.5 * uniform(rng));
    double token_us = layer_us / 8 / 400 *
                      pow(10, -1 + 1.5 * uniform(rng)); // eight streams of 400 tokens: a tenth of a layer to three
    struct sim_config config = {
        .sched = {.max_sequences = STREAMS + JOB + 64,
                  .max_running = 64,
                  .max_waiting = STREAMS + JOB,
                  .max_waiting_batch = STREAMS + JOB,
                  .max_batch_rows = 512,
                  .mini_batches = mini_batches,
                  .mini_batch_auto = uniform(rng) < 0.7,
                  .page_tokens = 16,
                  .context_tokens = 2048,
                  .max_places = 1 + WORKERS_MAX,
                  .layers = LAYERS,
                  .balance = true,
                  .kv_bytes_per_token = 4096},
        .s_part = {.layers = LAYERS, .first_share = 0.25},
        .places = places,
        .place_count = 1 + workers,
        .requests = requests,
        .backlog = true,
        .calibrated = true,
        .noise_sigma = 0.02,
        .reply_us = 50,
        .seed = *rng,
    };
    cost_curve_add(&config.s_part.layer, 1, layer_us);
    cost_curve_add(&config.s_part.layer, 512, layer_us + 512 * row_us);
    cost_curve_add(&config.s_part.head, 1, layer_us);
    cost_curve_add(&config.s_part.head, 512, layer_us + 512 * row_us);
    for (uint32_t i = 0; i <= workers; i++)
        places[i] = (struct sim_place){.cost = {.token_us = token_us * (i ? 1 + uniform(rng) : 1),
                                                .prefill_us = token_us / 4,
                                                .link_us = i ? 30 * uniform(rng) : 0},
                                       .pages_total = 4000,
                                       .local = i == 0};
    return config;
}

static struct sim_result run_of(struct sim_config *config, uint32_t streams, uint32_t job, enum sched_class class)
{
    for (uint32_t i = 0; i < streams; i++) // so long that the steps with their own prompts are less than a hundredth
        requests[i] = (struct sim_request){.prompt_tokens = 60, .generated_tokens = 1500, .max_new_tokens = 1500};
    for (uint32_t i = 0; i < job; i++)
        requests[streams + i] = (struct sim_request){
            .prompt_tokens = 20 + i * 37 % 300, .generated_tokens = 10 + i * 53 % 190, .max_new_tokens = 200, .class = class};
    config->request_count = streams + job;
    return sim_of(config);
}

// A ninth row takes a tenth of the time of eight, more than the twelfth that a step may become longer: every other step has one.
static void a_row_that_takes_longer_waits_for_two_steps(void **state)
{
    uint64_t rng = 1;
    struct sim_config config = draw(&rng);
    struct sim_result both;
    struct error error;
    config.s_part.layer = config.s_part.head = (struct cost_curve){0};
    cost_curve_add(&config.s_part.layer, 1, 300);
    cost_curve_add(&config.s_part.layer, 512, 200 + 512 * 100);
    places[0].cost.token_us = places[0].cost.prefill_us = 0.001;
    config.place_count = config.sched.mini_batches = 1;
    config.noise_sigma = 0;
    struct sim_result without = run_of(&config, STREAMS, 0, SCHED_CLASS_BATCH);
    for (uint32_t i = 0; i < JOB; i++)
        requests[STREAMS + i] =
            (struct sim_request){.prompt_tokens = 8, .generated_tokens = 40, .max_new_tokens = 40, .class = SCHED_CLASS_BATCH};
    config.request_count = STREAMS + JOB;
    config.steps_max = 600;
    assert_int_equal(sim_run(&config, &both, &error), STATUS_OK);
    assert_in_range(both.of[SCHED_CLASS_BATCH].tokens, 150, 330);
    assert_true(both.of[SCHED_CLASS_INTERACTIVE].tbt.p99_s < 1.13 * without.of[SCHED_CLASS_INTERACTIVE].tbt.p99_s);
}

static void beside_streams_and_alone(void **state)
{
    const char *said = getenv("FD_CLASS_WORKLOADS"), *one = getenv("FD_CLASS_WORKLOAD");
    uint64_t first = one ? strtoull(one, NULL, 10) : 0, count = one ? 1 : said ? strtoull(said, NULL, 10) : 100;
    double most = 0, all_saved = 0;
    uint32_t failed = 0;
    for (uint64_t i = first; i < first + count; i++) {
        uint64_t rng = 77 + i;
        struct sim_config config = draw(&rng);
        struct sim_result without = run_of(&config, STREAMS, 0, SCHED_CLASS_BATCH),
                          both = run_of(&config, STREAMS, JOB, SCHED_CLASS_BATCH);
        struct sim_result alone = run_of(&config, 0, JOB, SCHED_CLASS_BATCH),
                          normal = run_of(&config, 0, JOB, SCHED_CLASS_INTERACTIVE);
        double times = both.of[SCHED_CLASS_INTERACTIVE].tbt.p99_s / without.of[SCHED_CLASS_INTERACTIVE].tbt.p99_s;
        double alike = alone.tokens_per_second / normal.tokens_per_second;
        // Time that is saved, of what one after the other takes.
        double saved = 1 - both.seconds / (without.seconds + alone.seconds);
        most = MAX(most, times);
        all_saved += saved;
        if (times > 1.15 || alike < 0.99 || saved < -0.1) {
            printf("workload %llu: between tokens %.3f times (%.2f ms), alone %.3f of normal, time saved %.3f\n",
                   (unsigned long long)i, times, without.tbt.p99_s * 1e3, alike, saved);
            failed++;
        }
    }
    printf("%llu workloads: between tokens at most %.3f times; %.3f of the time saved\n", (unsigned long long)count, most,
           all_saved / (double)count);
    assert_int_equal(failed, 0);
    assert_true(all_saved > 0 || one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_it_is_scheduled_as_interactive_requests_are),
        cmocka_unit_test(rows_wait_without_losing_pages),
        cmocka_unit_test(no_more_start_than_there_is_time_for),
        cmocka_unit_test(rows_are_free_while_weights_are_read),
        cmocka_unit_test(some_row_comes_at_last),
        cmocka_unit_test(it_teaches_neither_lengths_nor_load),
        cmocka_unit_test(each_class_has_a_queue),
        cmocka_unit_test(it_gives_way_to_a_request),
        cmocka_unit_test(it_gives_way_first_when_pages_run_out),
        cmocka_unit_test(no_request_waits_for_pages_of_the_job),
        cmocka_unit_test(it_follows_the_requests),
        cmocka_unit_test(a_row_that_takes_longer_waits_for_two_steps),
        cmocka_unit_test(beside_streams_and_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
