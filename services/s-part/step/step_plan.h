// step_plan.h: a StepRequest turned into rows, ordered so that each place's rows lie together.
//
//     runs, as the scheduler sent them          rows, as the device and the workers want them
//       seq 7  place 2  pos 40            ─▶      place 0: seq 3 pos 0..15
//       seq 3  place 0  pos 0..15                 place 1: seq 9 pos 12
//       seq 9  place 1  pos 12                    place 2: seq 7 pos 40
//
// Within a place rows are sorted by sequence, then position. Everything in the request is checked here.
//
// A sequence that lies at several places has its rows at its tail's place, and each row has a read at each place with a frozen extent
// (struct step_read). A place may have reads only; it comes behind those that have rows.
#ifndef FD_S_PART_STEP_STEP_PLAN_H
#define FD_S_PART_STEP_STEP_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/mesh/tensors.h"
#include "common/sched/settings.h"
#include "kernels/backend/backend.h"
#include "services/s-part/step/sequence_table.h"
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

// Limits that requests are checked against. partial_floats: floats of one partial; has_sparse: rows may be sparse, and extents are not allowed.
struct step_limits {
    uint32_t vocab, context_tokens, partial_floats;
    bool has_sparse, pool_takes_extents;
};

enum status step_plan_open(uint32_t max_rows, struct step_plan *plan) MUST_CHECK;
void step_plan_close(struct step_plan *plan);

// Checks that the request's runs can be a step. INVALID_ARGUMENT: the error says what is wrong. Changes nothing.
enum status step_plan_check(const struct step_plan *plan, const Fastdecode__StepRequest *request, const struct step_limits *limits,
                            struct error *error) MUST_CHECK;

// Fills the plan from a request that was checked. The request must outlive it, and its sequences must stay in the table. Runs of
// sequences that the table does not know get no rows, and their `sequence` is NULL. INVALID_ARGUMENT: a sequence has two runs, and
// the plan must not be used. Allocates nothing.
enum status step_plan_fill(struct step_plan *plan, const Fastdecode__StepRequest *request, struct sequence_table *table,
                           struct error *error) MUST_CHECK;

// The same for a step of which an earlier stage has computed a part: runs of absent_run have no rows here, and those of lost_run
// are lost. Both are lists of u32 little-endian. INVALID_ARGUMENT also if a list names no run.
enum status step_plan_fill_forwarded(struct step_plan *plan, const Fastdecode__StepRequest *request, struct sequence_table *table,
                                     const struct forward_request *forward, struct error *error) MUST_CHECK;

// Rebuilds rows and outputs after runs were marked absent.
void step_plan_rebuild(struct step_plan *plan);

// Returns the index of the run's extent at a place of the request; that of the last one, its own, if it has none there.
uint32_t step_extents_at(const Fastdecode__Run *run, uint32_t place);

// Marks a run as lost, because of its extent number `extent`.
void step_plan_lose(struct step_run *run, uint32_t extent);

// Call it after sampling, for a run without a fault. Counts its valid samples and updates its sequence; or finds a fault. With penalties, a sample depends on those before
// it in the same step, so drafts are not used.
void step_plan_take(struct step_plan *plan, uint32_t run_index);

// Removes a run from the plan, as lost, with its rows and outputs; the others keep their order.
void step_plan_drop(struct step_plan *plan, uint32_t run_index);

#endif
