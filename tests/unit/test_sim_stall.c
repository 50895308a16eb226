// test_sim_stall.c: a long prompt beside streams in the simulator, computed in steps that go aside: what the streams see meanwhile, and how
// long the prompt waits for its first token, beside what it does alone.
//
// A layer takes 100 us and 15 us a row, and each place's time varies by noise. Thirty layers: eight rows take about 6.6 ms.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "tests/unit/sim_of.h"

enum { STREAMS = 8, PROMPT = 3000, ARRIVES_US = 1500000, STREAM_TOKENS = 2500, STEPS_MAX = 8000 };

static struct sim_request requests[STREAMS + 1];
static double ttft_s[STREAMS + 1];

// Steps with decode rows, by their ends.
static struct {
    double end_us[STEPS_MAX];
    uint32_t count;
} seen;

static void note(void *user, const struct sim_step *step)
{
    if (step->decode_rows >= STREAMS && seen.count < STEPS_MAX)
        seen.end_us[seen.count++] = step->end_us;
}

static const struct sim_place place = {.cost = {.token_us = 0.001, .prefill_us = 0.003}, .pages_total = 4000, .local = true};

static struct sim_config config_of(bool aside, double noise)
{
    struct sim_config config = {
        .sched = {.max_sequences = 64,
                  .max_running = 64,
                  .max_waiting = 64,
                  .max_batch_rows = 640,
                  .mini_batches = 1,
                  .aside = aside,
                  .page_tokens = 16,
                  .context_tokens = 8192,
                  .max_places = 1,
                  .layers = 30,
                  .kv_bytes_per_token = 10000},
        .s_part = {.layers = 30, .first_share = 0.25},
        .places = &place,
        .place_count = 1,
        .requests = requests,
        .calibrated = true,
        .noise_sigma = noise,
        .reply_us = 50,
        .seed = 1,
        .on_step = note,
        .ttft_s = ttft_s,
    };
    cost_curve_add(&config.s_part.layer, 1, 100);
    cost_curve_add(&config.s_part.layer, 512, 100 + 15 * 512);
    cost_curve_add(&config.s_part.head, 1, 200);
    cost_curve_add(&config.s_part.head, 512, 200 * 512);
    return config;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Returns a quantile of the times between tokens that end in a stretch of time.
static double gap_us(double share, double from_us, double until_us)
{
    static double gaps[STEPS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 1; i < seen.count; i++)
        if (seen.end_us[i] > from_us && seen.end_us[i] <= until_us)
            gaps[count++] = seen.end_us[i] - seen.end_us[i - 1];
    assert_true(count > 20);
    qsort(gaps, count, sizeof gaps[0], by_value);
    return gaps[MIN((uint32_t)(share * count), count - 1)];
}

struct figures {
    double p99, first; // beside the median before; beside alone
};

// Returns after how many seconds a prompt beside streams has its first token.
static double beside_streams(struct sim_config *config)
{
    for (uint32_t i = 0; i < STREAMS; i++)
        requests[i] = (struct sim_request){.prompt_tokens = 60, .generated_tokens = STREAM_TOKENS, .max_new_tokens = STREAM_TOKENS};
    requests[STREAMS] =
        (struct sim_request){.arrival_us = ARRIVES_US, .prompt_tokens = PROMPT, .generated_tokens = 5, .max_new_tokens = 5};
    config->request_count = STREAMS + 1;
    seen.count = 0;
    sim_of(config);
    return ttft_s[STREAMS];
}

static struct figures run_of(bool aside, double noise, double speed)
{
    struct sim_config config = config_of(aside, noise);
    const struct sim_speed slower = {.at_us = ARRIVES_US, .speed = speed};
    requests[0] = (struct sim_request){.prompt_tokens = PROMPT, .generated_tokens = 5, .max_new_tokens = 5};
    config.request_count = 1;
    config.speeds = &slower, config.speed_count = 1;
    sim_of(&config);
    const double alone_s = ttft_s[0], beside_s = beside_streams(&config);
    const double before_us = gap_us(0.5, ARRIVES_US / 2.0, ARRIVES_US), end_us = ARRIVES_US + beside_s * 1e6;
    struct figures f = {gap_us(0.99, ARRIVES_US, end_us) / before_us, beside_s / alone_s};
    printf("%s, noise %.1f: p99 %.2f times the median before, first token %.2f times alone\n", aside ? "aside" : "in steps", noise,
           f.p99, f.first);
    return f;
}

// Prompts have 0.8 times the streams' time between two of their steps, and may be late by half a segment.
static void a_prompt_aside_neither_stalls_streams_nor_starves(void **state)
{
    static const double noises[] = {0, 0.2, 0.5};
    for (size_t i = 0; i < ARRAY_COUNT(noises); i++) {
        const struct figures f = run_of(true, noises[i], 1);
        assert_true(f.p99 <= 2.2);
        assert_true(f.first <= 2.5);
    }
}

// Attention, of which the streams have little and the prompt much, takes four times as long from its arrival on, which nobody has predicted.
static void what_nobody_predicted_makes_no_stall(void **state)
{
    run_of(false, 0.2, 0.25); // for comparison
    assert_true(run_of(true, 0.2, 0.25).p99 <= 2.5);
}

// For a moment attention takes many times as long, so that one segment exceeds all the time that there is for it. The prompt gets on
// afterwards, although only its own segments can show that they are short again. One of the moments hits a segment of the prompt.
static void one_long_segment_is_not_the_last(void **state)
{
    enum { MOMENTS = 24, APART_US = 5000 };
    struct sim_config config = config_of(true, 0);
    const double calm_s = beside_streams(&config);
    double most_s = 0;

    for (uint32_t i = 0; i < MOMENTS; i++) {
        const double at_us = ARRIVES_US + 100000 + (double)i * APART_US;
        const struct sim_speed moment[] = {{.at_us = at_us, .speed = 0.0025}, {.at_us = at_us + APART_US, .speed = 1}};
        config.speeds = moment, config.speed_count = ARRAY_COUNT(moment);
        most_s = MAX(most_s, beside_streams(&config));
    }
    printf("first token after %.2f s, with a long segment after at most %.2f s\n", calm_s, most_s);
    assert_true(most_s > calm_s && most_s < 1.5 * calm_s);
}

// The last stream ends while a prompt is aside: what it has under way comes before a prompt that came later.
static void the_older_prompt_comes_first_when_streams_end(void **state)
{
    struct sim_config config = config_of(true, 0);

    requests[0] = (struct sim_request){.prompt_tokens = 60, .generated_tokens = 300, .max_new_tokens = 300};
    requests[1] = (struct sim_request){.arrival_us = 300000, .prompt_tokens = PROMPT, .generated_tokens = 5, .max_new_tokens = 5};
    requests[2] = (struct sim_request){.arrival_us = 310000, .prompt_tokens = PROMPT, .generated_tokens = 5, .max_new_tokens = 5};
    config.request_count = 3;
    seen.count = 0;
    sim_of(&config);
    printf("first tokens: the older prompt's after %.2f s, the newer one's after %.2f s\n", ttft_s[1], ttft_s[2]);
    assert_true(ttft_s[1] < 0.8 * ttft_s[2]);
}

// With experts eight rows read an eighth of the weights, and 128 all of them: prompts that crowd come nearly as fast as in steps of 512 rows.
static void crowding_prompts_read_experts_for_many_rows(void **state)
{
    enum { MANY = 64, AT_ONCE = 16, LONG = 4000, TARGET_US = 40000 };
    static struct sim_request many[MANY];
    struct sim_config config = config_of(false, 0);
    double rates[3];

    is_a_figure();
    for (uint32_t i = 0; i < MANY; i++)
        many[i] = (struct sim_request){.prompt_tokens = LONG, .generated_tokens = 100, .max_new_tokens = 100};
    config.requests = many;
    config.request_count = MANY;
    config.ttft_s = NULL;
    config.on_step = NULL;
    config.sched.max_running = AT_ONCE;
    config.sched.max_waiting = MANY;
    config.sched.max_sequences = MANY + AT_ONCE;
    config.s_part.layer.count = 0;
    cost_curve_add(&config.s_part.layer, 1, 100);
    cost_curve_add(&config.s_part.layer, 8, 400);
    cost_curve_add(&config.s_part.layer, 32, 1600);
    cost_curve_add(&config.s_part.layer, 128, 3200);
    cost_curve_add(&config.s_part.layer, 512, 3600);
    for (int i = 0; i < 3; i++) {
        config.sched.aside = i == 1;
        config.sched.chunk_tokens = i == 2 ? 512 : 0;
        rates[i] = (double)MANY / sim_of(&config).seconds;
    }
    printf("beside steps of 512 rows: chosen %.2f, aside %.2f\n", rates[0] / rates[2], rates[1] / rates[2]);
    assert_true(rates[0] > 0.7 * rates[2] && rates[1] > 0.7 * rates[2]);

    // A target that is set bounds the steps between theirs, whatever pays.
    config.sched.aside = true;
    config.sched.chunk_tokens = 0;
    config.sched.step_target_us = TARGET_US;
    const struct sim_times bounded = sim_of(&config).tbt;
    printf("a target of %.3f s: gaps within %.3f s\n", TARGET_US / 1e6, bounded.max_s);
    assert_true(bounded.max_s < 1.2 * TARGET_US / 1e6);
    config.sched.step_target_us = 0;

    // And where they come one after the other, streams wait for no more than a few steps of 512 rows.
    for (int load = 70; load <= 95; load += 5) {
        struct sim_times tbt[3];
        for (uint32_t i = 0; i < MANY; i++)
            many[i].arrival_us = (uint64_t)(i * 1e6 / rates[2] * 100 / load);
        for (int i = 0; i < 3; i++) {
            config.sched.aside = i == 1;
            config.sched.chunk_tokens = i == 2 ? 512 : 0;
            tbt[i] = sim_of(&config).tbt;
        }
        printf("%d %% of that: longest gaps of %.3f, %.3f and %.3f s\n", load, tbt[0].max_s, tbt[1].max_s, tbt[2].max_s);
        assert_true(MAX(tbt[0].max_s, tbt[1].max_s) < 3 * tbt[2].max_s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crowding_prompts_read_experts_for_many_rows),
        cmocka_unit_test(a_prompt_aside_neither_stalls_streams_nor_starves),
        cmocka_unit_test(what_nobody_predicted_makes_no_stall),
        cmocka_unit_test(one_long_segment_is_not_the_last),
        cmocka_unit_test(the_older_prompt_comes_first_when_streams_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
