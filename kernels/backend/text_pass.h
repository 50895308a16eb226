// text_pass.h: one sequence that passes through an open backend, with its KV in a store of its own beside the backend: to see what a KV
// type does to the logits.
//
//     backend ─ segment ─▶ q, k, v ─▶ store ─▶ o ─▶ segment … ─▶ logits
//
// The thread that has opened the backend calls everything. All entries block.
#ifndef FD_KERNELS_BACKEND_TEXT_PASS_H
#define FD_KERNELS_BACKEND_TEXT_PASS_H

#include "common/kv/kv_type.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"

enum { TEXT_PASS_ROWS = 512, TEXT_PASS_PAGE_TOKENS = 16 };

struct text_pass_config {
    const struct backend_ops *ops; // a backend with all layers, whose entries are synchronous (a CPU)
    struct backend *backend;       // borrowed; a batch of it is opened, or
    struct backend_batch *batch;   // this one is borrowed instead
    const struct model *model;
    struct thread_pool *pool;
    enum kv_type kv_type;
    uint32_t sparse_percent; // of every row; 0: dense
    uint32_t context_tokens; // the longest text
    uint32_t step_rows;      // at most TEXT_PASS_ROWS and the backend's max_rows
};

struct text_pass;

// Returns the bytes of pages, and in *other those of tables and activations.
uint64_t text_pass_bytes(const struct text_pass_config *config, uint64_t *other);

// *out is the caller's. A failure leaves nothing behind. RESOURCE_EXHAUSTED: memory; INVALID_ARGUMENT: the store cannot have this shape.
enum status text_pass_open(const struct text_pass_config *config, struct text_pass **out, struct error *error) MUST_CHECK;
void text_pass_close(struct text_pass *pass); // NULL is allowed

// Runs the text's next `count` tokens through all layers; count is at most step_rows.
enum status text_pass_step(struct text_pass *pass, const uint32_t *tokens, uint32_t count, struct error *error) MUST_CHECK;

// Computes the logits of some rows of the step before: rows[i] counts from the step's first row. out: [count][vocab] f32; count is at
// most the step's.
void text_pass_logits(struct text_pass *pass, const uint32_t *rows, uint32_t count, float *out);

// Forgets the text: the next step begins another one.
void text_pass_begin(struct text_pass *pass);

#endif
