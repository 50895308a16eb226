// load.c: see load.h.
#include "common/sched/load.h"

#include <math.h>

#include "common/sched/state.h"

// --- what is expected -------------------------------------------------------------------------------------------------

void sched_load_init(struct sched *s)
{
    for (enum sched_class class = 0; class < SCHED_CLASSES; class ++) {
        sched_survival_init(&s->load.of[class].survival);
        sched_lengths_init(&s->load.of[class].lengths);
        for (uint32_t m = 0; m < s->config.mini_batches; m++)
            s->load.of[class].plans[m] = (struct sched_load_plan){.class = class, .stale = true};
    }
}

static uint32_t tokens_generated(const struct sched *s, uint32_t slot) { return s->seqs[slot].known - s->cold[slot].prompt; }

static void note_start(struct sched *s, uint32_t slot)
{
    uint32_t prompt = s->cold[slot].prompt;
    struct sched_load_class *of = &s->load.of[s->seqs[slot].class];
    sched_lengths_note(&of->lengths, &of->survival, prompt, s->seqs[slot].limit - prompt);
}

static const struct sched_lengths *lengths_of(const struct sched *s, enum sched_class class) { return &s->load.of[class].lengths; }

static double mean_context(const struct sched_lengths *l) { return l->count > 0 ? l->context_tokens / l->tokens : 0; }

// n sequences that live alike will still generate n·(p + S) - load tokens. The next one goes where that is least.
struct sched_weight sched_load_weight(const struct sched *s, enum sched_class class)
{
    const struct sched_lengths *l = lengths_of(s, class);
    if (l->count == 0)
        return (struct sched_weight){.context = 1};
    double mean = mean_context(l), variance = l->context_squares / l->tokens - mean * mean, ages = l->tokens * l->tokens / 12;
    // How much of what contexts differ by is their age, and how well that tells what is left of a life.
    double alike = MAX(1 - 2 * l->variation, 0) * (variance > ages ? ages / variance : 1), each = TUNE_LOAD_WEIGHT * mean;
    return (struct sched_weight){.each = each, .context = 1 - alike * (1 + each / (l->prompt_tokens + l->tokens))};
}

static double spacing_steps(const struct sched *s, const struct sched_lengths *l)
{
    return s->config.spacing_steps ? s->config.spacing_steps : MAX(l->tokens / TUNE_LOAD_SPACING_PART, 1);
}

// The speed and room of places, and what follows for the sequences of a class in a mini-batch.
struct reach {
    const struct sched_lengths *lengths; // theirs
    double tokens_per_us;                // context tokens that all workers elsewhere read together; 0: there are none
    double link_us, call_us; // a step's round trips to the farthest of them; what a step occupies one for, whatever it reads
    double page_tokens;      // a mini-batch's share of the tokens that all pages hold
    double full;             // sequences of a full mini-batch: as many as may run, pages hold and steps have time for
    double hard;             // context tokens of a step that its time and the pages allow
    double limit;            // W_lim: of these, as many as keep both parts busy, or as evenly spaced starts need if that is more
};

// Returns a mini-batch's turn: its work, or its share of the time in which weights are read.
static double s_part_us(const struct sched *s, double rows)
{
    return MAX(sched_time_s_part_us(s, rows, rows), s->time.stream_us / s->batches.in_use);
}

// Returns how long the workers may read for a mini-batch of so many rows without anyone waiting for them. All stages of a pipeline ask
// them at once, each for its own part of the layers, while it works on another mini-batch.
static double balanced_us(const struct sched *s, double rows, double link_us)
{
    double us = s->config.stages > 1 ? sched_time_slowest_us(s, rows, rows) : s_part_us(s, rows);
    return MAX(us - link_us / s->config.stages, 0);
}

