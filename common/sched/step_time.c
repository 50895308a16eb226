// step_time.c: see step_time.h.
#include "common/sched/step_time.h"
#include "common/base/checked.h"
#include "common/sched/state.h"
#include "common/sched/tuning.h"

#include <math.h>

// --- curves ---------------------------------------------------------------------------------------------------------

uint32_t sched_curve_class(double rows)
{
    uint32_t index = 0;
    while (index + 1 < SCHED_CURVE_SIZES && rows >= 2u << index)
        index++;
    return index;
}

uint32_t sched_curve_sizes(const struct sched_curve *m)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SCHED_CURVE_SIZES; i++)
        count += m->sizes[i].rows > 0;
    return count;
}

static double size_age(const struct sched_curve *m, const struct sched_curve_size *size)
{
    return (double)(m->steps - size->seen) / TUNE_MODEL_AGE_STEPS;
}

// Returns the time of a class, moved by what has moved the classes seen since: fully once it is away, not at all by what may be noise.
// Classes that come in turn must not move each other at once, or what raises one would lower the other, for ever.
static double class_us(const struct sched_curve *m, const struct sched_curve_size *size)
{
    double away = MIN((double)(m->steps - size->seen) / TUNE_MODEL_AWAY_STEPS, 1);
    double factor = MIN(MAX(m->drift / size->drift, 1.0 / TUNE_MODEL_DRIFT_MOST), TUNE_MODEL_DRIFT_MOST);
    return m->whole || fabs(factor - 1) < TUNE_MODEL_DRIFT_NOISE ? size->us : size->us * (1 + away * (factor - 1));
}

// Returns the curve's point of a class: its own time, or while it has few steps that of a larger class which takes far less, as more rows
// take no less time but by noise and by what kernels favour. Whole steps are not compared: those of other sizes had other contexts.
static double point_us(const struct sched_curve *m, const struct sched_curve_size *size)
{
    double us = class_us(m, size), larger_us = INFINITY;
    if (m->whole || size->steps >= TUNE_MODEL_CONFIRMED)
        return us;
    for (const struct sched_curve_size *larger = size + 1; larger < m->sizes + SCHED_CURVE_SIZES; larger++)
        larger_us = larger->rows > 0 ? MIN(larger_us, class_us(m, larger)) : larger_us;
    return us > TUNE_MODEL_DISTURBED * larger_us ? larger_us : us;
}

// Fits a line through the classes that were seen, by relative error: so neither a hundred decode steps that differ by noise only, nor
// a single disturbed one, decides the slope.
static void fit_line(struct sched_curve *m)
{
    double n = 0, x = 0, y = 0, xx = 0, xy = 0, least_row_us = 0;
    for (uint32_t i = 0; i < SCHED_CURVE_SIZES; i++) {
        const struct sched_curve_size *size = &m->sizes[i];
        if (size->rows == 0)
            continue;
        double us = class_us(m, size), fresh = 1 / (1 + size_age(m, size)), weight = fresh * fresh / (us * us);
        n += weight;
        x += weight * size->rows;
        y += weight * us;
        xx += weight * size->rows * size->rows;
        xy += weight * size->rows * us;
        if (least_row_us == 0 || size_age(m, size) < TUNE_MODEL_OLD_AGES)
            least_row_us = us / size->rows;
        m->rows_seen = size->rows;
    }
    double variance = n * xx - x * x, covariance = n * xy - x * y;
    m->row_us = least_row_us; // if all sizes are alike: as if a step had no fixed cost, which errs to small chunks
    if (variance > 0.01 * n * xx && covariance > 0)
        m->row_us = MIN(covariance / variance, least_row_us);
    m->base_us = MAX(0, (y - m->row_us * x) / n);
}

