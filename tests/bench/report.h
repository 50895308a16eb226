/* report.h: the figures of a bench: a line each to read, and with FD_BENCH_JSON=FILE one JSON object a line at its end.
 *
 * A figure is a value beside its ceiling, both measured in the same run, pass by pass: the machine is shared, and other work
 * moves both. What is judged is the median of the passes' ratios.
 */
#ifndef FD_TESTS_BENCH_REPORT_H
#define FD_TESTS_BENCH_REPORT_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

enum { REPORT_PASSES_MAX = 64 };

struct report_passes {
    double value[REPORT_PASSES_MAX], ceiling[REPORT_PASSES_MAX];
    uint32_t count;
};

static inline void report_pass(struct report_passes *passes, double value, double ceiling)
{
    if (passes->count < REPORT_PASSES_MAX) {
        passes->value[passes->count] = value;
        passes->ceiling[passes->count++] = ceiling;
    }
}

static inline int report_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double report_median(const double *values, uint32_t count)
{
    double sorted[REPORT_PASSES_MAX];
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, report_order);
    return count ? (sorted[(count - 1) / 2] + sorted[count / 2]) / 2 : 0;
}

static inline void report_write(const char *name, const char *unit, double value, const char *rest)
{
    const char *path = getenv("FD_BENCH_JSON");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (!file)
        return;
    fprintf(file, "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", %s}\n", name, value, unit, rest);
    fclose(file);
}

static inline double report_judged(const char *name, const char *unit, const struct report_passes *passes, double target, bool most)
{
    double ratios[REPORT_PASSES_MAX], value = report_median(passes->value, passes->count);
    double ceiling = report_median(passes->ceiling, passes->count), ratio;
    char rest[256];

    for (uint32_t i = 0; i < passes->count; i++)
        ratios[i] = passes->value[i] / passes->ceiling[i];
    ratio = report_median(ratios, passes->count);
    bool pass = most ? ratio <= target : ratio >= target;
    printf("%-62s %9.2f of %9.2f %-8s %5.2f", name, value, ceiling, unit, ratio);
    if (target > 0)
        printf("  %s %4.2f  %s", most ? "at most" : "target", target, pass ? "pass" : "SHORT");
    printf("\n");
    fflush(stdout);
    snprintf(rest, sizeof rest, "\"ceiling\": %.6g, \"ratio\": %.4f, \"at_most\": %s, ", ceiling, ratio, most ? "true" : "false");
    if (target > 0)
        snprintf(rest + strlen(rest), sizeof rest - strlen(rest), "\"target\": %.4g, \"pass\": %s", target,
                 pass ? "true" : "false");
    else
        snprintf(rest + strlen(rest), sizeof rest - strlen(rest), "\"target\": null, \"pass\": null");
    report_write(name, unit, value, rest);
    return ratio;
}

/* target: of value ÷ ceiling, at least; 0: none. name: no quotes in it. Returns the ratio. */
static inline double report_figure(const char *name, const char *unit, const struct report_passes *passes, double target)
{
    return report_judged(name, unit, passes, target, false);
}

/* The same for what should be small: target is the most that value ÷ ceiling may be. */
static inline double report_figure_below(const char *name, const char *unit, const struct report_passes *passes, double target)
{
    return report_judged(name, unit, passes, target, true);
}

/* A value by itself: a ceiling that others are measured beside. */
static inline void report_value(const char *name, const char *unit, double value)
{
    printf("%-62s %9.2f %s\n", name, value, unit);
    fflush(stdout);
    report_write(name, unit, value, "\"ceiling\": null, \"ratio\": null, \"at_most\": false, \"target\": null, \"pass\": null");
}

#endif
