// cost.c: see cost.h.
#include "common/plan/cost.h"

#include "common/base/status.h"

double cost_curve_at(const struct cost_curve *curve, double rows)
{
    uint32_t at = 1;

    if (curve->count == 0)
        return 0;
    if (curve->count == 1 || rows <= curve->rows[0])
        return curve->us[0];
    while (at + 1 < curve->count && rows > curve->rows[at])
        at++;
    double slope = (curve->us[at] - curve->us[at - 1]) / (curve->rows[at] - curve->rows[at - 1]);
    return curve->us[at - 1] + slope * (rows - curve->rows[at - 1]);
}

void cost_curve_add(struct cost_curve *curve, double rows, double us)
{
    uint32_t at = 0;

    while (at < curve->count && curve->rows[at] < rows)
        at++;
    if (at == curve->count || curve->rows[at] != rows) {
        assert_always(curve->count < COST_POINTS_MAX);
        for (uint32_t i = curve->count++; i > at; i--) {
            curve->rows[i] = curve->rows[i - 1];
            curve->us[i] = curve->us[i - 1];
        }
    }
    curve->rows[at] = rows;
    curve->us[at] = us;
}

double cost_segment_us(const struct cost_s_part *s, uint32_t segment, uint32_t rows)
{
    double layer_us = cost_curve_at(&s->layer, rows);

    if (segment == 0)
        return layer_us * s->first_share;
    return segment == s->layers ? layer_us * (1 - s->first_share) : layer_us;
}

double cost_s_part_step_us(const struct cost_s_part *s, uint32_t rows, uint32_t sampled_rows)
{
    double head_us = sampled_rows ? cost_curve_at(&s->head, sampled_rows) : 0;

    return s->step_us + s->layers * cost_curve_at(&s->layer, rows) + head_us;
}

double cost_attend_us(const struct cost_r_part *r, const struct cost_work *work)
{
    if (work->rows == 0)
        return 0;
    return r->link_us + r->call_us + work->rows * (r->link_row_us + r->row_us) + (double)work->load * r->token_us +
           (double)work->prefill_pairs * r->prefill_us;
}
