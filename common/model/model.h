// model.h: a model as tables, read from GGUF files or what gguf_open() makes look like one: its shape, its tensors, and what its tokenizer needs.
//
// An architecture is a row of a table (arch.c) with its tensors and their shapes, the style of RoPE, the activation, and the
// metadata that must have a neutral value. model_open() checks a file against its row. Afterwards the forward pass reads only
// `struct model_shape` and the tensor views, and knows no model by name.
//
//     GGUF file ──▶ gguf (container) ──▶ arch row (names, dims) ──▶ model_shape + model_layer[] of views into the map
//
// A view borrows the map: it is valid until model_close(). The file must not shrink meanwhile (see gguf.h).
//
// In a `llama` file, GGUF stores the rows of Q and K so that two numbers that RoPE rotates together are neighbours (rope_style
// ROPE_PAIRS). Nothing is permuted here.
//
// Threads: after model_open() everything but model_close() is read-only, from any thread.
#ifndef FD_MODEL_MODEL_H
#define FD_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/gguf.h"
#include "kernels/norm_rope/norm_rope.h"
#include "kernels/quant/tensor_type.h"

enum {
    MODEL_MAX_LAYERS = 1024,
    MODEL_MAX_HEADS = 1024,
    MODEL_MAX_HEAD_DIM = 512,
    MODEL_MAX_HIDDEN = 1 << 17,
    MODEL_MAX_FFN = 1 << 20,
    MODEL_MAX_VOCAB = 1 << 21,
    MODEL_MAX_CONTEXT = 1 << 24,
};

#define MODEL_NO_TOKEN UINT32_MAX

enum model_norm { NORM_RMS };
enum model_activation { ACTIVATION_SILU_GATED }; // down(silu(gate(x)) * up(x))

// A matrix of the file, or a vector (1 row). For an optional tensor that the file lacks, all fields are zero.
struct tensor_view {
    const void *data; // [rows][columns] of type, rows contiguous
    enum tensor_type type;
    uint32_t rows;    // outputs
    uint32_t columns; // inputs; a multiple of the type's block_values
    uint64_t bytes;
    const char *name; // in the map, not terminated
    uint32_t name_length;
};

struct model_shape {
    uint32_t layers;
    uint32_t hidden;
    uint32_t heads;
    uint32_t kv_heads; // divides heads
    uint32_t head_dim; // even; heads * head_dim need not be hidden
    uint32_t ffn;
    uint32_t vocab;          // rows of the embedding = tokens of the tokenizer
    uint32_t context_length; // context length that the model was trained for
    uint32_t rope_dim;       // even, at most head_dim; the rest of a head is not rotated
    enum rope_style rope_style;
    enum model_norm norm;
    enum model_activation activation;
    float norm_epsilon;
    float rope_base;
    float rope_freq_scale;     // 1, or 1 / factor of linear scaling
    const float *rope_factors; // [rope_dim / 2] f32 divisors of the frequencies in the map, or NULL
};

struct model_layer {
    struct tensor_view attn_norm;                      // [1][hidden]
    struct tensor_view q;                              // [heads * head_dim][hidden]
    struct tensor_view k, v;                           // [kv_heads * head_dim][hidden]
    struct tensor_view o;                              // [hidden][heads * head_dim]
    struct tensor_view q_bias, k_bias, v_bias, o_bias; // [1][outputs], or none
    struct tensor_view ffn_norm;                       // [1][hidden]
    struct tensor_view gate, up;                       // [ffn][hidden]
    struct tensor_view down;                           // [hidden][ffn]
};

// The input of common/tokenizer: strings and arrays in the map. Absent strings have length 0, absent arrays have count 0.
struct model_tokenizer {
    struct gguf_string kind; // "gpt2": byte-level BPE; "llama": SentencePiece-style; not checked here
    struct gguf_string pre;  // pre-tokenizer, e.g. "smollm"
    struct gguf_string chat_template;
    struct gguf_array tokens;      // [vocab] strings
    struct gguf_array token_types; // [vocab] integers, or none: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
    struct gguf_array scores;      // [vocab] floats, or none
    struct gguf_array merges;      // strings "left right", or none
    struct gguf_array end_tokens;  // integers, or none: all ids that end an answer (fastdecode.end_token_ids)
    uint32_t bos, eos, eot, eom, unknown, padding; // < vocab, or MODEL_NO_TOKEN
    bool add_bos, add_eos, add_space_prefix;
    bool add_bos_known, add_eos_known, add_space_prefix_known; // false: the file does not say, and the kind's default holds
    bool prefix_at_start_only, prefix_unless_space;            // as in struct tokenizer_spec
};

struct arch; // arch.h

struct model {
    const struct arch *arch;
    struct model_shape shape;
    struct tensor_view embedding;    // [vocab][hidden]
    struct tensor_view output;       // [vocab][hidden]; equal to embedding if tied
    struct tensor_view output_norm;  // [1][hidden]
    struct tensor_view rope_factors; // [1][rope_dim / 2] F32, or none; shape.rope_factors points into it
    bool tied;
    struct model_layer *layers; // [shape.layers]
    struct model_tokenizer tokenizer;
    struct gguf_string name; // general.name; length 0 if the file has none
    const char *arch_name;   // "llama"
    uint64_t parameters;     // number of values in all tensors
    uint64_t fingerprint;    // hash of the whole header and of 4 KiB at both ends and in the middle of every tensor. It names the
                             // file in the handshake, which detects mix-ups but not forgery
    struct gguf *gguf;
};

// Maps and checks what gguf_open() takes, and fills *out, which the caller closes. Blocks on the disk (the header and a few pages per tensor). On
// failure nothing is left behind, and *error has one line "FILE: what, where: why". Statuses as for gguf_open().
MUST_CHECK enum status model_open(const char *path, struct model **out, struct error *error);

// The same for bytes in memory, which the caller keeps (tests, fuzzing).
MUST_CHECK enum status model_open_memory(const char *name, const void *bytes, uint64_t byte_count, struct model **out,
                                         struct error *error);

// Unmaps and frees the model. NULL is allowed.
void model_close(struct model *model);

// The part of a path that names the model: "models/Tiny.Q4_1.gguf" and "models/Tiny.Q4_1/" give "Tiny.Q4_1", and so does the first of
// several parts. It points into path; *length of it.
const char *model_stem(const char *path, size_t *length);

// These remove the map's pages of one tensor or of the whole file from this process' memory, after weights have been copied
// elsewhere. Pages that are read again are mapped again.
void model_release_tensor(const struct model *model, const struct tensor_view *view);
void model_release_file(const struct model *model);

#endif
