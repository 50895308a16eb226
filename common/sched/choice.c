// choice.c: the choice of a place for a sequence: that with which its mini-batch waits least for attention, by the formula of step_time.h, among
// the kinds of places with which all together are predicted to give most tokens a second.
//
// Example: local pool at 0.02 us a token, one remote worker as fast with 30 layers x 60 us of link. A first sequence of
// 1,000 tokens takes 20 us locally and 1,820 us remotely: local. With 90,000 tokens in the local pool the next 1,000 take
// 1,820 us locally and max(1,800, 1,820) remotely: from here on both grow alike. Among workers on the s-part's cores it is the
// one with the least load, so that each holds its share and the death of one loses no more than that.
//
// To the wait at a worker elsewhere comes what it still attends for prompts of other mini-batches, spread over the tokens of an answer: mini-batches
// that are alike would go round the workers in step, and of N workers one alone would read prompts.
#include "common/sched/choice.h"

#include <math.h>

#include "common/sched/state.h"

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

// Notes how long each place still attends for the prompts of a class that other mini-batches are reading, spread over the tokens of an answer.
static void note_pending(const struct sched *s, enum sched_class class, uint32_t mini_batch)
{
    const struct sched_lengths *l = &s->load.of[class].lengths;
    for (uint32_t i = 0; i < s->config.max_places; i++)
        s->places.of[i].pending_us = 0;
    for (uint32_t m = 0; m < s->config.mini_batches && l->count > 0; m++) {
        uint32_t slot = m == mini_batch ? NONE : s->batches.of[m].of[class].prefill_head;
        for (; slot != NONE; slot = s->cold[slot].batch.next) {
            const struct sched_seq *seq = &s->seqs[slot];
            struct sched_place *place = &s->places.of[seq->place];
            const uint32_t at = seq->next_pos - MIN(seq->next_pos, sched_seq_first(s, seq));
            place->pending_us += place->speed.pair_us * sched_speed_pairs(at, seq->target - seq->next_pos) / MAX(l->tokens, 1);
        }
    }
}

uint32_t sched_choice_place(const struct sched *s, enum sched_class class, uint32_t mini_batch, uint32_t tokens, uint32_t pages,
                            uint32_t leaving, uint32_t kinds)
{
    struct sched_weight weight = sched_load_weight(s, class);
    const struct attention now = attention_of(s, class, mini_batch, weight);
    uint32_t best = NONE, sharing = NONE;
    double best_us = 0, best_own_us = 0;
    double sharing_load = 0;
    if (leaving == NONE)
        note_pending(s, class, mini_batch);
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
        // Prompts of two mini-batches at one worker wait for each other, and all rows with them.
        if (leaving == NONE && !sched_place_is_here(place) && place->pending_us > TUNE_PLACE_PENDING * us)
            us += place->pending_us;
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

// --- local pool, workers, or both -----------------------------------------------------------------------------------

// The rule is NEO's (Jiang et al., arXiv 2411.01142, section 3.2): adding workers never makes it slower. It acts at admission, and on
// running sequences when the queue is empty (balance.c). Among n sequences, each with c tokens of context on average, h are held
// locally and the others at the workers. With k mini-batches and the formula of step_time.h, with
//
//     H = h·c / k · token_us of the local pool        R = (n - h)·c / k / speed of the workers
//
// a round takes round(k), and gives n tokens: n / round(k) a second. Local only: n is cut to what the pool holds. Workers only: h = 0.
// Both: the best h there is. Example: S(32) = 10 ms, S(16) = 8 ms, c = 1,000, 0.25 us a token locally, n = 32, room for 16 locally.
// Local only: 16 / (8 + 4 ms) = 1.33 a ms. With workers that read as fast, 4 ms for 16: 32 / (10 + max(4, 4)) = 2.3. With workers a
// tenth as fast: 32 / (10 + 40) = 0.64, so local only.
//
// The pool, too, may be better left out: with two mini-batches a local token delays both, and fast workers may do without it.
//
// Both together must promise more than either alone (TUNE_OVERLAP_LOCAL_ODDS, TUNE_OVERLAP_WORKERS_ODDS): in a mixed step one side waits
// for the other more than on average. In the sweep of test_sched_rule.c, with requests waiting all the time (96 sequences, two workers an
// eighth as fast), a promise of 6 % over the local pool was missed by 10 %, and one of 4 % over workers by 7 %.

// The reach of places for sequences of a kind.
struct capacity {
    double context, deviation;                 // the sequences: tokens of one, mean over its life; by how much they differ
    double end;                                // tokens of one at its end
    double local_us, local_count, local_ends;  // the pool: time of a token; sequences that fit; that fit if all are at their end
    double local_tokens;                       // tokens that fit
    double speed, sharing_us, sharing_link_us; // workers: tokens a microsecond; on the s-part's cores: time of a token, round trips
    double link_us, call_us, worker_count, workers;
};

// Fills in the sequences that wait: by lengths seen, or by the head of the queue.
static void fill_contexts(const struct sched *s, struct capacity *out)
{
    const struct sched_seq *head = &s->seqs[s->queue.waiting.entries[0].slot];
    const struct sched_lengths *l = &s->load.of[head->class].lengths;
    out->context = (head->known + MAX(head->limit, head->known)) / 2.0;
    out->end = MAX(head->limit, head->known);
    out->deviation = (MAX(head->limit, head->known) - head->known) / 3.5; // evenly spread
    if (l->count == 0)
        return;
    out->end = l->prompt_tokens + l->tokens;
    out->context = l->context_tokens / l->tokens;
    out->deviation = sqrt(MAX(l->context_squares / l->tokens - out->context * out->context, 0));
}

// Returns the sequences that a place's pages hold, allowing for long ones.
static double count_of(const struct sched *s, const struct capacity *capacity, const struct sched_place *place)
{
    double tokens = capacity->context + TUNE_PLACE_MARGIN_PAGES * s->config.page_tokens,
           all = (double)place->pages_total * s->config.page_tokens;
    double root = (sqrt(capacity->deviation * capacity->deviation + tokens * all) - capacity->deviation) / tokens;
    return floor(root * root);
}

// Fills in the places, for sequences that are filled in. False: there is nothing to choose between, or too little is known.
static bool gather_places(const struct sched *s, struct capacity *out)
{
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (!place->up || place->draining || place->pages_total == 0)
            continue;
        double count = count_of(s, out, place), us = sched_speed_token_us(s, place);
        if (place->kind == SCHED_LOCAL_POOL) {
            out->local_us = us;
            out->local_count += count;
            out->local_tokens += (double)place->pages_total * s->config.page_tokens;
            out->local_ends += floor((double)place->pages_total * s->config.page_tokens / (out->end + s->config.page_tokens));
            continue;
        }
        out->worker_count += count;
        if (place->shares_cores) {
            out->sharing_us = MAX(out->sharing_us, us);
            out->sharing_link_us = MAX(out->sharing_link_us, place->speed.link_step_us);
        } else {
            out->speed += 1 / us;
            out->workers++;
            out->link_us = MAX(out->link_us, place->speed.link_step_us);
            out->call_us = MAX(out->call_us, place->speed.call_step_us);
        }
    }
    return out->local_count > 0 && out->worker_count > 0 && s->time.layers.rows_seen > 0;
}

