// test_sched_load.c: the load-stabilizing schedule, in the simulator, compared with starting each sequence as soon as possible.
//
// The setting is the paper's (FastDecode, arXiv 2403.11421, section 4.2): B sequences of fixed length S, prompts S/16, spacing
// S/32 unless another is given, two mini-batches, a queue that does not run out. x is the R-part's time at the load at which all end together, over T.
// Its model gives (x²+1)/2x times the tokens a second up to x = 2, and 1 + 1/x² beyond.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/sched/state.h"
#include "tests/unit/sim_of.h"

enum { B = 256, S = 512, PROMPT = S / 16, MINI_BATCHES = 2, WORKERS = 4, LAYERS = 32, REQUESTS_MAX = 40 * B };

static struct sim_request requests[REQUESTS_MAX];
static uint64_t rng;

static uint32_t below(uint32_t limit)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % limit);
}

// The measurements between step 2·S, or the first, and the last start.
struct window {
    double limit_us;
    uint64_t plain, late,
        over; // steps without prefill, those of them that took a twentieth longer; steps that read more than the load limit
    uint32_t rows[MINI_BATCHES];
    uint64_t load[MINI_BATCHES], from, to, tokens, steps, peak;
    double rows_sum, begin_us, end_us, longest_us;
    double plain_us; // the longest step without prefill
    struct {
        uint32_t steps, rows, last; // steps so far; sequences that decode, and the step since which these do
        bool follows;               // b·F/S more of them each F steps
    } first_life[MINI_BATCHES];
    uint32_t spacing; // F, if given
};

// Sequences decode from the step after their prompts on. Those of a group may take several steps: the first ones are short.
static void watch_first_life(struct window *w, uint32_t mini_batch, uint32_t rows)
{
    enum { ROWS = B / MINI_BATCHES };
    const uint32_t m = mini_batch, at = w->first_life[m].steps++;
    if (w->spacing == 0 || at > S || rows <= w->first_life[m].rows)
        return;
    const uint32_t groups = (at - 1) / w->spacing + 1, since = at % w->spacing;
    const bool follows = since >= 1 && since <= w->spacing / 2 && rows <= groups * ROWS * w->spacing / S;
    w->first_life[m].follows = follows && (w->first_life[m].rows == 0 || w->first_life[m].follows);
    w->first_life[m].last = at;
    w->first_life[m].rows = rows;
}

static void on_step(void *user, const struct sim_step *step)
{
    struct window *w = user;
    uint64_t load = 0;

    watch_first_life(w, step->mini_batch, step->decode_rows);
    w->rows[step->mini_batch] = step->decode_rows;
    w->load[step->mini_batch] = step->load;
    if (step->step < w->from || step->step > w->to)
        return;
    if (w->steps++ == 0)
        w->begin_us = step->end_us;
    else
        w->tokens += step->decode_rows;
    for (int m = 0; m < MINI_BATCHES; m++) {
        w->rows_sum += w->rows[m];
        load += w->load[m];
    }
    w->peak = MAX(w->peak, load);
    w->plain += step->rows == step->decode_rows;
    if (step->rows == step->decode_rows)
        w->plain_us = MAX(w->plain_us, step->end_us - step->begin_us);
    w->late += step->rows == step->decode_rows && step->end_us - step->begin_us > 1.05 * w->limit_us;
    w->over += step->load > step->load_limit;
    w->longest_us = MAX(w->longest_us, step->end_us - step->begin_us);
    w->end_us = step->end_us;
}

struct outcome {
    struct sim_result all;
    double tokens_per_second, batch, peak, longest_s; // of the window; shares of B and of B (p + S)
    double late, over;                                // shares of its steps
    struct window window;
};

struct setting {
    double x, rounds; // requests over B
    enum sched_admission admission;
    bool mini_batch_auto, flat; // flat: the S-part takes as long for one row as for all
    uint32_t limit_us, pages;   // of a step; of each worker. 0: neither binds
    uint32_t apart_us;          // arrivals; 0: all wait from the beginning
    uint32_t spacing;           // F; 0: not given
    bool from_first;            // the window begins with the first step
};