// Returns the context tokens that a mini-batch of so many rows may read so that its steps keep to step_limit_us. The workers may always
// take as long as the s-part does: if a step is too long then, it is not their load that is too much.
static double timely_load(const struct sched *s, const struct reach *r, double rows)
{
    double limit_us = s->config.step_limit_us, all_rows = rows * (1 + r->lengths->prompt_tokens / r->lengths->tokens);
    double s_us = s_part_us(s, all_rows);
    double r_us = sched_round_away_most_us(limit_us, s_us, r->link_us, s->batches.in_use);
    return limit_us == 0 ? INFINITY : MAX(MAX(r_us, balanced_us(s, all_rows, r->link_us)) - r->call_us, 0) * r->tokens_per_us;
}

// Returns what so many sequences read when their starts are evenly spaced, plus `deviations` standard deviations.
static double steady_load(const struct sched *s, const struct sched_lengths *l, double rows, double deviations)
{
    double mean = mean_context(l), variance = MAX(l->context_squares / l->tokens - mean * mean, 0);
    return rows * (mean + spacing_steps(s, l) / 2) + deviations * sqrt(rows * variance);
}

static double hard_load(const struct sched *s, const struct reach *r, double rows)
{
    double paged = r->page_tokens - rows * s->config.page_tokens; // the last page of each is not full
    return MAX(MIN(timely_load(s, r, rows), paged), 0);
}

// Returns the most sequences, up to `most`, for which time and pages suffice without binding. Limits that bind delay starts, so that
// later starts come close together, and so do their ends and the starts after those: the load swings more and more.
static double full_rows(const struct sched *s, const struct reach *r, double most)
{
    double low = 1, high = most;
    if (steady_load(s, r->lengths, most, 1) <= hard_load(s, r, most))
        return most;
    while (high - low > 0.25) {
        double rows = (low + high) / 2;
        *(steady_load(s, r->lengths, rows, 1) <= hard_load(s, r, rows) ? &low : &high) = rows;
    }
    return low;
}

// Needs an expectation of lengths.
static struct reach reach_of(const struct sched *s, enum sched_class class)
{
    struct reach r = {.lengths = lengths_of(s, class)};
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (!place->up)
            continue;
        r.page_tokens += place->draining ? 0 : (double)place->pages_total * s->config.page_tokens / s->batches.in_use;
        if (place->kind == SCHED_LOCAL_POOL || place->shares_cores || place->speed.token_us <= 0)
            continue;
        r.tokens_per_us += 1 / place->speed.token_us;
        r.link_us = MAX(r.link_us, place->speed.link_step_us);
        r.call_us = MAX(r.call_us, place->speed.call_step_us);
    }
    if (r.tokens_per_us == 0)
        return r;
    r.full = full_rows(s, &r, MAX((double)s->config.max_running / s->batches.in_use, 1));
    double balance = MAX(balanced_us(s, r.full, r.link_us) - r.call_us, 0) *
                     r.tokens_per_us; // read while the s-part works on the other mini-batch
    r.hard = hard_load(s, &r, r.full);
    r.limit = MIN(MAX(steady_load(s, r.lengths, r.full, 2), balance), r.hard);
    return r;
}

uint64_t sched_load_limit(const struct sched *s, uint32_t mini_batch)
{
    assert_always(mini_batch < s->config.mini_batches);
    enum sched_class class = sched_leading_class(s);
    if (s->config.admission == SCHED_GREEDY || lengths_of(s, class)->count == 0)
        return UINT64_MAX;
    struct reach r = reach_of(s, class);
    return r.tokens_per_us > 0 ? (uint64_t)(s->load.of[class].together ? r.hard : r.limit) : UINT64_MAX;
}

// --- the projection ---------------------------------------------------------------------------------------------------

static double next_point(const struct sched_load_plan *plan, double point)
{
    return MAX(point + MAX(plan->tokens / TUNE_LOAD_POINTS_DENSE, 1), point < plan->tokens ? 0 : point * TUNE_LOAD_POINTS_GROWTH);
}