void sched_curve_learn(struct sched_curve *m, double rows, double total_us)
{
    struct sched_curve_size *size = &m->sizes[sched_curve_class(rows)];
    double us = MAX(total_us, 1);
    m->steps++;
    if (m->drift == 0)
        m->drift = 1;
    if (size->rows == 0) {
        *size = (struct sched_curve_size){.rows = rows, .us = us};
    } else if (point_us(m, size) < class_us(m, size)) { // it was disturbed: begin anew, and move no other class by what comes right
        size->rows = rows;
        size->us = us;
    } else {
        double gain = MIN(TUNE_MODEL_GAIN + size_age(m, size) * (TUNE_MODEL_RETURN_GAIN - TUNE_MODEL_GAIN), TUNE_MODEL_RETURN_GAIN);
        double before_us = class_us(m, size), line_us = m->base_us + size->rows * m->row_us;
        size->rows += gain * (rows - size->rows);
        size->us = before_us + gain * (MIN(MAX(us, before_us / 2), before_us * 2) - before_us); // one may be disturbed
        // How the class moved, apart from its rows.
        m->drift *= size->us / before_us * line_us / (m->base_us + size->rows * m->row_us);
    }
    size->steps++;
    size->drift = m->drift;
    size->seen = m->steps;
    fit_line(m);
}

void sched_curve_calibrate(struct sched_curve *m, const struct sched_time *points, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct sched_curve_size *size = &m->sizes[sched_curve_class(points[i].rows)];
        if (size->rows == 0 && points[i].rows > 0 && points[i].us > 0)
            *size =
                (struct sched_curve_size){.rows = points[i].rows, .us = points[i].us, .drift = 1, .steps = TUNE_MODEL_CONFIRMED};
    }
    if (count == 0)
        return;
    m->drift = 1;
    fit_line(m);
}

double sched_curve_us(const struct sched_curve *m, double rows)
{
    const struct sched_curve_size *low = NULL, *high = NULL;
    for (uint32_t i = 0; i < SCHED_CURVE_SIZES; i++) {
        const struct sched_curve_size *size = &m->sizes[i];
        if (size->rows == 0)
            continue;
        if (size->rows <= rows)
            low = size;
        else if (high == NULL)
            high = size;
    }
    if (low == NULL && high == NULL)
        return 0;
    double high_us = high != NULL ? point_us(m, high) : 0, low_us = low != NULL ? point_us(m, low) : 0;
    if (low == NULL) // with fewer rows than any step seen it is not much cheaper: all weights are read anyway
        return MIN(high_us, MAX(m->base_us + rows * m->row_us, high_us * rows / high->rows));
    if (high == NULL)
        return low_us + (rows - low->rows) * m->row_us;
    return low_us + (rows - low->rows) / (high->rows - low->rows) * (high_us - low_us);
}

// --- the formula ----------------------------------------------------------------------------------------------------

void sched_time_init(struct sched *s)
{
    s->time.layers = s->time.heads = (struct sched_curve){0};
    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++)
        s->time.stages[i] = (struct sched_curve){0};
    s->time.whole = s->time.links = (struct sched_curve){.whole = true};
    s->time.stream_us = 0;
}

void sched_time_calibrate(struct sched *s, const struct sched_s_part_up *up)
{
    s->time.stream_us = up->stream_us;
    sched_curve_calibrate(&s->time.layers, up->layers, up->layer_count);
    sched_curve_calibrate(&s->time.heads, up->heads, up->head_count);
    for (uint32_t i = 0; i < up->stage_count && up->stage_count == s->config.stages; i++)
        sched_curve_calibrate(&s->time.stages[i], up->stages[i].layers, up->stages[i].layer_count);
    for (uint32_t i = 0; i < up->layer_count; i++) { // whole steps of decode rows: all rows are sampled
        struct sched_time whole = up->layers[i];
        whole.us = MAX(sched_time_s_part_us(s, whole.rows, whole.rows), up->stream_us);
        sched_curve_calibrate(&s->time.whole, &whole, 1);
    }
}

