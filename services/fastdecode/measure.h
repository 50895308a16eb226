/* measure.h: `fastdecode plan --measure`: a description of this machine for common/plan/hardware.h. */
#ifndef FD_SERVICES_FASTDECODE_MEASURE_H
#define FD_SERVICES_FASTDECODE_MEASURE_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/plan/hardware.h"
#include "kernels/backend/device.h"

struct measure_request {
    const char *device;     /* as device_choose() takes it: a GPU is described as an S-part, the CPU as an S-part or a worker */
    const char *model_path; /* of a GGUF file that is loaded and measured too, for two seconds more; NULL: none */
    const char *path;       /* where the description goes; NULL: standard output */
    uint32_t threads;       /* 0: all CPUs */
};

/* Measures for about two seconds and writes the description; says on standard error which GPU it describes, if it does. On failure
 * nothing is written, and *error says why. */
enum status measure_machine(const struct measure_request *request, struct error *error) MUST_CHECK;

/* measure_model.c: layers, head and attention of the file's model on this device, or these threads. out->name points into model_path.
 * Blocks until it is loaded and measured; takes its memory meanwhile. */
enum status measure_model(const char *model_path, const struct device_choice *device, struct thread_pool *pool,
                          struct hardware_model *out, struct error *error) MUST_CHECK;

#endif
