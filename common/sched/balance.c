// balance.c: which running sequences change their place or mini-batch, so that nothing waits for one place alone: when the number of
// mini-batches changes, when workers drift apart, and when the local pool would now be chosen, or no longer.
#include "common/sched/balance.h"

#include <math.h>

#include "common/sched/choice.h"
#include "common/sched/sequence.h"
#include "common/sched/state.h"

// --- the terms on which a sequence is handed over -------------------------------------------------------------------

// Against ping-pong, a sequence that went stays for a while, longer each time a move fails. The steps to come must gain more than
// moving its pages costs, and moving may take an eighth of a worker's time.

bool sched_handover_allowed(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    return seq->state == SCHED_SEQ_DECODE && !seq->fenced && seq->pins == 0 && !seq->sharing && !seq->split &&
           s->cold[slot].move.stays_until <= s->stats.steps;
}

static void handover_stay(struct sched *s, uint32_t slot)
{
    s->cold[slot].move.stays_until = s->stats.steps + TUNE_MOVE_STAY_STEPS;
}

void sched_handover_ended(struct sched *s, uint32_t slot, bool ok)
{
    struct sched_seq_cold *cold = &s->cold[slot];
    cold->move.failures = ok ? 0 : MIN(cold->move.failures + 1u, 16u);
    if (!ok)
        cold->move.stays_until = s->stats.steps + ((uint64_t)TUNE_MOVE_STAY_STEPS << cold->move.failures);
}

static double handover_steps_left(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    const struct sched_lengths *l = &s->load.of[seq->class].lengths;
    double lives = l->count > 0 ? l->tokens : TUNE_MOVE_LIFE_STEPS;
    return MIN((double)(seq->limit - MIN(seq->known, seq->limit)), lives);
}

static double handover_cost_us(const struct sched *s, uint32_t slot)
{
    return TUNE_MOVE_PASSES * sched_speed_token_us(s, &s->places.of[s->seqs[slot].place]) * s->seqs[slot].load;
}

static bool handover_pays(const struct sched *s, uint32_t slot, double gain_us)
{
    return gain_us * handover_steps_left(s, slot) >= TUNE_MOVE_PAYS * handover_cost_us(s, slot);
}

static bool handover_place_rests(const struct sched *s, uint32_t index) { return s->now_us < s->places.of[index].moves_from_us; }

void sched_handover_start(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch, double rest)
{
    uint64_t rested_us = s->now_us + (uint64_t)(TUNE_MOVE_TIME_PART * handover_cost_us(s, slot) * rest);
    handover_stay(s, slot);
    for (uint32_t i = 0; i < 2; i++) {
        struct sched_place *place = &s->places.of[i ? to : s->seqs[slot].place];
        place->moves_from_us = MAX(place->moves_from_us, rested_us);
    }
    sched_sequence_move(s, slot, to, pages, mini_batch);
}

// --- how many mini-batches are in flight, when the core may choose --------------------------------------------------

// By the formula of step_time.h, with n rows in all: of k mini-batches each has a k-th of the rows and of the load, so
//
//     round(k) = max( k·S(n/k) + H,  S(n/k) + R/k + L(n/k),  R )
//
// S(n/k) is more than S(n)/k, so more mini-batches cost the s-part time. They pay only if the workers' time is worth hiding.
// Example: S(n) = 8 ms + 50 us·n, 64 rows, R = 15 ms, L = 2 ms: one takes 11.2 + 15 + 2 = 28.2 ms; two take max(2·9.6, 9.6 + 7.5 + 2)
// = 19.2 ms. With nothing at workers one takes 11.2 ms and two take 19.2.
//
// While prompts come, a number is also judged by how they lower the tokens a second (choice.c): workers attend to a chunk while another mini-batch
// computes. Chunks of another number have not been seen, so prompts count where they change more than TUNE_BATCHES_PROMPTS_ERROR of a round: then more
// mini-batches may be taken for them alone, and fewer are not taken against them. Example: Llama 3.1 8B in 4 bits on an EPYC 9554, two such workers,
// prompts of 4,000 for answers of 100, 16 at once, a pool of 4 GB: decode rows alone are fastest in one mini-batch, which gives 20 tokens a second;
// two give 37.
//
// A pipeline of P stages has a mini-batch for each stage, or a multiple of that. Its prompts are in all steps, and count as rows.
//
// A change waits until the steps in flight are back, which takes about a round or two. So what another number would have saved is added up
// from one comparison to the next, and it is taken once that is more than the change costs.

