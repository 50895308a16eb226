// step_rows.h: what a planned step consists of (step_plan.h): runs, rows, places, and reads of extents that lie elsewhere.
#ifndef FD_SERVICES_S_PART_STEP_ROWS_H
#define FD_SERVICES_S_PART_STEP_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/sched/settings.h"
#include "kernels/backend/backend.h"
#include "services/s-part/sequence_table.h"
#include "step.pb-c.h"

struct step_run {
    const Fastdecode__Run *run; // in the request's memory
    struct sequence *sequence;  // NULL: the s-part does not know it
    bool absent;                // it has no rows: it was lost before the step began, or at an earlier stage
    uint32_t place;             // index into the request's places
    uint32_t first_row, row_count;
    uint32_t result_index; // index of the run in the request
    uint32_t first_output; // index of its first sample or score in the step's outputs
    uint32_t output_count;
    uint32_t sample_count; // how many of its outputs, the last ones, are samples
    uint32_t taken;        // how many of those samples count: up to the first one after a wrong draft
    uint32_t mask_count;   // with a grammar: how many of its samples, the first ones, have a mask; the others do not count
    const char *fault;     // why nothing can be drawn for its sequence; NULL: nothing is wrong
    bool request_fault;    // the request's fields are why
    bool lost;
    uint32_t lost_extent; // 1 + index of the first of its extents that is lost; 0: none is, or it is not known which
    uint32_t first;       // first position held at its place
};

// A run whose sequence lies at several places.
struct step_split {
    uint32_t run, frozen_count;
    uint32_t place[SCHED_EXTENTS_MAX + 1]; // of each extent, the tail last: index into the plan's places
    uint32_t read[SCHED_EXTENTS_MAX];      // of each frozen extent: the read of the run's first row; those of the others follow it
};

// A row's read of a frozen extent.
struct step_read {
    uint32_t row, split, extent; // extent: its index in the run's
    uint32_t first, end;         // positions
    uint32_t partial;            // index of its first partial, of those of the place
};

// Returns whether the place is the local pool. If the scheduler sends no kinds, its place 0 is the local pool.
static inline bool step_place_is_local(const Fastdecode__Place *place)
{
    return place->kind == FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL ||
           (place->kind == FASTDECODE__PLACE_KIND__PLACE_KIND_UNSPECIFIED && place->worker == 0);
}

struct step_place {
    uint32_t index; // into the request's places
    uint32_t first_row, row_count;
    uint32_t share_count; // runs that begin with positions of another sequence
    uint32_t first_read, read_count;
    uint32_t o_count, partial_count; // rows that get o; partials of the other rows, then of the reads
};

// Arrays are sized once for max_rows.
struct step_plan {
    uint32_t max_rows;
    const Fastdecode__StepRequest *request;
    uint32_t run_count, row_count, place_count, output_count;
    struct step_run *runs;    // [max_rows] in row order
    unsigned char *listed;    // [max_rows] scratch
    bool forwarded;           // the rows come from an earlier stage, so runs of unknown sequences have rows, too
    struct backend_row *rows; // [max_rows]
    uint32_t *row_run;        // [max_rows] index of the row's run
    uint32_t *row_partial;    // [max_rows] of a split run's row: its first partial, of those of its place
    uint32_t split_count, read_count, local_read_count;
    struct step_split *splits;        // [max_rows] by sequence
    struct step_read *reads;          // [max_rows * SCHED_EXTENTS_MAX] by place, then sequence, then position
    struct backend_read *local_reads; // [max_rows] those of the local pool
    struct step_place places[SCHED_PLACES_MAX];
    uint32_t *output_row;           // [max_rows] row of each sample or score
    struct backend_sample *outputs; // [max_rows]
    struct sampler_result *results; // [max_rows]
    uint32_t hidden_count;
    uint32_t *hidden_row; // [max_rows] rows whose hidden states are pooled, in the order of rows
};

// What checks of extents need to know. partial_floats: floats of one partial; has_sparse: rows may be sparse, and extents are not allowed.
struct step_limits {
    uint32_t vocab, context_tokens, partial_floats;
    bool has_sparse, pool_takes_extents;
};

#endif
