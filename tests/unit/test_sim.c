// test_sim.c: the simulator against times worked out by hand, and what it must conserve.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/sim_of.h"

enum { REQUESTS_MAX = 20000 };
static struct sim_request requests[REQUESTS_MAX];

static struct sim_config small(const struct sim_place *places, uint32_t place_count, uint64_t request_count)
{
    struct sim_config config = {
        .sched = {.max_sequences = 4096,
                  .max_running = 64,
                  .max_waiting = 2048,
                  .max_batch_rows = 256,
                  .mini_batches = 1,
                  .page_tokens = 16,
                  .context_tokens = 4096,
                  .max_places = 64,
                  .layers = 10,
                  .kv_bytes_per_token = 10000},
        .s_part = {.layers = 10, .first_share = 0.25},
        .places = places,
        .place_count = place_count,
        .requests = requests,
        .request_count = request_count,
        .backlog = true,
        .seed = 1,
    };
    cost_curve_add(&config.s_part.layer, 1, 100);
    return config;
}

static void a_lone_sequence_takes_what_its_steps_take(void **state)
{
    const struct sim_place place = {.cost = {.link_us = 60, .token_us = 1}, .pages_total = 1000};
    struct sim_config config = small(&place, 1, 1);

    cost_curve_add(&config.s_part.head, 1, 50);
    requests[0] = (struct sim_request){.prompt_tokens = 1, .generated_tokens = 4, .max_new_tokens = 100};
    struct sim_result r = sim_of(&config);
    // Prefill of one row, then contexts of 2, 3, 4: each step 10 layers of 100, 10 round trips of 60, its context, the head.
    assert_int_equal(r.tokens, 4);
    assert_int_equal(r.finished, 1);
    assert_true(fabs(r.ttft.max_s - 1650e-6) < 1e-9);
    assert_true(fabs(r.tbt.max_s - (1650 + 40) * 1e-6) < 1e-9);
    assert_true(r.seconds >= (4 * 1650 + (2 + 3 + 4) * 10) * 1e-6 - 1e-9);
    assert_int_equal(r.peak_load, 5 * (r.wasted_rows > 0) + 4 * (r.wasted_rows == 0)); // a row beyond the end was on its way
}

// Two mini-batches alternate: where the R-part takes as long as the S-part, a step of both takes as long as one of one.
static void two_mini_batches_overlap(void **state)
{
    const struct sim_place place = {.cost = {.link_us = 0, .row_us = 100.0 / 32}, .pages_total = 100000};
    struct sim_config config = small(&place, 1, 64);

    config.sched.chunk_tokens = 64;
    for (uint32_t i = 0; i < 64; i++)
        requests[i] = (struct sim_request){.prompt_tokens = 1, .generated_tokens = 500, .max_new_tokens = 500};
    config.sched.mini_batches = 2;
    struct sim_result two = sim_of(&config);
    config.sched.mini_batches = 1; // 64 rows: the S-part as long, attention twice
    struct sim_result one = sim_of(&config);
    assert_int_equal(two.finished, 64);
    assert_true(one.tokens_per_second / (64 / (10 * (100 + 200) * 1e-6)) > 0.98);
    // Two of 32 rows: the S-part is never idle, so both take 2 x 10 x 100 us a round of 64 tokens.
    assert_true(two.tokens_per_second / (64 / (2 * 10 * 100 * 1e-6)) > 0.97);
    assert_true(two.s_part_busy > 0.97 && two.r_part_busy > 0.97);
    assert_true(one.s_part_busy < 0.35);
}

// The faster of one and two mini-batches is found, and changing between them loses nothing.
static void as_many_mini_batches_as_are_faster(void **state)
{
    for (int links = 0; links < 3; links++) {
        for (int work = 0; work < 4; work++) {
            const double row_us[] = {0, 0.5, 3, 12}, link_us[] = {0, 50, 400};
            const struct sim_place place = {.cost = {.link_us = link_us[links], .row_us = row_us[work], .token_us = 1e-3},
                                            .pages_total = 100000};
            struct sim_config config = small(&place, 1, 256);
            struct sim_result r[3];
            for (uint32_t i = 0; i < 256; i++)
                requests[i] = (struct sim_request){.prompt_tokens = 5, .generated_tokens = 100 + i, .max_new_tokens = 400};
            cost_curve_add(&config.s_part.layer, 64, 300);
            for (uint32_t m = 0; m < 3; m++) {
                config.sched.mini_batches = m == 0 ? 2 : m;
                config.sched.mini_batch_auto = m == 0;
                r[m] = sim_of(&config);
                assert_int_equal(r[m].finished, 256);
                assert_int_equal(r[m].pages_leaked, 0);
            }
            double best = r[1].tokens_per_second > r[2].tokens_per_second ? r[1].tokens_per_second : r[2].tokens_per_second;
            if (r[0].tokens_per_second < 0.95 * best)
                fail_msg("link %.0f us, row %.1f us: %.0f tokens/s; one %.0f, two %.0f", link_us[links], row_us[work],
                         r[0].tokens_per_second, r[1].tokens_per_second, r[2].tokens_per_second);
        }
    }
}