static struct outcome simulate_setting(const struct setting *setting)
{
    const double x = setting->x, rounds = setting->rounds;

    const double layer_us = 400, batch = (double)B / MINI_BATCHES;
    struct sim_place places[WORKERS];
    struct window window = {
        .from = setting->from_first ? 0 : 2 * S * MINI_BATCHES, .limit_us = setting->limit_us, .spacing = setting->spacing};
    struct sim_config config = {
        .sched = {.max_sequences = REQUESTS_MAX + 2 * B,
                  .max_running = B,
                  .max_waiting = REQUESTS_MAX,
                  .max_batch_rows = B + 512,
                  .mini_batches = MINI_BATCHES,
                  .step_target_us = 50000, // what is compared is the load, not how prefill is held back
                  .admission = setting->admission,
                  .mini_batch_auto = setting->mini_batch_auto,
                  .step_limit_us = setting->limit_us,
                  .balance = setting->limit_us || setting->pages, // workers as even as mini-batches
                  .spacing_steps = setting->spacing,
                  .page_tokens = 16,
                  .context_tokens = PROMPT + S + 1,
                  .max_places = WORKERS,
                  .layers = LAYERS,
                  .kv_bytes_per_token = 1 << 19},
        .s_part = {.layers = LAYERS, .first_share = 0.25},
        .places = places,
        .place_count = WORKERS,
        .requests = requests,
        .request_count = (uint64_t)(rounds * B),
        .backlog = setting->apart_us == 0,
        .move_bytes_per_us = 5000,
        .reply_us = 100,
        .seed = 1,
        .on_step = on_step,
        .user = &window,
    };
    struct outcome out = {0};

    cost_curve_add(&config.s_part.layer, 1, setting->flat ? layer_us - 1 : layer_us / 2);
    cost_curve_add(&config.s_part.layer, batch, layer_us);
    cost_curve_add(&config.s_part.head, 1, layer_us / 2);
    double token_us = x * layer_us * WORKERS / (batch * (PROMPT + S));
    for (int i = 0; i < WORKERS; i++)
        places[i] = (struct sim_place){.cost = {.token_us = token_us, .prefill_us = token_us / 8, .link_us = 20},
                                       .pages_total = setting->pages ? setting->pages : 6000};
    for (uint64_t i = 0; i < config.request_count; i++)
        requests[i] = (struct sim_request){
            .arrival_us = i * setting->apart_us, .prompt_tokens = PROMPT, .generated_tokens = S, .max_new_tokens = S};
    window.to = (uint64_t)((rounds - 1.15) * S * MINI_BATCHES);
    out.all = sim_of(&config);
    assert_int_equal(out.all.tokens, config.request_count * S);
    out.tokens_per_second = (double)window.tokens / (window.end_us - window.begin_us) * 1e6;
    out.batch = window.rows_sum / (double)window.steps / B;
    out.peak = (double)window.peak / ((double)B * (PROMPT + S));
    out.longest_s = window.longest_us / 1e6;
    out.late = (double)window.late / (double)MAX(window.plain, 1);
    out.over = (double)window.over / (double)window.steps;
    out.window = window;
    return out;
}

static struct outcome simulate(double x, double rounds, enum sched_admission admission)
{
    return simulate_setting(&(struct setting){.x = x, .rounds = rounds, .admission = admission});
}

