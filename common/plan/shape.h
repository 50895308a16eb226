// shape.h: what a model's layer costs in bytes, operations and KV: from a model file, or from a config.json alone, of which some are shipped
// in deploy/shapes.
//
//     values of a layer   hidden·(heads + 2·kv_heads)·head_dim + heads·head_dim·hidden + matrices·hidden·ffn
//     operations a row    2 a value (multiply, add)
//     KV a token, layer   kv_heads tiles of attention.h ÷ 16 tokens: f16 2·2·kv_heads·head_dim bytes
//     link a row, layer   q, k, v out and o back, in f32 as proto/attend.proto has them: 4·(2·heads + 2·kv_heads)·head_dim
//     pair, layer         a row of a prompt and a token of its context: 4·heads·head_dim operations (q·k, and p·v)
//
// Worked number, llama-7b: 4·4096² + 3·4096·11008 = 202.4 M values a layer, 404.8 MB in f16; 16 KiB of KV a token and layer,
// 512 KiB in all; 64 KiB a row over the link.
//
// With latent attention (DeepSeek-V2, arXiv 2405.04434) a token has one vector of kv_lora_rank + qk_rope_head_dim values in place of K and V,
// all heads read it, and their values are its first kv_lora_rank.
//
// Weights take other bits in memory than in a file, and others on a GPU than on a host (tensor_type.h).
//
// Plain values, on any thread. Reading blocks on the disk.
#ifndef FD_PLAN_SHAPE_H
#define FD_PLAN_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/kv/kv_type.h"

// Weights as a backend has them in memory.
struct plan_weights {
    uint64_t layer_bytes, expert_bytes;   // of a layer, in the mean, and of its experts alone
    uint64_t head_bytes, embedding_bytes; // of the output matrix, and of the embedding: 0 if it is tied to that
};

enum shape_memory { SHAPE_HOST, SHAPE_GPU, SHAPE_MEMORIES };

struct plan_shape {
    char name[64];
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab; // ffn: of all experts that a row uses
    uint32_t latent, latent_value;                     // values of a token's vector, and those that are its value; 0: K and V
    uint64_t layer_values, expert_values, head_values; // a layer's mean; of these, the experts'; the output matrix
    uint32_t experts, experts_used;                    // in a layer; by a row. 0: none
    uint32_t context_tokens;                           // that the model is made for; 0: not said
    uint32_t window, windowed_layers;                  // layers in which a row reads at most `window` tokens of its context
    struct plan_weights in[SHAPE_MEMORIES];
    bool quantized;         // most bytes are of a quantized type
    char unknown_class[64]; // of a config.json: its class, if this release has no such architecture; else empty
};

// Reads NAME.json of deploy/shapes, or a config.json by its path, as if its matrices were of `type`, a name of tensor_type.h in any case:
// "f16", "q4_0". NOT_FOUND lists the names; INVALID_ARGUMENT names the key.
enum status shape_named(const char *name, const char *type, struct plan_shape *out, struct error *error) MUST_CHECK;

// The same for the text of a config.json; label names it in errors. Does not set out->name.
enum status shape_of_config(const char *label, const char *text, size_t length, uint32_t type, struct plan_shape *out,
                            struct error *error) MUST_CHECK;

// Reads a model file or a directory. Statuses as for model_open().
enum status shape_read(const char *path, struct plan_shape *out, struct error *error) MUST_CHECK;

// Returns the bytes of K and V of one token in one layer.
double shape_kv_bytes(const struct plan_shape *shape, enum kv_type type);

// Returns the most pages of `page_tokens` that a sequence of up to `context_tokens` has, where all layers are windowed (kv_ring_pages());
// 0: it keeps all.
uint32_t shape_ring_pages(const struct plan_shape *shape, uint32_t page_tokens, uint32_t context_tokens);

// Returns the bytes of one row of one layer between S-part and worker, both ways.
double shape_link_bytes(const struct plan_shape *shape);

// Returns the operations of one row with one token of its context, in one layer.
double shape_pair_operations(const struct plan_shape *shape);

#endif
