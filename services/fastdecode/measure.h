/* measure.h: `fastdecode plan --measure`: a description of this machine for common/plan/hardware.h. */
#ifndef FD_SERVICES_FASTDECODE_MEASURE_H
#define FD_SERVICES_FASTDECODE_MEASURE_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/plan/hardware.h"

/* Measures for about two seconds with `threads` threads (0: all CPUs) and writes the description to `path`, or to standard output
 * if that is NULL. model_path: of a GGUF file that is loaded and measured too, for two seconds more; NULL: none. On failure nothing
 * is written, and *error says why. */
enum status measure_machine(uint32_t threads, const char *model_path, const char *path, struct error *error) MUST_CHECK;

/* measure_model.c: layers, head and attention of the file's model on these threads. out->name points into model_path. Blocks until it
 * is loaded and measured; takes its memory meanwhile. */
enum status measure_model(const char *model_path, struct thread_pool *pool, struct hardware_model *out,
                          struct error *error) MUST_CHECK;

#endif
