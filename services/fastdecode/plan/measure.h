// measure.h: `fastdecode plan --measure`: a description of this machine for common/plan/hardware.h.
#ifndef FD_FASTDECODE_PLAN_MEASURE_H
#define FD_FASTDECODE_PLAN_MEASURE_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/plan/hardware.h"
#include "kernels/backend/device.h"

struct measure_request {
    const char *device;     // for device_choose(); a GPU is described as an S-part, the CPU as an S-part or a worker
    const char *model_path; // a GGUF file to load and measure too, which takes two seconds more; NULL: none
    const char *path;       // file for the description; NULL: standard output
    uint32_t threads;       // 0: all CPUs
};

// Measures for about two seconds (of a CPU with n NUMA nodes n * n / 7 seconds more) and writes the description. If it describes a GPU, a line on stderr says which. On failure nothing is
// written and *error says why.
enum status measure_machine(const struct measure_request *request, struct error *error) MUST_CHECK;

#endif
