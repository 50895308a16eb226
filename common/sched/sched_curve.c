// sched_curve.c: see sched_curve.h.
#include <math.h>

#include "common/base/checked.h"
#include "common/sched/sched_curve.h"
#include "common/sched/sched_tuning.h"

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

static double age(const struct sched_curve *m, const struct sched_curve_size *size)
{
    return (double)(m->steps - size->seen) / TUNE_MODEL_AGE_STEPS;
}

// Returns the time of a class, moved by what has moved the classes seen since: fully once it is away, not at all by what may be noise.
// Classes that come in turn must not move each other at once, or what raises one would lower the other, for ever.
static double class_us(const struct sched_curve *m, const struct sched_curve_size *size)
{
    double away = MIN((double)(m->steps - size->seen) / TUNE_MODEL_AWAY_STEPS, 1);
    double factor = m->drift / size->drift;
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
        double us = class_us(m, size), fresh = 1 / (1 + age(m, size)), weight = fresh * fresh / (us * us);
        n += weight;
        x += weight * size->rows;
        y += weight * us;
        xx += weight * size->rows * size->rows;
        xy += weight * size->rows * us;
        if (least_row_us == 0 || age(m, size) < TUNE_MODEL_OLD_AGES)
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
        double gain = MIN(TUNE_MODEL_GAIN + age(m, size) * (TUNE_MODEL_RETURN_GAIN - TUNE_MODEL_GAIN), TUNE_MODEL_RETURN_GAIN);
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