double sched_time_s_part_us(const struct sched *s, double rows, double sampled)
{
    double head_us = sampled > 0 ? sched_curve_us(&s->time.heads, sampled) : 0;
    return sched_curve_us(&s->time.layers, rows) + head_us;
}

double sched_time_slowest_us(const struct sched *s, double rows, double sampled)
{
    if (s->config.stages == 1)
        return sched_time_s_part_us(s, rows, sampled);
    double layers_us = sched_curve_us(&s->time.layers, rows), slowest_us = 0;
    double head_us = sampled > 0 ? sched_curve_us(&s->time.heads, sampled) : 0;
    for (uint32_t i = 0; i < s->config.stages; i++) {
        double us = sched_curve_us(&s->time.stages[i], rows);
        us = us > 0 ? us : layers_us / s->config.stages; // not measured yet
        slowest_us = MAX(slowest_us, us + (i + 1 == s->config.stages ? head_us : 0));
    }
    return slowest_us;
}

struct sched_round sched_time_round(const struct sched *s, double rows, double sampled)
{
    struct sched_round round = {
        .s_part_us = sched_time_s_part_us(s, rows, sampled), .stages = s->config.stages, .stream_us = s->time.stream_us};
    round.slowest_us = s->config.stages > 1 ? sched_time_slowest_us(s, rows, sampled) : round.s_part_us;
    return round;
}

double sched_time_away_share(const struct sched *s)
{
    double all = 0, away = 0;
    for (uint32_t i = 0; i < s->config.max_places; i++)
        for (enum sched_class class = 0; class < SCHED_CLASSES; class ++)
            for (uint32_t m = 0; m < s->config.mini_batches; m++) {
                const double readers = s->places.of[i].loads[class][m].readers;
                all += readers;
                away += sched_place_is_here(&s->places.of[i]) ? 0 : readers;
            }
    return all > 0 ? away / all : 1;
}

double sched_time_links_times(const struct sched *s, double rows_now, double rows)
{
    double now_us = sched_curve_us(&s->time.links, rows_now);
    return sched_curve_sizes(&s->time.links) > 1 && now_us > 0 ? sched_curve_us(&s->time.links, rows) / now_us : 1;
}

void sched_time_learn_stages(struct sched *s, const struct sched_step_done *done, double rows, double sampled)
{
    uint32_t count = s->config.stages;
    if (count == 1 || done->stage_count != count)
        return;
    for (uint32_t i = 0; i < count; i++) {
        double us = done->stage_us[i], head_us = i + 1 == count && sampled > 0 ? sched_curve_us(&s->time.heads, sampled) : 0;
        if (us > 0)
            sched_curve_learn(&s->time.stages[i], rows, MAX(us - head_us, us / 8));
    }
}

double sched_time_free_us(const struct sched *s, double decode_rows)
{
    return MAX(s->time.stream_us / s->batches.in_use - sched_time_s_part_us(s, decode_rows, decode_rows), 0);
}

void sched_time_judge(struct sched_time_error *e, double predicted_us, double measured_us)
{
    double error = fabs(predicted_us - measured_us) / MAX(measured_us, 1);
    e->ratio += (e->steps++ == 0 ? 1 : TUNE_MODEL_ERROR_GAIN) * (error - e->ratio);
    e->predicted_us += predicted_us;
    e->measured_us += measured_us;
}

double sched_time_rows_us(const struct sched *s, double rows)
{
    return sched_curve_us(s->time.layers.rows_seen > 0 ? &s->time.layers : &s->time.whole, rows);
}

double sched_time_row_us(const struct sched *s)
{
    return s->time.layers.rows_seen > 0 ? s->time.layers.row_us : s->time.whole.row_us;
}

// --- how fast places read -------------------------------------------------------------------------------------------