// Returns how many rows a step of a pipeline has for each decode row: prompts are computed beside those of every mini-batch (chunk.c).
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
    const double away = sched_time_away_share(s) * rows;
    double links_times = sched_time_links_times(s, away / s->batches.in_use, away / batches);
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

// Times of a round of so many mini-batches.
struct batch_times {
    double decode_us;
    double all_us; // with chunks of prompts, for as many tokens; 0: none come
};

static struct batch_times times_of(const struct sched *s, uint32_t batches)
{
    const enum sched_class class = sched_leading_class(s);
    const double us = round_us(s, batches);
    const bool come = s->config.stages <= 1 && sched_waiting(s, class) > 0;
    return (struct batch_times){us, come ? us * sched_prompts_times(s, class, batches) : 0};
}

// Returns what another number than that in use would save.
static double gain_us(const struct batch_times *now, const struct batch_times *then, bool more)
{
    const double of_decode_us = (1 - TUNE_BATCHES_ERROR) * now->decode_us - then->decode_us;
    if (now->all_us <= 0)
        return of_decode_us;
    const double in_all_us = now->decode_us * (1 - then->all_us / now->all_us);
    return more ? MAX(of_decode_us, in_all_us - TUNE_BATCHES_PROMPTS_ERROR * now->decode_us)
                : MIN(of_decode_us, in_all_us + TUNE_BATCHES_PROMPTS_ERROR * now->decode_us);
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
static uint32_t lightest_batch(const struct sched *s, uint32_t slot, const double *loads, double young)
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
static void deal_to_batches(struct sched *s, enum sched_class class)
{
    double loads[SCHED_MINI_BATCHES_MAX] = {0}, young = sched_load_weight(s, class).each;
    for (uint32_t m = 0; m < s->batches.in_use; m++)
        loads[m] = (double)s->places.batch_load[class][m] + young * s->batches.of[m].of[class].member_count;
    for (uint32_t m = 0; m < s->config.mini_batches; m++) {
        struct sched_group *group = &s->batches.of[m].of[class];
        uint32_t next = NONE;
        for (uint32_t i = group->member_count; i > 0; i--) { // from the end: the last member fills the gap of one that leaves
            uint32_t slot = group->members[i - 1], to = lightest_batch(s, slot, loads, young);
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
// A large gain so acts at once, a small one when it has lasted, and what changes to and fro changes nothing.
static void judge_batch_count(struct sched *s)
{
    uint32_t stages = MIN(s->config.stages, s->config.mini_batches); // fewer would leave stages idle; each wants the same number
    uint32_t best = s->batches.in_use;
    double rounds = (double)(s->stats.steps - s->batches.judged) / s->batches.in_use;
    const struct batch_times now = times_of(s, best);
    double most_us = TUNE_BATCHES_CHANGE_ROUNDS * now.decode_us;
    for (uint32_t k = stages; k <= s->config.mini_batches; k += stages) {
        const struct batch_times then = times_of(s, k);
        double *missed_us = &s->batches.missed_us[k];
        const double gained_us = MIN(rounds, 2 * TUNE_BATCHES_JUDGE_ROUNDS) * gain_us(&now, &then, k > s->batches.in_use);
        *missed_us = k == s->batches.in_use ? 0 : MAX(*missed_us + gained_us, 0);
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
        judge_batch_count(s);
    if (s->batches.wanted == s->batches.in_use)
        return true;
    if (anything_in_flight(s))
        return false;
    s->batches.in_use = s->batches.wanted;
    for (uint32_t k = 0; k <= SCHED_MINI_BATCHES_MAX; k++)
        s->batches.missed_us[k] = 0;
    for (enum sched_class class = 0; class < SCHED_CLASSES; class ++)
        deal_to_batches(s, class);
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
    s->load.of[class].plans[from].ends = 0; // as in deal_to_batches()
}

// --- workers that drift apart ---------------------------------------------------------------------------------------

// A cell is what one worker reads for one mini-batch; its time is T = load x token_us + link, what a call costs included. A mini-batch waits
// for the slowest of its cells, and would wait least if all had the same time, its level:
//
//     level = (sum of load + sum of link / token_us) / sum of 1 / token_us
//
// Every few steps the cell that is farthest above its level hands a sequence to one that is below: to the same worker's other
// mini-batch, which moves no page (the sequence only waits until its rows in flight are back), or to another worker by MOVE.
// Or two change places, so that each cell keeps its count: sequences all grow alike, so cells of equal count and load stay alike.
//
//              worker 1   worker 2   worker 3                    worker 1   worker 2   worker 3
//     batch 0    9,000      7,000      8,000     ▶ 1,500 for ▶     8,000      7,000      8,000     next: worker 2
//     batch 1    7,000      8,000      8,000     ▶     500   ▶     8,000      8,000      8,000
//
// Against ping-pong a worker must be above its level by more than noise explains, and sequences go on the terms above.

struct cell {
    uint32_t place, batch;
    double us, level_us, token_us;
};

// A sequence that goes, and one that comes in return.
struct exchange {
    uint32_t give, take; // slots; take NONE: nothing comes
    double residue_us;   // by which the worse of both cells is off its level afterwards
};

// Workers whose cells are compared.
static bool takes_part(const struct sched_place *place)
{
    return place->up && place->kind == SCHED_KV_WORKER && place->speed.token_us > 0;
}

static struct cell cell_of(const struct sched *s, uint32_t index, uint32_t batch, double level_us)
{
    const struct sched_place *place = &s->places.of[index];
    const struct sched_place_load seen = sched_place_load(place, sched_leading_class(s), batch);
    double token_us = sched_speed_token_us(s, place), load = (double)(seen.load + seen.incoming);
    return (struct cell){.place = index,
                         .batch = batch,
                         .us = load * token_us + (load > 0 ? place->speed.call_step_us + place->speed.link_step_us : 0),
                         .level_us = level_us,
                         .token_us = token_us};
}

// Returns the level of a mini-batch; NAN: fewer than two workers take part.
static double level_of(const struct sched *s, uint32_t batch)
{
    double load = 0, speed = 0, link = 0;
    uint32_t places = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (!takes_part(place))
            continue;
        const struct sched_place_load seen = sched_place_load(place, sched_leading_class(s), batch);
        double token_us = sched_speed_token_us(s, place);
        load += (double)(seen.load + seen.incoming);
        if (place->draining)
            continue;
        speed += 1 / token_us;
        link += (place->speed.call_step_us + place->speed.link_step_us) / token_us;
        places++;
    }
    return places < 2 ? NAN : (load + link) / speed;
}

// Lists sequences of a cell that may go, the newest and the oldest by turns, so that there are small and large ones; returns how many.
static uint32_t list_cell(const struct sched *s, const struct cell *cell, uint32_t *slots)
{
    const struct sched_place *place = &s->places.of[cell->place];
    uint32_t count = 0, ends[2] = {place->holders.tail, place->holders.head};
    for (uint32_t seen = 0; seen < place->count && count < TUNE_BALANCE_LISTED; seen++) {
        const uint32_t slot = ends[seen % 2];
        ends[seen % 2] = seen % 2 ? s->cold[slot].place.next : s->cold[slot].place.prev;
        if (s->seqs[slot].class == sched_leading_class(s) && s->seqs[slot].mini_batch == cell->batch && !s->seqs[slot].starved &&
            sched_handover_allowed(s, slot))
            slots[count++] = slot;
    }
    return count;
}

// Finds the exchange that leaves both cells nearest to their levels; without `swap` nothing comes in return.
static struct exchange exchange_find(const struct sched *s, const struct cell *from, const struct cell *to, bool swap)
{
    uint32_t gives[TUNE_BALANCE_LISTED], takes[TUNE_BALANCE_LISTED];
    uint32_t give_count = list_cell(s, from, gives), take_count = swap ? list_cell(s, to, takes) : 0;
    double above_us = from->us - from->level_us, below_us = to->level_us - to->us;
    struct exchange best = {.give = NONE, .take = NONE, .residue_us = INFINITY};
    for (uint32_t i = 0; i < give_count; i++) {
        double give = s->seqs[gives[i]].load;
        for (uint32_t k = 0; k <= take_count; k++) {
            double tokens = give - (k < take_count ? s->seqs[takes[k]].load : 0);
            double left_us = fabs(above_us - tokens * from->token_us), lack_us = fabs(below_us - tokens * to->token_us);
            double residue_us = MAX(left_us, lack_us);
            if (residue_us < best.residue_us)
                best = (struct exchange){.give = gives[i], .take = k < take_count ? takes[k] : NONE, .residue_us = residue_us};
        }
    }
    return best;
}

// Returns the most by which a cell may still be off its level after an exchange that is worth it.
static double residue_most_us(const struct cell *from)
{
    double above_us = from->us - from->level_us;
    return above_us - MIN(TUNE_BALANCE_GAIN * above_us, TUNE_BALANCE_GAIN_LEVEL * from->level_us);
}

// Returns whether the mini-batches' loads allow it: their being even comes before that of workers.
static bool load_allows(struct sched *s, const struct exchange *e, uint32_t from, uint32_t to)
{
    uint64_t give = s->seqs[e->give].load, take = e->take == NONE ? 0 : s->seqs[e->take].load;
    const uint64_t *loads = s->places.batch_load[sched_leading_class(s)];
    if (from == to || loads[to] + give <= loads[from])
        return true; // it makes them more even
    if (e->take == NONE && s->config.step_limit_us == 0)
        return sched_load_has_room(s, e->give, to); // now and later. With a limit on steps the slowest worker matters more
    uint32_t heavier = give > take ? to : from;
    return loads[heavier] + MAX(give, take) - MIN(give, take) <= sched_load_limit(s, heavier);
}

// Evens out a worker's mini-batches: no page moves. False: nothing to gain.
static bool even_out_batches(struct sched *s, const struct cell *from, const double *levels_us)
{
    struct exchange best = {.give = NONE, .take = NONE, .residue_us = residue_most_us(from)};
    uint32_t batch = 0;
    if (s->moves.relabelling + 2 > TUNE_MOVE_RELABELS_MAX)
        return false;
    for (uint32_t m = 0; m < s->batches.in_use; m++) {
        struct cell to = cell_of(s, from->place, m, levels_us[m]);
        if (m == from->batch || to.us >= to.level_us)
            continue;
        struct exchange found = exchange_find(s, from, &to, true);
        if (found.give != NONE && found.residue_us < best.residue_us) {
            best = found;
            batch = m;
        }
    }
    if (best.give == NONE || !load_allows(s, &best, from->batch, batch))
        return false;
    handover_stay(s, best.give);
    sched_sequence_relabel(s, best.give, batch);
    if (best.take != NONE) {
        handover_stay(s, best.take);
        sched_sequence_relabel(s, best.take, from->batch);
    }
    return true;
}

static bool move_away(struct sched *s, const struct cell *from, const double *levels_us)
{
    struct cell to = {.place = NONE};
    double lack_us = 0, above_us = from->us - from->level_us;
    if (!sched_move_is_free(s) || handover_place_rests(s, from->place) || s->places.of[from->place].draining)
        return false;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (i == from->place || !takes_part(place) || !place->accepts_moves || !sched_place_takes(s, place) ||
            handover_place_rests(s, i))
            continue;
        for (uint32_t m = 0; m < s->batches.in_use; m++) {
            struct cell cell = cell_of(s, i, m, levels_us[m]);
            if (cell.level_us - cell.us > lack_us) {
                lack_us = cell.level_us - cell.us;
                to = cell;
            }
        }
    }
    if (to.place == NONE)
        return false;
    struct exchange best = exchange_find(s, from, &to, false);
    if (best.give == NONE || best.residue_us > residue_most_us(from))
        return false;
    uint32_t pages = sched_choice_pages(s, best.give);
    const struct sched_place *place = &s->places.of[to.place];
    if (!handover_pays(s, best.give, above_us - best.residue_us) || !sched_place_fits(place, pages, true) ||
        !load_allows(s, &best, from->batch, to.batch))
        return false;
    if (!sched_place_fits(place, pages, false)) { // kept sequences make way there first
        sched_prefix_make_room(s, to.place, pages + sched_place_spared(place));
        return false;
    }
    sched_handover_start(s, best.give, to.place, pages, to.batch, MIN(1, TUNE_BALANCE_URGENT_ABOVE * from->level_us / above_us));
    return true;
}

// Lets the worst cell of a mini-batch hand something over. False: nothing to gain.
static bool hand_over_from_worst(struct sched *s, uint32_t batch, const double *levels_us)
{
    struct cell worst = {.place = 0};
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        if (!takes_part(&s->places.of[i]))
            continue;
        struct cell cell = cell_of(s, i, batch, levels_us[batch]);
        if (cell.us > worst.us)
            worst = cell;
    }
    double above_us = worst.us - worst.level_us;
    if (above_us > TUNE_BALANCE_RELABEL_ABOVE * worst.level_us && even_out_batches(s, &worst, levels_us))
        return true;
    const struct sched_place *place = &s->places.of[worst.place];
    double margin = MAX(place->shares_cores && !place->speed.slow ? TUNE_BALANCE_SHARING_ABOVE : TUNE_BALANCE_MOVE_ABOVE,
                        TUNE_BALANCE_NOISE * place->speed.token_noise);
    double step_us = s->time.whole.base_us + s->batches.of[batch].of[sched_leading_class(s)].member_count * s->time.whole.row_us;
    return above_us > MAX(margin * worst.level_us, TUNE_BALANCE_STEP_ABOVE * step_us) && move_away(s, &worst, levels_us);
}

void sched_balance(struct sched *s)
{
    if (!s->config.balance || s->stats.steps < s->balance.looked + s->batches.in_use)
        return;
    s->balance.looked = s->stats.steps;
    double levels_us[SCHED_MINI_BATCHES_MAX];
    for (uint32_t m = 0; m < s->batches.in_use; m++)
        levels_us[m] = level_of(s, m);
    for (uint32_t m = 0; m < s->batches.in_use && !isnan(levels_us[m]); m++)
        for (uint32_t i = 0; i < TUNE_BALANCE_MOVES && hand_over_from_worst(s, m, levels_us); i++) {}
}

// --- between the local pool and the workers -------------------------------------------------------------------------

// NEO's rule (choice.c) for sequences that run: they go from the workers to the local pool, or back, when that is predicted to be faster by
// more than noise.
//
// While requests wait, admission places new sequences as the rule says. When the queue is empty the rule has nothing to place: the last
// few sequences of a burst that needed the workers may be left there, and every layer of theirs pays for the links though the pool could
// now hold them all. The opposite happens when contexts have grown. Example: 24 short and 8 long sequences, half of each at workers. The
// short ones end, and four long ones wait for the links in each of 30 layers: with a round trip of 100 us that is 3 ms of a step that
// computes for 4. One after the other they go to the pool.
//
// A pool that will soon be too small for what it has hands sequences over in time, unless the workers are so slow that pausing is better.
//
// A move must pay by what the sequence's steps to come gain.

// Sums up the sequences that decode. False: there are none, or prompts are about to join them.
static bool running_load(const struct sched *s, struct sched_running_load *out)
{
    double tokens = 0, squares = 0, ends = 0, local = 0, here = 0;
    *out = (struct sched_running_load){.count = 0};
    for (uint32_t m = 0; m < s->batches.in_use; m++) {
        const struct sched_group *group = &s->batches.of[m].of[sched_leading_class(s)];
        if (group->prefill_count > 0)
            return false;
        for (uint32_t i = 0; i < group->member_count; i++) {
            const struct sched_seq *seq = &s->seqs[group->members[i]];
            tokens += seq->known;
            squares += (double)seq->known * seq->known;
            double end = seq->known + MIN((double)(seq->limit - MIN(seq->known, seq->limit)),
                                          MAX(handover_steps_left(s, group->members[i]), TUNE_MIGRATE_ROOM_TOKENS));
            ends += end;
            if (s->places.of[seq->place].kind == SCHED_KV_WORKER)
                continue;
            local += seq->known;
            here += end + s->config.page_tokens;
        }
        out->count += group->member_count;
    }
    if (out->count == 0)
        return false;
    out->context = tokens / out->count;
    out->deviation = sqrt(MAX(squares / out->count - out->context * out->context, 0));
    out->end = ends / out->count;
    out->local = out->count * local / tokens;
    out->local_end = here;
    return true;
}

// Hands one sequence of a place to another kind of places. False: none may go, or none would pay.
static bool send_one(struct sched *s, uint32_t from, uint32_t kinds, double gain_us, uint32_t *looked)
{
    for (uint32_t slot = s->places.of[from].holders.tail; slot != NONE && *looked < TUNE_MIGRATE_LISTED;
         slot = s->cold[slot].place.prev) {
        const struct sched_seq *seq = &s->seqs[slot];
        if (seq->class != sched_leading_class(s) || seq->starved || !sched_handover_allowed(s, slot) ||
            !handover_pays(s, slot, gain_us))
            continue;
        ++*looked;
        uint32_t pages = sched_choice_pages(s, slot),
                 to = sched_choice_place(s, seq->class, seq->mini_batch, seq->known, pages, from, kinds);
        if (to == NONE || handover_place_rests(s, to))
            continue;
        sched_handover_start(s, slot, to, pages, seq->mini_batch, 1);
        return true;
    }
    return false;
}

void sched_migrate(struct sched *s)
{
    struct sched_running_load running;
    struct sched_rebalance_target target;
    enum sched_class class = sched_leading_class(s);
    uint32_t local = s->places.local_pool, looked = 0;

    if (!s->config.balance || s->config.placement != SCHED_PLACE_AUTO || sched_class_sum(s->queue.count, class) > 0 ||
        s->moves.count > s->moves.relabelling ||
        s->stats.steps < s->migrate.looked + TUNE_MIGRATE_STEPS + s->running[class] / TUNE_MIGRATE_SEQUENCES_A_STEP)
        return;
    s->migrate.looked = s->stats.steps;
    if (local == NONE || !s->places.of[local].accepts_moves || !running_load(s, &running) ||
        !sched_overlap_rebalance(s, &running, &target))
        return;
    double count = fabs(target.local - running.local);
    if (count < 0.5)
        return;
    if (target.local < running.local) {
        if (!handover_place_rests(s, local))
            send_one(s, local, SCHED_CHOICE_WORKERS, target.pool_full ? INFINITY : target.saved_us / count, &looked);
        return;
    }
    if (!sched_place_takes(s, &s->places.of[local]))
        return;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (place->up && place->kind == SCHED_KV_WORKER && !place->draining && place->count > 0 && !handover_place_rests(s, i) &&
            send_one(s, i, SCHED_CHOICE_LOCAL, target.saved_us / count, &looked))
            return;
    }
}