// Returns the slowest worker's time for `count` sequences of a mini-batch. Sequences are not divided, and differ.
static double away_us(const struct capacity *capacity, double count)
{
    double each = ceil(count / capacity->workers);
    return capacity->call_us +
           (each * capacity->context + capacity->deviation * sqrt(each) / 2) * capacity->workers / capacity->speed;
}

// Returns the tokens a microsecond of n sequences, h of them local.
static double rate_with(const struct sched *s, const struct capacity *capacity, double n, double h)
{
    bool away = n > h && capacity->workers > 0, sharing = n > h && capacity->workers == 0;
    double here_us = h * capacity->context * capacity->local_us +
                     (sharing ? (n - h) * capacity->context * capacity->sharing_us : 0),
           best = 0;
    for (uint32_t k = s->config.mini_batch_auto ? 1 : s->config.mini_batches; k <= s->config.mini_batches; k++) {
        struct sched_round round = sched_time_round(s, n / k, n / k);
        sched_round_add(&round, true, here_us / k, sharing ? capacity->sharing_link_us : 0);
        if (away)
            sched_round_add(&round, false, away_us(capacity, (n - h) / k), capacity->link_us);
        best = MAX(best, n / sched_round_us(&round, k));
    }
    return best;
}

void sched_overlap_judge(struct sched *s)
{
    struct capacity capacity = {.context = 0};
    if (s->config.placement != SCHED_PLACE_AUTO || s->queue.waiting.count == 0)
        return;
    enum sched_class class = s->seqs[s->queue.waiting.entries[0].slot].class;
    struct sched_overlap *overlap = &s->overlap[class];
    double n = (double)sched_class_sum(s->running, class) + sched_class_sum(s->queue.count, class) +
               sched_class_sum(s->coming_back, class);
    n = MIN(n, s->config.max_running);
    if (overlap->judged > 0 && s->stats.steps < overlap->judged + TUNE_OVERLAP_JUDGE_STEPS &&
        fabs(n - overlap->count) < TUNE_OVERLAP_CHANGED * n)
        return;
    overlap->judged = s->stats.steps + 1;
    overlap->count = n;
    fill_contexts(s, &capacity);
    if (!gather_places(s, &capacity)) {
        overlap->choice = SCHED_OVERLAP_UNKNOWN;
        return;
    }
    double rates[SCHED_OVERLAP_CHOICES] = {0}, share = 0;
    double local = MIN(n, capacity.local_count), away = MIN(n, capacity.worker_count),
           all = MIN(n, capacity.local_count + capacity.worker_count);
    rates[SCHED_OVERLAP_LOCAL] = rate_with(s, &capacity, local, local);
    rates[SCHED_OVERLAP_WORKERS] = rate_with(s, &capacity, away, 0);
    // Sequences that will not fit at their end go to the workers from the beginning: being paused for want of pages costs more.
    double least = MAX(all - capacity.worker_count, 0), most = MAX(MIN(all, capacity.local_ends), least);
    for (uint32_t i = 0; i <= TUNE_OVERLAP_SHARES; i++) {
        double h = least + (most - least) * i / TUNE_OVERLAP_SHARES, r = rate_with(s, &capacity, all, h);
        if (r > rates[SCHED_OVERLAP_BOTH]) {
            rates[SCHED_OVERLAP_BOTH] = r;
            share = h / all;
        }
    }
    rates[SCHED_OVERLAP_LOCAL] *= TUNE_OVERLAP_LOCAL_ODDS;
    rates[SCHED_OVERLAP_WORKERS] *= TUNE_OVERLAP_WORKERS_ODDS;
    rates[overlap->choice] *= TUNE_OVERLAP_STAY; // the rate of SCHED_OVERLAP_UNKNOWN is 0
    enum sched_overlap_choice best = SCHED_OVERLAP_BOTH;
    for (enum sched_overlap_choice o = SCHED_OVERLAP_BOTH; o < SCHED_OVERLAP_CHOICES; o++)
        best = rates[o] > rates[best] ? o : best;
    overlap->choice = best;
    overlap->local_share = share;
}

