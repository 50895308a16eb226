// chunk.c: how many prefill rows a step may have, beside those that decode.
//
// The time of a step with d decode rows and c prefill rows is predicted from D, the measured time of steps without prefill, and from
// what the prefill rows add:
//
//     us(c) = h·D(d) + f·(S(d + c) - S(d)) + g·Σ (rows × context)·pair_us          S: the s-part's work by rows (step_time.h)
//
// f, g and h are factors that correct the three parts to what steps take, each by its share of the prediction: so the start of a prompt
// teaches f, its end g, and a step without prefill h alone. While prompts come all the time there is no step without prefill, and h must
// learn from the others that contexts have grown: put on the few rows of a small chunk, that time would make the chunk smaller still.
//
// Candidates are the sizes that make d + c a multiple of the tile (SARATHI, arXiv 2308.16369) and whose step keeps to the target
// (Sarathi-Serve, arXiv 2403.02310). The one with the best throughput at the observed ratio P:D of prompt to generated tokens is taken,
// not for the d that decode now but for the n that will when the prompts are done. (With d, a single decoding sequence would ask for
// just the rows that keep one decoding.) With w = n·P/D rows wanted a step, a chunk c >= w is in w/c of the steps, so n tokens take
// w/c·us(c) + (1 - w/c)·us(0). Below w so few prompts end that only n·c/w sequences run at once, in a time between that of one and of n.
// If S is a line all sizes from w on are equal, and the largest ends prompts soonest.
//
// If weights are read while the step runs (W in step_time.h), rows that fit into the time that the decode rows leave of that are free:
//
//     us(c) = h·D(d) + max(0, f·… + g·… - (W/M - S(d)))
//
// Rows × context is why a chunk shrinks as its prompt grows. Example: D = 7.5 ms, a row more 0.5 ms, pair_us 0.4, d = 8, and a target of
// 2.4·D = 18 ms. At the start of a prompt c = 16 takes 15.6 ms and 24 would take 19.6; at 1,500 tokens c = 8 takes 16.3 ms, and at 4,000
// there is time for 5 rows only. Half a tile is the least, because a step reads the whole context of the prompt for however few rows.
// If the decode rows alone fill the target, prefill still gets 1.4 times their time.
//
// Without --step-target the target is 2.2 times what the decode rows take alone, so that a client sees its tokens at most about that many
// times as far apart while a prompt is read. Predictions are right in the mean, and what a client sees is the tail. So the target is divided
// by an upper quantile, learned, of what such steps took beside their prediction: nine in ten then keep to 2.2 times. If steps vary so
// much that this quantile exceeds 1.3, prompts get 0.7 times the decode rows' time all the same, so that they are not starved. Example: D = 4
// ms, and one step in ten takes more than 1.15 times its prediction: 4·2.2/1.15 = 7.7 ms are aimed at.
//
// That target weighs running sequences against waiting ones: if k times as many wait as run it is k times as long, up to four. Each step
// costs its base however few prompt rows it has, so the last of 128 sequences that come at once would otherwise start after twice the time.
// Then it may also be n times as long as that if it has n^1.5 times the prompt rows, at least twice as many. Experts ask for that: a few rows read
// most of them, and many rows hardly more. Rows that cost alike do not: twice the time is 16.6 D for prompts then, where it was 7.8 D.
//
// Rows of class batch in a step of interactive ones are added last, decoding or not, with the time that they are predicted to add as above:
// together a twelfth of the step's, whatever the target (TUNE_LATE_SHARE), and what is free where weights are read. For steps that are theirs
// alone class batch has factors and times of its own, so that those of interactive steps are what they would be without it.
#include "common/sched/chunk.h"

#include <math.h>

#include "common/sched/state.h"

uint32_t sched_chunk_max(const struct sched *s)
{
    uint32_t cap = s->config.chunk_tokens != 0 ? s->config.chunk_tokens : s->config.chunk_max_tokens;
    // If weights are read, prompts that come at once take as few readings as they can: what is computed during one is free.
    if (s->config.chunk_tokens == 0 && s->time.stream_us > 0 && sched_time_row_us(s) > 0)
        cap = (uint32_t)MAX(cap, MIN(sched_time_free_us(s, 1) / sched_time_row_us(s), s->s_part.rows_max));
    return MIN(cap, s->s_part.rows_max);
}

