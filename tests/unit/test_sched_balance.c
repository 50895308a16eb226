// test_sched_balance.c: workers that drift apart, in the simulator with noise.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "tests/unit/sim_of.h"

enum { WORKERS = 4, BATCHES = 2, REQUESTS = 8000, LAYERS = 8, WINDOW = 50 };

static struct sim_request requests[REQUESTS];
static struct sim_place places[WORKERS];
static uint64_t rng;

static double uniform(void) { return (double)(random_next(&rng) >> 11) * 0x1p-53; }

// For each mini-batch: the time of each worker in the last WINDOW steps, and how far the largest was above the mean.
struct seen {
    double us[BATCHES][WORKERS];
    uint32_t steps[BATCHES];
    double largest_sum, largest_max, step_sum;
    uint64_t windows, all;
    uint32_t workers;
    uint32_t full; // decode rows of a nearly full mini-batch: the end, when there is nothing left to balance, does not count
};

static double largest_to_mean(const double *us, uint32_t workers)
{
    double largest = 0, sum = 0;
    for (uint32_t i = 0; i < workers; i++) {
        largest = MAX(largest, us[i]);
        sum += us[i];
    }
    return largest / (sum / workers);
}

static void see(struct seen *seen, const struct sim_step *step)
{
    uint32_t m = step->mini_batch;
    for (uint32_t i = 0; i < seen->workers; i++)
        seen->us[m][i] += step->r_part_us[i];
    seen->step_sum += largest_to_mean(step->r_part_us, seen->workers);
    seen->all++;
    if (++seen->steps[m] < WINDOW)
        return;
    double ratio = largest_to_mean(seen->us[m], seen->workers);
    seen->largest_sum += ratio;
    seen->largest_max = MAX(seen->largest_max, ratio);
    seen->windows++;
    for (uint32_t i = 0; i < seen->workers; i++)
        seen->us[m][i] = 0;
    seen->steps[m] = 0;
}

static void on_step(void *user, const struct sim_step *step)
{
    struct seen *seen = user;
    if (step->begin_us >= 20e6 && step->decode_rows >= seen->full)
        see(seen, step);
}

static struct sim_config mixed(uint32_t batch, struct seen *seen)
{
    struct sim_config config = {
        .sched = {.max_sequences = REQUESTS + 256,
                  .max_running = batch,
                  .max_waiting = REQUESTS,
                  .max_batch_rows = 640,
                  .mini_batches = BATCHES,
                  .page_tokens = 16,
                  .context_tokens = 4096,
                  .max_places = WORKERS,
                  .layers = LAYERS,
                  .balance = true,
                  .kv_bytes_per_token = 20000},
        .s_part = {.layers = LAYERS, .first_share = 0.25},
        .places = places,
        .place_count = WORKERS,
        .requests = requests,
        .request_count = REQUESTS,
        .backlog = true,
        .move_bytes_per_us = 1000,
        .noise_sigma = 0.1,
        .reply_us = 100,
        .seed = 7,
        .on_step = on_step,
        .user = seen,
    };
    rng = 5;
    for (int i = 0; i < REQUESTS; i++) { // lengths of 16 to 2,000, prompt and answer
        uint32_t prompt = (uint32_t)(8 * pow(125, uniform())), tokens = (uint32_t)(8 * pow(125, uniform()));
        requests[i] = (struct sim_request){.prompt_tokens = prompt, .generated_tokens = tokens, .max_new_tokens = 1000};
    }
    double s_us = 1500, load = batch / 2.0 * 500;
    cost_curve_add(&config.s_part.layer, 1, s_us / 2);
    cost_curve_add(&config.s_part.layer, batch / 2.0, s_us);
    for (int i = 0; i < WORKERS; i++)
        places[i] = (struct sim_place){
            .cost = {.token_us = s_us * WORKERS / load, .prefill_us = s_us * WORKERS / load / 30, .row_us = 1, .link_us = 60},
            .pages_total = 100000};
    return config;
}

