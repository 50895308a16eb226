// attention_codes.h: how load_q of the fast levels stores q if K is stored as codes, for attention_codes_lanes.h.
//
// Each group of q has its own codes and scale, like a group of K. Four values of q are multiplied with a word of four codes of K,
// so they are stored once as two words of 16 bits, values (0, 2) and (1, 3), and once as one word of 8 bits each. With an int8 KV
// type q has 16 bits. With the 4-bit types it has 8, which halves the products: mean KL on the default model stays at 7.9e-3,
// because V in 4 bits costs more (with int8 it would rise from 5.4e-4 to 8.2e-4).
#ifndef FD_KERNELS_ATTENTION_ATTENTION_CODES_H
#define FD_KERNELS_ATTENTION_ATTENTION_CODES_H

#include <stdbool.h>

#include "kernels/attention/attention.h"

// Views into one line's [head_dim] f32.
struct coded_q {
    int16_t *pairs;  // [head_dim / 4][4] values 0, 2, 1, 3 of each word
    int8_t *bytes;   // [head_dim], for 8 bits
    float *scales;   // [groups]
    int32_t *starts; // [groups] -128 * sum of the codes, because K's 8-bit codes are stored with 128 added
    float *sums;     // [groups] sum of the codes * scale, the factor of K's minimum
};

_Static_assert(3 * 1 <= 16 / 4, "scale, start and sum fit behind the codes of a head_dim of 16, and so of any");

static inline struct coded_q coded_q_at(float *q, uint32_t head_dim)
{
    float *tail = q + head_dim / 4 * 3;
    uint32_t groups = kv_groups(head_dim);
    return (struct coded_q){.pairs = (int16_t *)q,
                            .bytes = (int8_t *)(q + head_dim / 2),
                            .scales = tail,
                            .starts = (int32_t *)(tail + groups),
                            .sums = tail + 2 * groups};
}

static inline bool attend_q_is_narrow(enum kv_type type) { return type != KV_INT8; }

// The largest code.
static inline float attend_q_most(enum kv_type type) { return attend_q_is_narrow(type) ? 127.0f : 32767.0f; }

#endif
