/* measure.h: `fastdecode plan --measure`: a description of this machine for common/plan/hardware.h. */
#ifndef FD_SERVICES_FASTDECODE_MEASURE_H
#define FD_SERVICES_FASTDECODE_MEASURE_H

#include <stdint.h>

#include "common/base/status.h"

/* Measures for about two seconds with `threads` threads (0: all CPUs) and writes the description to `path`, or to standard output
 * if that is NULL. On failure nothing is written, and *error says why. */
enum status measure_machine(uint32_t threads, const char *path, struct error *error) MUST_CHECK;

#endif
