// sched_time.c: see sched_time.h.
#include <math.h>

#include "common/sched/sched_state.h"

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
