/* sched_load.c: see sched_load.h. */
#include "common/sched/sched_load.h"

#include <math.h>

#include "common/sched/sched_state.h"

enum {
    DENSE = 48,      // points of the projection up to the expected length, equally far apart; beyond it 1.2 times as far each
    WEIGHT = 8,      // of the mean context, see load_weight()
    MEMORY = 256,    // starts that are remembered
    SIM_STEPS = 32,  // of an expected length, where both ways of starting are reckoned through
    SIM_ROUNDS = 10, // so many full mini-batches waiting are no short queue
};
#define SPACING 32 // F is the expected length over this, unless it is given

/* --- what is expected ------------------------------------------------------------------------------------------------- */

void load_init(struct sched *s)
{
    survival_init(&s->survival);
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        s->mini_batches[m].plan.stale = true;
}

static uint32_t generated(const struct sched *s, uint32_t slot) { return s->seqs[slot].known - s->cold[slot].prompt; }

static void lengths_note(struct sched *s, uint32_t slot)
{
    const struct seq_cold *c = &s->cold[slot];
    struct load_lengths *l = &s->lengths;
    struct survival_mean mean = survival_mean(&s->survival, s->seqs[slot].limit - c->prompt);
    l->count = MIN(l->count + 1, MEMORY);
    double share = 1 / l->count, prompt = c->prompt;
    l->tokens += share * (MAX(mean.tokens, 1) - l->tokens);
    l->context_tokens += share * (prompt * mean.tokens + mean.ages - l->context_tokens);
    l->context_squares += share * (prompt * prompt * mean.tokens + 2 * prompt * mean.ages + mean.squares - l->context_squares);
    // Expectations move the points of the projection.
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        s->mini_batches[m].plan.stale = true;
}

static double mean_context(const struct sched *s)
{
    return s->lengths.count > 0 ? s->lengths.context_tokens / s->lengths.tokens : 0;
}

double load_weight(const struct sched *s) { return s->lengths.count > 0 ? WEIGHT * mean_context(s) : 0; }

/* Sequences of a full mini-batch: as many as may run, or as pages hold. */
static double batch_full(const struct sched *s)
{
    double tokens = 0, mean = mean_context(s);
    for (uint32_t i = 0; i < s->config.max_places; i++)
        if (s->places[i].up && !s->places[i].draining)
            tokens += (double)s->places[i].pages_total * s->config.page_tokens;
    return MAX(MIN(s->config.max_running, tokens / mean) / s->batches, 1);
}

static double spacing_steps(const struct sched *s)
{
    return s->config.spacing_steps ? s->config.spacing_steps : MAX(s->lengths.tokens / SPACING, 1);
}

/* Context tokens a microsecond of all workers that are elsewhere; 0: there are none. */
static double workers_tokens_per_us(const struct sched *s)
{
    double sum = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct place *p = &s->places[i];
        if (p->up && !p->local && !p->shares_cores && p->token_us > 0)
            sum += 1 / p->token_us;
    }
    return sum;
}

/* Round trips of a step to the farthest of them. */
static double workers_link_us(const struct sched *s)
{
    double longest = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct place *p = &s->places[i];
        if (p->up && !p->local && !p->shares_cores)
            longest = MAX(longest, p->link_step_us);
    }
    return longest;
}

static double s_part_us(const struct sched *s, double rows) { return s->s_model.base_us + rows * s->s_model.row_us; }

static double limit_of(const struct sched *s, double full, double workers)
{
    const struct load_lengths *l = &s->lengths;
    double mean = l->context_tokens / l->tokens, variance = MAX(l->context_squares / l->tokens - mean * mean, 0);
    double steady = full * (mean + spacing_steps(s) / 2) + 2 * sqrt(full * variance);
    double balance = MAX(s_part_us(s, full) - workers_link_us(s), 0) *
                     workers; // what the workers read while the S-part has the other mini-batch
    return MAX(steady, balance);
}

uint64_t load_limit(const struct sched *s, uint32_t mini_batch)
{
    double workers = workers_tokens_per_us(s);
    if (s->config.admission == SCHED_GREEDY || workers == 0 || s->lengths.count == 0 || s->mini_batches[mini_batch].plan.together)
        return UINT64_MAX;
    return (uint64_t)limit_of(s, batch_full(s), workers);
}

/* --- cohorts ---------------------------------------------------------------------------------------------------------- */

