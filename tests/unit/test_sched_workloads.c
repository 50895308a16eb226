// test_sched_workloads.c: the load-stabilizing schedule on random workloads, in the simulator: what it promises of all of them.
//
//   the load of a mini-batch is over the limit in at most 1 % of all steps (of a workload whose lengths are of two kinds, where the
//   limit itself moves with what is learned, in at most 10 %);
//   nobody starves: no sequence waits longer than twice as long as with known lengths, or as twice a mean life; no run takes longer
//   than twice as long;
//   the mean batch is at least 0.98 of that of a schedule that is told each length beforehand, and 0.9 of it in the least of them;
//   every page is freed exactly once, every token comes exactly once.
//
// FD_WORKLOADS in the environment says how many of 10,000, others for each FD_SEED; FD_WORKLOAD runs one alone. Without both it is SAMPLE of
// the first 1,000.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "common/sim/sim.h"
#include "tests/cmocka.h"
#include "tests/unit/sample.h"

enum { REQUESTS_MAX = 4096, WORKERS_MAX = 6, LAYERS = 4, SAMPLE = SANITIZED ? 25 : 100 };

static struct sim_request requests[REQUESTS_MAX];
static struct sim_place places[WORKERS_MAX];
static uint64_t rng;

static double uniform(void) { return (double)(random_next(&rng) >> 11) * 0x1p-53; }

static uint32_t between(double low, double high) { return (uint32_t)(low + uniform() * (high - low + 1)); }

enum lengths { FIXED, EVEN, EXPONENTIAL, TWO_KINDS, LENGTHS };

static uint32_t length_of(enum lengths lengths, double mean, uint32_t cutoff)
{
    double tokens = mean;
    if (lengths == EVEN)
        tokens = mean * (0.2 + 1.6 * uniform());
    else if (lengths == EXPONENTIAL)
        tokens = -mean * log(uniform() + 1e-12);
    else if (lengths == TWO_KINDS)
        tokens = uniform() < 0.8 ? mean / 2 : mean * 3;
    return (uint32_t)MIN(MAX(tokens, 1), cutoff);
}

struct seen {
    uint64_t steps, over, limited;
};

static void on_step(void *user, const struct sim_step *step)
{
    struct seen *seen = user;

    seen->steps++;
    seen->limited += step->load_limit != UINT64_MAX;
    seen->over += step->load > step->load_limit;
}

struct drawn {
    struct sim_config config;
    enum lengths lengths;
    uint32_t batch, cutoff;
    double mean, x, rate;
    uint64_t tokens;
};

// A mesh and a queue of 12 to 16 batches.
static void draw(struct drawn *d, struct seen *seen)
{
    uint32_t mini_batches = between(1, 2), workers = between(1, WORKERS_MAX);
    double layer_us = 100 + 900 * uniform();

    *d = (struct drawn){
        .lengths = between(0, LENGTHS - 1), .batch = between(8, 64), .mean = between(20, 160), .x = 0.5 + 4.5 * uniform()};
    d->cutoff = (uint32_t)(d->mean * (d->lengths == FIXED ? 1 : 2 + 8 * uniform()));
    uint32_t prompt_max = between(1, d->mean / 2);
    uint64_t count = MIN((uint64_t)(d->batch * (12 + 4 * uniform())), REQUESTS_MAX);
    double token_us = d->x * layer_us * workers * mini_batches / (d->batch * (prompt_max / 2.0 + d->mean * 2));
    d->config = (struct sim_config){
        .sched = {.max_sequences = REQUESTS_MAX + 256,
                  .max_running = d->batch,
                  .max_waiting = REQUESTS_MAX,
                  .max_batch_rows = 512,
                  .mini_batches = mini_batches,
                  .page_tokens = 16,
                  .context_tokens = prompt_max + d->cutoff + 1,
                  .max_places = WORKERS_MAX,
                  .layers = LAYERS,
                  .balance = true,
                  .kv_bytes_per_token = 4096},
        .s_part = {.layers = LAYERS, .first_share = 0.25},
        .places = places,
        .place_count = workers,
        .requests = requests,
        .request_count = count,
        .backlog = true,
        .move_bytes_per_us = 500,
        .noise_sigma = 0.2 * uniform(),
        .reply_us = 100 * uniform(),
        .seed = rng,
        .on_step = on_step,
        .user = seen,
    };
    cost_curve_add(&d->config.s_part.layer, 1, layer_us / 2);
    cost_curve_add(&d->config.s_part.layer, (double)d->batch / mini_batches, layer_us);
    for (uint32_t i = 0; i < workers; i++)
        places[i] = (struct sim_place){.cost = {.token_us = token_us, .prefill_us = token_us / 8, .link_us = 30 * uniform()},
                                       .pages_total = (uint32_t)(d->batch * (d->config.sched.context_tokens / 16 + 4))};
    d->rate = uniform() < 0.3 ? (1 + uniform()) * d->batch / d->mean / (2 * LAYERS * layer_us) : 0; // arrivals a microsecond
    double now_us = 0;
    for (uint64_t i = 0; i < count; i++) {
        now_us += d->rate > 0 ? -log(uniform() + 1e-12) / d->rate : 0;
        requests[i] = (struct sim_request){.arrival_us = (uint64_t)now_us,
                                           .prompt_tokens = between(1, prompt_max),
                                           .generated_tokens = length_of(d->lengths, d->mean, d->cutoff),
                                           .max_new_tokens = d->cutoff};
        d->tokens += requests[i].generated_tokens;
    }
}

