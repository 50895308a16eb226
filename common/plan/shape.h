// shape.h: what a model's layer costs in bytes, operations and KV, by the model's name or from a GGUF file.
//
//     values of a layer   hidden·(heads + 2·kv_heads)·head_dim + heads·head_dim·hidden + matrices·hidden·ffn
//     operations a row    2 a value (multiply, add)
//     KV a token, layer   kv_heads tiles of attention.h ÷ 16 tokens: f16 2·2·kv_heads·head_dim bytes
//     link a row, layer   q, k, v out and o back, in f32 as proto/attend.proto has them: 4·(2·heads + 2·kv_heads)·head_dim
//
// Worked number, llama-7b: 4·4096² + 3·4096·11008 = 202.4 M values a layer, 404.8 MB in f16; 16 KiB of KV a token and layer,
// 512 KiB in all; 64 KiB a row over the link.
//
// Sources: llama-7b, -13b: arXiv 2302.13971, table 2; llama-70b: arXiv 2307.09288; opt: arXiv 2205.01068, table 1.
//
// Plain values, on any thread. shape_read() blocks on the disk.
#ifndef FD_PLAN_SHAPE_H
#define FD_PLAN_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/kv/kv_type.h"

#define SHAPE_NAMES "llama-7b, llama-13b, llama-70b, opt-6.7b, opt-13b, opt-30b, opt-66b, opt-175b"

struct plan_shape {
    char name[64];
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    uint64_t layer_values, layer_bytes;   // weights of one layer (a file's mean), as stored
    uint64_t expert_values, expert_bytes; // of these, the experts'
    uint32_t experts, experts_used;       // in a layer; by a row. 0: none
    uint32_t window, windowed_layers;     // layers in which a row reads at most `window` tokens of its context
    uint64_t head_values, head_bytes;     // the output matrix
    uint64_t embedding_bytes;             // 0 if tied to the output matrix
    bool quantized;                       // most bytes are of a quantized type
};

// Looks up one of SHAPE_NAMES, with weights of `type`, a name of tensor_type.h in any case: "f16", "q4_0". *error says what is accepted.
enum status shape_named(const char *name, const char *type, struct plan_shape *out, struct error *error) MUST_CHECK;

// Reads a GGUF file. Statuses as for model_open().
enum status shape_read(const char *path, struct plan_shape *out, struct error *error) MUST_CHECK;

// Returns the bytes of K and V of one token in one layer.
double shape_kv_bytes(const struct plan_shape *shape, enum kv_type type);

// Returns the most pages of `page_tokens` that a sequence of up to `context_tokens` has, where all layers are windowed (kv_ring_pages());
// 0: it keeps all.
uint32_t shape_ring_pages(const struct plan_shape *shape, uint32_t page_tokens, uint32_t context_tokens);

// Returns the bytes of one row of one layer between S-part and worker, both ways.
double shape_link_bytes(const struct plan_shape *shape);

#endif
