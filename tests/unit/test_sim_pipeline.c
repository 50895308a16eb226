// test_sim_pipeline.c: several s-parts in a pipeline: the experiment of SARATHI (arXiv 2308.16369, section 5.3), and what the simulator must
// conserve.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/unit/sim_of.h"

enum { STAGES = 8, EACH = 27, REQUESTS = 1500, SHORTEST = 1024, LONGEST = 4096, CHUNK = 256 };

static struct sim_request requests[REQUESTS];

// Lengths by Zipf's law (theta 0.4), of which the prompt is ten parts and the answer one.
static void make_requests(void)
{
    static double sums[LONGEST + 1];
    uint64_t rng = 7;
    for (uint32_t l = SHORTEST; l <= LONGEST; l++)
        sums[l] = sums[l - 1] + pow(l - SHORTEST + 1, -0.4);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        double at = (double)(rng >> 11) * 0x1p-53 * sums[LONGEST];
        uint32_t length = SHORTEST;
        while (sums[length] < at)
            length++;
        requests[i] = (struct sim_request){.prompt_tokens = length * 10 / 11, .generated_tokens = length / 11};
        requests[i].max_new_tokens = requests[i].generated_tokens;
    }
}

// A stage of GPT-3 175B on eight A100 (12 of 96 layers): 44 GB of weights at 12.8 TB/s, 35 us a row at half of their peak, and a fixed part
// for what depends on neither: launches and reductions across the eight.
static struct cost_s_part stage_of(double fixed_us)
{
    struct cost_s_part s = {.layers = 1, .first_share = 0.3};
    cost_curve_add(&s.layer, 1, fixed_us + 3400);
    cost_curve_add(&s.layer, 97, fixed_us + 3400);
    cost_curve_add(&s.layer, 194, fixed_us + 6800);
    return s;
}

static uint32_t row_counts[SCHED_STEP_ROWS_MAX + 1];
static uint64_t with_prefill;

static void count_rows(void *user, const struct sim_step *step)
{
    if (step->rows == step->decode_rows)
        return;
    row_counts[step->rows]++;
    with_prefill++;
}

static struct sim_result paper(double fixed_us, enum sched_micro_batch micro_batch, uint32_t chunk)
{
    const struct sim_place place = {
        .cost = {.token_us = 0.045, .prefill_us = 0.0009}, .local = true, .pages_total = 1 << 20}; // a stage's twelve layers
    struct cost_s_part stages[STAGES];
    struct sim_config config = {
        .sched = {.max_sequences = REQUESTS + 2 * STAGES * EACH,
                  .max_running = STAGES * EACH,
                  .max_waiting = REQUESTS,
                  .max_batch_rows = SCHED_STEP_ROWS_MAX,
                  .mini_batches = STAGES,
                  .stages = STAGES,
                  .micro_batch = micro_batch,
                  .chunk_tokens = chunk,
                  .page_tokens = 16,
                  .context_tokens = LONGEST + 1,
                  .max_places = 1,
                  .layers = STAGES,
                  .balance = true,
                  .kv_bytes_per_token = 4718592},
        .stages = stages,
        .places = &place,
        .place_count = 1,
        .requests = requests,
        .request_count = REQUESTS,
        .backlog = true,
        .calibrated = true,
        .hop_us = 100,
        .hop_row_us = 0.1,
        .reply_us = 200,
        .seed = 1,
        .on_step = count_rows,
    };
    for (int i = 0; i < STAGES; i++)
        stages[i] = stage_of(fixed_us);
    memset(row_counts, 0, sizeof row_counts);
    with_prefill = 0;
    return sim_of(&config);
}

static double bubbles(const struct sim_result *r)
{
    double sum_s = 0;
    for (enum sched_bubble kind = 0; kind < SCHED_BUBBLES; kind++)
        sum_s += r->bubble_s[kind];
    return sum_s;
}

// 1,500 of the paper's 10,000 requests. docs/scheduling.md has the curve.
static void bubbles_vanish_when_steps_are_equal(void **state)
{
    const double fixed_ms[] = {0, 5, 10, 15, 20};
    is_a_figure();
    make_requests();
    printf("  fixed part    whole: tokens/s  bubbles s    uniform: tokens/s  bubbles s    throughput    bubbles\n");
    for (uint32_t i = 0; i < ARRAY_COUNT(fixed_ms); i++) {
        struct sim_result whole = paper(fixed_ms[i] * 1e3, SCHED_MICRO_BATCH_WHOLE, 0);
        struct sim_result uniform = paper(fixed_ms[i] * 1e3, SCHED_MICRO_BATCH_UNIFORM, CHUNK);
        double faster = uniform.tokens_per_second / whole.tokens_per_second, fewer = bubbles(&whole) / bubbles(&uniform);
        printf("  %7.0f ms %21.0f %10.0f %20.0f %10.0f %11.2f x %8.1f /\n", fixed_ms[i], whole.tokens_per_second, bubbles(&whole),
               uniform.tokens_per_second, bubbles(&uniform), faster, fewer);
        assert_true(fewer >= 6.29);
        assert_true(faster >= (fixed_ms[i] <= 10 ? 1.91 : 1.6));
        assert_true(row_counts[CHUNK] > 0.97 * (double)with_prefill); // the others are the last requests'
    }
}

