// kv_of_model.h: what the R-part must know of a model.
#ifndef FD_KERNELS_BACKEND_KV_OF_MODEL_H
#define FD_KERNELS_BACKEND_KV_OF_MODEL_H

#include "common/kv/kv_store.h"
#include "common/model/model.h"

// Returns the shape of the KV of some layers: its heads, windows and soft cap. The caller adds what is no matter of the model.
struct kv_shape kv_shape_of_model(const struct model *model, uint32_t first_layer, uint32_t layer_count);

#endif
