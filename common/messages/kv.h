// kv.h: messages about K and V (KvShape, KvCosts, HeldSequence) to and from the structs that the services work with: one function each way.
#ifndef FD_MESSAGES_KV_H
#define FD_MESSAGES_KV_H

#include <stdbool.h>

#include "cluster.pb-c.h"
#include "common/kv/kv_measure.h"
#include "common/kv/kv_store.h"

// Sequences that a member may say it holds, in one registration or answer.
enum { MESSAGES_HELD_MAX = 1 << 16 };

// max_sequences is not said. *out borrows the shape.
void messages_from_kv_shape(const struct kv_shape *shape, Fastdecode__KvShape *out);
// What the message says, unchecked: kv_page_bytes() of it is 0 where it cannot be.
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
void messages_held_set(struct messages_held *held, size_t index, uint64_t sequence, uint32_t positions, uint32_t certain,
                       uint32_t first);
void messages_held_close(struct messages_held *held);

#endif
