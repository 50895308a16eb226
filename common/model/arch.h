// arch.h: the differences between architectures, as data. A new architecture made of known pieces needs only a row in arch.c. The
// loader, the backends and messages follow the row, and a backend's plan refuses a piece that it cannot compute. Private to
// common/model.
//
// A row lists metadata that must have a neutral value (keys of unsupported features that would change the answer, such as parallel
// residuals), and tensors: the pattern of the name, where its view is stored, whether it is required, and its two dimensions in
// terms of the shape. model_open() refuses a file with a tensor that the row does not name, because the forward pass would not use
// its weights. Numbers that GGUF names alike for all architectures (scales, soft caps, the window) are no part of a row.
#ifndef FD_MODEL_ARCH_H
#define FD_MODEL_ARCH_H

#include "common/model/model.h"

// ARCH_PART: the rows of this tensor that follow those of the entry before, which has the same name: a fused tensor.
enum arch_presence { ARCH_REQUIRED, ARCH_OPTIONAL, ARCH_PART };

// A dimension in terms of the shape.
enum arch_dim {
    DIM_ONE,
    DIM_HIDDEN,
    DIM_Q,
    DIM_KV,
    DIM_HEAD, // values of a head
    DIM_HEADS,
    DIM_FFN,
    DIM_VOCAB,
    DIM_ROPE_HALF,
    DIM_POSITIONS, // of learned positions: the context and what lies before position 0
    DIM_EXPERTS,
    DIM_EXPERT_FFN,  // values of one expert
    DIM_EXPERTS_FFN, // rows of the matrices of all experts, one below the other
    DIM_EXPERTS_HIDDEN,
};

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
    const char *reason; // "parallel residuals are not supported"
};

struct arch {
    const char *name;     // general.architecture, and the prefix of its keys
    const char *families; // models that have it, for people
    enum model_norm norm;
    enum rope_style rope_style;
    enum model_activation activation;
    bool tied_allowed;          // output.weight may be missing; the embedding is used instead
    bool embedding_sqrt_hidden; // rows of the embedding are multiplied by the square root of the hidden size
    bool logits_divided;        // <name>.logit_scale divides
    uint32_t positions_before;  // learned positions: rows before that of position 0
    uint32_t window_period;     // of so many layers the last one sees the whole context, where a file has a window; 1: all are
                                // windowed; 0: a file with a window is refused
    uint32_t rope_period;       // of so many layers the last one has no positions; 0: all have
    bool yarn_between;          // YaRN's limits are not rounded to whole frequencies
    float window_rope_base;     // RoPE's base in windowed layers; 0: as in others
    uint32_t usual_window;      // what a file means that does not say
    float usual_attention_cap, usual_logit_cap;
    uint32_t hidden_scale_layers; // a model of so many layers divides scores by the root of hidden / heads instead of a head's
                                  // dimensions, where the file does not say: converters leave it out; 0: none does
    const char *epsilon_suffix;
    const struct arch_neutral *neutral;      // ends with suffix NULL
    const struct arch_tensor *model_tensors; // end with pattern NULL
    const struct arch_tensor *layer_tensors;
    const struct arch_tensor *mlp_tensors;    // of each layer
    const struct arch_tensor *expert_tensors; // of each layer instead, if the file has experts; NULL: it must not
};

// Returns NULL if there is no such row.
const struct arch *arch_find(struct gguf_string name);

// Writes the names of all rows ("llama, ...") for messages, cut to fit.
void arch_names(char *out, size_t bytes);

#endif
