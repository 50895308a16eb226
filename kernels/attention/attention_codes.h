/* attention_codes.h: q beside K in codes, as load_q of the fast levels leaves it and attention_codes_lanes.h reads it.
 *
 * Each group of q has codes and a scale of its own, like a group of K, and lies in words of four values that meet a word
 * of four codes of K: as two words of 16 bits, values (0, 2) and (1, 3), and as one of 8 bits. Codes have 16 bits beside
 * int8. Beside the types with 4 bits they have 8, which is half the products: mean KL on the default model stays 7.9e-3
 * where V in 4 bits has taken it already (beside int8 it would rise from 5.4e-4 to 8.2e-4).
 */
#ifndef FD_KERNELS_ATTENTION_ATTENTION_CODES_H
#define FD_KERNELS_ATTENTION_ATTENTION_CODES_H

#include <stdbool.h>

#include "kernels/attention/attention.h"

/* Views into one line's [head_dim] f32. */
struct coded_q {
    int16_t *pairs;  /* [head_dim / 4][4] values 0, 2, 1, 3 of each word */
    int8_t *bytes;   /* [head_dim], for 8 bits */
    float *scales;   /* [groups] */
    int32_t *starts; /* [groups] -128 * sum of the codes: K's codes of 8 bits are stored with 128 added */
    float *sums;     /* [groups] sum of the codes * scale: what K's minimum is multiplied with */
};

_Static_assert(3 * 1 <= 16 / 4, "what a group has besides codes fits where head_dim is 16, and so for any");

static inline struct coded_q coded_q_at(float *q, uint32_t head_dim)
{
    float *tail = q + head_dim / 4 * 3;
    uint32_t groups = attend_groups(head_dim);
    return (struct coded_q){.pairs = (int16_t *)q,
                            .bytes = (int8_t *)(q + head_dim / 2),
                            .scales = tail,
                            .starts = (int32_t *)(tail + groups),
                            .sums = tail + 2 * groups};
}

static inline bool attend_q_is_narrow(enum attend_type type) { return type != ATTEND_INT8; }

/* The largest code. */
static inline float attend_q_most(enum attend_type type) { return attend_q_is_narrow(type) ? 127.0f : 32767.0f; }

#endif