// --- what a step takes ----------------------------------------------------------------------------------------------

// Returns the time by which prefill rows lengthen the s-part's work.
static double products_us(const struct sched *s, const struct sched_chunk *m, double decode_rows, double rows)
{
    // By the measured points more rows may seem to take less; but no row is free.
    return m->products *
           MAX(sched_time_rows_us(s, decode_rows + rows) - sched_time_rows_us(s, decode_rows), rows * sched_time_row_us(s) / 4);
}

static double pairs_us(const struct sched *s, const struct sched_chunk *m, uint32_t place, double pairs)
{
    double pair_us = s->places.of[place].speed.pair_us > 0 ? s->places.of[place].speed.pair_us
                                                           : sched_time_row_us(s) / TUNE_CHUNK_ROW_CONTEXT;
    return m->attention * pairs * pair_us;
}

// The places of a sequence that is split attend at the same time.
static double attention_us(const struct sched *s, const struct sched_chunk *m, const struct sched_run *run)
{
    double us = pairs_us(s, m, run->place, sched_speed_pairs(run->position - run->first, run->count));
    for (uint32_t i = 0; i < run->extent_count; i++)
        us = MAX(us, pairs_us(s, m, run->extents[i].place, (double)run->count * sched_speed_extent_tokens(run, i)));
    return us;
}

// Returns the run that a sequence's rows from a position on would be; extents: room for those that it names.
static struct sched_run run_of(const struct sched *s, const struct sched_seq *seq, uint32_t at, uint32_t rows,
                               struct sched_extent *extents /* [SCHED_EXTENTS_MAX] */)
{
    struct sched_run run = {.place = seq->place, .position = at, .count = rows, .extents = extents};
    if (seq->split)
        sched_extent_describe(s, (uint32_t)(seq - s->seqs), extents, &run);
    return run;
}

// A decode row of a class behind the one whose step it is reads its context for itself alone, unlike the rows of a chunk.
static double late_attention_us(const struct sched *s, const struct sched_chunk *m, const struct sched_run *run)
{
    double read_us = m->attention * (run->position - run->first + 1.0) * sched_speed_token_us(s, &s->places.of[run->place]);
    double us = attention_us(s, m, run);
    for (uint32_t i = 0; i < run->extent_count; i++) {
        const struct sched_place *place = &s->places.of[run->extents[i].place];
        read_us = MAX(read_us, m->attention * sched_speed_extent_tokens(run, i) * sched_speed_token_us(s, place));
    }
    return run->count == 1 ? MAX(read_us, us) : us;
}

// Returns by how much a step becomes longer for that.
static double beyond_free_us(const struct sched *s, double decode_rows, double us)
{
    return s->time.stream_us > 0 ? MAX(us - sched_time_free_us(s, decode_rows), 0) : us;
}

// Returns the time of steps without prefill, of about as many rows or of the nearest number that was seen.
static double seen_decode_us(const struct sched *s, const struct sched_chunk *m, uint32_t rows)
{
    const struct sched_chunk_decodes *nearest = NULL;
    double distance = 0;
    for (uint32_t i = 0; i < SCHED_CURVE_SIZES; i++) {
        const struct sched_chunk_decodes *d = &m->decodes[i];
        double away = d->rows > rows ? d->rows / rows : rows / MAX(d->rows, 1);
        if (d->rows > 0 && (nearest == NULL || away < distance)) {
            nearest = d;
            distance = away;
        }
    }
    if (nearest == NULL)
        return sched_time_rows_us(s, rows);
    const double us = nearest->us + sched_time_rows_us(s, rows) - sched_time_rows_us(s, nearest->rows);
    return MIN(MAX(us, nearest->us / 4), nearest->us * TUNE_CHUNK_DECODE_BEYOND);
}

static double decode_us(const struct sched *s, const struct sched_chunk *m, uint32_t rows)
{
    return m->decode * seen_decode_us(s, m, rows);
}