// Under load nearly every step has prefill rows at some place, so a place is measured in those steps, too:
//
//     expected = reads x token_us + pairs x pair_us        off = (measured - call) / expected - 1
//
// Both times are corrected by their share of what was expected. Steps differ in what they consist of, so in the end each time is right.
// Example: 4,000 tokens at 1 us and 10,000 pairs at 0.1 us are expected to take 5 ms. They took 10 ms, so off is 1, and with a gain of 0.1
// a token is at 1.08 us and a pair at 0.102.
//
// The gain of token_us, by which places are compared, is small while noise explains by how much the latest steps were off. Otherwise
// workers that are alike would differ by their last measurement, and each step would wait for the one that was given too much for it.
// If noise does not explain it, a speed has changed and the gain is larger.

static double local_token_us(const struct sched *s)
{
    return s->places.local_pool != NONE ? s->places.of[s->places.local_pool].speed.token_us : 0;
}

// Workers on the s-part's cores slow each other down, so what one measures depends on the others. They count as equally fast, except one
// that is far slower than the fastest of them. They never count as faster than the local pool, which reads with the same cores: that would
// be noise, and not worth the links.
double sched_speed_token_us(const struct sched *s, const struct sched_place *place)
{
    if (!place->shares_cores || place->kind == SCHED_LOCAL_POOL)
        return place->speed.token_us;
    return MAX(!place->speed.slow && s->places.sharing_us > 0 ? s->places.sharing_us : place->speed.token_us, local_token_us(s));
}

double sched_speed_read_us(const struct sched *s, const struct sched_place *place, enum sched_class class, uint32_t mini_batch,
                           uint32_t tokens, struct sched_weight weight)
{
    const struct sched_place_load seen = sched_place_load(place, class, mini_batch);
    double context = (double)(seen.load + seen.incoming) + tokens;
    double load = MAX(context * weight.context + (seen.readers + (tokens > 0)) * weight.each, 0);
    if (load == 0)
        return 0;
    return place->speed.call_step_us + load * (place->shares_cores ? sched_speed_token_us(s, place) : place->speed.token_us);
}

double sched_speed_answer_us(const struct sched *s, const struct sched_place *place, enum sched_class class, uint32_t mini_batch,
                             uint32_t tokens)
{
    double read_us = sched_speed_read_us(s, place, class, mini_batch, tokens, SCHED_WEIGHT_NOW);
    return read_us > 0 ? read_us + place->speed.link_step_us : 0;
}

double sched_speed_attend_us(const struct sched_place *place, uint64_t tokens_read)
{
    uint64_t pairs = MIN(place->speed.step_pairs, tokens_read);
    return tokens_read == 0 ? 0
                            : place->speed.call_step_us + (double)(tokens_read - pairs) * place->speed.token_us +
                                  (double)pairs * place->speed.pair_us;
}

static void compare_sharing(struct sched *s, struct sched_place *measured)
{
    double least_us = INFINITY;
    for (uint32_t i = 0; i < s->config.max_places; i++) {
        const struct sched_place *place = &s->places.of[i];
        if (place->up && place->shares_cores && place->kind == SCHED_KV_WORKER && place->speed.attends_measured)
            least_us = MIN(least_us, place->speed.token_us);
    }
    s->places.sharing_us = least_us;
    measured->speed.slow = measured->speed.token_us > (measured->speed.slow ? TUNE_SPEED_SLOW_NO_MORE : TUNE_SPEED_SLOW) * least_us;
}

// Guesses pair_us from the first prefill rows there, which took the rest of the time. A pair takes no longer than a token that is read for
// one row.
static void guess_pair(struct sched_place *place, double rest_us, double pairs)
{
    place->speed.pair_us = MIN(MAX(rest_us / pairs, place->speed.token_us / 100), place->speed.token_us);
}