// Adds a cohort to a projection. Between two points in time a sequence counts as alive if it was at the first, with the context that it
// has at the second, so that no peak falls between them. Returns how many points the cohort reaches.
static uint32_t project_cohort(const struct sched *s, const struct sched_load_plan *plan, const struct sched_load_cohort *c,
                               double age, double *mean, double *variance)
{
    const struct sched_survival *survival = &s->load.of[plan->class].survival;
    double left = c->cutoff - age, alive = sched_survival_at(survival, age), point = 0;
    uint32_t k = 0;
    for (; k < SCHED_LOAD_POINTS && point < left; k++) {
        double next = next_point(plan, point);
        double share = MIN(sched_survival_at(survival, age + point) / alive, 1);
        double context = c->base + c->count * (age + MIN(next, left));
        mean[k] += share * context;
        variance[k] += share * (1 - share) * context * context / c->count;
        point = next;
    }
    return k;
}

static void refresh_projection(struct sched *s, struct sched_load_plan *plan)
{
    if (!plan->stale)
        return;
    plan->stale = false;
    plan->tokens = lengths_of(s, plan->class)->tokens;
    for (uint32_t k = 0; k < SCHED_LOAD_POINTS; k++)
        plan->mean[k] = plan->variance[k] = 0;
    for (uint32_t i = 0; i < SCHED_LOAD_COHORTS; i++) {
        const struct sched_load_cohort *c = &plan->cohorts[i];
        double age = (double)((int64_t)plan->step - c->start);
        if (c->count > 0)
            project_cohort(s, plan, c, MIN(age, c->cutoff - 1.0), plan->mean, plan->variance);
    }
}

// Returns a cohort of one sequence.
static struct sched_load_cohort cohort_of_one(const struct sched *s, uint32_t slot)
{
    uint32_t prompt = s->cold[slot].prompt;
    return (struct sched_load_cohort){.count = 1, .cutoff = s->seqs[slot].limit - prompt, .base = prompt};
}

// Returns whether the load stays under the limit, now and later, with `count` more sequences like that one.
static bool load_fits(const struct sched *s, const struct sched_load_plan *plan, uint32_t slot, double count, double limit)
{
    double mean[SCHED_LOAD_POINTS] = {0}, variance[SCHED_LOAD_POINTS] = {0};
    struct sched_load_cohort one = cohort_of_one(s, slot);
    uint32_t points = project_cohort(s, plan, &one, tokens_generated(s, slot), mean, variance);
    for (uint32_t k = 0; k < points; k++)
        if (plan->mean[k] + count * mean[k] + 2 * sqrt(plan->variance[k] + count * variance[k]) > limit)
            return false;
    return true;
}

// --- cohorts ----------------------------------------------------------------------------------------------------------

static uint32_t cohort_find(const struct sched *s, const struct sched_load_plan *plan, int64_t start, uint32_t cutoff)
{
    double wide = MAX(lengths_of(s, plan->class)->tokens / TUNE_LOAD_POINTS_DENSE, 1), nearest_far = INFINITY;
    uint32_t empty = NONE, nearest = 0;
    for (uint32_t i = 0; i < SCHED_LOAD_COHORTS; i++) {
        const struct sched_load_cohort *c = &plan->cohorts[i];
        if (c->count == 0) {
            empty = i;
            continue;
        }
        bool same_cutoff = cutoff <= c->cutoff && cutoff >= c->cutoff - c->cutoff / 16;
        if (same_cutoff && start >= c->start && (double)(start - c->start) < wide)
            return i;
        double far = fabs((double)(c->start - start)) + fabs((double)c->cutoff - cutoff);
        if (far < nearest_far) {
            nearest_far = far;
            nearest = i;
        }
    }
    return empty != NONE ? empty : nearest;
}

static struct sched_load_plan *plan_of(struct sched *s, const struct sched_seq *seq)
{
    return &s->load.of[seq->class].plans[seq->mini_batch];
}