// Lengths of 16 to 2,000. Noise alone puts the largest of four 10 % above the mean in one step, and 1.5 % over 50. One run's mean is off by
// 0.5 % with 64 sequences, so the mean of several counts.
static void workers_take_as_long_as_each_other(void **state)
{
    uint32_t index = 0;
    for (uint32_t batch = 64; batch <= 256; batch *= 2) {
        if (!in_sample(index++, 1, 3))
            continue;
        enum { RUNS = 3 };
        double ratio[2] = {0}, tokens_per_second[2] = {0};
        struct sim_result r;
        for (int run = 0; run < 2 * RUNS; run++) {
            int balanced = run / RUNS;
            struct seen seen = {.workers = WORKERS, .full = batch * 4 / 10};
            struct sim_config config = mixed(batch, &seen);
            config.sched.balance = balanced;
            config.request_count = 16 * batch;
            config.seed = 7 + (uint64_t)run % RUNS;
            r = sim_of(&config);
            double mean = seen.largest_sum / (double)seen.windows;
            ratio[balanced] += mean / RUNS;
            tokens_per_second[balanced] += r.tokens_per_second / RUNS;
            printf("B %u, balance %d: largest / mean %.3f over %d steps, at most %.3f; in a step %.3f; %.0f tokens/s; %llu handed "
                   "over, %llu to the other mini-batch\n",
                   batch, balanced, mean, WINDOW, seen.largest_max, seen.step_sum / (double)seen.all, r.tokens_per_second,
                   (unsigned long long)r.moved, (unsigned long long)r.relabelled);
            assert_true(!balanced || seen.largest_max < 1.3);
            assert_true(!balanced || seen.step_sum / (double)seen.all < 1.2);
        }
        assert_true(ratio[0] > 1.10 && ratio[1] < 1.06);
        assert_true(r.moved > 0 && r.moved < 16 * batch);
        assert_true(tokens_per_second[1] > tokens_per_second[0]);
    }
}

// The newest 64 of a mini-batch's 256 sequences at a worker have lived for a tenth of the context that it has too much.
static void workers_with_many_sequences_are_even_too(void **state)
{
    enum { BATCH = 1024, MEAN = 256 };
    struct seen seen = {.workers = 2, .full = BATCH * 4 / 10};
    struct sim_config config = mixed(BATCH, &seen);
    is_a_figure();
    for (int i = 0; i < REQUESTS; i++) {
        const double life = 1 - log(1 - uniform()) * MEAN;
        requests[i] =
            (struct sim_request){.prompt_tokens = 1, .generated_tokens = (uint32_t)MIN(life, 4 * MEAN), .max_new_tokens = 4 * MEAN};
    }
    config.place_count = 2;
    config.noise_sigma = 0;
    struct sim_result r = sim_of(&config);
    double mean = seen.largest_sum / (double)seen.windows;
    printf("B %u, 2 workers: largest / mean %.3f over %d steps, at most %.3f; %.0f tokens/s; %llu handed over\n", BATCH, mean,
           WINDOW, seen.largest_max, r.tokens_per_second, (unsigned long long)r.moved);
    assert_true(mean < 1.03 && seen.largest_max < 1.08);
}

enum { LIMIT = 400, LIVES = 14 /* requests over B: so that the queue outlasts what is looked at */ };

// The load of the slow worker and the mean load of the others: before it is slow, and step by step afterwards.
struct slow {
    double from_us;
    uint32_t workers;
    uint32_t steps[BATCHES];
    double before[2], after[LIMIT][2];
    uint64_t all, mixed;  // steps from then to LIMIT; with prompts' rows
    struct seen balanced; // from WINDOW to LIMIT
};

static uint32_t slow_place(uint32_t workers) { return workers / 2; }

static void on_step_slow(void *user, const struct sim_step *step)
{
    struct slow *slow = user;
    uint32_t place = slow_place(slow->workers);
    double loads[2] = {(double)step->work[place].load, 0};
    for (uint32_t i = 0; i < slow->workers; i++)
        loads[1] += i == place ? 0 : (double)step->work[i].load / (slow->workers - 1);
    uint32_t at = slow->steps[step->mini_batch];
    for (int k = 0; k < 2; k++) {
        if (step->begin_us > slow->from_us / 2 && step->begin_us < slow->from_us)
            slow->before[k] += loads[k];
        else if (step->begin_us >= slow->from_us && at < LIMIT)
            slow->after[at][k] += loads[k];
    }
    if (step->begin_us < slow->from_us)
        return;
    slow->steps[step->mini_batch]++;
    slow->all += at < LIMIT;
    slow->mixed += at < LIMIT && step->rows > step->decode_rows;
    if (at >= WINDOW && at < LIMIT)
        see(&slow->balanced, step);
}

