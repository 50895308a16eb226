// metadata.h: what a file's metadata says of a model. Private to common/model.
#ifndef FD_MODEL_METADATA_H
#define FD_MODEL_METADATA_H

#include "common/model/arch.h"

// Fills *shape from the metadata; vocab is 0 if the file has no such key; rope is not filled.
MUST_CHECK enum status model_read_shape(const struct gguf *gguf, const struct arch *arch, struct model_shape *shape,
                                        struct error *error);

// Fills windowed and roped of each layer.
MUST_CHECK enum status model_read_layers(const struct gguf *gguf, const struct arch *arch, const struct model_shape *shape,
                                         struct model_layer *layers, struct error *error);

// Fills model->shape.rope, once the tensors have been placed.
MUST_CHECK enum status model_read_rope(struct model *model, struct error *error);

// Fills *tokenizer; *vocab is checked against the number of tokens, or set from it if 0.
MUST_CHECK enum status model_read_tokenizer(const struct gguf *gguf, uint32_t *vocab, struct model_tokenizer *tokenizer,
                                            struct error *error);

// Finds the tensors of a classification head, which any architecture may have, and counts them in *placed; whether a name is one of
// theirs; fills model->pooling, once the tokenizer, the tensors and the name are known.
MUST_CHECK enum status model_place_head(struct model *model, uint32_t *placed, struct error *error);
bool model_is_head_tensor(struct gguf_string name);
MUST_CHECK enum status model_read_pooling(struct model *model, struct error *error);

// For a model without a head: has *out rank by the tokens that it answers with. False: it has none such.
MUST_CHECK bool model_take_words(const struct model *model, struct model_pooling *out);

#endif