// The core finds about the paper's chunk by itself: P:D is 10, and each mini-batch has 27 sequences.
static void the_core_chooses_the_papers_chunk(void **state)
{
    is_a_figure();
    make_requests();
    struct sim_result given = paper(10e3, SCHED_MICRO_BATCH_UNIFORM, CHUNK);
    struct sim_result chosen = paper(10e3, SCHED_MICRO_BATCH_AUTO, 0); // with several stages that is uniform
    uint32_t most = 0;
    for (uint32_t rows = 0; rows <= SCHED_STEP_ROWS_MAX; rows++)
        most = row_counts[rows] > row_counts[most] ? rows : most;
    assert_in_range(most, 11 * (EACH - 1), 11 * (EACH - 1) + 8);
    assert_true(chosen.tokens_per_second > 0.98 * given.tokens_per_second);
}

// --- small ones -------------------------------------------------------------------------------------------------------

static struct sim_config small(const struct sim_place *place, const struct cost_s_part *stages, uint32_t stage_count,
                               uint32_t count)
{
    return (struct sim_config){
        .sched = {.max_sequences = 4096,
                  .max_running = 64,
                  .max_waiting = 2048,
                  .max_batch_rows = 512,
                  .mini_batches = stage_count,
                  .stages = stage_count,
                  .page_tokens = 16,
                  .context_tokens = 4096,
                  .max_places = 8,
                  .layers = 4 * stage_count,
                  .kv_bytes_per_token = 10000},
        .stages = stages,
        .s_part = stages[0],
        .places = place,
        .place_count = 1,
        .requests = requests,
        .request_count = count,
        .backlog = true,
        .calibrated = true,
        .seed = 1,
    };
}

static void make_stages(struct cost_s_part *stages, uint32_t count, double layer_us)
{
    for (uint32_t i = 0; i < count; i++) {
        stages[i] = (struct cost_s_part){.layers = 4, .first_share = 0.25};
        cost_curve_add(&stages[i].layer, 1, layer_us);
    }
}

static void a_lone_sequence_goes_through_all_stages(void **state)
{
    const struct sim_place place = {.cost = {.link_us = 10, .token_us = 1}, .pages_total = 1000};
    struct cost_s_part stages[3];

    make_stages(stages, 3, 100);
    stages[0].step_us = 7;
    cost_curve_add(&stages[2].head, 1, 50);
    requests[0] = (struct sim_request){.prompt_tokens = 1, .generated_tokens = 2, .max_new_tokens = 2};
    struct sim_config config = small(&place, stages, 3, 1);
    config.hop_us = 20;
    config.hop_row_us = 3;
    struct sim_result r = sim_of(&config);
    // Prefill of one row, then a context of 2: 12 layers with a round trip each, two hops, the head.
    assert_true(fabs(r.ttft.max_s - (7 + 12 * 110 + 2 * 23 + 50) * 1e-6) < 1e-9);
    assert_true(fabs(r.tbt.max_s - (7 + 12 * 110 + 2 * 23 + 50 + 12 * 2) * 1e-6) < 1e-9);
    // With one sequence stages wait for each other all the time, and the stage that has it for the workers.
    assert_true(r.bubble_s[SCHED_BUBBLE_R] > 0 && r.bubble_s[SCHED_BUBBLE_PB1] == 0);
}

// A round takes as long as the slowest stage for each mini-batch.
static void the_slowest_stage_sets_the_rate(void **state)
{
    const struct sim_place place = {.local = true, .pages_total = 100000};
    struct cost_s_part stages[4];

    make_stages(stages, 4, 100);
    cost_curve_add(&stages[2].layer, 1, 150);
    for (uint32_t i = 0; i < 64; i++)
        requests[i] = (struct sim_request){.prompt_tokens = 1, .generated_tokens = 500, .max_new_tokens = 500};
    struct sim_config config = small(&place, stages, 4, 64);
    struct sim_result r = sim_of(&config);
    double most = 64 / (4 * 4 * 150e-6);
    assert_true(r.tokens_per_second > 0.97 * most && r.tokens_per_second <= 1.001 * most);
    assert_true(r.mini_batches == 4 && r.s_part_busy > 0.97 * 3.5 / 6);
    // Idle is a bubble, but where the pipeline was empty; nothing else is.
    assert_true(bubbles(&r) > 0.95 * r.idle_s && bubbles(&r) <= 1.001 * r.idle_s);
    double idle_s = 4 * r.seconds * (1 - r.s_part_busy);
    assert_true(fabs(r.idle_s - idle_s) < 0.05 * idle_s);
}