// The paper's schedule, whether or not it is faster: about half the peak from the first start on, and so steps that take two thirds at most
// where the R-part takes as long as the S-part or longer.
static void sls_is_even_from_the_first_start(void **state)
{
    uint32_t index = 0;
    takes_long();
    for (double x = 1.2; x <= 5; x += x < 2 ? 0.3 : 1) {
        if (!in_sample(index++, 2, 5))
            continue;
        struct setting setting = {.x = x, .rounds = 6, .admission = SCHED_GREEDY, .from_first = true};
        struct outcome together = simulate_setting(&setting);
        setting.admission = SCHED_SLS;
        struct outcome spaced = simulate_setting(&setting);
        double latency = spaced.longest_s / together.longest_s, plain = spaced.window.plain_us / together.window.plain_us;
        printf(
            "sls, x %.1f: peak load %.3f beside %.3f, longest step %.3f times, of those without prompts %.3f, tokens/s %.3f times\n",
            x, spaced.peak, together.peak, latency, plain, spaced.all.tokens_per_second / together.all.tokens_per_second);
        assert_true(together.peak >= 0.95);
        assert_true(spaced.peak <= 0.55);
        assert_true(latency <= 0.70 && plain <= MAX(1 / x, 0.55) * 1.1);
    }
}

// F that is given is followed from the first start on: groups of b·F/S, F steps apart, until b run. With auto, too.
static void a_given_spacing_is_followed(void **state)
{
    enum { ROWS = B / MINI_BATCHES };
    static const uint32_t spacings[] = {S / 64, S / 32, S / 8};
    for (uint32_t i = 0; i < 2 * ARRAY_COUNT(spacings); i++) {
        const uint32_t f = spacings[i / 2];
        if (!in_sample(i, 2, 3))
            continue;
        struct outcome got = simulate_setting(
            &(struct setting){.x = 2, .rounds = 4, .admission = i % 2 ? SCHED_AUTO : SCHED_SLS, .spacing = f, .from_first = true});
        printf("F %u: the last group at step %u, peak load %.3f, batch %.3f of B\n", f, got.window.first_life[0].last, got.peak,
               got.batch);
        for (uint32_t m = 0; m < MINI_BATCHES; m++) {
            assert_true(got.window.first_life[m].follows);
            assert_int_equal(got.window.first_life[m].rows, ROWS);
            assert_int_equal((got.window.first_life[m].last - 1) / f, S / f - 1);
        }
        assert_true(got.peak <= 0.5 * (PROMPT * 2 + S + f) / (PROMPT + S) * 1.05);
    }
}

static void the_load_stays_even(void **state)
{
    const struct {
        double x, gain;
        bool spaced; // false: the model's gain is within what a prediction may be off by, so that all start together
    } cases[] = {{1.2, 0.995, false}, {1.5, 1.05, true}, {1.8, 1.10, true}, {2, 1.10, true},
                 {2.2, 1.10, true},   {3, 1.05, true},   {5, 0.995, false}};
    takes_long();

    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        double x = cases[i].x;
        if (!in_sample(i, 2, 7))
            continue;
        struct outcome together = simulate(x, 12, SCHED_GREEDY), spaced = simulate(x, 12, SCHED_AUTO);
        double gain = spaced.tokens_per_second / together.tokens_per_second, latency = spaced.longest_s / together.longest_s;
        printf("x %.1f: tokens/s %.3f times (model %.3f), longest step %.2f times, peak load %.3f, batch %.3f of B\n", x, gain,
               x <= 2 ? (x * x + 1) / (2 * x) : 1 + 1 / (x * x), latency, spaced.peak, spaced.batch);
        assert_true(together.batch >= 0.97 && together.peak >= 0.95); // what it is compared with is not held back
        assert_true(spaced.batch >= 0.97);
        assert_true(gain >= cases[i].gain);
        assert_true(!cases[i].spaced || (spaced.peak <= 0.55 && latency <= 0.70));
    }
}

static double tokens_of(double x, double rounds, enum sched_admission admission, uint32_t apart_us)
{
    const struct setting setting = {.x = x, .rounds = rounds, .admission = admission, .apart_us = apart_us};
    return simulate_setting(&setting).all.tokens_per_second;
}

