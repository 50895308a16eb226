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
// Prompts weigh in by plan.h's formulas: each token that waiting sequences will generate brings p / S prefill rows, which lengthen the S-part's
// step, cross the link if they are not local, and are attended for where they lie. Those in prefill do not decode. Example: Llama 3.1 8B in 4
// bits on an RTX 4090, prompts of 8,000 for answers of 500 over 25 Gbit/s: a row takes 1.3 MB there and back, 17 rows a token 22 MB, so that
// workers give no more than 140 tokens a second, and the pool alone 300.
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
    double prompt_rows, prompt_pairs; // prefill rows for each generated token; what each of them reads, in the mean
    double local_pair_us, pair_us;    // time of such a read in the pool; at a worker
    double link_row_us;               // what a row occupies the link for; 0: not known
};

// Fills in sequences by the lengths seen, of which there are some.
static void fill_lengths(const struct sched_lengths *l, struct capacity *out)
{
    out->prompt_rows = l->prompt_tokens / l->tokens;
    out->prompt_pairs = l->prompt_squares / MAX(2 * l->prompt_tokens, 1);
    out->end = l->prompt_tokens + l->tokens;
    out->context = l->context_tokens / l->tokens;
    out->deviation = sqrt(MAX(l->context_squares / l->tokens - out->context * out->context, 0));
}

// Fills in the sequences that wait: by lengths seen, or by the head of the queue.
static void fill_contexts(const struct sched *s, struct capacity *out)
{
    const struct sched_seq *head = &s->seqs[s->queue.waiting.entries[0].slot];
    const struct sched_lengths *l = &s->load.of[head->class].lengths;
    if (l->count > 0) {
        fill_lengths(l, out);
        return;
    }
    out->context = (head->known + MAX(head->limit, head->known)) / 2.0;
    out->end = MAX(head->limit, head->known);
    out->deviation = (MAX(head->limit, head->known) - head->known) / 3.5; // evenly spread
    out->prompt_rows = head->known / MAX(out->end - head->known, 1);
    out->prompt_pairs = head->known / 2.0;
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
    const struct sched_curve *links = &s->time.links;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (!place->up || place->draining || place->pages_total == 0)
            continue;
        double count = count_of(s, out, place), us = sched_speed_token_us(s, place);
        const double pair_us = place->speed.pair_us > 0 ? place->speed.pair_us : sched_time_row_us(s) / TUNE_CHUNK_ROW_CONTEXT;
        if (place->kind == SCHED_LOCAL_POOL) {
            out->local_us = us;
            out->local_pair_us = pair_us;
            out->local_count += count;
            out->local_tokens += (double)place->pages_total * s->config.page_tokens;
            out->local_ends += floor((double)place->pages_total * s->config.page_tokens / (out->end + s->config.page_tokens));
            continue;
        }
        out->worker_count += count;
        out->pair_us = MAX(out->pair_us, pair_us);
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
    const double first_us = sched_curve_us(links, 1), last_us = sched_curve_us(links, links->rows_seen);
    out->link_row_us = sched_curve_sizes(links) > 1 ? MAX(last_us - first_us, 0) / MAX(links->rows_seen - 1, 1) : 0;
    return out->local_count > 0 && out->worker_count > 0 && s->time.layers.rows_seen > 0;
}

// Returns the slowest worker's time for `count` sequences of a mini-batch. Sequences are not divided, and differ.
static double away_us(const struct capacity *capacity, double count)
{
    double each = ceil(count / capacity->workers);
    return capacity->call_us +
           (each * capacity->context + capacity->deviation * sqrt(each) / 2) * capacity->workers / capacity->speed;
}

// A mini-batch's step: decode rows, a share of which is local, and prefill rows of one prompt, which is local or not.
struct mix {
    double local_share, decode, prefill;
    bool prefill_local;
};

// Its parts, and what its rows occupy the link to the workers for.
struct parts {
    struct sched_round round;
    double bytes_us;
};

