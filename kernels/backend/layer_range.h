// layer_range.h: which of the model's layers a backend has: all of them, or those of a pipeline stage.
//
//     stage 0: layers [0, k)   embeds tokens; after segment k its x goes to stage 1  (get_x)
//     stage 1: layers [k, L)   begins with that x (put_x); has the final norm and the head
//
// A backend numbers segments and layers within its range, and loads weights and holds KV of these layers only.
#ifndef FD_KERNELS_BACKEND_LAYER_RANGE_H
#define FD_KERNELS_BACKEND_LAYER_RANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kernels/backend/backend.h"

struct layer_range {
    uint32_t first, count; // of the model's layers; count is at least 1
    bool is_first;         // it begins with the model's first layer, so tokens are embedded
    bool is_last;          // it ends with the model's last layer, so there is a head
};

// Returns the range of a configuration: first_layer and layer_count, or all layers. INVALID_ARGUMENT: the model has no such layers.
enum status layer_range_of(const struct backend_config *config, struct layer_range *out, struct error *error) MUST_CHECK;

#endif