static void learn_decodes(const struct sched *s, struct sched_chunk *m, uint32_t rows, double total_us)
{
    struct sched_chunk_decodes *d = &m->decodes[sched_curve_class(rows)];
    double before_us = seen_decode_us(s, m, rows);
    // Near their median rather than their mean: a few disturbed steps must not stretch the target.
    double gain = 1 / (d->count + 1), most = d->us * TUNE_CHUNK_DECODE_MOVE;
    d->count = MIN(d->count + 1, 1 / TUNE_CHUNK_DECODE_GAIN);
    d->rows += gain * (rows - d->rows);
    d->us += gain > TUNE_CHUNK_DECODE_GAIN ? gain * (total_us - d->us) : MIN(MAX(gain * (total_us - d->us), -most), most);
    if (before_us > 0)
        m->decode *= before_us / seen_decode_us(s, m, rows); // the time that it corrects has moved
}

// Smooths what decode rows read, in all steps and in those without prefill.
static void learn_contexts(struct sched_chunk *m, const struct sched_flight *step, uint32_t decode_rows, bool beside)
{
    double sum = 0;
    for (uint32_t i = 0; i < decode_rows; i++)
        sum += step->runs[i].position + 1;
    m->context += (m->context > 0 ? TUNE_CHUNK_GAIN : 1) * (sum - m->context);
    if (step->row_count == decode_rows && !beside)
        m->seen_context = m->context;
}

// Decode rows cannot have become slower by more than their contexts have grown since they were seen alone, nor faster by more than those
// have shrunk. Without that bound, prompt rows that cost more than is known would be taken for slow decode rows, and would stretch the
// target, and the chunk with it, again and again.
static void correct_decode(struct sched_chunk *m, double by)
{
    double grown = m->seen_context > 0 ? m->context / m->seen_context : 0;
    double least = grown > 0 ? MIN(grown, 1) / TUNE_CHUNK_DECODE_ROOM : 1 / TUNE_CHUNK_DECODE_FACTOR_MAX,
           most = grown > 0 ? MAX(grown, 1) * TUNE_CHUNK_DECODE_ROOM : TUNE_CHUNK_DECODE_FACTOR_MAX;
    // A single disturbed step must not stretch the target at once.
    m->decode = MIN(MAX(m->decode * (1 + MIN(MAX(by, -TUNE_CHUNK_DECODE_MOVE), TUNE_CHUNK_DECODE_MOVE)), least), most);
}

// Follows the quantile by stochastic approximation (Robbins and Monro, A Stochastic Approximation Method, 1951): it rises with a step that
// exceeds it and falls with the others, by amounts that cancel out when just the wanted share of steps exceeds it. How far a step exceeds it
// does not count, so that one that was disturbed moves it no more than another.
static void learn_excess(struct sched_chunk *m, double ratio)
{
    double by = ratio > m->excess ? TUNE_CHUNK_EXCESS_QUANTILE : TUNE_CHUNK_EXCESS_QUANTILE - 1;
    m->excess = MIN(MAX(m->excess * (1 + TUNE_CHUNK_EXCESS_GAIN * by), 1), TUNE_CHUNK_EXCESS_MAX);
}

static void correct_factor(double *factor, double by)
{
    *factor = MIN(MAX(*factor * (1 + by), 1 / TUNE_CHUNK_FACTOR_MAX), TUNE_CHUNK_FACTOR_MAX);
}

void sched_chunk_learn(struct sched *s, const struct sched_flight *step, double total_us)
{
    struct sched_chunk *m = &s->chunk[step->class];
    uint32_t decode_rows = step->decode_rows, added_rows = step->row_count - decode_rows;
    double products = 0, attention = 0;
    const bool beside = s->config.aside && s->batches.of[s->config.mini_batches].in_flight_count > 0;
    if (added_rows == 0 && !beside) // otherwise prompts, which have been in the caches meanwhile, would stretch their own time
        learn_decodes(s, m, decode_rows, total_us);
    else if (added_rows > 0)
        products = products_us(s, m, decode_rows, added_rows);
    for (uint32_t i = step->decode_runs; i < step->run_count; i++)
        attention += i < step->late_run ? attention_us(s, m, &step->runs[i]) : late_attention_us(s, m, &step->runs[i]);
    if (decode_rows == 0)
        return;
    const double added = products + attention, share = added > 0 ? beyond_free_us(s, decode_rows, added) / added : 1;
    products *= share, attention *= share;
    double alone = decode_us(s, m, decode_rows), predicted = alone + products + attention;
    if (predicted <= 0)
        return;                                                                                // nothing known
    double wrong = TUNE_CHUNK_GAIN * (MIN(MAX(total_us / predicted, 0.5), 2) - 1) / predicted; // one step may be disturbed
    learn_contexts(m, step, decode_rows, beside);
    correct_decode(m, wrong * alone);
    if (added_rows == 0)
        return;
    if (step->decode_runs < step->late_run) // rows that were added last hardly lengthen a step, and would hide what prompts do
        learn_excess(m, total_us / predicted);
    correct_factor(&m->products, wrong * products);
    correct_factor(&m->attention, wrong * attention);
    m->products += TUNE_CHUNK_FACTOR_DECAY * (1 - m->products);
    m->attention += TUNE_CHUNK_FACTOR_DECAY * (1 - m->attention);
}

