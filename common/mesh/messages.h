// messages.h: messages of the mesh to and from the structs that the services work with.
#ifndef FD_MESH_MESSAGES_H
#define FD_MESH_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cluster.pb-c.h"
#include "common/kv/kv_shape.h"
#include "common/sampler/sampler.h"
#include "generate.pb-c.h"

// --- what a Sampling asks for, and what a service can do (SamplingFeature), as a mask with bit 1 << feature ---
//
// A service of an older release skips fields that it does not know, and would draw other tokens. Therefore s-parts announce their features
// when they register, the scheduler what all of them and itself have, and a gateway refuses a request that needs more.

enum {
    FEATURES_MAX = 4,
    FEATURES_BANS = 1 << FASTDECODE__SAMPLING_FEATURE__SAMPLING_FEATURE_BANS,
    FEATURES_GRAMMAR = 1 << FASTDECODE__SAMPLING_FEATURE__SAMPLING_FEATURE_GRAMMAR,
    FEATURES_POOLING = 1 << FASTDECODE__SAMPLING_FEATURE__SAMPLING_FEATURE_POOLING,
    FEATURES_OURS = FEATURES_BANS | FEATURES_GRAMMAR | FEATURES_POOLING,
};

// Returns the features that a request needs.
uint32_t features_of(const Fastdecode__Sampling *sampling);
// Returns a list as a mask, and fills in a mask's list ([FEATURES_MAX]; returns its length). Features that are not known here are left out.
uint32_t features_read(const Fastdecode__SamplingFeature *list, size_t count);
size_t features_list(uint32_t mask, Fastdecode__SamplingFeature *list);
// Returns a field of the API that needs one of the features in the mask, for messages.
const char *features_name(uint32_t mask);

// --- K and V: KvShape, KvCosts, HeldSequence ---

// Sequences that a member may say it holds, in one registration or answer.
enum { MESSAGES_HELD_MAX = 1 << 16 };

// max_sequences is not said. *out borrows the shape.
void messages_from_kv_shape(const struct kv_shape *shape, Fastdecode__KvShape *out);
// Returns what the message says, unchecked: kv_page_bytes() of it is 0 where it cannot be.
struct kv_shape messages_to_kv_shape(const Fastdecode__KvShape *message, uint32_t max_sequences);
// Pages of the one serve the other.
bool messages_same_kv_shape(const Fastdecode__KvShape *a, const Fastdecode__KvShape *b);

void messages_from_kv_costs(const struct kv_costs *costs, Fastdecode__KvCosts *out);
// False: there is no message, or a time in it cannot be; *out is zeroed then.
bool messages_to_kv_costs(const Fastdecode__KvCosts *message, struct kv_costs *out);

// A list of HeldSequence. `pointers` is what a message with the field `held` takes.
struct messages_held {
    Fastdecode__HeldSequence **pointers, *items; // [count]
    size_t count;
};

// For as many sequences, at most MESSAGES_HELD_MAX: the others are left out. RESOURCE_EXHAUSTED: no memory; nothing to close.
enum status messages_held_open(size_t count, struct messages_held *out) MUST_CHECK;
void messages_held_set(struct messages_held *held, size_t index, const struct kv_held *what);
void messages_held_close(struct messages_held *held);

// --- the Sampling message (proto/generate.proto) as the sampler's parameters, checked ---
//
// The scheduler checks with it what gateways send, so that a bad request never gets into a step; the s-part opens samplers with it. Zero,
// the default on the wire, means "off" for top_p and repetition_penalty too. Lists of tokens are borrowed from the message.

// sampling may be NULL (an error). bias: [SAMPLER_BIAS_MAX], the caller's; out points to it. INVALID_ARGUMENT names the
// parameter.
enum status sampling_parse(const Fastdecode__Sampling *sampling, uint32_t vocab, struct sampler_bias *bias,
                           struct sampler_params *out, struct error *error) MUST_CHECK;

// Returns whether what is drawn depends on no token that was generated before, as for sampler_is_pure().
bool sampling_is_pure(const Fastdecode__Sampling *sampling);

#endif
