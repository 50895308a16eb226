// figures.h: what is shown of many values: percentiles of durations, and a picture of the load. Plain; any thread.
#ifndef FD_SIM_FIGURES_H
#define FD_SIM_FIGURES_H

#include <stdint.h>
#include <stdio.h>

#include "common/sim/sim.h"

// Durations counted in buckets that grow by 1 %: percentiles of any number of them in 32 KiB.
enum { HISTOGRAM_BUCKETS = 4096 }; // from 1 us: 1.01^2313 us is three hours

struct histogram {
    uint64_t count, buckets[HISTOGRAM_BUCKETS];
    double sum_us, max_us;
};

void histogram_add(struct histogram *histogram, double us);

// Returns the duration that a share (0 to 1) of all do not exceed; 0 if there are none.
double histogram_percentile_us(const struct histogram *histogram, double share);
struct sim_times histogram_times(const struct histogram *histogram);

// The load of a simulation over time, drawn as SVG.
//
// Steps are folded into as many columns as the picture has; when they are full, two become one. Memory does not grow with the run, and
// no peak is lost: a column keeps its largest load.

enum { LOAD_PLOT_COLUMNS = 720 };

struct load_plot {
    double column_s; // width
    uint32_t used;
    struct {
        double load, rows; // largest load; largest number of sequences
    } columns[LOAD_PLOT_COLUMNS];
    uint64_t load[SCHED_MINI_BATCHES_MAX]; // of each mini-batch now
    uint32_t rows[SCHED_MINI_BATCHES_MAX];
};

void load_plot_init(struct load_plot *plot);

// Adds a step. Steps come in order of time.
void load_plot_add(struct load_plot *plot, const struct sim_step *step);

// Writes the picture. The title is one line. Returns 0, or EOF with errno.
int load_plot_write(const struct load_plot *plot, const char *title, FILE *file);

#endif
