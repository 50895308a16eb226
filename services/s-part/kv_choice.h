// kv_choice.h: what `--kv-type auto` means: int8 where it costs this model little, else f16.
//
// A built-in text goes through the loaded model three times: with KV in f16, in f32 and in int8. In int8 compute any small change flips some
// roundings of activations, so that even f32 lies apart from f16: that distance is the floor. The cost of int8 is its own mean KL divergence
// from f16 less the floor, which comes out as `fastdecode eval` has it without such roundings (SmolLM2-135M: 0.0013 - 0.00066 = 6.4e-4,
// beside 5.7e-4).
//
// Nothing is timed, and how much text is used follows from the model alone, so the same file gives the same choice at each start and on
// every machine of a numeric class, with any number of threads.
#ifndef FD_SERVICES_S_PART_KV_CHOICE_H
#define FD_SERVICES_S_PART_KV_CHOICE_H

#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "kernels/kv/kv_store.h"

#define KV_CHOICE_KL_MOST 1e-3

enum {
    KV_CHOICE_TOKENS_LEAST = 32,
    KV_CHOICE_TOKENS_MOST = 256,
    KV_CHOICE_LOGITS_BYTES = 32 << 20, // of f16's logits, for all positions that are compared
};

struct kv_choice_config {
    const struct backend_ops *ops; // of a CPU, whose backend has all layers in memory, and room for kv_choice_tokens() of context
    struct backend *backend;
    const struct model *model;
    struct thread_pool *pool;
    uint32_t step_rows; // the backend's max_rows
};

struct kv_choice {
    enum kv_type type;
    uint32_t positions; // that were compared
    double kl, floor;   // mean KL divergence from f16: of int8, of f32
};

// Returns the type that these figures mean. A figure that is not finite means f16.
enum kv_type kv_choice_of(double kl, double floor);

// Returns how many tokens of the text the model reads, at most.
uint32_t kv_choice_tokens(const struct model *model);

// Returns the most memory that kv_choice_make() takes for a while.
uint64_t kv_choice_bytes(const struct model *model);

// Blocks for about a second. Call it before anything else runs on the backend and the pool. Failures: what the tokenizer or memory is short of.
enum status kv_choice_make(const struct kv_choice_config *config, struct kv_choice *out, struct error *error) MUST_CHECK;

#endif
