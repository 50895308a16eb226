// sched_balance.c: which sequences go elsewhere when workers drift apart, so that no mini-batch waits for one place alone.
//
// A cell is what one worker reads for one mini-batch; its time is T = load x token_us + link, what a call costs included. A mini-batch waits for the slowest
// of its cells, and would wait least if all had the same time, its level:
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
// Against ping-pong a worker must be above its level by more than noise explains, and sequences go on the terms of sched_handover.c.
#include <math.h>

#include "common/sched/sched_choice.h"
#include "common/sched/sched_handover.h"
#include "common/sched/sched_sequence.h"
#include "common/sched/sched_state.h"

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
    return (struct cell){index, batch, load * token_us + (load > 0 ? place->speed.call_step_us + place->speed.link_step_us : 0),
                         level_us, token_us};
}

// The level of a mini-batch; NAN: fewer than two workers take part.
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

// Lists sequences of a cell that may go, newest first; returns how many.
static uint32_t list_cell(const struct sched *s, const struct cell *cell, uint32_t *slots)
{
    uint32_t count = 0;
    for (uint32_t slot = s->places.of[cell->place].holders.tail; slot != NONE && count < TUNE_BALANCE_LISTED;
         slot = s->cold[slot].place.prev) {
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
    struct exchange best = {NONE, NONE, INFINITY};
    for (uint32_t i = 0; i < give_count; i++) {
        double give = s->seqs[gives[i]].load;
        for (uint32_t k = 0; k <= take_count; k++) {
            double tokens = give - (k < take_count ? s->seqs[takes[k]].load : 0);
            double left_us = fabs(above_us - tokens * from->token_us), lack_us = fabs(below_us - tokens * to->token_us);
            double residue_us = MAX(left_us, lack_us);
            if (residue_us < best.residue_us)
                best = (struct exchange){gives[i], k < take_count ? takes[k] : NONE, residue_us};
        }
    }
    return best;
}

// The most by which a cell may still be off its level after an exchange that is worth it.
static double residue_most_us(const struct cell *from)
{
    double above_us = from->us - from->level_us;
    return above_us - MIN(TUNE_BALANCE_GAIN * above_us, TUNE_BALANCE_GAIN_LEVEL * from->level_us);
}

// Whether the mini-batches' loads allow it: their being even comes before that of workers.
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
static bool relabel(struct sched *s, const struct cell *from, const double *levels_us)
{
    struct exchange best = {NONE, NONE, residue_most_us(from)};
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
    sched_handover_stay(s, best.give);
    sched_sequence_relabel(s, best.give, batch);
    if (best.take != NONE) {
        sched_handover_stay(s, best.take);
        sched_sequence_relabel(s, best.take, from->batch);
    }
    return true;
}

static bool move_away(struct sched *s, const struct cell *from, const double *levels_us)
{
    struct cell to = {.place = NONE};
    double lack_us = 0, above_us = from->us - from->level_us;
    if (!sched_move_is_free(s) || sched_handover_place_rests(s, from->place) || s->places.of[from->place].draining)
        return false;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (i == from->place || !takes_part(place) || !place->accepts_moves || !sched_place_takes(s, place) ||
            sched_handover_place_rests(s, i))
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
    if (!sched_handover_pays(s, best.give, above_us - best.residue_us) || !sched_place_fits(place, pages, true) ||
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
static bool improve(struct sched *s, uint32_t batch, const double *levels_us)
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
    if (above_us > TUNE_BALANCE_RELABEL_ABOVE * worst.level_us && relabel(s, &worst, levels_us))
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
        for (uint32_t i = 0; i < TUNE_BALANCE_MOVES && improve(s, m, levels_us); i++) {}
}