void sched_chunk_init(struct sched *s)
{
    for (enum sched_class class = 0; class < SCHED_CLASSES; class ++)
        s->chunk[class] = (struct sched_chunk){.decode = 1, .products = 1, .attention = 1, .excess = 1};
}

// --- the rows of prompts, oldest first ------------------------------------------------------------------------------

struct prompts {
    uint32_t slot, at; // next row: position `at` of that sequence
};

// Takes their next `rows` rows, or those that are left; returns how many, and adds the time of their attention.
static uint32_t take_prompt_rows(const struct sched *s, const struct sched_chunk *m, struct prompts *next, uint32_t rows,
                                 double *us)
{
    uint32_t taken = 0;
    while (taken < rows && next->slot != NONE) {
        const struct sched_seq *seq = &s->seqs[next->slot];
        uint32_t count = sched_place_blocks(s, seq) ? 0 : MIN(seq->target - next->at, rows - taken);
        struct sched_extent extents[SCHED_EXTENTS_MAX];
        struct sched_run run = run_of(s, seq, next->at, count, extents);
        if (count > 0)
            *us += attention_us(s, m, &run);
        taken += count;
        next->at += count;
        if (count > 0 && next->at < seq->target)
            break;
        next->slot = s->cold[next->slot].batch.next;
        next->at = next->slot == NONE ? 0 : s->seqs[next->slot].next_pos;
    }
    return taken;
}

// Returns the prefill rows that so many running sequences need in each step, so that starts keep up with ends.
static double wanted_rows(const struct sched_lengths *l, uint32_t decode_rows)
{
    return l->tokens > 0 ? decode_rows * l->prompt_tokens / l->tokens : 0;
}

// The steps without prefill that follow when the prompts at hand are done.
struct outlook {
    uint32_t rows; // decode rows
    double us;     // their time
    double one_us; // the time of a single one
    double wanted; // prefill rows that they need beside them
};

static struct outlook outlook_of(const struct sched *s, enum sched_class class, uint32_t rows)
{
    const struct sched_chunk *m = &s->chunk[class];
    double us = decode_us(s, m, rows);
    return (struct outlook){
        .rows = rows, .us = us, .one_us = MIN(decode_us(s, m, 1), us), .wanted = wanted_rows(&s->load.of[class].lengths, rows)};
}

// Returns the generated tokens a microsecond in the long run; added_us is what `chunk` rows add to a step.
static double throughput_of(const struct outlook *o, double chunk, double added_us)
{
    if (chunk < o->wanted) { // so few rows keep only a share of them running
        double share = chunk / o->wanted;
        return share * o->rows / (o->one_us + share * (o->us - o->one_us) + added_us);
    }
    return o->rows / (o->wanted / chunk * added_us + o->us);
}

static uint32_t chunk_least(const struct sched *s) { return MAX(s->config.tile_rows / TUNE_CHUNK_LEAST_TILE_PART, 1u); }

// Returns by how much the target is longer because many sequences wait for their first token.
static double waiting_stretch(const struct sched *s, enum sched_class class, uint32_t decoding)
{
    return MIN(MAX((double)sched_waiting(s, class) / MAX(decoding, 1), 1), TUNE_CHUNK_WAITING_STRETCH_MAX);
}

// Returns whether so many wait that prompts may have a longer step than the target allows, if it pays.
static bool crowds(const struct sched *s, enum sched_class class, uint32_t decoding)
{
    return s->config.step_target_auto && waiting_stretch(s, class, decoding) >= TUNE_CHUNK_WAITING_STRETCH_MAX;
}