static struct parts parts_of(const struct sched *s, const struct capacity *c, const struct mix *mix)
{
    const double here = mix->local_share * mix->decode, away = mix->decode - here;
    const double read_us = mix->prefill * c->prompt_pairs * (mix->prefill_local ? c->local_pair_us : c->pair_us);
    const double prefill_away = mix->prefill_local ? 0 : mix->prefill, rows_away = away + prefill_away;
    struct parts parts = {.round = sched_time_round(s, mix->decode + mix->prefill, mix->decode)};
    double away_read_us = prefill_away > 0 ? read_us : 0;

    sched_round_add(&parts.round, true, here * c->context * c->local_us + (mix->prefill_local ? read_us : 0), 0);
    if (rows_away > 0 && c->workers == 0)
        sched_round_add(&parts.round, true, away_read_us + away * c->context * c->sharing_us, c->sharing_link_us);
    if (rows_away > 0 && c->workers > 0) {
        away_read_us += away > 0 ? away_us(c, away) : c->call_us;
        parts.bytes_us = rows_away * c->link_row_us / s->config.stages; // each has a link of its own
        sched_round_add(&parts.round, false, away_read_us,
                        sched_curve_sizes(&s->time.links) > 1 ? sched_curve_us(&s->time.links, rows_away) : c->link_us);
    }
    return parts;
}

// Steps without a chunk of a prompt, and with one that is local, or not.
struct steps {
    double decode; // rows, in the mean
    struct parts light, heavy[2];
    double each[2]; // of the latter, for each decode row
};

// Fills in the steps with a chunk beside so many decode rows: as long as chunk.c lets them be where rows cost alike.
static void choose_chunks(const struct sched *s, const struct capacity *c, double sequences, struct mix mix, struct steps *out)
{
    const double crowd = MIN(MAX((sequences - mix.decode) / mix.decode, 1), TUNE_CHUNK_WAITING_STRETCH_MAX);
    const double most_rows = s->config.chunk_max_tokens, least_rows = s->config.tile_rows / 2.0;

    mix.prefill = 0;
    out->decode = mix.decode;
    out->light = parts_of(s, c, &mix);
    const double light_us = out->light.round.s_part_us + sched_round_attend_us(&out->light.round);
    const double target_us = s->config.step_target_auto ? TUNE_CHUNK_AUTO_STRETCH * crowd * light_us
                                                        : MAX(s->config.step_target_us, TUNE_CHUNK_STRETCH * light_us);
    for (int local = 0; local < 2; local++) {
        mix.prefill = most_rows;
        mix.prefill_local = local;
        const struct sched_round full = parts_of(s, c, &mix).round;
        const double more_us = MAX(full.s_part_us + sched_round_attend_us(&full) - light_us, 1);
        mix.prefill = MIN(MAX(most_rows * (target_us - light_us) / more_us, least_rows), most_rows);
        mix.prefill = s->config.chunk_tokens ? s->config.chunk_tokens : mix.prefill;
        out->heavy[local] = parts_of(s, c, &mix);
        out->each[local] = (local ? mix.local_share : 1 - mix.local_share) * c->prompt_rows / mix.prefill;
    }
}

// Returns the steps of a mini-batch of so many sequences. Those in prefill do not decode: as many decode as have their prompts come as fast as
// their answers go. If some steps have no chunk they have rows of all others; if all have one, as many decode as these feed.
static struct steps steps_of(const struct sched *s, const struct capacity *c, double sequences, double local_share)
{
    enum { HALVINGS = 7 };
    struct mix mix = {.local_share = local_share, .decode = sequences};
    double low = 0, high = sequences;
    struct steps steps;

