// sched_time.c: see sched_time.h.
#include <math.h>

#include "common/sched/sched_state.h"

void sched_time_init(struct sched *s)
{
    s->time.layers = s->time.heads = (struct sched_curve){0};
    s->time.whole = (struct sched_curve){.whole = true};
    s->time.stream_us = 0;
}

void sched_time_calibrate(struct sched *s, const struct sched_s_part_up *up)
{
    s->time.stream_us = up->stream_us;
    sched_curve_calibrate(&s->time.layers, up->layers, up->layer_count);
    sched_curve_calibrate(&s->time.heads, up->heads, up->head_count);
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
