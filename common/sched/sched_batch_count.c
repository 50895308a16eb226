// sched_batches.c: how many mini-batches are in flight, when the core may choose.
//
// One mini-batch of n rows takes S(n) + max(L, R + link) a round: the S-part's work, then attention on its own cores while the slowest
// worker elsewhere attends. Of k mini-batches each has a k-th of the rows and of the load, and while one is away the S-part works on another:
//
//     round(k) = max( k·(S(n/k) + L/k),  S(n/k) + max(L/k, R/k + link),  R )         n rows in any case
//
// S(n) falls slower than n, so more mini-batches cost the S-part time, and pay only where the workers' time is worth hiding.
// Example: S(n) = 8 ms + 50 us·n, 64 rows, R = 15 ms, link 2 ms: one: 11.2 + 15 + 2 = 28.2 ms; two: max(2·9.6, 9.6 + 7.5 + 2) =
// 19.2 ms. With nothing at workers: one 11.2, two 19.2.
//
// A change waits until what is in flight has come back, a step or two; so it must promise a tenth, and is judged every 32 steps.
#include "common/sched/sched_batch_count.h"
#include "common/sched/sched_sequence.h"
#include "common/sched/sched_state.h"

// Microseconds in which every sequence that runs gets a token.
static double round_us(const struct sched *s, uint32_t batches)
{
    double rows = 0;
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        rows += s->batches.of[m].member_count;
    struct sched_round round = {.s_part_us = sched_time_s_part_us(s, rows / batches, rows / batches)};
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *p = &s->places.of[i];
        uint64_t load = 0;
        for (uint32_t m = 0; m < s->config.mini_batches; m++)
            load += p->load[m];
        if (p->up && load > 0)
            sched_round_add(&round, sched_place_is_here(p), (double)load * p->speed.token_us / batches, p->speed.link_step_us);
    }
    return sched_round_us(&round, batches);
}

static bool anything_in_flight(const struct sched *s)
{
    for (uint32_t m = 0; m < s->config.mini_batches; m++) {
        if (s->batches.of[m].in_flight_count > 0)
            return true;
    }
    return false;
}

// Deals out again all that runs: those that decode to whichever will read least, those in prefill with them.
static void deal(struct sched *s)
{
    double loads[SCHED_MINI_BATCHES_MAX] = {0};
    for (uint32_t m = 0; m < s->batches.in_use; m++)
        loads[m] = (double)s->places.batch_load[m] + sched_load_weight(s) * s->batches.of[m].member_count;
    for (uint32_t m = 0; m < s->config.mini_batches; m++) {
        struct sched_batch *b = &s->batches.of[m];
        uint32_t next = NONE;
        for (uint32_t i = b->member_count; i > 0; i--) { // from the end: leaving puts the last one in its stead
            uint32_t slot = b->members[i - 1], to = 0;
            for (uint32_t k = 1; k < s->batches.in_use; k++)
                to = loads[k] < loads[to] ? k : to;
            double weight = s->seqs[slot].load + sched_load_weight(s);
            if (to == m || (m < s->batches.in_use && loads[m] - weight < loads[to] + weight))
                continue;
            loads[m] -= weight;
            loads[to] += weight;
            sched_sequence_leave(s, slot);
            sched_sequence_join(s, slot, to);
        }
        for (uint32_t slot = b->prefill_head; slot != NONE && m >= s->batches.in_use; slot = next) {
            next = s->cold[slot].batch.next;
            sched_sequence_leave(s, slot);
            sched_sequence_join(s, slot, m % s->batches.in_use);
        }
        s->load.plans[m].ends = 0; // nobody has ended
    }
}

static void judge(struct sched *s)
{
    uint32_t best = s->batches.in_use;
    double best_us = round_us(s, best);
    for (uint32_t k = 1; k <= s->config.mini_batches; k++) {
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
    deal(s);
    return true;
}