    choose_chunks(s, c, sequences, mix, &steps);
    if ((steps.each[0] + steps.each[1]) * sequences <= 1) {
        steps.decode = sequences / (1 + steps.each[0] + steps.each[1]);
        return steps;
    }
    for (int i = 0; i < HALVINGS; i++) {
        mix.decode = (low + high) / 2;
        choose_chunks(s, c, sequences, mix, &steps);
        *((steps.each[0] + steps.each[1]) * mix.decode <= 1 ? &low : &high) = mix.decode;
    }
    return steps;
}

// Returns the tokens a microsecond of k mini-batches, by the formulas of plan.h: a round is longer by each of its chunks, which attend at
// different workers, and nobody does more than it can.
static double rate_of(const struct sched *s, const struct capacity *c, double sequences, double local_share, uint32_t k)
{
    if (c->prompt_rows == 0) {
        const struct parts alone = parts_of(s, c, &(struct mix){.local_share = local_share, .decode = sequences});
        return k * sequences / MAX(sched_round_us(&alone.round, k), k * alone.bytes_us);
    }
    const struct steps steps = steps_of(s, c, sequences, local_share);
    const struct sched_round *light = &steps.light.round;
    const double light_us = sched_round_us(light, k);
    double us = light_us, turn_us = sched_round_turn_us(light), read_us = light->away_us, bytes_us = steps.light.bytes_us;

    for (int local = 0; local < 2; local++) {
        const double chunks = k * steps.each[local] * steps.decode, at_once = MAX(chunks, 1), share = at_once / k; // of a round
        const double rounds = MIN(chunks, 1), apart = MAX(MIN(at_once, c->workers), 1);
        const struct sched_round *heavy = &steps.heavy[local].round;
        struct sched_round longer = *light;
        longer.s_part_us += share * (heavy->s_part_us - light->s_part_us);
        longer.slowest_us += share * (heavy->slowest_us - light->slowest_us);
        longer.here_us += share * (heavy->here_us - light->here_us);
        longer.away_us += share / apart * (heavy->away_us - light->away_us);
        longer.away_answer_us = heavy->s_part_us - longer.s_part_us + sched_round_attend_us(heavy);
        const double more_bytes_us = share * (steps.heavy[local].bytes_us - steps.light.bytes_us);
        turn_us += rounds * (sched_round_turn_us(&longer) - sched_round_turn_us(light));
        read_us += rounds * (longer.away_us - light->away_us);
        bytes_us += rounds * more_bytes_us;
        longer.away_us = MAX(longer.away_us, steps.light.bytes_us + more_bytes_us);
        us += rounds * (sched_round_us(&longer, k) - light_us);
    }
    return k * steps.decode / MAX(us, k * MAX(turn_us, MAX(read_us, bytes_us)));
}

// Returns the tokens a microsecond of n sequences, h of them local.
static double rate_with(const struct sched *s, const struct capacity *capacity, double n, double h)
{
    const uint32_t stages = MIN(s->config.stages, s->config.mini_batches); // each has as many mini-batches
    double best = 0;
    for (uint32_t k = s->config.mini_batch_auto ? stages : s->config.mini_batches; n > 0 && k <= s->config.mini_batches;
         k += stages)
        best = MAX(best, rate_of(s, capacity, n / k, h / n, k));
    return best;
}

double sched_prompts_times(const struct sched *s, enum sched_class class, uint32_t mini_batches)
{
    const struct sched_lengths *l = &s->load.of[class].lengths;
    struct capacity capacity = {.context = 0};
    if (l->count == 0 || l->prompt_tokens <= 0 || s->running[class] == 0 || s->time.layers.rows_seen == 0)
        return 1;
    fill_lengths(l, &capacity);
    gather_places(s, &capacity);
    const double here = capacity.local_count > 0 ? 1 - sched_time_away_share(s) : 0,
                 sequences = (double)s->running[class] / mini_batches;
    const double with = rate_of(s, &capacity, sequences, here, mini_batches);
    capacity.prompt_rows = 0;
    return rate_of(s, &capacity, sequences, here, mini_batches) / with;
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
