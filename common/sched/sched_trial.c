// sched_trial.c: see sched_trial.h.
#include "common/sched/sched_trial.h"

#include <math.h>

#include "common/sched/sched_state.h"

// Sequences by age, in parts of a life.
struct ages {
    double step;                           // steps of a part
    double prompt;                         // tokens of each
    double count[TUNE_LOAD_TRIAL_BINS];    // running sequences
    double lives_on[TUNE_LOAD_TRIAL_BINS]; // share of these that reaches the next part
    double running, load;                  // sums
};

// Returns the share of all starts that reaches an age: by what was observed, and by their cutoffs.
static double reached(const struct sched_load_class *of, double age)
{
    double all = 0, below = 0;
    for (uint32_t i = 0; i < SCHED_SURVIVAL_BUCKETS; i++) {
        double weight = of->lengths.asked[i].weight;
        all += weight;
        below += weight > 0 && of->lengths.asked[i].cutoffs / weight > age + 0.5 ? weight : 0;
    }
    return below / all * sched_survival_at(&of->survival, age);
}

// Fills in the ages of those that run now.
static void ages_now(const struct sched *s, const struct sched_load_class *of, struct ages *a)
{
    const struct sched_lengths *l = &of->lengths;
    *a = (struct ages){.step = l->tokens / TUNE_LOAD_TRIAL_STEPS};
    a->prompt = MAX(l->prompt_tokens, 0);
    double here = reached(of, 0);
    for (uint32_t i = 0; i < TUNE_LOAD_TRIAL_BINS; i++) {
        double next = reached(of, (i + 1) * a->step);
        a->lives_on[i] = here > 2 * TUNE_SURVIVAL_ALIVE_MIN ? MIN(next / here, 1) : 0;
        here = next;
    }
    for (uint32_t m = 0; m < s->batches.in_use; m++) {
        const struct sched_load_plan *plan = &of->plans[m];
        for (uint32_t i = 0; i < SCHED_LOAD_COHORTS; i++) {
            double age = MAX((double)((int64_t)plan->step - plan->cohorts[i].start), 0);
            a->count[(uint32_t)MIN(age / a->step, TUNE_LOAD_TRIAL_BINS - 1)] += plan->cohorts[i].count;
        }
    }
}

// Lets a part of a life pass. Returns how many sequences end.
static double pass(struct ages *a)
{
    double ended = 0, running = 0, load = 0;
    for (uint32_t i = TUNE_LOAD_TRIAL_BINS; i-- > 0;) {
        double stays = a->count[i] * a->lives_on[i];
        ended += a->count[i] - stays;
        a->count[i] = 0;
        a->count[MIN(i + 1, TUNE_LOAD_TRIAL_BINS - 1)] += stays;
    }
    for (uint32_t i = 0; i < TUNE_LOAD_TRIAL_BINS; i++) {
        running += a->count[i];
        load += a->count[i] * (a->prompt + (i + 0.5) * a->step);
    }
    a->running = running;
    a->load = load;
    return ended;
}

// Returns a round of so many sequences with the number of mini-batches that is fastest, or the one that is set.
static double round_us(const struct sched *s, const struct sched_trial *trial, double running, double load)
{
    uint32_t stages = MIN(s->config.stages, s->config.mini_batches), in_use = s->batches.in_use;
    uint32_t first = s->config.mini_batch_auto ? stages : in_use,
             last = s->config.mini_batch_auto ? s->config.mini_batches : in_use;
    double best_us = INFINITY;
    for (uint32_t k = first; k <= last; k += stages) {
        struct sched_round round = sched_time_round(s, running / k, running / k);
        double links_times = sched_time_links_times(s, trial->full / in_use, running / k);
        sched_round_add(&round, false, trial->call_us + load / trial->tokens_per_us / k, trial->link_us * links_times);
        best_us = MIN(best_us, sched_round_us(&round, k));
    }
    return best_us;
}

double sched_trial_us(const struct sched *s, const struct sched_trial *trial, bool apart)
{
    struct ages a;
    ages_now(s, trial->of, &a);
    double waiting = trial->waiting, rate = trial->full / trial->of->lengths.tokens, us = 0;
    double most = MAX(rate * a.step, 1);
    uint32_t steps = TUNE_LOAD_TRIAL_STEPS * (TUNE_LOAD_TRIAL_ROUNDS + 4);
    for (uint32_t i = 0; i < steps && (i == 0 || waiting > 0 || a.running > trial->full / TUNE_LOAD_TRIAL_REST); i++) {
        double ended = pass(&a), start = MAX(MIN(waiting, trial->full - a.running), 0);
        if (apart)
            start = MIN(start, MIN(most + ended, most + 3 * sqrt(most)));
        waiting -= start;
        a.count[0] += start;
        a.running += start;
        a.load += start * (a.prompt + a.step / 2);
        us += a.step * round_us(s, trial, a.running, a.load) + start * a.prompt * sched_time_row_us(s);
    }
    return us;
}