static uint32_t cohort_find(const struct sched *s, const struct load_plan *plan, int64_t start, uint32_t cutoff)
{
    double wide = MAX(s->lengths.tokens / DENSE, 1), nearest_far = INFINITY;
    uint32_t empty = NONE, nearest = 0;
    for (uint32_t i = 0; i < COHORTS_MAX; i++) {
        const struct cohort *c = &plan->cohorts[i];
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

void load_join(struct sched *s, uint32_t slot)
{
    const struct seq *q = &s->seqs[slot];
    struct seq_cold *cold = &s->cold[slot];
    struct load_plan *plan = &s->mini_batches[q->mini_batch].plan;
    int64_t start = (int64_t)plan->step - generated(s, slot);
    uint32_t cutoff = q->limit - cold->prompt;
    cold->cohort = (uint8_t)cohort_find(s, plan, start, cutoff);
    struct cohort *c = &plan->cohorts[cold->cohort];
    if (c->count == 0)
        *c = (struct cohort){.start = start, .cutoff = cutoff};
    cold->cohort_base = (double)q->known - (double)((int64_t)plan->step - c->start);
    c->count++;
    c->base += cold->cohort_base;
    plan->stale = true;
}

void load_leave(struct sched *s, uint32_t slot)
{
    struct load_plan *plan = &s->mini_batches[s->seqs[slot].mini_batch].plan;
    struct cohort *c = &plan->cohorts[s->cold[slot].cohort];
    assert_always(c->count > 0);
    plan->ends++;
    c->count--;
    c->base -= s->cold[slot].cohort_base;
    plan->stale = true;
}

void load_stepped(struct sched *s, uint32_t mini_batch)
{
    s->mini_batches[mini_batch].plan.step++;
    s->mini_batches[mini_batch].plan.stale = true;
}

/* --- the projection --------------------------------------------------------------------------------------------------- */

static double next_point(const struct sched *s, double point)
{
    double dense = MAX(s->lengths.tokens / DENSE, 1);
    return MAX(point + dense, point < s->lengths.tokens ? 0 : point * 1.2);
}

/* Adds `count` sequences alike to a projection. Between two points a sequence counts as alive if it was at the first, and with
 * the context it has at the second, so that no peak falls between them. */
static void project(const struct sched *s, struct load_plan *plan, const struct cohort *c, double age)
{
    double left = c->cutoff - age, alive = survival_at(&s->survival, age), point = 0;
    for (uint32_t k = 0; k < LOAD_POINTS && point < left; k++) {
        double next = next_point(s, point);
        double share = MIN(survival_at(&s->survival, age + point) / alive, 1);
        double context = c->base + c->count * (age + MIN(next, left));
        plan->mean[k] += share * context;
        plan->variance[k] += share * (1 - share) * context * context / c->count;
        point = next;
    }
}

static void refresh(struct sched *s, struct load_plan *plan)
{
    if (!plan->stale)
        return;
    plan->stale = false;
    for (uint32_t k = 0; k < LOAD_POINTS; k++)
        plan->mean[k] = plan->variance[k] = 0;
    for (uint32_t i = 0; i < COHORTS_MAX; i++) {
        const struct cohort *c = &plan->cohorts[i];
        double age = (double)((int64_t)plan->step - c->start);
        if (c->count > 0)
            project(s, plan, c, MIN(age, c->cutoff - 1.0));
    }
}

/* Whether `count` sequences like that one would leave the load under the limit, now and later. */
static bool fits(struct sched *s, const struct load_plan *plan, uint32_t slot, double count, double limit)
{
    const struct seq *q = &s->seqs[slot];
    double age = generated(s, slot), prompt = s->cold[slot].prompt, left = q->limit - prompt - age, point = 0;
    double alive = survival_at(&s->survival, age);
    for (uint32_t k = 0; k < LOAD_POINTS && point < left; k++) {
        double next = next_point(s, point);
        double share = MIN(survival_at(&s->survival, age + point) / alive, 1), context = prompt + age + MIN(next, left);
        double mean = plan->mean[k] + count * share * context;
        double variance = plan->variance[k] + count * share * (1 - share) * context * context;
        if (mean + 2 * sqrt(variance) > limit)
            return false;
        point = next;
    }
    return true;
}

/* --- together or apart ------------------------------------------------------------------------------------------------ */

/* Most starts of one step that a life's even spread leaves room for: three standard deviations of ends in one step. */
static double starts_max(double rate) { return 1 + rate + 3 * sqrt(rate); }

/* Microseconds until what runs in a mini-batch and `waiting` more of the expected kind are through, all starting as soon as there is
 * room, or apart: `rate` a step and one for each end. A step takes the longer of both parts where another mini-batch is in flight. */
static double reckon_us(const struct sched *s, const struct load_plan *plan, double waiting, double full, double workers,
                        bool apart)
{
    double tokens = s->lengths.tokens, step = tokens / SIM_STEPS, rate = full / tokens, running = 0, load = 0, us = 0;
    double link_us = workers_link_us(s);
    double prompt = MAX(s->lengths.context_tokens / tokens - tokens / 2, 0), ends[SIM_STEPS] = {0};
    for (uint32_t i = 0; i < COHORTS_MAX; i++) {
        const struct cohort *c = &plan->cohorts[i];
        double age = (double)((int64_t)plan->step - c->start), left = MAX(tokens - age, 0);
        ends[(uint32_t)MIN(left / step, SIM_STEPS - 1)] += c->count;
        running += c->count;
        load += c->base + c->count * age;
    }
    for (uint32_t i = 0; i < SIM_STEPS * (SIM_ROUNDS + 3) && (waiting > 0 || running > 0); i++) {
        double *ending = &ends[i % SIM_STEPS], ended = *ending;
        running -= ended;
        load = MAX(load - ended * (prompt + tokens), 0);
        double start = MAX(MIN(waiting, full - running), 0);
        if (apart)
            start = MIN(start, MIN(rate * step + ended, starts_max(rate) * step));
        *ending = start;
        waiting -= start;
        running += start;
        load += start * prompt + running * step / 2;
        double s_us = s_part_us(s, running), r_us = load / workers + link_us;
        us += step * (s->config.mini_batches > 1 ? MAX(s_us, r_us) : s_us + r_us);
        load += running * step / 2;
    }
    return us;
}

/* Whether what waits is through as soon, or sooner, if it all starts as soon as there is room. */
static bool together_is_faster(const struct sched *s, const struct load_plan *plan, double waiting, double full, double workers)
{
    uint32_t sizes = 0;
    for (uint32_t i = 0; i < STEP_SIZES; i++)
        sizes += s->s_model.sizes[i].rows > 0;
    if (waiting >= full * SIM_ROUNDS)
        return false;
    if (sizes < 2)
        return waiting <= 2 * full; // T(b) is not known yet
    return reckon_us(s, plan, waiting, full, workers, false) <= reckon_us(s, plan, waiting, full, workers, true);
}

/* Starts that are due: so many a step that a mini-batch is full after one expected length, and one for each end. What is not
 * used in a step or two is lost: many that ended together are not to start together again. */
static void credit(struct sched *s, struct load_plan *plan, double full)
{
    double rate = full / s->lengths.tokens;
    plan->credit += rate * (double)(plan->step - plan->credited) + plan->ends;
    plan->credit = MIN(plan->credit, starts_max(rate));
    plan->credited = plan->step;
    plan->ends = 0;
}

bool load_lets_in(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    struct mini_batch *b = &s->mini_batches[mini_batch];
    struct load_plan *plan = &b->plan;
    double workers = workers_tokens_per_us(s), running = b->member_count + b->prefill_count;
    if (s->config.admission == SCHED_GREEDY || workers == 0)
        return true;
    if (s->lengths.count == 0)
        lengths_note(s, slot);
    double full = batch_full(s), limit = limit_of(s, full, workers);
    credit(s, plan, full);
    if (s->cold[slot].rebuild || running == 0)
        return true; // it ran before; or it runs alone
    refresh(s, plan);
    double waiting = ceil((double)s->waiting.count / s->batches);
    if (fits(s, plan, slot, waiting, limit))
        return true;
    if (plan->decided != plan->step + 1)
        plan->together = together_is_faster(s, plan, waiting, full, workers);
    plan->decided = plan->step + 1;
    return plan->together || (plan->credit >= 1 && fits(s, plan, slot, 1, limit));
}

void load_started(struct sched *s, uint32_t slot, uint32_t mini_batch)
{
    struct load_plan *plan = &s->mini_batches[mini_batch].plan;
    plan->credit = MAX(plan->credit - 1, 0);
    if (s->cold[slot].rebuild)
        return;
    lengths_note(s, slot);
}
