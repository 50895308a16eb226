// sched_batch_count.c: how many mini-batches are in flight, when the core may choose.
//
// By the formula of sched_time.h, with n rows in all: of k mini-batches each has a k-th of the rows and of the load, so
//
//     round(k) = max( k·S(n/k) + H,  S(n/k) + R/k + L,  R )
//
// S(n/k) is more than S(n)/k, so more mini-batches cost the s-part time. They pay only if the workers' time is worth hiding.
// Example: S(n) = 8 ms + 50 us·n, 64 rows, R = 15 ms, L = 2 ms: one takes 11.2 + 15 + 2 = 28.2 ms; two take max(2·9.6, 9.6 + 7.5 + 2)
// = 19.2 ms. With nothing at workers one takes 11.2 ms and two take 19.2.
//
// A pipeline of P stages has a mini-batch for each stage, or a multiple of that.
//
// A change waits until the steps in flight are back, so it must promise a tenth.
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
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        uint64_t load = 0;
        for (uint32_t m = 0; m < s->config.mini_batches; m++)
            load += place->loads[class][m].load;
        if (place->up && load > 0)
            sched_round_add(&round, sched_place_is_here(place), (double)load * place->speed.token_us / batches,
                            place->speed.link_step_us);
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

// Deals out all running sequences of a class again: those that decode, each to the mini-batch that will read least; those in prefill leave
// mini-batches that are no longer used.
static void deal(struct sched *s, enum sched_class class)
{
    double loads[SCHED_MINI_BATCHES_MAX] = {0}, young = sched_load_weight(s, class);
    for (uint32_t m = 0; m < s->batches.in_use; m++)
        loads[m] = (double)s->places.batch_load[class][m] + young * s->batches.of[m].of[class].member_count;
    for (uint32_t m = 0; m < s->config.mini_batches; m++) {
        struct sched_group *group = &s->batches.of[m].of[class];
        uint32_t next = NONE;
        for (uint32_t i = group->member_count; i > 0; i--) { // from the end: the last member fills the gap of one that leaves
            uint32_t slot = group->members[i - 1], to = 0;
            for (uint32_t k = 1; k < s->batches.in_use; k++)
                to = loads[k] < loads[to] ? k : to;
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

static void judge(struct sched *s)
{
    uint32_t best = s->batches.in_use;
    double best_us = round_us(s, best);
    uint32_t stages = MIN(s->config.stages, s->config.mini_batches); // fewer would leave stages idle; each wants the same number
    for (uint32_t k = stages; k <= s->config.mini_batches; k += stages) {
        double us = round_us(s, k);
        if (us < TUNE_BATCHES_WORTH * best_us || (best != s->batches.in_use && us < best_us)) {
            best = k;
            best_us = us;
        }
    }
    s->batches.wanted = best;
    s->batches.judged = s->stats.steps;
}

bool sched_batch_count_settled(struct sched *s)
{
    if (!s->config.mini_batch_auto || s->config.mini_batches == 1)
        return true;
    if (s->batches.wanted == s->batches.in_use && s->stats.steps >= s->batches.judged + TUNE_BATCHES_JUDGE_STEPS)
        judge(s);
    if (s->batches.wanted == s->batches.in_use)
        return true;
    if (anything_in_flight(s))
        return false;
    s->batches.in_use = s->batches.wanted;
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
