// sim_capacity.h: `fastdecode sim --capacity`: the search of `fastdecode capacity`, with simulations in the place of a server.
#ifndef FD_FASTDECODE_PLAN_SIM_CAPACITY_H
#define FD_FASTDECODE_PLAN_SIM_CAPACITY_H

#include <jansson.h>

#include "common/sim/sim.h"
#include "common/sim/workload.h"
#include "services/fastdecode/load/capacity_search.h"

// Simulates a workload on the mesh that the command describes. config has what the caller wants besides: its ttft_s.
typedef enum status sim_capacity_run_fn(void *arg, const struct workload *work, struct sim_config *config,
                                        struct sim_result *result, struct error *error);

// Searches and prints the report. about: more members of the JSON, taken over; NULL: print text.
MUST_CHECK enum status sim_capacity(const struct capacity_settings *settings, sim_capacity_run_fn *run, void *arg, json_t *about,
                                    struct error *error);

#endif