static bool pays(uint32_t rows, double timely, double over) { return rows >= timely * MAX(over * sqrt(over), 2); }

// Returns the longest that a step may be predicted to take; decoding: sequences of that class; alone_us: what their rows take without prefill.
static double chunk_target_us(const struct sched *s, enum sched_class class, uint32_t decoding, double alone_us)
{
    if (!s->config.step_target_auto)
        return MAX(s->config.step_target_us, TUNE_CHUNK_STRETCH * alone_us);
    return TUNE_CHUNK_AUTO_STRETCH * waiting_stretch(s, class, decoding) / s->chunk[class].excess * alone_us;
}

static uint32_t decoding_of(const struct sched *s, enum sched_class class)
{
    uint32_t decoding = 0;
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        decoding += s->batches.of[m].of[class].member_count;
    return decoding;
}

// Chooses the size; `first` is the least that fills a tile, `cap` the most.
static uint32_t choose_chunk(const struct sched *s, enum sched_class class, const struct sched_group *group, uint32_t decode_rows,
                             uint32_t first, uint32_t cap, uint32_t decoding)
{
    const struct sched_chunk *m = &s->chunk[class];
    double alone_us = decode_us(s, m, decode_rows), attention = 0, of_a_row = 0, best_rate = 0;
    const struct outlook later = outlook_of(s, class, decode_rows + group->prefill_count);
    const double most_us = chunk_target_us(s, class, decoding, alone_us);
    const bool crowded = crowds(s, class, decoding);
    // Never more than twice what was tried: the line may be wrong out there, and the next step will know better. Steps that read weights
    // are few and long, and leave time for an error.
    double tried = (s->time.stream_us > 0 ? 8 : 2) *
                   (s->time.layers.rows_seen > 0 ? s->time.layers.rows_seen : s->time.whole.rows_seen);
    struct prompts next = {.slot = group->prefill_head, .at = s->seqs[group->prefill_head].next_pos};
    double timely = 0;
    uint32_t best = 0, rows = 0;
    for (uint32_t chunk = MIN(first, cap); rows < chunk; chunk = MIN(chunk + s->config.tile_rows, cap)) {
        uint32_t more = take_prompt_rows(s, m, &next, chunk - rows, &attention);
        if (more == 0)
            break; // no prompt has more
        rows += more;
        double added_us = beyond_free_us(s, decode_rows, products_us(s, m, decode_rows, rows) + attention);
        const double over = (alone_us + added_us) / most_us;
        if (over > 1 && timely == 0) {
            timely = MAX((most_us - alone_us) / added_us * rows, MIN(rows, chunk_least(s))); // as many as there is time for
            best = best > 0 ? best : (uint32_t)timely;
        }
        if ((over > 1 && !crowded) || (best > 0 && decode_rows + rows > tried))
            break;
        if (over > 1) {
            best = pays(rows, timely, over) ? rows : best;
            continue;
        }
        // Later rows of a prompt read more whenever their turn comes, so the rate counts all as the first.
        of_a_row = best == 0 ? attention / rows : of_a_row;
        // Without decode rows (they are in another mini-batch, or lack pages) there is no rate: as many rows as there is time for.
        double rate =
            decode_rows == 0
                ? 1
                : throughput_of(&later, rows, beyond_free_us(s, later.rows, products_us(s, m, later.rows, rows) + rows * of_a_row));
        if (rate >= TUNE_CHUNK_AS_GOOD * best_rate)
            best = chunk;
        best_rate = MAX(best_rate, rate);
    }
    return MAX(best, 1); // a prompt without rows would wait for ever
}

static uint32_t timely_chunk_rows(const struct sched *s, enum sched_class class, const struct sched_group *group,
                                  uint32_t decode_rows)
{
    uint32_t tile = s->config.tile_rows, cap = MIN(sched_chunk_max(s), s->s_part.rows_max - decode_rows);
    uint32_t aligned = (decode_rows + cap) / tile * tile;
    if (aligned > decode_rows)
        cap = aligned - decode_rows; // otherwise less than a tile, but never nothing: prefill must go on
    if (s->config.chunk_tokens != 0 || cap == 0)
        return cap;
    uint32_t decoding = decoding_of(s, class);
    if (decoding == 0)
        return cap;
    uint32_t first = tile - decode_rows % tile;
    first += first < chunk_least(s) ? tile : 0;
    if (s->time.whole.rows_seen == 0)
        return MIN(cap, first + 3 * tile); // nothing measured yet
    return choose_chunk(s, class, group, decode_rows, first, cap, decoding);
}

