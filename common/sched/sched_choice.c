// sched_choice.c: the choice of a place for a sequence.
//
// It is the place with which the mini-batch waits least for attention, by the formula of sched_time.h.
//
// Example: local pool at 0.02 us a token, one remote worker as fast with 30 layers x 60 us of link. A first sequence of
// 1,000 tokens takes 20 us locally and 1,820 us remotely: local. With 90,000 tokens in the local pool the next 1,000 take
// 1,820 us locally and max(1,800, 1,820) remotely: from here on both grow alike. Among workers on the s-part's cores it is the
// one with the least load, so that each holds its share and the death of one loses no more than that.
#include "common/sched/sched_choice.h"
#include "common/sched/sched_state.h"

uint32_t sched_choice_pages(const struct sched *s, uint32_t slot)
{
    const struct sched_seq *seq = &s->seqs[slot];
    uint32_t known = MAX(seq->known, seq->next_pos + 1);
    uint32_t margin = MIN(seq->limit > known ? seq->limit - known : 0, TUNE_PLACE_MARGIN_PAGES * s->config.page_tokens);
    uint32_t wanted = sched_place_pages(s, known + margin);
    // The margin may be given up: a place that the sequence fills alone must still take it.
    uint32_t largest = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        if (s->places.of[i].up && !s->places.of[i].draining && sched_place_permitted(s, &s->places.of[i]))
            largest = MAX(largest, s->places.of[i].pages_total);
    }
    return MAX(sched_place_pages(s, known), MIN(wanted, largest));
}

// Attention of a mini-batch at all places.
struct attention {
    double here_us, here_link_us; // on the s-part's cores, as in struct sched_round
    double first_us, second_us;   // until the two slowest elsewhere have answered
    uint32_t first;
};

static struct attention attention_of(const struct sched *s, enum sched_class class, uint32_t mini_batch, struct sched_weight weight)
{
    struct attention a = {.first = NONE};
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        double read_us = place->up ? sched_speed_read_us(s, place, class, mini_batch, 0, weight) : 0;
        if (read_us <= 0)
            continue;
        double answer_us = read_us + place->speed.link_step_us;
        if (sched_place_is_here(place)) {
            a.here_us += read_us;
            a.here_link_us = MAX(a.here_link_us, place->speed.link_step_us);
        } else if (answer_us > a.first_us) {
            a.second_us = a.first_us;
            a.first_us = answer_us;
            a.first = i;
        } else {
            a.second_us = MAX(a.second_us, answer_us);
        }
    }
    return a;
}

// Returns the attention of the mini-batch if that place reads for read_us instead of now_us.
static inline double attend_us_with(const struct attention *a, uint32_t index, const struct sched_place *place, double now_us,
                                    double read_us)
{
    struct sched_round round = {
        .here_us = a->here_us, .here_link_us = a->here_link_us, .away_answer_us = index == a->first ? a->second_us : a->first_us};
    if (sched_place_is_here(place))
        round.here_us -= now_us;
    sched_round_add(&round, sched_place_is_here(place), read_us, place->speed.link_step_us);
    return sched_round_attend_us(&round);
}

uint32_t sched_choice_place(const struct sched *s, enum sched_class class, uint32_t mini_batch, uint32_t tokens, uint32_t pages,
                            uint32_t leaving, uint32_t kinds)
{
    struct sched_weight weight = sched_load_weight(s, class);
    const struct attention now = attention_of(s, class, mini_batch, weight);
    uint32_t best = NONE, sharing = NONE;
    double best_us = 0, best_own_us = 0;
    double sharing_load = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (!(kinds & SCHED_CHOICE_OF(place->kind)) || !sched_place_takes(s, place) || !sched_place_permitted(s, place) ||
            !sched_place_fits(place, pages, leaving == NONE) || i == leaving || (leaving != NONE && !place->accepts_moves))
            continue;
        if (place->shares_cores && place->kind == SCHED_KV_WORKER) {
            // Their times add up whichever takes it, so the sum says nothing. They share the context evenly, and a slow one takes
            // less by as much as it is slower.
            const struct sched_place_load seen = sched_place_load(place, class, mini_batch);
            double load = (double)(seen.load + seen.incoming + tokens) *
                          (place->speed.slow ? place->speed.token_us / s->places.sharing_us : 1);
            if (sharing == NONE || load < sharing_load) {
                sharing = i;
                sharing_load = load;
            }
            continue;
        }
        double now_us = place->kind == SCHED_LOCAL_POOL ? sched_speed_read_us(s, place, class, mini_batch, 0, weight) : 0;
        double read_us = sched_speed_read_us(s, place, class, mini_batch, tokens, weight),
               own_us = read_us + place->speed.link_step_us;
        double us = attend_us_with(&now, i, place, now_us, read_us);
        if (best == NONE || us < best_us || (us == best_us && own_us < best_own_us)) {
            best = i;
            best_us = us;
            best_own_us = own_us;
        }
    }
    if (sharing != NONE) {
        const struct sched_place *place = &s->places.of[sharing];
        double now_us = sched_speed_read_us(s, place, class, mini_batch, 0, weight);
        double read_us = sched_speed_read_us(s, place, class, mini_batch, tokens, weight),
               own_us = read_us + place->speed.link_step_us;
        double us = attend_us_with(&now, sharing, place, now_us, read_us);
        if (best == NONE || us < best_us || (us == best_us && own_us < best_own_us))
            best = sharing;
    }
    return best;
}

bool sched_choice_none_can_hold(struct sched *s, uint32_t pages)
{
    bool any_up = false;
    uint64_t wake_us = s->places.grace_until_us > s->now_us ? s->places.grace_until_us : SCHED_NEVER;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        any_up = any_up || place->up;
        if (place->pages_total < pages || !sched_place_permitted(s, place))
            continue;
        if (place->up)
            return false;
        uint64_t until_us = place->down_since_us + TUNE_PLACE_RETURN_US;
        if (until_us > s->now_us)
            wake_us = MIN(wake_us, until_us);
    }
    if (any_up && wake_us != SCHED_NEVER)
        s->places.grace_wake_us = MIN(s->places.grace_wake_us, wake_us);
    return any_up && wake_us == SCHED_NEVER;
}
