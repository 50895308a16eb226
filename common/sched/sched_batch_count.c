// sched_batch_count.c: how many mini-batches are in flight, when the core may choose.
//
// By the formula of sched_time.h, with n rows in all: of k mini-batches each has a k-th of the rows and of the load, so
//
//     round(k) = max( k·S(n/k) + H,  S(n/k) + R/k + L(n/k),  R )
//
// S(n/k) is more than S(n)/k, so more mini-batches cost the s-part time. They pay only if the workers' time is worth hiding.
// Example: S(n) = 8 ms + 50 us·n, 64 rows, R = 15 ms, L = 2 ms: one takes 11.2 + 15 + 2 = 28.2 ms; two take max(2·9.6, 9.6 + 7.5 + 2)
// = 19.2 ms. With nothing at workers one takes 11.2 ms and two take 19.2.
//
// A pipeline of P stages has a mini-batch for each stage, or a multiple of that.
//
// A change waits until the steps in flight are back, which takes about a round or two. So what another number would have saved is added up
// from one comparison to the next, and it is taken once that is more than the change costs.
#include <math.h>

#include "common/sched/sched_batch_count.h"
#include "common/sched/sched_sequence.h"
#include "common/sched/sched_state.h"

// With several stages prompts are computed beside the decode rows of every mini-batch (sched_uniform.h): returns how many rows a step has
// for each decode row. With one stage only decode rows are compared, as prompts take the same time in however many mini-batches.
static double prefill_factor(const struct sched *s, enum sched_class class)
{
    const struct sched_lengths *l = &s->load.of[class].lengths;
    return s->config.stages > 1 && l->tokens > 0 ? 1 + l->prompt_tokens / l->tokens : 1;
}

// Predicts in how many microseconds every running sequence gets a token.
static double round_us(const struct sched *s, uint32_t batches)
{
    enum sched_class class = sched_leading_class(s);
    double rows = 0;
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        rows += s->batches.of[m].of[class].member_count;
    struct sched_round round = sched_time_round(s, rows / batches * prefill_factor(s, class), rows / batches);
    double links_times = sched_time_links_times(s, rows / s->batches.in_use, rows / batches);
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        bool here = sched_place_is_here(place);
        uint64_t load = 0;
        for (uint32_t m = 0; m < s->config.mini_batches; m++)
            load += place->loads[class][m].load;
        if (place->up && load > 0)
            sched_round_add(&round, here, place->speed.call_step_us + (double)load * place->speed.token_us / batches,
                            place->speed.link_step_us * (here ? 1 : links_times));
    }
    return sched_round_us(&round, batches);
}

static bool anything_in_flight(const struct sched *s)
{
    for (uint32_t m = 0; m < sched_batch_count_all(s); m++) {
        if (s->batches.of[m].in_flight_count > 0)
            return true;
    }
    return false;
}

// Returns the mini-batch that will read least, of those for which the sequence's place reads least.
static uint32_t lightest(const struct sched *s, uint32_t slot, const double *loads, double young)
{
    const struct sched_seq *seq = &s->seqs[slot];
    uint32_t best = 0;
    double best_load = INFINITY;
    for (uint32_t k = 0; k < s->batches.in_use; k++) {
        const struct sched_place_load *at = &s->places.of[seq->place].loads[seq->class][k];
        double load = loads[k] + s->config.max_places * ((double)at->load + at->readers * young);
        if (load < best_load) {
            best = k;
            best_load = load;
        }
    }
    return best;
}

