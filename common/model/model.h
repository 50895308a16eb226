// model.h: a model as tables, read from GGUF files or what looks like one: its shape, its tensors, and what its tokenizer needs.
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
#include "common/model/gguf/gguf.h"
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
    MODEL_MAX_EXPERTS = 1024,
    MODEL_MAX_EXPERT_ROWS = 1 << 26, // of the matrices of all experts of a layer
};

#define MODEL_NO_TOKEN UINT32_MAX

// RMS: x / sqrt(mean of squares). LAYER: (x - mean) / standard deviation. Then times the weight, and plus a bias if there is one.
enum model_norm { NORM_RMS, NORM_LAYER };

// The step of the MLP between its matrices. All but RELU and GELU_PLAIN multiply by up(x): down(silu(gate(x)) * up(x)).
// GPT_OSS: g = min(gate(x), 7), u = clamp(up(x), -7, 7): down(g * sigmoid(1.702 g) * (u + 1)).
enum model_activation {
    ACTIVATION_SILU,
    ACTIVATION_GELU /* by tanh */,
    ACTIVATION_GELU_PLAIN,
    ACTIVATION_RELU,
    ACTIVATION_GPT_OSS
};

// Angles of RoPE in some layers (norm_rope.h).
struct model_rope {
    float base;
    float freq_scale;          // 1, or 1 / factor of linear scaling
    float magnitude;           // of cosines and sines: 1 unless frequencies are scaled
    const float *factors;      // [rope_dim / 2] divisors of the frequencies, or NULL
    const float *factors_long; // the same for contexts beyond long_context, or NULL
    uint32_t long_context;
};
enum { MODEL_ROPE_WHOLE, MODEL_ROPE_WINDOWED, MODEL_ROPES }; // of layers that see the whole context; of those meant to see a window

// A matrix of the file, or a vector (1 row). For an optional tensor that the file lacks, all fields are zero.
struct tensor_view {
    const void *data; // [rows][columns] of type, rows contiguous
    enum tensor_type type;
    uint32_t rows;    // outputs
    uint32_t columns; // inputs; a multiple of the type's block_values
    uint64_t bytes;
    const char *name; // in the map, not terminated
    uint32_t name_length;
    // A matrix that the file has as several, one below the other, of equally many rows: where each of them lies. `data` is the first. NULL: it is
    // in one piece.
    const void *const *pieces;
    uint32_t piece_count;
    const struct stored_rows *stored; // how to read the rows, where they do not lie at `data` as said above; NULL: they do
};

struct model_shape {
    uint32_t layers;
    uint32_t hidden;
    uint32_t heads;
    uint32_t kv_heads;          // divides heads
    uint32_t head_dim;          // even; heads * head_dim need not be hidden
    uint32_t ffn;               // of an expert, if there are experts
    uint32_t vocab;             // rows of the embedding = tokens of the tokenizer
    uint32_t context_length;    // context length that the model was trained for
    uint32_t rope_dim;          // even, at most head_dim; the rest of a head is not rotated
    uint32_t window;            // of windowed layers: how many positions a row attends to, its own included; 0: there are none
    uint32_t experts;           // 0: each layer has one MLP
    uint32_t experts_used;      // by each row: those with the largest router scores, weighted by the softmax of these
    bool router_softmax_all;    // the softmax is of all scores instead, so that the weights of a row's experts sum to less than 1
    bool norm_plus_one;         // 1 is to be added to the weights of norms
    uint32_t positions_before;  // learned positions: position p is row p + positions_before
    enum rope_style rope_style; // ROPE_NONE: learned positions are added to the embedding
    enum model_norm norm;
    enum model_activation activation;
    float norm_epsilon;
    float embedding_scale;    // times a row of the embedding
    float residual_scale;     // times what attention and MLP add to x
    float attention_scale;    // times q·k: 1 / sqrt(head_dim) unless the file says otherwise
    float attention_soft_cap; // a score s becomes cap * tanh(s / cap); 0: it stays
    float logit_scale;        // times the logits, then
    float logit_soft_cap;     // as for scores
    struct model_rope rope[MODEL_ROPES];
};

// Optional parts have zeros. A bias is [1][outputs], or [experts][outputs of one].
struct model_layer {
    bool windowed;                                // it attends to shape.window positions
    bool roped;                                   // q and k are rotated, by shape.rope[rope]
    uint8_t rope;                                 // MODEL_ROPE_WHOLE or MODEL_ROPE_WINDOWED
    struct tensor_view attn_norm, attn_norm_bias; // [1][hidden]
    struct tensor_view q;                         // [heads * head_dim][hidden]
    struct tensor_view k, v;                      // [kv_heads * head_dim][hidden]
    struct tensor_view o;                         // [hidden][heads * head_dim]
    struct tensor_view q_bias, k_bias, v_bias, o_bias;
    struct tensor_view q_norm, k_norm;                // [1][head_dim], or [1][outputs]: before RoPE
    struct tensor_view sinks;                         // [1][heads]: scores without a value that take part in the softmax;
    const float *sink_scores;                         // the same in f32, or NULL
    struct tensor_view post_attn_norm, post_ffn_norm; // [1][hidden]: of what is added to x
    struct tensor_view ffn_norm, ffn_norm_bias;       // [1][hidden]
    struct tensor_view router, router_bias;           // [experts][hidden]
    struct tensor_view gate, up; // [ffn][hidden]; of all experts, one below the other. Without gates: only `gate`
    struct tensor_view down;     // [hidden][ffn]; likewise
    struct tensor_view gate_bias, up_bias, down_bias;
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
    struct gguf_array token_flags; // [vocab] integers, or none: how tokens are looked for (fastdecode.token_flags)
    bool prefix_at_start_only, prefix_unless_space, spaces_last; // as in struct tokenizer_spec
};