static void nothing_is_lost(void **state)
{
    struct sim_place places[5] = {{.cost = {.token_us = 0.05, .prefill_us = 0.01}, .pages_total = 200, .local = true}};
    struct sim_config config = small(places, 5, 3000);
    uint64_t tokens = 0, prompts = 0;
    uint32_t rng = 12345;
    struct error error;

    for (int i = 1; i < 5; i++)
        places[i] = (struct sim_place){.cost = {.token_us = 0.05, .prefill_us = 0.01, .link_us = 60}, .pages_total = 400};
    config.sched.mini_batches = 2;
    config.noise_sigma = 0.1;
    config.reply_us = 100;
    for (uint32_t i = 0; i < 3000; i++) {
        rng = rng * 1664525 + 1013904223;
        uint32_t prompt = 1 + (rng >> 16) % 900, generated = 1 + (rng >> 8) % 300;
        requests[i] = (struct sim_request){.arrival_us = i * 500ull,
                                           .prompt_tokens = prompt,
                                           .generated_tokens = generated,
                                           .max_new_tokens = generated + rng % 100};
        tokens += generated;
        prompts += prompt;
    }
    struct sim_result r = sim_of(&config), again = sim_of(&config);
    assert_int_equal(r.finished, 3000);
    assert_int_equal(r.lost + r.rejected, 0);
    assert_int_equal(r.tokens, tokens);
    assert_int_equal(r.pages_leaked, 0);
    assert_true(r.prefill_rows >= prompts);
    assert_int_equal(r.ttft.count, 3000);
    assert_int_equal(r.tbt.count, tokens - 3000);
    assert_memory_equal(&r, &again, sizeof r); // a seed says all
    config.backlog = false;
    config.sched.max_waiting = 10;
    assert_int_equal(sim_run(&config, &r, &error), STATUS_OK);
    assert_true(r.rejected > 0);
    assert_int_equal(r.finished + r.rejected, 3000);
}

// Its steps take as much longer as its speed says, from the step on that begins after the change.
// Places of 640, 960 and 1,600 tokens, and sequences of up to 2,300: every one of them ends, and the short ones, too.
static void sequences_larger_than_any_place_end(void **state)
{
    struct sim_place places[3] = {0};
    struct sim_config config = small(places, 3, 200);

    for (uint32_t i = 0; i < 3; i++)
        places[i] = (struct sim_place){.cost = {.token_us = 0.05, .prefill_us = 0.01, .link_us = 60},
                                       .pages_total = (uint32_t[]){40, 60, 100}[i]};
    config.sched.extent_tokens = 64;
    config.sched.span_ranges = 8;
    for (uint32_t i = 0; i < 200; i++)
        requests[i] = (struct sim_request){.arrival_us = i * 5000ull,
                                           .prompt_tokens = i % 10 == 0 ? 1200 + 5 * i : 20 + i,
                                           .generated_tokens = 100,
                                           .max_new_tokens = 100};
    struct sim_result r = sim_of(&config);
    assert_true(r.frozen >= 20);
}