// Tokens a microsecond, and the same with the odds that one kind of places alone has over both.
struct promise {
    double rate, weighed;
};

static struct promise promise_of(const struct sched *s, const struct capacity *capacity, double n, double h)
{
    double r = rate_with(s, capacity, n, h);
    return (struct promise){r, r * (h >= n ? TUNE_OVERLAP_LOCAL_ODDS : h <= 0 ? TUNE_OVERLAP_WORKERS_ODDS : 1)};
}

bool sched_overlap_rebalance(const struct sched *s, const struct sched_running_load *running, struct sched_rebalance_target *out)
{
    struct capacity capacity = {.context = running->context, .deviation = running->deviation, .end = running->end};
    if (!gather_places(s, &capacity))
        return false;
    double n = running->count, least = MAX(n - capacity.worker_count, 0), most = MAX(MIN(n, capacity.local_ends), least);
    out->pool_full = running->local_end > capacity.local_tokens;
    // If the pool is too full one sequence less will do, unless something else is better by far.
    out->local = out->pool_full ? MAX(MIN(running->local - 1, most), 0) : running->local;
    struct promise now = promise_of(s, &capacity, n, out->local), best = now;
    for (uint32_t i = 0; i <= TUNE_OVERLAP_SHARES; i++) {
        double h = least + (most - least) * i / TUNE_OVERLAP_SHARES;
        struct promise p = promise_of(s, &capacity, n, h);
        if (p.weighed > best.weighed && MIN(p.rate / now.rate, p.weighed / now.weighed) > TUNE_OVERLAP_MIGRATE_GAIN) {
            best = p;
            out->local = h;
        }
    }
    out->saved_us = n / now.rate - n / best.rate;
    if (out->pool_full && promise_of(s, &capacity, n - (running->local - out->local), out->local).weighed >= best.weighed)
        return false; // pausing some is better
    return out->local != running->local;
}

static bool could_hold(const struct sched *s, uint32_t kinds, uint32_t pages)
{
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (place->up && !place->draining && (kinds & SCHED_CHOICE_OF(place->kind)) && place->pages_total >= pages)
            return true;
    }
    return false;
}

uint32_t sched_overlap_kinds(const struct sched *s, enum sched_class class)
{
    switch (s->overlap[class].choice) {
    case SCHED_OVERLAP_LOCAL: return SCHED_CHOICE_LOCAL;
    case SCHED_OVERLAP_WORKERS: return SCHED_CHOICE_WORKERS;
    default: return SCHED_CHOICE_ANY;
    }
}

uint32_t sched_overlap_kinds_new(const struct sched *s, enum sched_class class, uint32_t pages)
{
    uint32_t kinds = sched_overlap_kinds(s, class);
    return could_hold(s, kinds, pages) ? kinds : SCHED_CHOICE_ANY;
}

uint32_t sched_overlap_place(const struct sched *s, enum sched_class class, uint32_t mini_batch, uint32_t tokens, uint32_t pages)
{
    const struct sched_overlap *overlap = &s->overlap[class];
    if (overlap->choice != SCHED_OVERLAP_BOTH)
        return sched_choice_place(s, class, mini_batch, tokens, pages, NONE, sched_overlap_kinds_new(s, class, pages));
    double local = 0, all = tokens;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place_load seen = sched_place_load(&s->places.of[i], class, mini_batch);
        double load = (double)(seen.load + seen.incoming);
        local += s->places.of[i].kind == SCHED_LOCAL_POOL ? load : 0;
        all += load;
    }
    uint32_t first = local + tokens / 2.0 < overlap->local_share * all ? SCHED_CHOICE_LOCAL : SCHED_CHOICE_WORKERS;
    uint32_t place = sched_choice_place(s, class, mini_batch, tokens, pages, NONE, first);
    return place != NONE ? place : sched_choice_place(s, class, mini_batch, tokens, pages, NONE, SCHED_CHOICE_ANY);
}