// --- prompts in steps of their own ----------------------------------------------------------------------------------

bool sched_chunk_goes_aside(const struct sched *s, enum sched_class class)
{
    return s->s_part.takes_aside && s->time.stream_us == 0 && decoding_of(s, class) > 0;
}

// Takes so many that a segment lasts a part of the decode rows' time, which is by how much a step may come late: more while the steps are
// farther apart because many wait, and then more still if that pays.
uint32_t sched_chunk_aside_rows(const struct sched *s, enum sched_class class, const struct sched_group *group)
{
    const struct sched_chunk *m = &s->chunk[class];
    const uint32_t cap = MIN(sched_chunk_max(s), s->s_part.rows_max), decoding = decoding_of(s, class);
    const bool crowded = crowds(s, class, decoding);
    const double stretch = s->config.step_target_auto ? waiting_stretch(s, class, decoding) : 1;
    const double most_us = TUNE_ASIDE_SEGMENT * stretch * decode_us(s, m, decoding) * s->config.layers;
    double attention = 0, timely = 0;
    struct prompts next = {.slot = group->prefill_head, .at = s->seqs[group->prefill_head].next_pos};
    uint32_t rows = 0, best = 0;
    while (rows < cap) {
        uint32_t more = take_prompt_rows(s, m, &next, MIN(s->config.tile_rows, cap - rows), &attention);
        if (more == 0)
            break;
        rows += more;
        const double over = (sched_time_rows_us(s, rows) + attention) / most_us;
        timely = timely == 0 && over > 1 ? MAX(rows / over, MIN(rows, chunk_least(s))) : timely;
        if (best == 0 || over <= 1 || pays(rows, timely, over))
            best = rows;
        if (over > 1 && !crowded)
            break;
    }
    return MAX(best, 1);
}

static bool anyone_decodes(const struct sched *s)
{
    for (enum sched_class class = 0; class < SCHED_CLASSES; class ++)
        if (decoding_of(s, class) > 0)
            return true;
    return false;
}

uint32_t sched_chunk_aside_us(const struct sched *s, const struct sched_flight *step)
{
    const struct sched_chunk *m = &s->chunk[step->class];
    if (step->decode_rows == 0)
        return anyone_decodes(s) ? 1 : UINT32_MAX; // what went aside before comes first: it is older, or of the class before
    double alone_us = decode_us(s, m, step->decode_rows);
    // No prediction of the prompt is in it, so it needs no room for one that is wrong.
    double most_us = s->config.step_target_auto
                         ? TUNE_ASIDE_STRETCH * waiting_stretch(s, step->class, decoding_of(s, step->class)) * alone_us
                         : chunk_target_us(s, step->class, 0, alone_us);
    return (uint32_t)MAX(most_us - alone_us, 1);
}

// --- rows of a class behind the one whose step it is ----------------------------------------------------------------

bool sched_chunk_probes(const struct sched *s, const struct sched_flight *step)
{
    const struct sched_chunk_decodes *d = &s->chunk[step->class].decodes[sched_curve_class(step->decode_rows)];
    bool known = step->decode_rows == 0 || d->count >= 1 / TUNE_CHUNK_DECODE_GAIN;
    return s->stats.steps / s->batches.in_use % (known ? TUNE_LATE_PROBE_STEPS : TUNE_LATE_PROBE_FIRST) == 0;
}

double sched_chunk_spare_us(const struct sched *s, const struct sched_flight *step, double *free_us)
{
    const struct sched_chunk *m = &s->chunk[step->class];
    uint32_t added_rows = step->row_count - step->decode_rows;
    *free_us = 0;
    if (s->time.whole.rows_seen == 0)
        return 0; // nothing measured yet
    double us = step->decode_rows == 0 ? sched_time_rows_us(s, added_rows) : decode_us(s, m, step->decode_rows), added_us = 0;
    if (step->decode_rows > 0 && added_rows > 0)
        added_us += products_us(s, m, step->decode_rows, added_rows);
    for (uint32_t i = step->decode_runs; i < step->run_count; i++)
        added_us += attention_us(s, m, &step->runs[i]);
    if (s->time.stream_us > 0) {
        double rows = step->decode_rows == 0 ? added_rows : step->decode_rows;
        *free_us = MAX(sched_time_free_us(s, rows) - added_us, 0);
        us = MAX(us, s->time.stream_us);
        added_us = beyond_free_us(s, rows, added_us);
    }
    us += added_us;
    return TUNE_LATE_SHARE * us / s->batches.in_use; // the s-part's time is the other mini-batches', too
}