// Neither a queue that is complete from the beginning, nor one that fills while the first sequences run.
static void a_short_queue_is_not_slowed_down(void **state)
{
    uint32_t index = 0;
    takes_long();
    for (uint32_t apart_us = 0; apart_us <= 200; apart_us += 200) {
        for (double rounds = 0.5; rounds <= 8; rounds *= 2) {
            for (double x = 1.2; x <= 4; x *= 1.5) {
                if (!in_sample(index++, 4, 7))
                    continue;
                double together = tokens_of(x, rounds, SCHED_GREEDY, apart_us), spaced = tokens_of(x, rounds, SCHED_AUTO, apart_us);
                if (spaced < 0.995 * together)
                    fail_msg("x %.2f, %.1f B requests, %u us apart: %.0f and %.0f tokens/s", x, rounds, apart_us, spaced, together);
            }
        }
    }
}

// With an S-part that weights bind one mini-batch is faster than the two that are allowed. A step takes the sum of both parts then, so
// that evenness gains nothing and a queue that is soon through would only lose by it.
static void one_mini_batch_of_two_is_not_slowed_down(void **state)
{
    uint32_t index = 0;
    takes_long();
    for (double rounds = 1; rounds <= 8; rounds *= 2) {
        for (double x = 0.5; x <= 1; x += 0.125) {
            if (!in_sample(index++, 3, 9))
                continue;
            struct setting setting = {.x = x, .rounds = rounds, .admission = SCHED_GREEDY, .mini_batch_auto = true, .flat = true};
            double together = simulate_setting(&setting).all.tokens_per_second;
            setting.admission = SCHED_AUTO;
            struct sim_result spaced = simulate_setting(&setting).all;
            if (spaced.tokens_per_second < 0.995 * together)
                fail_msg("x %.2f, %.0f B requests, %u mini-batches: %.0f and %.0f tokens/s", x, rounds, spaced.mini_batches,
                         spaced.tokens_per_second, together);
        }
    }
}

// A queue that fills while the first sequences run: these start at once and end together, as none waits behind them yet. A life later the
// load is even.
static void the_load_becomes_even_behind_a_burst(void **state)
{
    uint32_t index = 0;
    takes_long();
    for (double x = 1.8; x <= 2.2; x += 0.2) {
        if (!in_sample(index++, 3, 3))
            continue;
        struct outcome together =
            simulate_setting(&(struct setting){.x = x, .rounds = 12, .admission = SCHED_GREEDY, .apart_us = 200});
        struct outcome spaced = simulate_setting(&(struct setting){.x = x, .rounds = 12, .apart_us = 200});
        double gain = spaced.tokens_per_second / together.tokens_per_second, latency = spaced.longest_s / together.longest_s;
        printf("arrivals, x %.1f: tokens/s %.3f times, longest step %.2f times, peak load %.3f, batch %.3f of B\n", x, gain,
               latency, spaced.peak, spaced.batch);
        assert_true(gain >= 1.10 && latency <= 0.70);
        assert_true(together.batch >= 0.97 && together.peak >= 0.90);
        assert_true(spaced.peak <= 0.55 && spaced.batch >= 0.97);
    }
}

// A disturbance of the even spread of starts (here two mini-batches instead of one in mid-run) does not last. Otherwise the load would
// swing more and more, since sequences that start together end together.
static void the_load_becomes_even_again(void **state)
{
    is_a_figure();
    struct outcome always = simulate(2, 24, SCHED_AUTO);
    struct outcome disturbed = simulate_setting(&(struct setting){.x = 2, .rounds = 24, .mini_batch_auto = true});
    printf("two mini-batches after a while: batch %.3f, tokens/s %.3f of always\n", disturbed.batch,
           disturbed.tokens_per_second / always.tokens_per_second);
    assert_true(disturbed.batch >= 0.97);
    assert_true(disturbed.tokens_per_second >= 0.97 * always.tokens_per_second);
}