void sched_load_join(struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    struct sched_seq_cold *cold = &s->cold[slot];
    struct sched_load_plan *plan = plan_of(s, seq);
    int64_t start = (int64_t)plan->step - tokens_generated(s, slot);
    uint32_t cutoff = seq->limit - cold->prompt;
    cold->load.cohort = (uint8_t)cohort_find(s, plan, start, cutoff);
    struct sched_load_cohort *c = &plan->cohorts[cold->load.cohort];
    if (c->count == 0)
        *c = (struct sched_load_cohort){.start = start, .cutoff = cutoff};
    cold->load.cohort_base = (double)seq->known - (double)((int64_t)plan->step - c->start);
    c->count++;
    c->base += cold->load.cohort_base;
    if (!plan->stale) {
        struct sched_load_cohort one = cohort_of_one(s, slot);
        project_cohort(s, plan, &one, tokens_generated(s, slot), plan->mean, plan->variance);
    }
}

void sched_load_leave(struct sched *s, uint32_t slot)
{
    struct sched_load_plan *plan = plan_of(s, &s->seqs[slot]);
    struct sched_load_cohort *c = &plan->cohorts[s->cold[slot].load.cohort];
    assert_always(c->count > 0);
    plan->ends++;
    c->count--;
    c->base -= s->cold[slot].load.cohort_base;
    plan->stale = true;
}

void sched_load_stepped(struct sched *s, uint32_t mini_batch, enum sched_class class)
{
    struct sched_load_class *of = &s->load.of[class];
    of->plans[mini_batch].step++;
    of->plans[mini_batch].stale = true;
    sched_lengths_refresh(&of->lengths, &of->survival);
}

void sched_load_leapt(struct sched *s, uint32_t slot, uint32_t tokens)
{
    struct sched_load_plan *plan = plan_of(s, &s->seqs[slot]);
    s->cold[slot].load.cohort_base += tokens;
    plan->cohorts[s->cold[slot].load.cohort].base += tokens;
    plan->stale = true;
}

void sched_load_grew(struct sched *s, uint32_t slot)
{
    sched_survival_pass(&s->load.of[s->seqs[slot].class].survival, tokens_generated(s, slot));
    s->seqs[slot].passes_at = s->cold[slot].prompt + sched_survival_next(tokens_generated(s, slot));
}

// --- together or apart: how long a class's queue takes if it starts together, and if it starts apart -----------------
//
// Both ways are computed in a life's 32nd parts, from the sequences that run now: how many have which age, how many of these live on
// (P(L >= l), as observed), who starts, and how long a step of so many sequences with so much context takes by the formula of step_time.h,
// with the number of mini-batches that is fastest then. So a backlog whose starts have become even by themselves gains nothing by spacing,
// and neither does one whose steps take the sum of both parts, in whatever way these are spread.
//
// Example: S-part and R-part take 10 ms each at the mean load, two mini-batches, ten batches wait. Together a step takes 10 ms while
// contexts are below their mean and then up to 20 ms: 12.5 ms in the mean, ten lives. Apart it takes 10 ms, but the batch fills during the
// first life and empties during the last one: eleven lives. So spacing gains 12.5·10 / (10·11) = 1.14 times, with two batches 0.83.

struct trial {
    const struct sched_load_class *of; // the class's lengths and running sequences
    double full;                       // sequences that run at once
    double waiting;                    // sequences in the queue
    double tokens_per_us;              // context tokens that all workers read together
    double link_us, call_us;           // a step's round trips, as measured; what it occupies a worker for, whatever it reads
    double away;                       // share of the rows that take them
};

// Sequences by age, in parts of a life.
struct ages {
    double step;                           // steps of a part
    double prompt;                         // tokens of each
    double count[TUNE_LOAD_TRIAL_BINS];    // running sequences
    double lives_on[TUNE_LOAD_TRIAL_BINS]; // share of these that reaches the next part
    double running, load;                  // sums
};