double sched_chunk_late_us(const struct sched *s, const struct sched_flight *step, const struct sched_seq *seq, uint32_t rows)
{
    const struct sched_chunk *m = &s->chunk[step->class];
    struct sched_extent extents[SCHED_EXTENTS_MAX];
    const struct sched_run run = run_of(s, seq, seq->next_pos, rows, extents);
    double us = products_us(s, m, step->row_count, rows) + late_attention_us(s, m, &run);
    if (rows == 1) // it may be sampled
        us += MAX(sched_curve_us(&s->time.heads, step->run_count + 1) - sched_curve_us(&s->time.heads, step->run_count), 0);
    return us;
}

uint32_t sched_chunk_late_rows(const struct sched *s, const struct sched_flight *step, const struct sched_seq *seq, uint32_t most,
                               double left_us)
{
    uint32_t rows = MIN(seq->target - seq->next_pos, most);
    while (rows > 0) { // little more than a line: it takes a round or two
        double us = sched_chunk_late_us(s, step, seq, rows);
        if (us <= left_us)
            break;
        rows = MIN(rows - 1, (uint32_t)(rows * left_us / us));
    }
    return rows;
}

// --- steps of equal rows --------------------------------------------------------------------------------------------

// With one s-part a step may take as long as its target allows. In a pipeline a step that takes longer than those before
// and behind it leaves stages idle, so all of them are to have the same number of rows U (SARATHI, arXiv 2308.16369): a step of d decode
// rows has U - d prefill rows. Contexts are evened out between mini-batches by admission and by balance.c.
//
// U follows from the observed ratio P:D of prompt to generated tokens. With n sequences in each mini-batch, of which one is in prefill, a
// chunk of C = P:D·(n - 1) rows beside n - 1 decode rows ends prompts as fast as sequences end, so every step has prefill and none has more
// than another:
//
//     U = (1 + P:D)·(n - 1),  as a multiple of the tile, at most what the step's time target allows
//
// That holds while sequences wait. While none does there are not always prompts, so steps cannot be equal: then prompts get what the
// target allows, and their first tokens come sooner. --chunk sets U instead.
//
// Example: prompts are ten times as long as answers, 27 sequences are in each mini-batch: U = 11·26 = 286 rows, 288 with a tile of 8: 26
// decode rows and a chunk of 262. A prompt of 2,000 tokens takes 8 steps, while 208 tokens are generated beside it, as much as one answer.

// Returns the most rows, a multiple of the tile, with which a round of all mini-batches keeps to the target beside n decode rows each.
static uint32_t timely_rows(const struct sched *s, enum sched_class class, double n, uint32_t decoding)
{
    uint32_t tile = s->config.tile_rows, batches = s->batches.in_use;
    uint32_t most = MIN((uint32_t)n + sched_chunk_max(s), s->s_part.rows_max);
    double tried = 2 * s->time.layers.rows_seen; // as above: the line may be wrong out there
    if (decoding == 0)
        return most;
    if (s->time.layers.rows_seen == 0)
        return MIN(most, (uint32_t)n + TUNE_MICRO_BATCH_FIRST_TILES * tile);
    double most_us = chunk_target_us(s, class, decoding, batches * sched_time_slowest_us(s, MAX(n, 1), MAX(n, 1)));
    uint32_t low = 0, high = most / tile; // tiles
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        double rows = middle * tile;
        bool timely = batches * sched_time_slowest_us(s, rows, n) <= most_us && rows <= MAX(tried, tile);
        *(timely ? &low : &high) = timely ? middle : middle - 1;
    }
    return MAX(low, 1) * tile;
}