// Corrects both times: attention took `ratio` times what was expected, of which reading for decode rows was `share`.
static void correct_speed(struct sched_place *place, double ratio, double share)
{
    // One odd step (a page fault, a stolen core) must not upset placement.
    double off = MIN(MAX(ratio, 1.0 / TUNE_SPEED_RATIO_MAX), TUNE_SPEED_RATIO_MAX) - 1, us = (1 + off) * place->speed.token_us;
    // Noise is how much one measurement differs from the one before: a speed that changes does not add to it for long.
    if (place->speed.token_last_us > 0)
        place->speed.token_noise += (place->speed.token_noise == 0 ? 1 : TUNE_SPEED_NOISE_GAIN) *
                                    (fabs(us / place->speed.token_last_us - 1) * M_SQRT1_2 - place->speed.token_noise);
    place->speed.token_last_us = us;
    place->speed.off += TUNE_SPEED_GAIN_CHANGED * (off - place->speed.off);
    double gain = fabs(place->speed.off) > place->speed.token_noise
                      ? TUNE_SPEED_GAIN_CHANGED
                      : TUNE_SPEED_GAIN_STEADY; // some three standard deviations of that mean
    place->speed.token_us *= 1 + gain * share * off;
    place->speed.pair_us *= 1 + TUNE_SPEED_GAIN_CHANGED * (1 - share) * off;
}

// Calls to workers on the s-part's cores are out together, and answered when the cores have attended for all of them. The rest of the time
// from a send to its answer is their link's, and counts once a step, however many they are.
static void measure_link(struct sched_place *place, const struct sched_place_time *time, double read_us, double here_us)
{
    double others_us = place->shares_cores ? MAX(here_us - read_us, 0) : 0;
    place->speed.link_step_us +=
        TUNE_SPEED_LINK_GAIN *
        (place->kind == SCHED_LOCAL_POOL ? 0 : MAX(time->r_part_us - read_us - others_us, 0) - place->speed.link_step_us);
}

void sched_speed_learn(struct sched *s, const struct sched_place_time *time, double here_us)
{
    struct sched_place *place = &s->places.of[time->place];
    if (!place->up || time->tokens_read == 0)
        return;
    uint64_t pairs = MIN(place->speed.step_pairs, time->tokens_read);
    double reads_us = (double)(time->tokens_read - pairs) * place->speed.token_us, pairs_us = (double)pairs * place->speed.pair_us;
    double attend_us = time->attend_us > 0 ? time->attend_us : (double)time->r_part_us - place->speed.link_step_us;
    bool few = time->tokens_read < TUNE_SPEED_TOKENS_MIN;
    // The place itself measured what was not the link; or the guess about the link was wrong.
    if (pairs == 0 && (time->attend_us > 0 || few || attend_us < 0))
        measure_link(place, time, time->attend_us > 0 ? time->attend_us : few ? reads_us + place->speed.call_step_us : 0, here_us);
    attend_us -= place->speed.call_step_us;
    if (few || attend_us < 0)
        return;
    if (pairs > 0 && place->speed.pair_us == 0) {
        guess_pair(place, attend_us - reads_us, (double)pairs);
        return;
    }
    correct_speed(place, attend_us / (reads_us + pairs_us), reads_us / (reads_us + pairs_us));
    place->speed.attends_measured = time->attend_us > 0;
    if (place->shares_cores && place->kind == SCHED_KV_WORKER && place->speed.attends_measured)
        compare_sharing(s, place);
}

void sched_speed_guess(struct sched *s, struct sched_place *place, const struct sched_place_up *up)
{
    double bytes_per_us = up->bytes_per_second > 0 ? (double)up->bytes_per_second / 1e6 : 1e4;
    uint64_t bytes = s->config.kv_bytes_per_token > 0 ? s->config.kv_bytes_per_token : 1;
    place->speed = (struct sched_speed){
        .token_us = (double)bytes / bytes_per_us,
        .pair_us = up->prefill_pair_us,
        .call_step_us = up->call_us * s->config.layers,
        .link_step_us = (double)up->link_us * s->config.layers,
    };
    // Tells what fewer rows are worth before any step had fewer. The first worker's latency stands for all.
    if (!sched_place_is_here(place))
        sched_curve_calibrate(&s->time.links, &(struct sched_time){.rows = 1, .us = place->speed.link_step_us}, 1);
}
