// test_sim_scale.c: tokens a second by the number of workers, which are noisy (sigma 10 % each step) behind a link of some latency and
// bandwidth: at least 0.85 of linear (a layer waits for the slowest of all) until the S-part binds, at 48
// workers. And every row of the workload is in a step that was counted, once.
#include <stdio.h>

#include "common/base/checked.h"
#include "tests/unit/sim_of.h"

enum { B = 2048, PROMPT = 32, GENERATED = 256, LAYERS = 16, MINI_BATCHES = 2, WORKERS_MAX = 64, REQUESTS = 6 * B, BINDS = 48 };

static struct sim_request requests[REQUESTS];

struct counted {
    uint64_t steps, rows, tokens;
    double begin_us, end_us, begin_tokens, end_tokens; // between a quarter and three quarters of them: neither slow start nor end
};

static void on_step(void *user, const struct sim_step *step)
{
    struct counted *counted = user;

    counted->steps++;
    counted->rows += step->rows;
    counted->tokens += step->decode_rows;
    if (4 * counted->tokens > 3 * (uint64_t)REQUESTS * GENERATED)
        return;
    counted->end_us = step->end_us;
    counted->end_tokens = (double)counted->tokens;
    if (4 * counted->tokens < (uint64_t)REQUESTS * GENERATED) {
        counted->begin_us = step->end_us;
        counted->begin_tokens = (double)counted->tokens;
    }
}

static double tokens_per_second(uint32_t workers)
{
    static struct sim_place places[WORKERS_MAX];
    const double layer_us = 500, mean_load = (double)B / MINI_BATCHES * (PROMPT + GENERATED / 2.0);
    struct counted counted = {0};
    struct sim_result r;
    struct sim_config config = {
        .sched = {.max_sequences = REQUESTS + 2 * B,
                  .max_running = B,
                  .max_waiting = REQUESTS,
                  .max_batch_rows = B + 512,
                  .mini_batches = MINI_BATCHES,
                  .chunk_tokens = 512,
                  .page_tokens = 16,
                  .context_tokens = PROMPT + GENERATED + 1,
                  .max_places = WORKERS_MAX,
                  .layers = LAYERS,
                  .kv_bytes_per_token = 1 << 19},
        .s_part = {.layers = LAYERS, .first_share = 0.25},
        .places = places,
        .place_count = workers,
        .requests = requests,
        .request_count = REQUESTS,
        .backlog = true,
        .link_row_us = 0.05,
        .noise_sigma = 0.1,
        .reply_us = 100,
        .seed = 1,
        .on_step = on_step,
        .user = &counted,
    };

    cost_curve_add(&config.s_part.layer, 1, 0.4 * layer_us);
    cost_curve_add(&config.s_part.layer, (double)B / MINI_BATCHES, layer_us);
    for (uint32_t i = 0; i < workers; i++)
        places[i] = (struct sim_place){.cost = {.token_us = BINDS * layer_us / mean_load, .prefill_us = 1e-3, .link_us = 30},
                                       .pages_total = 8 * B * (PROMPT + GENERATED) / 16 / workers};
    for (uint32_t i = 0; i < REQUESTS; i++)
        requests[i] = (struct sim_request){.prompt_tokens = PROMPT, .generated_tokens = GENERATED, .max_new_tokens = GENERATED};
    r = sim_of(&config);
    assert_int_equal(r.tokens, (uint64_t)REQUESTS * GENERATED);
    assert_int_equal(r.prefill_rows, (uint64_t)REQUESTS * PROMPT);
    assert_int_equal(r.decode_rows - r.wasted_rows, (uint64_t)REQUESTS * (GENERATED - 1));
    assert_int_equal(counted.steps, r.steps);
    assert_int_equal(counted.rows, r.prefill_rows + r.decode_rows);
    double rate = (counted.end_tokens - counted.begin_tokens) / (counted.end_us - counted.begin_us) * 1e6;
    printf("%2u workers: %6.0f tokens/s, S-part %.2f busy, workers %.2f\n", workers, rate, r.s_part_busy, r.r_part_busy);
    return rate;
}

static void tokens_grow_with_workers(void **state)
{
    const double s_part = B / (MINI_BATCHES * LAYERS * 500e-6); // its own most, full
    double one = tokens_per_second(1);

    for (uint32_t workers = 2; workers <= WORKERS_MAX; workers *= 2) {
        double got = tokens_per_second(workers), most = MIN(workers * one, s_part);
        printf("   %.3f of linear, %.3f of what binds\n", got / (workers * one), got / most);
        assert_true(got >= (workers * one < 0.75 * s_part ? 0.85 : 0.8) * most);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_grow_with_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