static double share(const struct slow *slow, uint32_t from, uint32_t to)
{
    double sums[2] = {0};
    for (uint32_t i = from; i < to; i++) {
        sums[0] += slow->after[i][0];
        sums[1] += slow->after[i][1];
    }
    return sums[0] / sums[1];
}

static void a_worker_at_half_speed_reads_half(void **state)
{
    uint32_t index = 0;
    takes_long();
    for (uint32_t batch = 64; batch <= 256; batch *= 2) {
        if (!in_sample(index++, 1, 3))
            continue;
        struct slow slow = {.from_us = 40e6, .workers = WORKERS, .balanced.workers = WORKERS};
        struct sim_config config = mixed(batch, NULL);
        const struct sim_speed half = {.at_us = slow.from_us, .place = slow_place(WORKERS), .speed = 0.5};
        config.on_step = on_step_slow;
        config.user = &slow;
        config.speeds = &half;
        config.speed_count = 1;
        config.request_count = LIVES * batch;
        struct sim_result r = sim_of(&config);
        printf(
            "B %u: beside the others %.2f before; %.2f in the first 10 steps, %.2f in steps 40 to 60, then %.2f; %llu handed over\n",
            batch, slow.before[0] / slow.before[1], share(&slow, 0, 10), share(&slow, 40, 60), share(&slow, 60, LIMIT),
            (unsigned long long)r.moved);
        assert_true(fabs(slow.before[0] / slow.before[1] - 1) < 0.1);
        assert_true(share(&slow, 40, 60) < 0.62);
        assert_true(fabs(share(&slow, 60, LIMIT) - 0.5) < 0.06);
    }
}

// The same while prompts come all the time, whose chunks are so small that nearly every step has rows of some.
static struct slow slow_among_prompts(uint32_t workers, uint32_t batch, bool shares_cores)
{
    struct slow slow = {.from_us = 40e6, .workers = workers, .balanced.workers = workers};
    struct sim_config config = mixed(batch, NULL);
    const struct sim_speed half = {.at_us = slow.from_us, .place = slow_place(workers), .speed = 0.5};
    config.sched.chunk_tokens = batch / 4;
    config.on_step = on_step_slow;
    config.user = &slow;
    config.speeds = &half;
    config.speed_count = 1;
    config.request_count = LIVES * batch;
    config.place_count = workers;
    for (uint32_t i = 0; i < workers; i++) {
        places[i].shares_cores = shares_cores;
        places[i].cost.token_us *= (double)workers / WORKERS;
    }
    struct sim_result r = sim_of(&config);
    printf(
        "%u workers%s, B %u: %.2f of steps with prompts; beside the others %.2f before, %.2f in steps 40 to 60, %.2f in 60 to 100, "
        "then %.2f; largest / mean %.3f, at most %.3f; %llu handed over\n",
        workers, shares_cores ? " on the same cores" : "", batch, (double)slow.mixed / (double)slow.all,
        slow.before[0] / slow.before[1], share(&slow, 40, 60), share(&slow, 60, 100), share(&slow, 100, LIMIT),
        slow.balanced.largest_sum / (double)slow.balanced.windows, slow.balanced.largest_max, (unsigned long long)r.moved);
    assert_true((double)slow.mixed > 0.95 * (double)slow.all);
    assert_true(fabs(slow.before[0] / slow.before[1] - 1) < 0.1);
    assert_true(slow.balanced.windows >= BATCHES * (LIMIT / WINDOW - 1));
    return slow;
}

static void a_worker_at_half_speed_reads_half_among_prompts(void **state)
{
    uint32_t index = 0;
    takes_long();
    for (uint32_t workers = 2; workers <= WORKERS; workers *= 2)
        for (uint32_t batch = 128; batch <= 256; batch *= 2) {
            if (!in_sample(index++, 1, 4))
                continue;
            struct slow slow = slow_among_prompts(workers, batch, false);
            assert_true(share(&slow, 40, 60) < 0.62);
            assert_true(fabs(share(&slow, 60, LIMIT) - 0.5) < 0.06);
            assert_true(slow.balanced.largest_sum < 1.1 * (double)slow.balanced.windows && slow.balanced.largest_max < 1.25);
        }
}

