// commands.h: the commands of this folder, and what `plan` has the others do. argv[0] is the command's name; each returns the exit status.
#ifndef FD_FASTDECODE_PLAN_COMMANDS_H
#define FD_FASTDECODE_PLAN_COMMANDS_H

#include <stdint.h>

#include "common/base/status.h"

struct described;
struct plan;
struct plan_request;
struct sim_result;

int plan_main(int argc, char **argv);
int sim_main(int argc, char **argv);

// --- `fastdecode plan --measure`: a description of this machine for common/plan/hardware.h ---

struct measure_request {
    const char *device;     // for device_choose(); a GPU is described as an S-part, the CPU as an S-part or a worker
    const char *model_path; // a GGUF file to load and measure too, which takes two seconds more; NULL: none
    const char *path;       // file for the description; NULL: standard output
    uint32_t threads;       // 0: all CPUs
};

// Measures for about two seconds (of a CPU with n NUMA nodes n * n / 7 seconds more) and writes the description. If it describes a GPU, a
// line on stderr says which. On failure nothing is written and *error says why.
enum status measure_machine(const struct measure_request *request, struct error *error) MUST_CHECK;

// --- a simulation of a mesh that was planned ---

// Runs the scheduling core on what a plan describes: random arrivals of requests of the plan's lengths, so many a second. Takes up to about
// a second. Statuses as of sim_run(), and RESOURCE_EXHAUSTED: a place cannot hold a sequence.
MUST_CHECK enum status sim_plan(const struct described *described, const struct plan_request *request, const struct plan *plan,
                                double requests_per_second, struct sim_result *out, struct error *error);

#endif
