// evaluate.h: runs a model over a text twice, in this process: with KV in f32, and with KV in another type, sparse attention or weights in
// fewer bits. Compares the whole distribution at every position.
//
// There is one backend, so one copy of the weights, or one for each run if they differ. Attention runs outside of it, as for the rows of KV workers, over two stores:
//
//     backend ─ segment ─▶ q, k, v ─▶ store of f32   ─▶ o ─▶ segment …  ─▶ logits ─┐
//             ─ segment ─▶ q, k, v ─▶ store of --kv-type ─▶ o ─▶ segment …  ─▶ logits ─┴▶ divergence
//
// The text is cut into contexts of a fixed length, each read on its own. All positions but a context's last are compared.
// Memory grows with the text by 4 bytes per token and 32 per position only.
#ifndef FD_FASTDECODE_MODEL_EVALUATE_H
#define FD_FASTDECODE_MODEL_EVALUATE_H

#include "common/base/thread_pool.h"
#include "common/model/model.h"
#include "common/sampler/softmax.h"
#include "kernels/backend/backend.h"
#include "kernels/kv/kv_store.h"

struct evaluation;

struct evaluation_config {
    const struct model *model;
    struct thread_pool *pool;
    enum compute_mode compute;
    enum kv_type kv_type;
    uint32_t sparse_percent; // every row of the other run is sparse; 0: none
    uint32_t quantize_bits;  // of the other run's weights, 4 or 8; 0: those of the file
    uint32_t context_tokens; // at least 2
    uint32_t first_token;    // begins each context; MODEL_NO_TOKEN: the text begins it
};

// Checks memory (logs a MEMORY-PLAN), then loads the weights. Borrows model and pool. *out is the caller's. A failure leaves
// nothing behind and *error says why: RESOURCE_EXHAUSTED (memory), INVALID_ARGUMENT or UNIMPLEMENTED (what this model or KV type
// cannot do).
enum status evaluation_open(const struct evaluation_config *config, struct evaluation **out, struct error *error) MUST_CHECK;
void evaluation_close(struct evaluation *evaluation); // NULL is allowed

// The numeric class of its products, e.g. "int8/vnni".
const char *evaluation_level(const struct evaluation *evaluation);

// How many of `count` tokens the next context takes, the first token not counted.
uint32_t evaluation_context_tokens(const struct evaluation *evaluation, uint32_t count);

// Runs one context of at most that many tokens. out: [count] gets one entry for each position that a token follows; *out_count
// says how many: count - 1, or count with a first token. Blocks.
enum status evaluation_run(struct evaluation *evaluation, const uint32_t *tokens, uint32_t count, struct divergence *out,
                           uint32_t *out_count, struct error *error) MUST_CHECK;

#endif