static struct sim_result result_of(const struct drawn *d, const char *what)
{
    struct sim_result r;
    struct error error;

    if (sim_run(&d->config, &r, &error))
        fail_msg("%s", error.text);
    if (r.finished != d->config.request_count || r.lost || r.rejected || r.tokens != d->tokens || r.pages_leaked)
        fail_msg("%s: finished %llu of %llu, lost %llu, tokens %llu of %llu, pages left %llu", what, (unsigned long long)r.finished,
                 (unsigned long long)d->config.request_count, (unsigned long long)r.lost, (unsigned long long)r.tokens,
                 (unsigned long long)d->tokens, (unsigned long long)r.pages_leaked);
    return r;
}

static void what_it_promises_of_all(void **state)
{
    const char *said = getenv("FD_WORKLOADS"), *one = getenv("FD_WORKLOAD");
    uint32_t runs = one ? 1 : said ? (uint32_t)strtoul(said, NULL, 10) : SAMPLE, failed = 0;
    uint32_t parts = MAX((said ? 10000 : 1000) / MAX(runs, 1u), 1u);
    uint32_t first = one ? (uint32_t)strtoul(one, NULL, 10) : sample_seed() % parts * runs;
    uint64_t steps = 0, over = 0;
    double least_batch = INFINITY, batches = 0, most_over = 0, longest_wait = 0;

    for (uint32_t run = first; run < first + runs; run++) {
        struct seen seen = {0}, ignored;
        struct drawn d;
        rng = 1000 + run;
        draw(&d, &seen);
        struct sim_result real = result_of(&d, "estimated lengths");
        for (uint64_t i = 0; i < d.config.request_count; i++)
            requests[i].max_new_tokens = requests[i].generated_tokens;
        ignored = seen;
        d.config.user = &ignored;
        struct sim_result told = result_of(&d, "known lengths");
        double batch = real.mean_batch / told.mean_batch, share = (double)seen.over / (double)seen.steps;
        steps += seen.steps;
        over += seen.over;
        double life_s = told.tbt.mean_s * d.mean; // waits of less are no matter
        double wait = MAX(real.ttft.max_s / MAX(told.ttft.max_s, life_s), real.seconds / told.seconds);
        least_batch = MIN(least_batch, batch);
        batches += batch;
        longest_wait = MAX(longest_wait, wait);
        most_over = MAX(most_over, share);
        if (share > 0.1 || batch < 0.9 || wait > 2) {
            printf(
                "run %u: lengths %d, mean %.0f, cutoff %u, B %u, M %u, workers %u, x %.2f, rate %g: over the limit in %.2f %% of %llu "
                "steps, batch %.3f of %.1f, wait %.2f\n",
                run, d.lengths, d.mean, d.cutoff, d.batch, d.config.sched.mini_batches, d.config.place_count, d.x, d.rate,
                100 * share, (unsigned long long)seen.steps, batch, told.mean_batch, wait);
            failed++;
        }
    }
    printf(
        "%u workloads from %u on, %llu steps: over the limit in %.3f %%, at most %.2f %% of a run; mean batch %.3f, at least %.3f; wait at most %.2f\n",
        runs, first, (unsigned long long)steps, 100.0 * (double)over / (double)steps, 100 * most_over, batches / runs, least_batch,
        longest_wait);
    assert_int_equal(failed, 0);
    assert_true((double)over <= 0.01 * (double)steps);
    assert_true(batches / runs >= 0.98);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_promises_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