// Returns the share of all starts that reaches an age: by what was observed, and by their cutoffs.
static double share_reaching(const struct sched_load_class *of, double age)
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
    double here = share_reaching(of, 0);
    for (uint32_t i = 0; i < TUNE_LOAD_TRIAL_BINS; i++) {
        double next = share_reaching(of, (i + 1) * a->step);
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

// Lets a part of a life ages_pass. Returns how many sequences end.
static double ages_pass(struct ages *a)
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
static double round_us(const struct sched *s, const struct trial *trial, double running, double load)
{
    uint32_t stages = MIN(s->config.stages, s->config.mini_batches), in_use = s->batches.in_use;
    uint32_t first = s->config.mini_batch_auto ? stages : in_use,
             last = s->config.mini_batch_auto ? s->config.mini_batches : in_use;
    double best_us = INFINITY;
    for (uint32_t k = first; k <= last; k += stages) {
        struct sched_round round = sched_time_round(s, running / k, running / k);
        double links_times = sched_time_links_times(s, trial->away * trial->full / in_use, trial->away * running / k);
        sched_round_add(&round, false, trial->call_us + load / trial->tokens_per_us / k, trial->link_us * links_times);
        best_us = MIN(best_us, sched_round_us(&round, k));
    }
    return best_us;
}

// Returns in how many microseconds the sequences that run and those that wait are through, nearly all of them. apart: they start at an even
// rate, and one for each that ends; else as soon as there is room. Needs an expectation of lengths. O(steps x bins).
static double trial_us(const struct sched *s, const struct trial *trial, bool apart)
{
    struct ages a;
    ages_now(s, trial->of, &a);
    double waiting = trial->waiting, rate = trial->full / trial->of->lengths.tokens, us = 0;
    double most = MAX(rate * a.step, 1);
    uint32_t steps = TUNE_LOAD_TRIAL_STEPS * (TUNE_LOAD_TRIAL_ROUNDS + 4);
    for (uint32_t i = 0; i < steps && (i == 0 || waiting > 0 || a.running > trial->full / TUNE_LOAD_TRIAL_REST); i++) {
        double ended = ages_pass(&a), start = MAX(MIN(waiting, trial->full - a.running), 0);
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

// Returns whether the class's queue starts at once, by what both ways are predicted to take. Judged again when a part of a life has passed or the
// queue is another.
static bool starts_together(struct sched *s, enum sched_class class, double waiting, const struct reach *r)
{
    struct sched_load_class *of = &s->load.of[class];
    const double queue = s->queue.count[class], often = MAX(r->lengths->tokens / TUNE_LOAD_TRIAL_STEPS, TUNE_LOAD_TRIAL_LEAST);
    if (MIN(waiting, r->full) * (r->lengths->prompt_tokens + r->lengths->tokens) > r->hard)
        return of->together = false; // those that start now would take the pages or the time of those that run
    if (sched_curve_sizes(&s->time.layers) < 2 || sched_survival_seen(&of->survival, TUNE_LOAD_TRIAL_SEEN * r->lengths->tokens) < 1)
        return of->together = true; // T(b), or how long they live, is not known yet
    if (of->decided > 0 && (double)(s->stats.steps + 1 - of->decided) < often * s->batches.in_use &&
        fabs(queue - of->decided_queue) <= of->decided_queue / 4)
        return of->together;
    bool first = of->decided == 0;
    of->decided = s->stats.steps + 1;
    of->decided_queue = queue;
    const struct trial trial = {.of = of,
                                .full = r->full * s->batches.in_use,
                                .waiting = MIN(queue, r->full * s->batches.in_use * TUNE_LOAD_TRIAL_ROUNDS),
                                .tokens_per_us = r->tokens_per_us,
                                .link_us = r->link_us,
                                .call_us = r->call_us,
                                .away = sched_time_away_share(s)};
    double together_us = trial_us(s, &trial, false), apart_us = trial_us(s, &trial, true);
    return of->together = together_us < (1 + (of->together || first ? TUNE_LOAD_TRIAL_ERROR : -TUNE_LOAD_TRIAL_ERROR)) * apart_us;
}

// Returns the most starts of one step that an even spread allows: three standard deviations of the ends in one step.
static double starts_max(double rate) { return 1 + rate + 3 * sqrt(rate); }

// Counts the starts that are due: so many a step that a mini-batch is full after one expected length, and one for each end. Starts not
// used within a step or two are lost, so that sequences that ended together do not start together again. `room` bounds the starts within
// a part of a life likewise: if all lives are alike, hardly more start there than with an even spread; if lengths differ, ends are
// random, and the starts that follow them may come as much faster, up to a standard deviation at once. So sequences that came close
// together for whatever reason (a short queue at first, a change of mini-batches, a limit that bound) are apart a life later.
static void credit_evenly(struct sched_load_plan *plan, const struct reach *r)
{
    double full = r->full, rate = full / r->lengths->tokens, steps = (double)(plan->step - plan->credited),
           differ = 4 * r->lengths->variation;
    double spread = rate * (1 + TUNE_LOAD_CLOSER + differ), close = MIN(differ, 1) * sqrt(full / TUNE_LOAD_LIFE_PARTS);
    plan->credit = MIN(plan->credit + rate * steps + plan->ends, starts_max(rate));
    plan->room = MIN(plan->room + spread * steps, 1 + spread + close);
    plan->credited = plan->step;
    plan->ends = 0;
}

// Counts the starts of the groups that are due; the first is at the first step. A group that is not used up is the next one's, and no more
// than one.
static void credit_groups(struct sched_load_plan *plan, const struct reach *r, uint32_t spacing)
{
    const double group = r->full * spacing / r->lengths->tokens;
    if (plan->step < plan->credited)
        return;
    const uint64_t groups = (plan->step - plan->credited) / spacing + 1;
    plan->credit = MIN(plan->credit + group * (double)groups, 1 + group) + plan->ends;
    plan->room = INFINITY;
    plan->credited += groups * spacing;
    plan->ends = 0;
}

bool sched_load_lets_in(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    enum sched_class class = s->seqs[slot].class;
    struct sched_load_class *of = &s->load.of[class];
    struct sched_load_plan *plan = &of->plans[mini_batch];
    uint32_t size = sched_batch_size(&s->batches.of[mini_batch], class);
    if (of->lengths.count == 0)
        note_start(s, slot);
    sched_lengths_refresh(&of->lengths, &of->survival); // with greedy, too: places are chosen by what is expected
    if (s->config.admission == SCHED_GREEDY)
        return true;
    struct reach r = reach_of(s, class);
    if (r.tokens_per_us == 0)
        return true;
    const uint32_t spacing = s->config.spacing_steps;
    if (spacing > 0)
        credit_groups(plan, &r, spacing);
    else
        credit_evenly(plan, &r);
    if (s->cold[slot].rebuild || size == 0)
        return true; // it ran before, or it runs alone
    refresh_projection(s, plan);
    if (sched_class_waits(s, class)) // it grows as others leave time, not by steps
        return load_fits(s, plan, slot, 1, r.limit);
    // Its share of the queue: mini-batches are to be of one size.
    double share = ((double)s->queue.count[class] + s->running[class]) / s->batches.in_use - size;
    double waiting = MAX(ceil(share), 1);
    if (spacing == 0 && load_fits(s, plan, slot, waiting, r.limit))
        return true;
    bool together = s->config.admission == SCHED_AUTO && spacing == 0 && starts_together(s, class, waiting, &r);
    if (!together && (size >= r.full || plan->credit < 1 || plan->room < 1))
        return false;
    return load_fits(s, plan, slot, 1, together ? r.hard : r.limit);
}

bool sched_load_has_room(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    enum sched_class class = s->seqs[slot].class;
    struct sched_load_plan *plan = &s->load.of[class].plans[mini_batch];
    if (s->config.admission == SCHED_GREEDY || lengths_of(s, class)->count == 0)
        return true;
    struct reach r = reach_of(s, class);
    if (r.tokens_per_us == 0)
        return true;
    refresh_projection(s, plan);
    return load_fits(s, plan, slot, 1, s->load.of[class].together ? r.hard : r.limit);
}

void sched_load_started(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    struct sched_load_plan *plan = &s->load.of[s->seqs[slot].class].plans[mini_batch];
    plan->credit = MAX(plan->credit - 1, 0);
    plan->room = MAX(plan->room - 1, 0);
    if (s->cold[slot].rebuild)
        return;
    note_start(s, slot);
}
