// measure_model.h: how long a model's layers, head and attention take on a device or on these threads.
#ifndef FD_FASTDECODE_PLAN_MEASURE_MODEL_H
#define FD_FASTDECODE_PLAN_MEASURE_MODEL_H

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/plan/hardware.h"
#include "kernels/backend/device.h"

// Loads the file, measures and frees it again; blocks meanwhile. out->name points into model_path.
enum status measure_model(const char *model_path, const struct device_choice *device, struct thread_pool *pool,
                          struct hardware_model *out, struct error *error) MUST_CHECK;

#endif
