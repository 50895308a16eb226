// arch.h: the differences between architectures, as data. A new architecture made of known pieces needs only a row in arch.c. The
// loader, the backends and messages follow the row, and a backend's plan refuses a piece that it cannot compute. Private to
// common/model.
//
// A row lists metadata that must have a neutral value (keys of unsupported features that would change the answer, such as a number
// of experts), and tensors: the pattern of the name, where its view is stored, whether it is required, and its two dimensions in
// terms of the shape. model_open() refuses a file with a tensor that the row does not name, because the forward pass would not use
// its weights.
#ifndef FD_MODEL_ARCH_H
#define FD_MODEL_ARCH_H

#include "common/model/model.h"

enum arch_presence { ARCH_REQUIRED, ARCH_OPTIONAL };

// A dimension in terms of the shape.
enum arch_dim { DIM_ONE, DIM_HIDDEN, DIM_Q, DIM_KV, DIM_FFN, DIM_VOCAB, DIM_ROPE_HALF };

struct arch_tensor {
    const char *pattern; // "%u" stands for the layer's number
    size_t offset;       // offset of the tensor_view in struct model, or in struct model_layer
    enum arch_presence presence;
    enum arch_dim rows, columns;
};

// A key that, if the file has it, must have this value.
struct arch_neutral {
    const char *suffix; // after "<name>."
    uint32_t value;     // integers and bools
    const char *reason; // "mixture-of-experts models are not supported"
};

struct arch {
    const char *name; // general.architecture, and the prefix of its keys
    enum model_norm norm;
    enum rope_style rope_style;
    enum model_activation activation;
    bool tied_allowed; // output.weight may be missing; the embedding is used instead
    const char *epsilon_suffix;
    const struct arch_neutral *neutral;      // ends with suffix NULL
    const struct arch_tensor *model_tensors; // end with pattern NULL
    const struct arch_tensor *layer_tensors;
};

// Returns NULL if there is no such row.
const struct arch *arch_find(struct gguf_string name);

// Writes the names of all rows ("llama, ...") for messages, cut to fit.
void arch_names(char *out, size_t bytes);

#endif