// Returns how many sequences will run once as many as may have started: those of now would only keep their own number up.
static double running_then(const struct sched *s, enum sched_class class)
{
    const struct sched_lengths *l = &s->load.of[class].lengths;
    double most = (double)sched_class_sum(s->running, class) + sched_class_sum(s->queue.count, class), tokens = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        tokens += place->up && !place->draining ? (double)place->pages_total * s->config.page_tokens : 0;
    }
    return MIN(MIN(most, s->config.max_running), tokens * l->tokens / MAX(l->context_tokens, 1));
}

// Chooses U.
static uint32_t choose_rows(const struct sched *s, enum sched_class class)
{
    const struct sched_lengths *l = &s->load.of[class].lengths;
    uint32_t tile = s->config.tile_rows, decoding = 0;
    for (uint32_t m = 0; m < s->config.mini_batches; m++)
        decoding += s->batches.of[m].of[class].member_count;
    uint32_t most = timely_rows(s, class, (double)decoding / s->batches.in_use, decoding);
    if (sched_class_sum(s->queue.count, class) == 0 || l->tokens <= 0)
        return most;
    double rows = (1 + l->prompt_tokens / l->tokens) * MAX(running_then(s, class) / s->batches.in_use - 1, 1);
    return MIN(most, ((uint32_t)rows / tile + 1) * tile);
}

// Judges U anew after some steps, or at once if sequences have begun or ceased to wait; a small change does not count.
static uint32_t uniform_rows(struct sched *s, enum sched_class class)
{
    struct sched_micro_batches *u = &s->micro_batches[class];
    bool saturated = sched_class_sum(s->queue.count, class) > 0;
    if (s->config.chunk_tokens != 0)
        return s->config.chunk_tokens;
    if (u->rows != 0 && u->saturated == saturated &&
        s->stats.steps < u->judged + TUNE_MICRO_BATCH_JUDGE_STEPS * (uint64_t)s->batches.in_use)
        return u->rows;
    uint32_t rows = choose_rows(s, class);
    double change = u->rows == 0 ? 1 : rows > u->rows ? (double)rows / u->rows - 1 : (double)u->rows / rows - 1;
    if (change > TUNE_MICRO_BATCH_CHANGE)
        u->rows = rows;
    u->judged = s->stats.steps;
    u->saturated = saturated;
    return u->rows;
}

// A prompt goes into a step whole, if the step has rows for it; short ones go together.
static uint32_t whole_rows(const struct sched *s, const struct sched_group *group, uint32_t decode_rows)
{
    uint32_t most = s->s_part.rows_max - decode_rows, slot = group->prefill_head;
    while (slot != NONE && sched_place_blocks(s, &s->seqs[slot]))
        slot = s->cold[slot].batch.next;
    uint32_t first = slot == NONE ? 0 : s->seqs[slot].target - s->seqs[slot].next_pos;
    return MIN(MAX(first, sched_chunk_max(s)), most);
}

uint32_t sched_micro_batch_prefill(struct sched *s, enum sched_class class, const struct sched_group *group, uint32_t decode_rows)
{
    if (s->config.micro_batch == SCHED_MICRO_BATCH_AUTO)
        return timely_chunk_rows(s, class, group, decode_rows);
    if (s->config.micro_batch == SCHED_MICRO_BATCH_WHOLE)
        return whole_rows(s, group, decode_rows);
    uint32_t rows = MIN(uniform_rows(s, class), s->s_part.rows_max), least = chunk_least(s);
    if (rows < decode_rows + least) // prompts must go on
        rows = MIN(decode_rows + least, s->s_part.rows_max);
    return rows - decode_rows;
}

bool sched_micro_batch_takes(const struct sched *s, const struct sched_flight *step, const struct sched_seq *seq, uint32_t left)
{
    return s->config.micro_batch != SCHED_MICRO_BATCH_WHOLE || step->prefill_rows == 0 || seq->target - seq->next_pos <= left;
}

uint32_t sched_micro_batch_most(const struct sched *s, const struct sched_flight *step)
{
    if (s->config.micro_batch != SCHED_MICRO_BATCH_UNIFORM)
        return s->s_part.rows_max;
    uint32_t rows = s->config.chunk_tokens != 0 ? s->config.chunk_tokens : s->micro_batches[step->class].rows;
    return MIN(MAX(rows, step->row_count), s->s_part.rows_max);
}
