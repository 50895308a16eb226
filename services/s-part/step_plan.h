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
// (step_extents.c). A place may have reads only; it comes behind those that have rows.
#ifndef FD_SERVICES_S_PART_STEP_PLAN_H
#define FD_SERVICES_S_PART_STEP_PLAN_H

#include "common/mesh/tensors.h"
#include "services/s-part/step_rows.h"

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

// Marks a run as lost, because of its extent number `extent`.
void step_plan_lose(struct step_run *run, uint32_t extent);

// Call it after sampling, for a run without a fault. Counts its valid samples and updates its sequence; or finds a fault. With penalties, a sample depends on those before
// it in the same step, so drafts are not used.
void step_plan_take(struct step_plan *plan, uint32_t run_index);

// Removes a run from the plan, as lost, with its rows and outputs; the others keep their order.
void step_plan_drop(struct step_plan *plan, uint32_t run_index);

#endif
