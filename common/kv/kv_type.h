// kv_type.h: the element types of stored K and V, and their names.
//
//     type   bytes of a value            what it is
//     f16    2                           the default
//     bf16   2                           the range of f32, 8 bits of precision
//     f32    4                           the reference
//     int8   1.06                        groups of up to 32 along head_dim, each with a scale in f16
//     int4   K 1.06, V 0.63              V in 4 bits, each group with a scale and a minimum in f16
//     int4x  0.63                        K in 4 bits too: smallest, and no promise of quality
//
// Any thread.
#ifndef FD_KV_KV_TYPE_H
#define FD_KV_KV_TYPE_H

#include "common/base/status.h"

// The numbers are those of KvType on the wire.
enum kv_type { KV_F16 = 1, KV_F32 = 2, KV_BF16 = 3, KV_INT8 = 4, KV_INT4 = 5, KV_INT4X = 6, KV_TYPE_END };

// For help texts.
#define KV_TYPE_NAMES "f16, bf16, f32, int8, int4 or int4x"

// "f16" and so on; "unknown" for another number.
const char *kv_type_name(enum kv_type type);

// INVALID_ARGUMENT for another name; *error then says which option (--kv-type) has it.
enum status kv_type_parse(const char *name, enum kv_type *out, struct error *error) MUST_CHECK;

#endif
