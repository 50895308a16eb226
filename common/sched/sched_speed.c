// sched_speed.c: how fast places read.
//
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
// Where noise does not explain it, a speed has changed and the gain is larger.
#include <math.h>

#include "common/sched/sched_state.h"

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
                             uint32_t tokens, struct sched_weight weight)
{
    double read_us = sched_speed_read_us(s, place, class, mini_batch, tokens, weight);
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
static void correct(struct sched_place *place, double ratio, double share)
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
    correct(place, attend_us / (reads_us + pairs_us), reads_us / (reads_us + pairs_us));
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
    // So that what fewer rows are worth is known before any step had fewer. The first worker's latency stands for all.
    if (!sched_place_is_here(place))
        sched_curve_calibrate(&s->time.links, &(struct sched_time){.rows = 1, .us = place->speed.link_step_us}, 1);
}