// P stages ask a worker at once: it keeps up while r·W·P is no longer than T. With two mini-batches a stage it is either the stages or
// the worker that never pauses.
static void all_stages_ask_the_workers_at_once(void **state)
{
    struct cost_s_part stages[4];

    make_stages(stages, 4, 100);
    for (uint32_t i = 0; i < 64; i++)
        requests[i] = (struct sim_request){.prompt_tokens = 1, .generated_tokens = 500, .max_new_tokens = 500};
    for (int more = 0; more < 2; more++) {
        // 8 rows of a mini-batch and layer: a quarter of T in all, or twice that, for each of 4 stages.
        const struct sim_place place = {.cost = {.row_us = (more ? 50 : 24) / 8.0}, .pages_total = 100000};
        struct sim_config config = small(&place, stages, 4, 64);
        config.sched.mini_batches = 8;
        struct sim_result r = sim_of(&config);
        double most = 64 / (8 * 4 * (more ? 200e-6 : 100e-6));
        assert_true(r.tokens_per_second > 0.93 * most && r.tokens_per_second <= 1.001 * most);
        assert_true(more ? r.r_part_busy > 0.93 : r.s_part_busy > 0.93);
        assert_true(!more || r.bubble_s[SCHED_BUBBLE_R] > 0.5 * r.idle_s); // else the stage before is the one that waits for them
    }
}

// Whatever the stages, mini-batches, places and rows of a step: every request has all its tokens, and none waits for ever.
static void nothing_is_lost_in_a_pipeline(void **state)
{
    enum { COUNT = 100 };
    struct sim_place places[4];
    struct cost_s_part stages[SCHED_STAGES_MAX];

    for (uint32_t run = 0; run < 48; run++) {
        if (!in_sample(run, 1, 5))
            continue;
        uint32_t stage_count = 1 + run % SCHED_STAGES_MAX, workers = run / 8 % 3, rng = 77 + run;
        make_stages(stages, stage_count, 60);
        for (uint32_t i = 0; i < stage_count; i++)
            cost_curve_add(&stages[i].layer, 100, 160 + 20 * (double)i);
        for (uint32_t i = 0; i <= workers; i++)
            places[i] = (struct sim_place){
                .cost = {.token_us = 0.05, .prefill_us = 0.01, .link_us = i ? 60 : 0}, .pages_total = 300, .local = i == 0};
        for (uint32_t i = 0; i < COUNT; i++) {
            rng = rng * 1664525 + 1013904223;
            uint32_t prompt = 1 + (rng >> 16) % 700, generated = 1 + (rng >> 8) % 100;
            requests[i] = (struct sim_request){.arrival_us = run % 2 ? i * 2000ull : 0,
                                               .prompt_tokens = prompt,
                                               .generated_tokens = generated,
                                               .max_new_tokens = generated + rng % 100,
                                               .class = rng >> 9 & 1 ? SCHED_CLASS_BATCH : SCHED_CLASS_INTERACTIVE};
        }
        struct sim_config config = small(places, stages, stage_count, COUNT);
        config.place_count = 1 + workers;
        config.sched.mini_batches = MAX(stage_count, 1u) * (workers ? 2 : 1);
        config.sched.mini_batch_auto = run / 3 % 2;
        config.sched.max_waiting_batch = 2048;
        config.sched.micro_batch = run / 16;
        config.sched.balance = true;
        config.noise_sigma = 0.1;
        config.reply_us = 100;
        config.hop_us = 30;
        struct sim_result r = sim_of(&config);
        if (run % 7 == 0) { // it says the same again
            struct sim_result again = sim_of(&config);
            assert_memory_equal(&r, &again, sizeof r);
        }
        assert_true(bubbles(&r) <= r.idle_s * 1.001);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubbles_vanish_when_steps_are_equal),     cmocka_unit_test(the_core_chooses_the_papers_chunk),
        cmocka_unit_test(a_lone_sequence_goes_through_all_stages), cmocka_unit_test(the_slowest_stage_sets_the_rate),
        cmocka_unit_test(all_stages_ask_the_workers_at_once),      cmocka_unit_test(nothing_is_lost_in_a_pipeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
