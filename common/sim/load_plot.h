// load_plot.h: the load of a simulation over time, drawn as SVG.
//
// Steps are folded into as many columns as the picture has; when they are full, two become one. Memory does not grow with the run, and
// no peak is lost: a column keeps its largest load.
#ifndef FD_SIM_LOAD_PLOT_H
#define FD_SIM_LOAD_PLOT_H

#include <stdint.h>
#include <stdio.h>

#include "common/sim/sim.h"

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
