// model_kv.h: what the R-part must know of a model.
#ifndef FD_MODEL_MODEL_KV_H
#define FD_MODEL_MODEL_KV_H

#include "common/kv/kv_store.h"
#include "common/model/model.h"

// Returns the shape of the KV of some layers: its heads, windows and soft cap. The caller adds what is no matter of the model.
struct kv_shape model_kv_shape(const struct model *model, uint32_t first_layer, uint32_t layer_count);

#endif
