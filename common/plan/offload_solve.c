// offload_solve.c: one block's linear program, given to COIN-OR's CLP.
//
//     columns   nine fractions, T_pre, T_gen
//     rows      w, h and c each add up to 1; T_pre and T_gen are no shorter than any lane, or sum of lanes with copies_wait;
//               peaks keep to the limits
//
// Times are multiples of the compute lane's fixed part, peaks shares of their limits, so that all coefficients are near 1 and the
// solver's tolerances mean the same for any model. Activations are never on disk: nothing that runs puts them there.
//
// A second run with T as a limit finds, among all optima, the one with the least on disk and then on the host.
#include "common/plan/offload_internal.h"

#include <coin/Clp_C_Interface.h>
#include <float.h>
#include <string.h>

#include "common/base/checked.h"

enum { T_PRE = OFFLOAD_SPLITS, T_GEN, COLUMNS, ROWS_MAX = 24 };

#define UNUSED_COST 1e-9 // of T_GEN where nothing is decoded, so that it is still the shortest possible
#define TOLERANCE 1e-9
#define SLACK 1e-8     // of T in the second run
#define HOST_COST 1e-3 // of a byte on the host where one on disk costs 1
#define NEARLY 1e-4    // a fraction this near to 0 or 1 is meant to be that: a slack of T buys a little

struct program {
    int rows;
    double unit[OFFLOAD_PHASES]; // seconds that a time of 1 is
    double coefficients[ROWS_MAX][COLUMNS], lower[ROWS_MAX], upper[ROWS_MAX];
};

// Adds lower <= coefficients of x <= upper and returns the coefficients.
static double *add_row(struct program *p, double lower, double upper)
{
    assert_always(p->rows < ROWS_MAX);
    p->lower[p->rows] = lower;
    p->upper[p->rows] = upper;
    return memset(p->coefficients[p->rows++], 0, sizeof p->coefficients[0]);
}

// a + b <= T of the phase; b may be NULL.
static void add_time(struct program *p, int phase, const struct offload_linear *a, const struct offload_linear *b)
{
    double *row = add_row(p, -DBL_MAX, -(a->constant + (b ? b->constant : 0)) / p->unit[phase]);
    for (int i = 0; i < OFFLOAD_SPLITS; i++)
        row[i] = (a->by[i] + (b ? b->by[i] : 0)) / p->unit[phase];
    row[phase == OFFLOAD_PROMPTS ? T_PRE : T_GEN] = -1;
}

static void add_times(struct program *p, const struct offload_model *m)
{
    for (int phase = 0; phase < OFFLOAD_PHASES; phase++) {
        const struct offload_linear *l = m->lanes[phase];
        if (!m->copies_wait) {
            for (int lane = 0; lane < OFFLOAD_LANES; lane++)
                add_time(p, phase, &l[lane], NULL);
        } else if (phase == OFFLOAD_PROMPTS) {
            add_time(p, phase, &l[OFFLOAD_COMPUTE], NULL);
            add_time(p, phase, &l[OFFLOAD_COPY_IN], &l[OFFLOAD_DISK_READ]);
            add_time(p, phase, &l[OFFLOAD_COPY_OUT], &l[OFFLOAD_DISK_WRITE]);
        } else {
            for (int lane = 0; lane < OFFLOAD_LANES; lane++)
                if (lane != OFFLOAD_COPY_IN)
                    add_time(p, phase, &l[lane], &l[OFFLOAD_COPY_IN]);
        }
    }
}

static void add_memory(struct program *p, const struct offload_model *m, enum offload_tier last)
{
    for (int tier = 0; tier <= (int)last; tier++)
        for (int phase = 0; phase < OFFLOAD_PHASES && m->limits[tier] > 0; phase++) {
            const struct offload_linear *peak = &m->memory[tier][phase];
            double *row = add_row(p, -DBL_MAX, 1 - peak->constant / m->limits[tier]);
            for (int i = 0; i < OFFLOAD_SPLITS; i++)
                row[i] = peak->by[i] / m->limits[tier];
        }
}

static void make_program(struct program *p, const struct offload_model *m, enum offload_tier last)
{
    p->rows = 0;
    for (int phase = 0; phase < OFFLOAD_PHASES; phase++)
        p->unit[phase] = m->lanes[phase][OFFLOAD_COMPUTE].constant;
    for (int tensor = OFFLOAD_WG; tensor < OFFLOAD_SPLITS; tensor += OFFLOAD_TIERS) {
        double sum = tensor == OFFLOAD_CG && m->delegated ? 0 : 1, *row = add_row(p, sum, sum);
        row[tensor] = row[tensor + 1] = row[tensor + 2] = 1;
    }
    add_times(p, m);
    add_memory(p, m, last);
}

static Clp_Simplex *load(const struct program *p, const struct offload_model *m, enum offload_tier last, const double *objective)
{
    CoinBigIndex starts[COLUMNS + 1];
    int rows[COLUMNS * ROWS_MAX], count = 0;
    double values[COLUMNS * ROWS_MAX], lower[COLUMNS] = {0}, upper[COLUMNS];
    Clp_Simplex *clp = Clp_newModel();

    for (int column = 0; column < COLUMNS; column++) {
        int tier = column % OFFLOAD_TIERS;
        starts[column] = count;
        upper[column] = column >= OFFLOAD_SPLITS ? DBL_MAX : tier <= (int)last && m->tiers[tier] && column != OFFLOAD_HD ? 1 : 0;
        for (int row = 0; row < p->rows; row++)
            if (p->coefficients[row][column] != 0) {
                rows[count] = row;
                values[count++] = p->coefficients[row][column];
            }
    }
    starts[COLUMNS] = count;
    Clp_setLogLevel(clp, 0);
    Clp_setPrimalTolerance(clp, TOLERANCE);
    Clp_setDualTolerance(clp, TOLERANCE);
    Clp_loadProblem(clp, COLUMNS, p->rows, starts, rows, values, lower, upper, objective, p->lower, p->upper);
    return clp;
}