// Deals out all running sequences of a class again: those that decode, each to the mini-batch that will read least; those in prefill leave
// mini-batches that are no longer used.
static void deal(struct sched *s, enum sched_class class)
{
    double loads[SCHED_MINI_BATCHES_MAX] = {0}, young = sched_load_weight(s, class).each;
    for (uint32_t m = 0; m < s->batches.in_use; m++)
        loads[m] = (double)s->places.batch_load[class][m] + young * s->batches.of[m].of[class].member_count;
    for (uint32_t m = 0; m < s->config.mini_batches; m++) {
        struct sched_group *group = &s->batches.of[m].of[class];
        uint32_t next = NONE;
        for (uint32_t i = group->member_count; i > 0; i--) { // from the end: the last member fills the gap of one that leaves
            uint32_t slot = group->members[i - 1], to = lightest(s, slot, loads, young);
            double weight = s->seqs[slot].load + young;
            if (to == m || (m < s->batches.in_use && loads[m] - weight < loads[to] + weight))
                continue;
            loads[m] -= weight;
            loads[to] += weight;
            sched_sequence_leave(s, slot);
            sched_sequence_join(s, slot, to);
        }
        for (uint32_t slot = group->prefill_head; slot != NONE && m >= s->batches.in_use; slot = next) {
            next = s->cold[slot].batch.next;
            sched_sequence_leave(s, slot);
            sched_sequence_join(s, slot, m % s->batches.in_use);
        }
        s->load.of[class].plans[m].ends = 0; // leaving counted as ending, but nothing has ended
    }
}

// Adds up what each number would have saved since it was last judged, and wants the one that has missed most, once that is worth a change.
// So a large gain acts at once, a small one when it has lasted, and what changes to and fro changes nothing.
static void judge(struct sched *s)
{
    uint32_t stages = MIN(s->config.stages, s->config.mini_batches); // fewer would leave stages idle; each wants the same number
    uint32_t best = s->batches.in_use;
    double rounds = (double)(s->stats.steps - s->batches.judged) / s->batches.in_use, now_us = round_us(s, best);
    double most_us = TUNE_BATCHES_CHANGE_ROUNDS * now_us;
    for (uint32_t k = stages; k <= s->config.mini_batches; k += stages) {
        double gain_us = (1 - TUNE_BATCHES_ERROR) * now_us - round_us(s, k);
        double *missed_us = &s->batches.missed_us[k];
        *missed_us = k == s->batches.in_use ? 0 : MAX(*missed_us + MIN(rounds, 2 * TUNE_BATCHES_JUDGE_ROUNDS) * gain_us, 0);
        if (*missed_us > most_us) {
            most_us = *missed_us;
            best = k;
        }
    }
    s->batches.wanted = best;
    s->batches.judged = s->stats.steps;
}

bool sched_batch_count_settled(struct sched *s)
{
    if (!s->config.mini_batch_auto || s->config.mini_batches == 1)
        return true;
    if (s->batches.wanted == s->batches.in_use &&
        s->stats.steps >= s->batches.judged + TUNE_BATCHES_JUDGE_ROUNDS * s->batches.in_use)
        judge(s);
    if (s->batches.wanted == s->batches.in_use)
        return true;
    if (anything_in_flight(s))
        return false;
    s->batches.in_use = s->batches.wanted;
    for (uint32_t k = 0; k <= SCHED_MINI_BATCHES_MAX; k++)
        s->batches.missed_us[k] = 0;
    for (enum sched_class class = 0; class < SCHED_CLASSES; class ++)
        deal(s, class);
    return true;
}

void sched_batch_count_follow(struct sched *s, uint32_t from, enum sched_class class)
{
    struct sched_group *group = &s->batches.of[from].of[class];
    uint32_t to = 0, next;
    while (to < s->batches.in_use && sched_batch_size(&s->batches.of[to], sched_leading_class(s)) == 0)
        to++;
    if (to == s->batches.in_use)
        return; // those that lead are between two mini-batches
    for (uint32_t i = group->member_count; i > 0; i--) {
        uint32_t slot = group->members[i - 1];
        if (s->seqs[slot].in_flight > 0)
            continue;
        sched_sequence_leave(s, slot);
        sched_sequence_join(s, slot, to);
    }
    for (uint32_t slot = group->prefill_head; slot != NONE; slot = next) {
        next = s->cold[slot].batch.next;
        if (s->seqs[slot].in_flight > 0)
            continue;
        sched_sequence_leave(s, slot);
        sched_sequence_join(s, slot, to);
    }
    s->load.of[class].plans[from].ends = 0; // as in deal()
}
