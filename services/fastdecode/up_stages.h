// up_stages.h: which layers each s-part of a pipeline gets.
#ifndef FD_SERVICES_FASTDECODE_UP_STAGES_H
#define FD_SERVICES_FASTDECODE_UP_STAGES_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/plan/split.h"

// Reads the model and fills in ranges [stages], so that the slowest stage has as little as possible to do. INVALID_ARGUMENT: the model
// cannot be split so. Blocks on the disk.
enum status up_stages_split(const char *model_path, uint32_t stages, struct plan_range *ranges, struct error *error) MUST_CHECK;

#endif
