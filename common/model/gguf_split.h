// gguf_split.h: a model in several GGUF files, NAME-00001-of-0000N.gguf and so on. Private to common/model.
#ifndef FD_MODEL_GGUF_SPLIT_H
#define FD_MODEL_GGUF_SPLIT_H

#include "common/model/gguf_state.h"

// Opens the other parts beside `first`, whose split.count is above 1, and makes one of all. Takes first, whatever it returns.
// INVALID_ARGUMENT: first is another part than the first, or parts do not belong together; else as gguf_open().
MUST_CHECK enum status gguf_split_open(struct gguf *first, struct gguf **out, struct error *error);

#endif