// If workers bind, fewer sequences at once give nearly as many tokens, in steps that keep to their limit.
static void steps_keep_to_their_limit(void **state)
{
    uint32_t index = 0;
    takes_long();
    for (double x = 3; x <= 5; x += 2) {
        if (!in_sample(index++, 2, 2))
            continue;
        struct outcome any = simulate(x, 16, SCHED_AUTO);
        for (uint32_t share = 75; share <= 90; share += 15) {
            uint32_t limit_us = (uint32_t)(any.longest_s * 1e6 * share / 100);
            struct outcome kept = simulate_setting(&(struct setting){.x = x, .rounds = 16, .limit_us = limit_us});
            printf("x %.0f, limit %.1f ms (%u %%): later %.2f %%, over the load limit %.2f %%, batch %.2f, tokens/s %.3f\n", x,
                   limit_us / 1e3, share, 100 * kept.late, 100 * kept.over, kept.batch,
                   kept.tokens_per_second / any.tokens_per_second);
            assert_true(kept.late <= 0.01);
            assert_true(kept.over <= 0.06); // sequences that go from one mini-batch to the other, too
            assert_true(kept.tokens_per_second >= 0.94 * any.tokens_per_second);
            assert_true(kept.batch >= 0.8 * share / 100);
        }
    }
}

// No sequence starts whose pages others will need.
static void nobody_is_paused_for_pages(void **state)
{
    uint32_t index = 0;
    for (uint32_t pages = 600; pages <= 1400; pages += 400) {
        if (!in_sample(index++, 2, 3))
            continue;
        struct outcome all = simulate_setting(&(struct setting){.x = 2, .rounds = 12, .admission = SCHED_GREEDY, .pages = pages});
        struct outcome few = simulate_setting(&(struct setting){.x = 2, .rounds = 12, .pages = pages});
        printf("%u pages: paused %llu and %llu, batch %.2f and %.2f, tokens/s %.3f\n", pages, (unsigned long long)few.all.preempted,
               (unsigned long long)all.all.preempted, few.batch, all.batch, few.tokens_per_second / all.tokens_per_second);
        assert_true(few.all.preempted * 20 <= all.all.preempted);
        assert_true(few.tokens_per_second >= all.tokens_per_second);
    }
}

// --- how long sequences live ------------------------------------------------------------------------------------------

// A whole life at once.
static void learn(struct sched_survival *s, uint32_t tokens, bool ended)
{
    for (uint32_t passed = sched_survival_next(0); passed <= MIN(tokens, 1u << 20); passed = sched_survival_next(passed))
        sched_survival_pass(s, passed);
    sched_survival_end(s, tokens, ended);
    sched_survival_settle(s);
}

static struct sched_survival_mean mean(const struct sched_survival *s, uint32_t cutoff)
{
    struct sched_survival_mean mean = {0};

    for (uint32_t bucket = 0; bucket <= sched_survival_bucket(cutoff); bucket++)
        sched_survival_mean_add(s, bucket, cutoff, &mean);
    return mean;
}

static void lengths_that_were_cut_off_do_not_shorten(void **state)
{
    struct sched_survival s;

    sched_survival_init(&s);
    assert_true(sched_survival_at(&s, 1e6) == 1); // nothing is known: all live to the cutoff
    assert_true(fabs(mean(&s, 100).tokens - 100) < 1e-9);
    assert_true(fabs(mean(&s, 100).ages - 5050) < 51);
    for (int i = 0; i < 2000; i++) { // half would end at 40 of themselves, but every other one is cut off at 20
        bool cut = i % 2 == 0, ends = below(2);
        learn(&s, cut ? 20 : ends ? 40 : 200, !cut && ends);
    }
    assert_true(sched_survival_at(&s, 30) > 0.99);
    assert_true(fabs(sched_survival_at(&s, 60) - 0.5) < 0.1);
    assert_true(fabs(sched_survival_at(&s, 190) - 0.5) < 0.1);
}

static void old_lengths_are_forgotten(void **state)
{
    struct sched_survival s;

    sched_survival_init(&s);
    for (int i = 0; i < 3000; i++)
        learn(&s, 10, true);
    assert_true(sched_survival_at(&s, 20) < 0.02);
    for (int i = 0; i < 3000; i++)
        learn(&s, 1000, true);
    assert_true(sched_survival_at(&s, 500) > 0.95);
    assert_true(fabs(mean(&s, 4096).tokens - 1000) < 100);
    sched_survival_end(&s, UINT32_MAX, true); // no bucket is so far out
    learn(&s, 0, false);
    assert_true(sched_survival_at(&s, 4e9) >= 0);
}

