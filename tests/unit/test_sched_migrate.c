// test_sched_migrate.c: running sequences go to the local pool, or leave it, when the rule would now place them so. In the simulator: a
// burst whose long sequences outlive the short ones that made the workers worth while.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/sim/state.h"
#include "tests/unit/sim_rule.h"

enum { SHORT = 48, LONG = 8, COUNT = SHORT + LONG, LAYERS = 30, PROMPT = 256, SHORT_TOKENS = 64, LONG_TOKENS = 2000, SEEDS = 4 };

static struct sim_request requests[COUNT];
static struct sim_place places[RULE_PLACES];

struct setting {
    double local_us, worker_us, link_us; // of a context token; of a round trip
    double pool;                         // what the local pool holds, of what the long ones need at their end
    double limit_margin;                 // max_tokens beyond what is generated, as a factor
};

// A sequence's place, and how often it was handed over: to the local pool, from it, from worker to worker.
struct way {
    uint32_t first, place, home, away, across;
};

static struct way ways[COUNT];

// A step's places are in the runs of its action, behind its report (state.h): they are valid until the core has its answer.
static void follow(void *user, const struct sim_step *step)
{
    const struct flight *flight = (const struct flight *)(const void *)((const char *)step - offsetof(struct flight, report));

    for (uint32_t i = 0; i < flight->action.run_count; i++) {
        const uint32_t place = flight->action.runs[i].place;
        struct way *way = &ways[flight->action.runs[i].sequence - 1];
        bool begins = flight->action.runs[i].position == 0, moved = !begins && way->place != place;
        way->home += moved && place == 0;
        way->away += moved && way->place == 0;
        way->across += moved && place != 0 && way->place != 0;
        way->first = begins ? place : way->first;
        way->place = place;
    }
}

// Counts sequences that came to the pool more than twice, or left it more than once, or twice if they began there.
static uint32_t go_to_and_fro(void)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < COUNT; i++)
        count += ways[i].home > 2 || ways[i].away > 1u + (ways[i].first == 0);
    return count;
}

static struct sim_result run(const struct setting *t, bool migrates, uint64_t seed)
{
    struct sim_config config = rule_config(places, requests, COUNT, COUNT, LAYERS);

    config.move_bytes_per_us = migrates ? 2000 : 0;
    config.seed = seed;
    config.on_step = follow;
    memset(ways, 0, sizeof ways);
    cost_curve_add(&config.s_part.layer, 1, 60);
    cost_curve_add(&config.s_part.layer, 64, 160);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t tokens = i % (COUNT / LONG) ? SHORT_TOKENS : LONG_TOKENS;
        requests[i] = (struct sim_request){
            .prompt_tokens = PROMPT, .generated_tokens = tokens, .max_new_tokens = (uint32_t)(tokens * t->limit_margin)};
    }
    const double pages = rule_pages(LONG, PROMPT + LONG_TOKENS * t->limit_margin);
    rule_places(places, (struct rule_place){t->local_us, t->local_us / 20, 0, pages * t->pool},
                (struct rule_place){t->worker_us, t->worker_us / 20, t->link_us, pages * 2});
    struct sim_result r = sim_of(&config);
    uint64_t seen = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        seen += ways[i].home + ways[i].away + ways[i].across;
    assert_int_equal(seen, r.moved);
    return r;
}

// With slow links the last sequences belong into the pool, go there and stay: none is handed over twice, and none leaves the pool.
static void the_last_ones_come_home(void **state)
{
    const struct setting t = {.local_us = 0.004, .worker_us = 0.004, .link_us = 150, .pool = 1.5, .limit_margin = 1};
    struct sim_result stay = run(&t, false, 1), go = run(&t, true, 1);

    printf("the last ones at slow links: %.0f tokens/s where they stay, %.0f where they go home (%llu handed over)\n",
           stay.tokens_per_second, go.tokens_per_second, (unsigned long long)go.moved);
    assert_true(go.moved > 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_true(ways[i].home <= 1 && ways[i].away == 0 && ways[i].across == 0);
        assert_true(requests[i].generated_tokens < LONG_TOKENS || ways[i].place == 0);
    }
    assert_true(go.tokens_per_second > 1.15 * stay.tokens_per_second);
}

// Whatever local pool, workers and links are like, migration never makes a run slower (but for noise) and never sends a sequence to and
// fro: it may come when the short ones have gone, leave when contexts have outgrown the pool, and come back when others have ended. Then it
// stays.
static void it_is_never_slower(void **state)
{
    const double speeds[] = {0.5, 1, 4}, links[] = {20, 60, 150}, pools[] = {0.3, 1.2, 3}, margins[] = {1, 3};
    uint32_t count = ARRAY_COUNT(speeds) * ARRAY_COUNT(links) * ARRAY_COUNT(pools) * ARRAY_COUNT(margins), tried = 0, better = 0;
    double least = INFINITY, most = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (!in_sample(i, 2, 7))
            continue;
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
            assert_int_equal(go_to_and_fro(), 0);
            stay += run(&t, false, seed).tokens_per_second;
        }
        ratio = go / stay;
        if (ratio < 0.98)
            printf("workers x %.1f, link %.0f us, pool %.1f, margin %.0f: %.3f of what it is where all stay, %llu handed over\n",
                   speeds[i % 3], t.link_us, t.pool, t.limit_margin, ratio, (unsigned long long)moved);
        least = MIN(least, ratio);
        most = MAX(most, ratio);
        better += ratio > 1.05;
        tried++;
        assert_true(moved <= COUNT);
    }
    printf("%u settings: %.3f to %.2f of what it is where all stay; better by 5 %% in %u\n", tried, least, most, better);
    assert_true(least >= 0.97 && better > tried / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_ones_come_home),
        cmocka_unit_test(it_is_never_slower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
