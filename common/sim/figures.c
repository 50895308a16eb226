// figures.c: see figures.h.
#include "common/sim/figures.h"

#include <math.h>

#include "common/base/checked.h"

// --- percentiles ----------------------------------------------------------------------------------------------------

static const double growth = 1.01;

void histogram_add(struct histogram *h, double us)
{
    double index = us <= 1 ? 0 : log(us) / log(growth);

    h->buckets[index < HISTOGRAM_BUCKETS ? (uint32_t)index : HISTOGRAM_BUCKETS - 1]++;
    h->count++;
    h->sum_us += us;
    h->max_us = MAX(h->max_us, us);
}

double histogram_percentile_us(const struct histogram *h, double share)
{
    uint64_t seen = 0, wanted = (uint64_t)ceil(share * (double)h->count);

    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS && h->count > 0; i++) {
        seen += h->buckets[i];
        if (seen >= MAX(wanted, 1))
            return MIN(pow(growth, i + 1), h->max_us);
    }
    return 0;
}

struct sim_times histogram_times(const struct histogram *h)
{
    return (struct sim_times){.count = h->count,
                              .mean_s = h->count ? h->sum_us / (double)h->count / 1e6 : 0,
                              .p50_s = histogram_percentile_us(h, 0.5) / 1e6,
                              .p99_s = histogram_percentile_us(h, 0.99) / 1e6,
                              .max_s = h->max_us / 1e6};
}

// --- the picture of the load ----------------------------------------------------------------------------------------

// Pixels.
enum { LEFT = 72, RIGHT = 64, TOP = 44, PLOT_HEIGHT = 300, BOTTOM = 48, TICKS = 5 };

void load_plot_init(struct load_plot *p) { *p = (struct load_plot){.column_s = 1e-3}; }

static void plot_fold(struct load_plot *p)
{
    for (uint32_t i = 0; i < LOAD_PLOT_COLUMNS / 2; i++) {
        p->columns[i].load = MAX(p->columns[2 * i].load, p->columns[2 * i + 1].load);
        p->columns[i].rows = MAX(p->columns[2 * i].rows, p->columns[2 * i + 1].rows);
    }
    for (uint32_t i = LOAD_PLOT_COLUMNS / 2; i < LOAD_PLOT_COLUMNS; i++)
        p->columns[i].load = p->columns[i].rows = 0;
    p->used = (p->used + 1) / 2;
    p->column_s *= 2;
}

void load_plot_add(struct load_plot *p, const struct sim_step *step)
{
    double load = 0, rows = 0, from_s = step->begin_us / 1e6, to_s = step->end_us / 1e6;

    p->load[step->mini_batch] = step->load;
    p->rows[step->mini_batch] = step->decode_rows;
    for (uint32_t m = 0; m < SCHED_MINI_BATCHES_MAX; m++) {
        load += (double)p->load[m];
        rows += p->rows[m];
    }
    while (to_s / p->column_s >= LOAD_PLOT_COLUMNS)
        plot_fold(p);
    for (uint32_t i = (uint32_t)(from_s / p->column_s); i <= (uint32_t)(to_s / p->column_s); i++) { // a long step fills several
        p->columns[i].load = MAX(p->columns[i].load, load);
        p->columns[i].rows = MAX(p->columns[i].rows, rows);
        p->used = MAX(p->used, i + 1);
    }
}

// Returns the distance of ticks: the least of 1, 2, 5 times a power of ten that leaves at most TICKS up to `largest`.
static double tick_of(double largest)
{
    double raw = MAX(largest, 1e-9) / TICKS, power = pow(10, floor(log10(raw)));
    return raw <= power ? power : raw <= 2 * power ? 2 * power : raw <= 5 * power ? 5 * power : 10 * power;
}

static void axis_text(FILE *file, double x, double y, const char *anchor, const char *colour, double value)
{
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">", x, y, anchor, colour);
    if (value >= 1e6)
        fprintf(file, "%.4g M</text>\n", value / 1e6);
    else if (value >= 1e4)
        fprintf(file, "%.4g k</text>\n", value / 1e3);
    else
        fprintf(file, "%.4g</text>\n", value);
}

static void text_escaped(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&')
            fprintf(file, "&#%d;", *text);
        else
            putc(*text, file);
    }
}

int load_plot_write(const struct load_plot *p, const char *title, FILE *file)
{
    const char *load_colour = "#1f5fa8", *rows_colour = "#b4541a";
    double load = 1, rows = 1, width = LOAD_PLOT_COLUMNS, seconds = MAX(p->used, 1) * p->column_s;

    for (uint32_t i = 0; i < p->used; i++) {
        load = MAX(load, p->columns[i].load);
        rows = MAX(rows, p->columns[i].rows);
    }
    double second_tick = tick_of(seconds), base = TOP + PLOT_HEIGHT, scale = width / MAX(p->used, 1);
    double load_top = load * 1.05, rows_top = rows * 1.05, load_tick = tick_of(load_top), rows_tick = tick_of(rows_top);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"20\" font-size=\"14\">",
            LEFT + width + RIGHT, TOP + PLOT_HEIGHT + BOTTOM, LEFT);
    text_escaped(file, title);
    fprintf(file, "</text>\n");
    for (double value = 0; value <= load_top; value += load_tick) {
        double y = base - PLOT_HEIGHT * value / load_top;
        fprintf(file, "<path d=\"M%d %.1fh%.0f\" stroke=\"#ddd\"/>\n", LEFT, y, width);
        axis_text(file, LEFT - 8, y + 4, "end", load_colour, value);
    }
    for (double value = 0; value <= rows_top; value += rows_tick)
        axis_text(file, LEFT + width + 8, base - PLOT_HEIGHT * value / rows_top + 4, "start", rows_colour, value);
    for (double s = 0; s <= seconds; s += second_tick)
        axis_text(file, LEFT + width * s / seconds, base + 18, "middle", "#333", s);
    for (int line = 0; line < 2; line++) {
        fprintf(file, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" d=\"", line ? load_colour : rows_colour);
        for (uint32_t i = 0; i < p->used; i++) {
            double share = line ? p->columns[i].load / load_top : p->columns[i].rows / rows_top;
            fprintf(file, "%c%.1f %.1f", i ? 'L' : 'M', LEFT + (i + 0.5) * scale, base - PLOT_HEIGHT * share);
        }
        fprintf(file, "\"/>\n");
    }
    fprintf(file,
            "<text x=\"%d\" y=\"%d\" fill=\"%s\">context tokens that all mini-batches read</text>\n"
            "<text x=\"%.0f\" y=\"%d\" fill=\"%s\" text-anchor=\"end\">sequences that decode</text>\n"
            "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\" fill=\"#333\">seconds</text>\n</svg>\n",
            LEFT, TOP - 8, load_colour, LEFT + width, TOP - 8, rows_colour, LEFT + width / 2, base + 38);
    return ferror(file) ? EOF : 0;
}