// The result that is made of a prompt's hidden states; the numbers are those of GGUF's pooling_type. See pooling.h.
enum model_pool { MODEL_POOL_NONE, MODEL_POOL_MEAN, MODEL_POOL_CLS, MODEL_POOL_LAST, MODEL_POOL_RANK };

enum { MODEL_OUTPUTS_MAX = 2 }; // of a classification head

struct model_pooling {
    enum model_pool kind;
    bool normalize;               // vectors are scaled to length 1
    uint32_t outputs;             // of the head that ranks: 1 or 2; 0: there is no head
    uint32_t yes;                 // which of 2 outputs is that of "yes"
    bool named_reranker;          // the file is one by its name, or has a prompt to rank with
    uint32_t yes_token, no_token; // whose rows of the output projection are the head; MODEL_NO_TOKEN: it has rows of its own
};

struct arch; // arch.h

struct model {
    const struct arch *arch;
    struct model_shape shape;
    struct tensor_view embedding;                       // [vocab][hidden]
    struct tensor_view output;                          // [vocab][hidden]; equal to embedding if tied
    struct tensor_view output_norm, output_norm_bias;   // [1][hidden]
    struct tensor_view positions;                       // [context_length + positions_before][hidden], if learned
    struct tensor_view rope_factors, rope_factors_long; // [1][rope_dim / 2] F32, or none; shape.rope points into them
    float *rope_made;                                   // the same, where they were computed
    const void **pieces_made;                           // what views' pieces point to
    float *sinks_made;                                  // [layers][heads] what sink_scores point to
    struct tensor_view cls, cls_bias;                   // [hidden][hidden], [1][hidden] of a classification head; or none
    struct tensor_view cls_output, cls_output_bias;     // [outputs][hidden], [1][outputs]; or none
    struct model_pooling pooling;
    bool tied;
    struct model_layer *layers; // [shape.layers]
    struct model_tokenizer tokenizer;
    struct gguf_string name; // general.name, or model_stem() of the file if it has none
    const char *arch_name;   // "llama"
    uint64_t parameters;     // number of values in all tensors
    uint64_t fingerprint;    // hash of the whole header and of 4 KiB at both ends and in the middle of every tensor. It names the
                             // file in the handshake, which detects mix-ups but not forgery
    struct gguf *gguf;
};

// Returns what an architecture is made of, in words.
struct arch_description {
    const char *name, *families;
    char norms[48], positions[48], mlp[48], attention[48];
};
// Describes the architecture number `index`. False: there are not so many.
bool arch_describe(uint32_t index, struct arch_description *out);

// Returns how many tables of angles there are: 0 without RoPE, 2 if MODEL_ROPE_WINDOWED differs from MODEL_ROPE_WHOLE.
uint32_t model_rope_tables(const struct model_shape *shape);
// Returns how to build the table of RoPE of MODEL_ROPE_WHOLE or MODEL_ROPE_WINDOWED for sequences of up to context_tokens.
struct rope_params model_rope_params(const struct model_shape *shape, uint32_t which, uint32_t context_tokens);

// Opens what --model names as one set of keys and tensors: a GGUF file, the first of its parts, or a directory of Hugging Face files
// (hf.h). As gguf_open().
MUST_CHECK enum status model_file_open(const char *path, struct gguf **out, struct error *error);

// Maps and checks what model_file_open() takes, and fills *out, which the caller closes. Blocks on the disk (the header and a few pages per tensor). On
// failure nothing is left behind, and *error has one line "FILE: what, where: why". Statuses as for gguf_open().
MUST_CHECK enum status model_open(const char *path, struct model **out, struct error *error);

// The same for bytes in memory, which the caller keeps (tests, fuzzing).
MUST_CHECK enum status model_open_memory(const char *name, const void *bytes, uint64_t byte_count, struct model **out,
                                         struct error *error);

// Unmaps and frees the model. NULL is allowed.
void model_close(struct model *model);

// Returns whether a class of config.json is of an architecture that model_open() reads.
bool model_knows_class(const char *class_name);

// Returns the part of a path that names the model: "models/Tiny.Q4_1.gguf" and "models/Tiny.Q4_1/" give "Tiny.Q4_1", and so does the first of
// several parts. It points into path; *length of it.
const char *model_stem(const char *path, size_t *length);

// Returns rows [row, row + count) of a view that is in one piece as blocks of its type: where they lie or, of stored ones, in `buffer`, which has
// room for them (bytes / rows of each). NULL: a scale is not a number. Any thread.
const void *model_view_rows(const struct tensor_view *view, uint32_t row, uint32_t count, void *buffer);

// These remove the map's pages of one tensor or of the whole file from this process' memory, after weights have been copied
// elsewhere. Pages that are read again are mapped again.
void model_release_tensor(const struct model *model, const struct tensor_view *view);
void model_release_file(const struct model *model);

#endif