// A sequence of 16,384 tokens: one place with all of its memory, and four with a quarter each, which read at the same time.
static void places_read_a_long_sequence_together(void **state)
{
    struct sim_place places[4] = {0};
    struct sim_config config = small(places, 1, 1);
    double attends_us[2];

    config.sched.context_tokens = 20000;
    config.sched.extent_tokens = 512;
    config.sched.span_ranges = 8;
    requests[0] = (struct sim_request){.prompt_tokens = 16384, .generated_tokens = 64, .max_new_tokens = 64};
    for (uint32_t i = 0; i < 4; i++)
        places[i] = (struct sim_place){.cost = {.token_us = 0.05, .prefill_us = 0.001}, .pages_total = i ? 300 : 1100};
    for (uint32_t four = 0; four < 2; four++) {
        places[0].pages_total = four ? 300 : 1100;
        config.place_count = four ? 4 : 1;
        attends_us[four] = sim_of(&config).tbt.mean_s * 1e6 - 10 * 100; // without the s-part's layers
    }
    assert_in_range(attends_us[0], 7900, 8500); // 10 layers x 0.05 us x 16,400
    assert_true(attends_us[1] < attends_us[0] / 3);
}

static void a_place_slows_down_and_recovers(void **state)
{
    const struct sim_place place = {.cost = {.row_us = 300, .link_us = 50}, .pages_total = 1000};
    const struct sim_speed speeds[] = {{1e6, 0, 0.5}, {2e6, 0, 1}};
    struct sim_config config = small(&place, 1, 1);

    requests[0] = (struct sim_request){.prompt_tokens = 1, .generated_tokens = 700, .max_new_tokens = 700};
    struct sim_result even = sim_of(&config);
    config.speeds = speeds;
    config.speed_count = 2;
    struct sim_result slowed = sim_of(&config);
    const double step_s = 10 * (100 + 300 + 50) * 1e-6, slow_s = step_s + 10 * 300e-6;
    assert_true(fabs(even.step.max_s - step_s) < 1e-9 && fabs(slowed.step.max_s - slow_s) < 1e-9);
    double steps = 1 / slow_s; // in the slow second, give or take the steps at its ends
    assert_true(fabs(slowed.seconds - even.seconds - steps * (slow_s - step_s)) < 2 * slow_s);
    config.speed_count = 1;
    config.speeds = (struct sim_speed[]){{0, 1, 1}};
    struct error error;
    assert_int_equal(sim_run(&config, &slowed, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "place 1 of 1"));
}

// Each place and step has its own, of the same mean: the slowest of many places is slower than one.
static void noise_is_of_each_place_and_step(void **state)
{
    struct sim_place places[16] = {{.local = false}};
    struct sim_config config = small(places, 1, 160);
    double expected[2] = {0};

    for (int i = 0; i < 16; i++)
        places[i] = (struct sim_place){.cost = {.row_us = 100}, .pages_total = 10000};
    for (uint32_t i = 0; i < 160; i++)
        requests[i] = (struct sim_request){.prompt_tokens = 1, .generated_tokens = 500, .max_new_tokens = 500};
    config.sched.max_running = 160;
    config.noise_sigma = 0.1;
    for (int many = 0; many < 2; many++) {
        config.place_count = many ? 16 : 1;
        config.request_count = many ? 160 : 10;
        struct sim_result r = sim_of(&config);
        expected[many] = (r.step.mean_s / (10 * 1e-6) - 100) / 1000; // 10 rows a place
    }
    assert_true(fabs(expected[0] - 1) < 0.02);
    assert_true(fabs(expected[1] - 1.18) < 0.04); // the largest of 16 normal variables is 1.77 deviations up
}

static void bad_requests_are_named(void **state)
{
    const struct sim_place place = {.pages_total = 10};
    struct sim_config config = small(&place, 1, 2);
    struct sim_result result;
    struct error error;

    requests[0] = (struct sim_request){.prompt_tokens = 1, .generated_tokens = 1, .max_new_tokens = 1, .arrival_us = 5};
    requests[1] = requests[0];
    requests[1].arrival_us = 4;
    assert_int_equal(sim_run(&config, &result, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "request 1"));
    requests[1] = (struct sim_request){.prompt_tokens = 4000, .generated_tokens = 1, .max_new_tokens = 100, .arrival_us = 5};
    assert_int_equal(sim_run(&config, &result, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "4096"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_sequence_takes_what_its_steps_take),
        cmocka_unit_test(two_mini_batches_overlap),
        cmocka_unit_test(as_many_mini_batches_as_are_faster),
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(sequences_larger_than_any_place_end),
        cmocka_unit_test(places_read_a_long_sequence_together),
        cmocka_unit_test(a_place_slows_down_and_recovers),
        cmocka_unit_test(noise_is_of_each_place_and_step),
        cmocka_unit_test(bad_requests_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
