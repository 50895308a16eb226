// kv_type.h: the element types of stored K and V, and their names.
//
//     type   bytes of a value            what it is
//     f16    2                           the default where nothing is measured
//     bf16   2                           the range of f32, 8 bits of precision
//     f32    4                           the reference
//     int8   1.06                        groups of up to 32 along head_dim, each with a scale in f16
//     int4   K 1.06, V 0.63              K as int8; V in 4 bits, each group with a scale and a minimum in f16
//     int4x  0.63                        K in 4 bits too: smallest, but quality is not assured
//
// Any thread.
#ifndef FD_KV_KV_TYPE_H
#define FD_KV_KV_TYPE_H

#include "common/base/status.h"

// The numbers are those of KvType in the protocol.
enum kv_type { KV_F16 = 1, KV_F32 = 2, KV_BF16 = 3, KV_INT8 = 4, KV_INT4 = 5, KV_INT4X = 6, KV_TYPE_END };

// For help texts.
#define KV_TYPE_NAMES "f16, bf16, f32, int8, int4 or int4x"
#define KV_TYPE_HELP                                                               \
    "element type of the KV cache: auto, " KV_TYPE_NAMES                           \
    "; auto: int8 if its mean KL divergence from f16 on a built-in text is below " \
    "1e-3, else f16 (docs/models.md)"

// Returns "f16" and so on, or "unknown" for another number.
const char *kv_type_name(enum kv_type type);

// INVALID_ARGUMENT: the name is unknown; *error names the option (--kv-type).
enum status kv_type_parse(const char *name, enum kv_type *out, struct error *error) MUST_CHECK;

#endif