// With one mini-batch in use S-part and R-part take turns: an even load gains nothing then, however many mini-batches are allowed,
// so what waits starts together. With two in use the same queue starts apart, once some sequence has lived as long as all are expected to:
// until then max_tokens is all that is known.
static void mini_batches_in_use_decide_how_to_start(void **state)
{
    enum { RUNNING = 64, WAITING = 512, TOKENS = 256, BYTES = 1000 };
    static const struct sched_time layers[] = {{1, 990}, {RUNNING / 2, 1000}, {RUNNING, 1010}};
    static struct sched_event events[WAITING + 2];
    static struct sched_action actions[WAITING + 2 + SCHED_ACTIONS_SPARE];
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t in_use = 1 + i / 2;
        const bool lives_known = i % 2;
        const struct sched_config config = {.max_sequences = 2 * WAITING,
                                            .max_running = RUNNING,
                                            .max_waiting = 2 * WAITING,
                                            .max_batch_rows = 1024,
                                            .mini_batches = 2,
                                            .mini_batch_auto = in_use == 1, // it begins with one
                                            .mini_batch_fill = 1,
                                            .page_tokens = 16,
                                            .context_tokens = 1024,
                                            .max_places = 1,
                                            .layers = 4,
                                            .kv_bytes_per_token = BYTES};
        // At the most that a mini-batch reads, a step's R-part takes twice as long as its S-part.
        double token_us = 2000.0 * in_use / (RUNNING * (double)(TOKENS + 16));
        struct sched *s;
        struct error error;
        assert_int_equal(sched_init(&config, &s, &error), STATUS_OK);
        for (uint32_t n = 0; n < 8 && lives_known; n++)
            learn(&s->load.of[SCHED_CLASS_INTERACTIVE].survival, TOKENS, false);
        events[0] = (struct sched_event){.kind = SCHED_S_PART_UP, .s_part_up = {.layers = layers, .layer_count = 3}};
        events[1] = (struct sched_event){
            .kind = SCHED_PLACE_UP,
            .place_up = {.pages_total = 1 << 20, .bytes_per_second = (uint64_t)(BYTES / token_us * 1e6), .link_us = 1}};
        for (uint32_t n = 0; n < WAITING; n++)
            events[2 + n] = (struct sched_event){
                .kind = SCHED_ARRIVE,
                .arrive = {.sequence = n + 1, .prompt_tokens = 16, .max_new_tokens = TOKENS, .held_place = SCHED_NO_PLACE}};
        sched_step(s, 1, events, ARRAY_COUNT(events), actions, ARRAY_COUNT(actions));
        assert_int_equal(s->batches.in_use, in_use);
        assert_int_equal(s->load.of[SCHED_CLASS_INTERACTIVE].decided > 0, lives_known);
        assert_int_equal(s->load.of[SCHED_CLASS_INTERACTIVE].together, in_use == 1 || !lives_known);
        sched_fini(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_that_were_cut_off_do_not_shorten),
        cmocka_unit_test(old_lengths_are_forgotten),
        cmocka_unit_test(sls_is_even_from_the_first_start),
        cmocka_unit_test(a_given_spacing_is_followed),
        cmocka_unit_test(the_load_stays_even),
        cmocka_unit_test(a_short_queue_is_not_slowed_down),
        cmocka_unit_test(one_mini_batch_of_two_is_not_slowed_down),
        cmocka_unit_test(the_load_becomes_even_behind_a_burst),
        cmocka_unit_test(the_load_becomes_even_again),
        cmocka_unit_test(steps_keep_to_their_limit),
        cmocka_unit_test(nobody_is_paused_for_pages),
        cmocka_unit_test(mini_batches_in_use_decide_how_to_start),
    };
    rng = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