// Only steps with its own prompts, and those without any, tell its slowness from its companions' work: it takes some more of them.
static void so_does_one_on_the_s_parts_cores(void **state)
{
    uint32_t index = 0;
    takes_long();
    for (uint32_t workers = 2; workers <= WORKERS; workers *= 2)
        for (uint32_t batch = 128; batch <= 256; batch *= 2) {
            if (!in_sample(index++, 1, 4))
                continue;
            struct slow slow = slow_among_prompts(workers, batch, true);
            assert_true(share(&slow, 100, LIMIT) < 0.62);
        }
}

// Long lives, all alike: noise moves few sequences that would otherwise stay, and none to and fro. Returns tokens/s with balancing over
// those without.
static double gain_in_noise(uint32_t lives)
{
    uint64_t moved[3];
    double tokens_per_second[3];
    for (int i = 0; i < 3; i++) {
        struct sim_config config = mixed(64, NULL);
        config.on_step = NULL;
        config.noise_sigma = i == 0 ? 0 : 0.2;
        config.sched.balance = i < 2;
        config.request_count = lives;
        for (uint32_t k = 0; k < lives; k++)
            requests[k] = (struct sim_request){.prompt_tokens = 200, .generated_tokens = 1500, .max_new_tokens = 1500};
        struct sim_result r = sim_of(&config);
        moved[i] = r.moved;
        tokens_per_second[i] = r.tokens_per_second;
        printf("%s: %llu steps, %.0f tokens/s: %llu of %u handed over, %llu to the other mini-batch\n",
               i == 0   ? "no noise"
               : i == 1 ? "noise of 20 %"
                        : "noise, no balancing",
               (unsigned long long)r.steps, r.tokens_per_second, (unsigned long long)r.moved, lives,
               (unsigned long long)r.relabelled);
    }
    assert_true(moved[1] < 4 * moved[0] && moved[1] < 2 * lives); // lives of 1,500 steps
    assert_true(moved[2] == 0);
    return tokens_per_second[1] / tokens_per_second[2];
}

// Places stay even by how sequences are placed if lives are alike, so there is nothing to gain.
static void noise_moves_little(void **state)
{
    is_a_figure();
    assert_true(gain_in_noise(1024) > 0.99);
}

// A few sequences begin and end together: each worker has as many without any balancing, and there is nothing to gain.
static void noise_costs_little_among_few(void **state)
{
    is_a_figure();
    assert_true(gain_in_noise(256) > 0.98);
}

// The worker at which each mini-batch's last step had most prefill, and how often it was the other's.
struct chunks {
    uint32_t place[BATCHES]; // WORKERS: none
    uint64_t met, all;
};

static void see_chunk(void *user, const struct sim_step *step)
{
    struct chunks *chunks = user;
    uint32_t *own = &chunks->place[step->mini_batch];
    *own = WORKERS;
    for (uint32_t i = 0; i < WORKERS; i++)
        *own = step->work[i].prefill_pairs > 0 && (*own == WORKERS || step->work[i].prefill_pairs > step->work[*own].prefill_pairs)
                   ? i
                   : *own;
    chunks->all += *own < WORKERS && chunks->place[!step->mini_batch] < WORKERS;
    chunks->met += *own < WORKERS && chunks->place[!step->mini_batch] == *own;
}

// Long prompts and short answers, all alike: without regard for each other both mini-batches would go round the workers in step.
static void prompts_of_mini_batches_are_read_at_different_workers(void **state)
{
    struct chunks chunks = {.place = {WORKERS, WORKERS}};
    struct sim_config config = mixed(64, NULL);
    config.on_step = see_chunk;
    config.user = &chunks;
    config.request_count = 512;
    for (uint32_t k = 0; k < config.request_count; k++)
        requests[k] = (struct sim_request){.prompt_tokens = 2000, .generated_tokens = 200, .max_new_tokens = 200};
    (void)sim_of(&config);
    printf("%llu of %llu chunks met another one\n", (unsigned long long)chunks.met, (unsigned long long)chunks.all);
    assert_true(chunks.all > 1000 && chunks.met < chunks.all / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_take_as_long_as_each_other),
        cmocka_unit_test(workers_with_many_sequences_are_even_too),
        cmocka_unit_test(prompts_of_mini_batches_are_read_at_different_workers),
        cmocka_unit_test(noise_moves_little),
        cmocka_unit_test(noise_costs_little_among_few),
        cmocka_unit_test(a_worker_at_half_speed_reads_half),
        cmocka_unit_test(a_worker_at_half_speed_reads_half_among_prompts),
        cmocka_unit_test(so_does_one_on_the_s_parts_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
