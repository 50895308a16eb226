// kv_type.h: the element types of stored K and V, and how a tile of them lies in memory.
//
//     type   bytes of a value            what it is
//     f16    2                           the default where nothing is measured
//     bf16   2                           the range of f32, 8 bits of precision
//     f32    4                           the reference
//     int8   1.06                        groups of up to 32 along head_dim, each with a scale in f16
//     int4   K 1.06, V 0.63              K as int8; V in 4 bits, each group with a scale and a minimum in f16
//     int4x  0.63                        K in 4 bits too: smallest, but quality is not assured
//
// A tile holds 16 tokens in contiguous memory: first K, laid out so that each SIMD lane computes q·k of one token, then V row by row:
//
//     f16, bf16, f32   K [head_dim][16]                                      V [16][head_dim]
//     int8             K [head_dim / 4][16][4] codes + 128, [groups][16] scales
//                      V [4][head_dim][4] codes, [groups][16] scales
//     int4             K as int8
//                      V [4][groups][16][4] bytes, [groups][16] scales, [groups][16] minima
//     int4x            K [head_dim / 8][16][4] bytes, [groups][16] scales, [groups][16] minima
//                      V as int4
//
// Codes are stored in words of four, the unit of a dot product of bytes: in K four values of a token, in V one value of four tokens.
// A group is 32 values of one token along head_dim (the last one may have 16), so the stored form of a token does not depend on
// its neighbours. Scales and minima are f16. A value is code * scale with codes -127 to 127, or code * scale + minimum with
// codes 0 to 15; scales are rounded up and minima down, so that no value is out of range. 4-bit V: byte i of a group is its values
// i (low nibble) and i + 16. 4-bit K: of 8 values, byte i is values i (low nibble) and i + 4.
//
// Any thread.
#ifndef FD_KV_KV_TYPE_H
#define FD_KV_KV_TYPE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

// The numbers are those of KvType in the protocol.
enum kv_type { KV_F16 = 1, KV_F32 = 2, KV_BF16 = 3, KV_INT8 = 4, KV_INT4 = 5, KV_INT4X = 6 };
#define KV_TYPE_END 7

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

// --- tiles ---

#define KV_TILE 16u // tokens
#define KV_MAX_HEAD_DIM 256u
#define KV_GROUP_DIM 32u

static inline uint32_t kv_groups(uint32_t head_dim) { return (head_dim + KV_GROUP_DIM - 1) / KV_GROUP_DIM; }

// Return the bytes of K in a tile: its elements or codes alone, or (kv_k_bytes) with scales and minima. V begins where K ends.
static inline size_t kv_k_code_bytes(uint32_t head_dim, enum kv_type type)
{
    size_t values = (size_t)head_dim * KV_TILE;
    return type == KV_F32 ? 4 * values : type <= KV_BF16 ? 2 * values : type == KV_INT4X ? values / 2 : values;
}

static inline size_t kv_k_bytes(uint32_t head_dim, enum kv_type type)
{
    size_t scales = type <= KV_BF16 ? 0 : type == KV_INT4X ? 2 : 1;
    return kv_k_code_bytes(head_dim, type) + scales * kv_groups(head_dim) * KV_TILE * sizeof(uint16_t);
}

// Returns the bytes of one token's V: its elements or codes.
static inline size_t kv_v_row_bytes(uint32_t head_dim, enum kv_type type)
{
    return type == KV_F32    ? 4 * (size_t)head_dim
           : type <= KV_BF16 ? 2 * (size_t)head_dim
           : type == KV_INT8 ? head_dim
                             : kv_groups(head_dim) * (size_t)(KV_GROUP_DIM / 2);
}

// Returns the bytes of a tile, a whole number of cache lines.
static inline size_t kv_tile_bytes(uint32_t head_dim, enum kv_type type)
{
    size_t scales = type <= KV_BF16 ? 0 : type == KV_INT8 ? 1 : 2;
    size_t bytes = kv_k_bytes(head_dim, type) + kv_v_row_bytes(head_dim, type) * KV_TILE +
                   scales * kv_groups(head_dim) * KV_TILE * sizeof(uint16_t);
    return (bytes + 63) / 64 * 64;
}

// Returns the number of f16 values in the bounds of a tile.
static inline uint32_t kv_bounds_width(uint32_t head_dim) { return 2 * head_dim; }

#endif
