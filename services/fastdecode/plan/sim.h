// sim.h: a simulation of a mesh that was planned.
#ifndef FD_FASTDECODE_PLAN_SIM_H
#define FD_FASTDECODE_PLAN_SIM_H

#include "common/plan/plan.h"
#include "common/sim/sim.h"
#include "services/fastdecode/plan/described.h"

// Runs the scheduling core on what a plan describes: random arrivals of requests of the plan's lengths, so many a second. Takes up to about
// a second. Statuses as of sim_run(), and RESOURCE_EXHAUSTED: a place cannot hold a sequence.
MUST_CHECK enum status sim_plan(const struct described *described, const struct plan_request *request, const struct plan *plan,
                                double requests_per_second, struct sim_result *out, struct error *error);

#endif