// The time of a block, as a multiple of what computing the prompts takes.
static void block_time(const struct program *p, const struct offload_model *m, double *objective)
{
    memset(objective, 0, COLUMNS * sizeof *objective);
    objective[T_PRE] = 1;
    objective[T_GEN] = MAX(m->decode_steps * p->unit[OFFLOAD_DECODE] / p->unit[OFFLOAD_PROMPTS], UNUSED_COST);
}

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int i = 0; i < COLUMNS; i++)
        sum += a[i] * b[i];
    return sum;
}

// Solves a program for its objective. false: infeasible.
static bool run(const struct program *p, const struct offload_model *m, enum offload_tier last, const double *objective, double *x)
{
    Clp_Simplex *clp = load(p, m, last, objective);
    bool found = Clp_dual(clp, 0) == 0 && Clp_isProvenOptimal(clp);

    if (found)
        memcpy(x, Clp_getColSolution(clp), COLUMNS * sizeof *x);
    Clp_deleteModel(clp);
    return found;
}

// x: an optimum; replaced by the one with least on disk.
static void least_disk(struct program *p, const struct offload_model *m, enum offload_tier last, double *x)
{
    double time[COLUMNS], bytes[COLUMNS] = {0}, better[COLUMNS];
    double total = m->limits[OFFLOAD_DEVICE] + m->limits[OFFLOAD_HOST] + m->limits[OFFLOAD_DISK];

    block_time(p, m, time);
    double *row = add_row(p, -DBL_MAX, 1 + SLACK), limit = dot(time, x);
    for (int i = 0; i < COLUMNS; i++)
        row[i] = time[i] / limit;
    for (int i = 0; i < OFFLOAD_SPLITS; i++)
        bytes[i] = (m->memory[OFFLOAD_DISK][OFFLOAD_PROMPTS].by[i] + HOST_COST * m->memory[OFFLOAD_HOST][OFFLOAD_PROMPTS].by[i]) /
                   total;
    if (run(p, m, last, bytes, better))
        memcpy(x, better, sizeof better);
}

// --- the answer -------------------------------------------------------------------------------------------------------

static struct offload_phase phase_of(const struct offload_model *m, int phase, double seconds, const double *x)
{
    struct offload_phase out = {.seconds = seconds};

    for (int lane = 0; lane < OFFLOAD_LANES; lane++) {
        out.lanes[lane] = offload_linear_at(&m->lanes[phase][lane], x);
        if (out.lanes[lane] > out.lanes[out.bound_by])
            out.bound_by = (enum offload_lane)lane;
    }
    out.attention = out.lanes[OFFLOAD_COMPUTE] > 2 * m->products[phase];
    return out;
}

static double peak(const struct offload_model *m, enum offload_tier tier, const double *x)
{
    return MAX(offload_linear_at(&m->memory[tier][OFFLOAD_PROMPTS], x), offload_linear_at(&m->memory[tier][OFFLOAD_DECODE], x));
}

static struct offload_split split_of(double *x)
{
    for (int i = 0; i < OFFLOAD_TIERS; i++)
        x[i] = x[i] < NEARLY ? 0 : x[i] > 1 - NEARLY ? 1 : x[i];
    return (struct offload_split){x[0], x[1], x[2]};
}

bool offload_solve(const struct offload_model *m, enum offload_tier last, bool thrifty, struct offload_plan *out)
{
    struct program program;
    double objective[COLUMNS], x[COLUMNS];

    if (m->worker_bytes > m->worker_limit)
        return false;
    make_program(&program, m, last);
    block_time(&program, m, objective);
    if (!run(&program, m, last, objective, x))
        return false;
    if (thrifty)
        least_disk(&program, m, last, x);
    x[T_PRE] *= program.unit[OFFLOAD_PROMPTS];
    x[T_GEN] *= program.unit[OFFLOAD_DECODE];
    *out = (struct offload_plan){.gpu_batch = m->gpu_batch,
                                 .gpu_batches = m->gpu_batches,
                                 .weights = split_of(x + OFFLOAD_WG),
                                 .activations = split_of(x + OFFLOAD_HG),
                                 .kv = split_of(x + OFFLOAD_CG),
                                 .block_seconds = m->layers * (x[T_PRE] + m->decode_steps * x[T_GEN]),
                                 .prompts = phase_of(m, OFFLOAD_PROMPTS, x[T_PRE], x),
                                 .decode = phase_of(m, OFFLOAD_DECODE, x[T_GEN], x),
                                 .decode_bound = m->decode_steps * x[T_GEN] > x[T_PRE],
                                 .device_bytes = peak(m, OFFLOAD_DEVICE, x),
                                 .host_bytes = m->tiers[OFFLOAD_HOST] ? peak(m, OFFLOAD_HOST, x) : 0,
                                 .disk_bytes = m->tiers[OFFLOAD_DISK] ? peak(m, OFFLOAD_DISK, x) : 0,
                                 .device_limit = m->limits[OFFLOAD_DEVICE],
                                 .host_limit = m->limits[OFFLOAD_HOST],
                                 .disk_limit = m->limits[OFFLOAD_DISK],
                                 .worker_bytes = m->worker_bytes};
    out->tokens_per_second = m->gpu_batch * (double)m->gpu_batches * (m->decode_steps + 1) / out->block_seconds;
    return true;
}
