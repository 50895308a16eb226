/* test_sched_migrate.c: those that run go to the local pool, or from it, when the rule would now have them there: in the simulator, a
 * burst whose long sequences outlive the short ones that made the workers worth while. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/unit/sim_of.h"

enum { SHORT = 48, LONG = 8, WORKERS = 2, PAGE = 16, LAYERS = 30, PROMPT = 256, SHORT_TOKENS = 64, LONG_TOKENS = 2000, SEEDS = 4 };

static struct sim_request requests[SHORT + LONG];
static struct sim_place places[1 + WORKERS];

struct setting {
    double local_us, worker_us, link_us; // of a context token; of a round trip
    double pool;                         // what the local pool holds, of what the long ones need at their end
    double limit_margin;                 // max_tokens beyond what is generated, as a factor
};

static struct sim_result run(const struct setting *t, bool migrates, uint64_t seed)
{
    struct sim_config config = {
        .sched = {.max_sequences = SHORT + LONG + 64,
                  .max_running = SHORT + LONG,
                  .max_waiting = SHORT + LONG,
                  .max_batch_rows = 640,
                  .mini_batches = 2,
                  .mini_batch_auto = true,
                  .balance = true,
                  .page_tokens = PAGE,
                  .context_tokens = 8192,
                  .max_places = 1 + WORKERS,
                  .layers = LAYERS,
                  .kv_bytes_per_token = 20000},
        .s_part = {.layers = LAYERS, .first_share = 0.25},
        .places = places,
        .place_count = 1 + WORKERS,
        .requests = requests,
        .request_count = SHORT + LONG,
        .backlog = true,
        .calibrated = true,
        .move_bytes_per_us = migrates ? 2000 : 0,
        .noise_sigma = 0.05,
        .reply_us = 50,
        .seed = seed,
    };
    cost_curve_add(&config.s_part.layer, 1, 60);
    cost_curve_add(&config.s_part.layer, 64, 160);
    for (uint32_t i = 0; i < SHORT + LONG; i++) {
        uint32_t tokens = i % ((SHORT + LONG) / LONG) ? SHORT_TOKENS : LONG_TOKENS;
        requests[i] = (struct sim_request){
            .prompt_tokens = PROMPT, .generated_tokens = tokens, .max_new_tokens = (uint32_t)(tokens * t->limit_margin)};
    }
    double need = LONG * ((PROMPT + LONG_TOKENS * t->limit_margin) / (double)PAGE + 4);
    for (int i = 0; i <= WORKERS; i++)
        places[i] = (struct sim_place){.cost = {.token_us = i > 0 ? t->worker_us : t->local_us,
                                                .prefill_us = (i > 0 ? t->worker_us : t->local_us) / 20,
                                                .link_us = i > 0 ? t->link_us : 0},
                                       .pages_total = (uint32_t)(need * (i > 0 ? 2 : t->pool)),
                                       .local = i == 0};
    return sim_of(&config);
}

/* Slow links: the last ones belong into the pool, and come there. */
static void the_last_ones_come_home(void **state)
{
    const struct setting t = {.local_us = 0.004, .worker_us = 0.004, .link_us = 150, .pool = 1.5, .limit_margin = 1};
    struct sim_result stay = run(&t, false, 1), go = run(&t, true, 1);
    (void)state;

    printf("the last ones at slow links: %.0f tokens/s where they stay, %.0f where they go home (%llu handed over)\n",
           stay.tokens_per_second, go.tokens_per_second, (unsigned long long)go.moved);
    assert_true(go.moved > 0);
    assert_true(go.tokens_per_second > 1.15 * stay.tokens_per_second);
}

/* Whatever local pool, workers and links are like: never slower, but for what noise does to a run, and never to and fro. */
static void it_is_never_slower(void **state)
{
    const double speeds[] = {0.5, 1, 4}, links[] = {20, 60, 150}, pools[] = {0.3, 1.2, 3}, margins[] = {1, 3};
    uint32_t count = ARRAY_COUNT(speeds) * ARRAY_COUNT(links) * ARRAY_COUNT(pools) * ARRAY_COUNT(margins), better = 0;
    double least = INFINITY, most = 0;
    (void)state;

    for (uint32_t i = 0; i < count; i++) {
        const struct setting t = {.local_us = 0.01,
                                  .worker_us = 0.01 * speeds[i % 3],
                                  .link_us = links[i / 3 % 3],
                                  .pool = pools[i / 9 % 3],
                                  .limit_margin = margins[i / 27]};
        double stay = 0, go = 0, ratio;
        uint64_t moved = 0;
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            struct sim_result r = run(&t, true, seed);
            go += r.tokens_per_second;
            moved = MAX(moved, r.moved);
            stay += run(&t, false, seed).tokens_per_second;
        }
        ratio = go / stay;
        if (ratio < 0.98)
            printf("workers x %.1f, link %.0f us, pool %.1f, margin %.0f: %.3f of what it is where all stay, %llu handed over\n",
                   speeds[i % 3], t.link_us, t.pool, t.limit_margin, ratio, (unsigned long long)moved);
        least = MIN(least, ratio);
        most = MAX(most, ratio);
        better += ratio > 1.05;
        assert_true(moved <= SHORT + LONG);
    }
    printf("%u settings: %.3f to %.2f of what it is where all stay; better by 5 %% in %u\n", count, least, most, better);
    assert_true(least >= 0.97 && better > count / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_ones_come_home),
        cmocka_unit_test(it_is_never_slower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
