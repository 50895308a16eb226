// lanes_neon.h: part of lanes.h, which says what each operation does: the lanes as four float32x4_t, a = lanes 0..3 to d = lanes 12..15.
//
// Comparisons select where AArch64's own instruction treats NaN or what does not fit in another way than x86 does. All of it is in the
// baseline, armv8-a, but for the products of bytes, which files with +dotprod and +i8mm have.
#ifndef FD_KERNELS_SIMD_LANES_NEON_H
#define FD_KERNELS_SIMD_LANES_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "kernels/simd/half.h"

typedef struct {
    float32x4_t a, b, c, d;
} lanes; // 16 f32
typedef struct {
    int32x4_t a, b, c, d;
} lanes_i;                  // 16 i32
typedef int8x16_t lanes_s8; // 16 bytes

#define LANES_MAP1(type, op, x) ((type){op((x).a), op((x).b), op((x).c), op((x).d)})
#define LANES_MAP2(type, op, x, y) ((type){op((x).a, (y).a), op((x).b, (y).b), op((x).c, (y).c), op((x).d, (y).d)})
#define LANES_MAP3(type, op, x, y, z) \
    ((type){op((x).a, (y).a, (z).a), op((x).b, (y).b, (z).b), op((x).c, (y).c, (z).c), op((x).d, (y).d, (z).d)})
// The four parts of a line that begins at p, by `load` of part 0..3.
#define LANES_PARTS(type, load, p) ((type){load(p, 0), load(p, 1), load(p, 2), load(p, 3)})

LANES_INLINE lanes lanes_set1(float x)
{
    float32x4_t four = vdupq_n_f32(x);
    return (lanes){four, four, four, four};
}
LANES_INLINE lanes_i lanes_set1_i(int32_t x)
{
    int32x4_t four = vdupq_n_s32(x);
    return (lanes_i){four, four, four, four};
}
LANES_INLINE float32x4_t lanes_load_part(const float *p, uint32_t part) { return vld1q_f32(p + 4 * part); }
LANES_INLINE lanes lanes_load(const float *p) { return LANES_PARTS(lanes, lanes_load_part, p); }
LANES_INLINE void lanes_store(float *p, lanes x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}
LANES_INLINE lanes lanes_load_tail(const float *p, uint32_t n)
{
    float padded[LANES] = {0};
    memcpy(padded, p, n * sizeof *p);
    return lanes_load(padded);
}
LANES_INLINE void lanes_store_tail(float *p, lanes x, uint32_t n)
{
    float whole[LANES];
    lanes_store(whole, x);
    memcpy(p, whole, n * sizeof *p);
}
// Ones in the part's lanes below n of 16.
LANES_INLINE uint32x4_t lanes_below(uint32_t n, uint32_t part)
{
    const uint32x4_t number = {0, 1, 2, 3};
    return vcltq_u32(vaddq_u32(number, vdupq_n_u32(4 * part)), vdupq_n_u32(n));
}
LANES_INLINE lanes lanes_fill_tail(lanes x, uint32_t n, float fill)
{
    float32x4_t value = vdupq_n_f32(fill);
    return (lanes){vbslq_f32(lanes_below(n, 0), x.a, value), vbslq_f32(lanes_below(n, 1), x.b, value),
                   vbslq_f32(lanes_below(n, 2), x.c, value), vbslq_f32(lanes_below(n, 3), x.d, value)};
}
LANES_INLINE lanes lanes_fill_head(lanes x, uint32_t n, float fill)
{
    float32x4_t value = vdupq_n_f32(fill);
    return (lanes){vbslq_f32(lanes_below(n, 0), value, x.a), vbslq_f32(lanes_below(n, 1), value, x.b),
                   vbslq_f32(lanes_below(n, 2), value, x.c), vbslq_f32(lanes_below(n, 3), value, x.d)};
}

// --- conversions -----------------------------------------------------------------------------------------------------

LANES_INLINE float32x4_t lanes_load_f16_part(const uint16_t *p, uint32_t part)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * part)));
}
LANES_INLINE lanes lanes_load_f16(const uint16_t *p) { return LANES_PARTS(lanes, lanes_load_f16_part, p); }
LANES_INLINE lanes lanes_load_f16_tail(const uint16_t *p, uint32_t n)
{
    uint16_t padded[LANES] = {0};
    memcpy(padded, p, n * sizeof *p);
    return lanes_load_f16(padded);
}
LANES_INLINE uint16x4_t lanes_to_f16_part(float32x4_t x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
LANES_INLINE void lanes_store_f16(uint16_t *p, lanes x)
{
    vst1q_u16(p, vcombine_u16(lanes_to_f16_part(x.a), lanes_to_f16_part(x.b)));
    vst1q_u16(p + 8, vcombine_u16(lanes_to_f16_part(x.c), lanes_to_f16_part(x.d)));
}
LANES_INLINE float32x4_t lanes_load_bf16_part(const uint16_t *p, uint32_t part)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * part), 16));
}
LANES_INLINE lanes lanes_load_bf16(const uint16_t *p) { return LANES_PARTS(lanes, lanes_load_bf16_part, p); }
LANES_INLINE lanes lanes_from_i(lanes_i x) { return LANES_MAP1(lanes, vcvtq_f32_s32, x); }
LANES_INLINE lanes lanes_load_s8(const int8_t *p)
{
    int8x16_t bytes = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return lanes_from_i(
        (lanes_i){vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)});
}
LANES_INLINE lanes lanes_load_u8(const uint8_t *p)
{
    uint8x16_t bytes = vld1q_u8(p);
    uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    return (lanes){vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
                   vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))};
}
// The instruction saturates and makes 0 of NaN.
LANES_INLINE int32x4_t lanes_to_i_part(float32x4_t x)
{
    return vbslq_s32(vcaltq_f32(x, vdupq_n_f32(0x1p31f)), vcvtnq_s32_f32(x), vdupq_n_s32(INT32_MIN));
}
LANES_INLINE lanes_i lanes_to_i(lanes x) { return LANES_MAP1(lanes_i, lanes_to_i_part, x); }
LANES_INLINE lanes lanes_round(lanes x) { return LANES_MAP1(lanes, vrndnq_f32, x); }
LANES_INLINE lanes lanes_as_f(lanes_i x) { return LANES_MAP1(lanes, vreinterpretq_f32_s32, x); }
LANES_INLINE lanes_i lanes_as_i(lanes x) { return LANES_MAP1(lanes_i, vreinterpretq_s32_f32, x); }

LANES_INLINE lanes_s8 lanes_to_s8(lanes_i x)
{
    int16x8_t low = vmovn_high_s32(vmovn_s32(x.a), x.b), high = vmovn_high_s32(vmovn_s32(x.c), x.d);
    return vmovn_high_s16(vmovn_s16(low), high);
}
LANES_INLINE void lanes_store_s8(int8_t *p, lanes_s8 x) { vst1q_s8(p, x); }
LANES_INLINE int32_t lanes_sum_s8(lanes_s8 x) { return vaddlvq_s8(x); }
LANES_INLINE uint16_t lanes_f16_down(float x) { return f16_down(x); }
LANES_INLINE uint16_t lanes_f16_up(float x) { return f16_up(x); }

// --- arithmetic ------------------------------------------------------------------------------------------------------

LANES_INLINE lanes lanes_add(lanes x, lanes y) { return LANES_MAP2(lanes, vaddq_f32, x, y); }
LANES_INLINE lanes lanes_sub(lanes x, lanes y) { return LANES_MAP2(lanes, vsubq_f32, x, y); }
LANES_INLINE lanes lanes_mul(lanes x, lanes y) { return LANES_MAP2(lanes, vmulq_f32, x, y); }
LANES_INLINE lanes lanes_div(lanes x, lanes y) { return LANES_MAP2(lanes, vdivq_f32, x, y); }
LANES_INLINE lanes lanes_fma(lanes x, lanes y, lanes z) { return LANES_MAP3(lanes, vfmaq_f32, z, x, y); }
LANES_INLINE lanes lanes_fnma(lanes x, lanes y, lanes z) { return LANES_MAP3(lanes, vfmsq_f32, z, x, y); }
LANES_INLINE float32x4_t lanes_max_part(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
LANES_INLINE float32x4_t lanes_min_part(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
LANES_INLINE lanes lanes_max(lanes x, lanes y) { return LANES_MAP2(lanes, lanes_max_part, x, y); }
LANES_INLINE lanes lanes_min(lanes x, lanes y) { return LANES_MAP2(lanes, lanes_min_part, x, y); }
LANES_INLINE lanes_i lanes_add_i(lanes_i x, lanes_i y) { return LANES_MAP2(lanes_i, vaddq_s32, x, y); }
LANES_INLINE lanes_i lanes_sub_i(lanes_i x, lanes_i y) { return LANES_MAP2(lanes_i, vsubq_s32, x, y); }
LANES_INLINE lanes_i lanes_and_i(lanes_i x, lanes_i y) { return LANES_MAP2(lanes_i, vandq_s32, x, y); }
LANES_INLINE lanes_i lanes_xor_i(lanes_i x, lanes_i y) { return LANES_MAP2(lanes_i, veorq_s32, x, y); }
LANES_INLINE int32x4_t lanes_max_u_part(int32x4_t x, int32x4_t y)
{
    return vreinterpretq_s32_u32(vmaxq_u32(vreinterpretq_u32_s32(x), vreinterpretq_u32_s32(y)));
}
LANES_INLINE int32x4_t lanes_min_u_part(int32x4_t x, int32x4_t y)
{
    return vreinterpretq_s32_u32(vminq_u32(vreinterpretq_u32_s32(x), vreinterpretq_u32_s32(y)));
}
LANES_INLINE lanes_i lanes_max_u(lanes_i x, lanes_i y) { return LANES_MAP2(lanes_i, lanes_max_u_part, x, y); }
LANES_INLINE lanes_i lanes_min_u(lanes_i x, lanes_i y) { return LANES_MAP2(lanes_i, lanes_min_u_part, x, y); }
// Shifts are written as operators, which take a constant or a variable; the intrinsics of a constant compile with optimization only.
LANES_INLINE lanes_i lanes_sra_i(lanes_i x, int bits) { return (lanes_i){x.a >> bits, x.b >> bits, x.c >> bits, x.d >> bits}; }
LANES_INLINE lanes_i lanes_sll_i(lanes_i x, int bits) { return (lanes_i){x.a << bits, x.b << bits, x.c << bits, x.d << bits}; }

// --- across lanes ----------------------------------------------------------------------------------------------------

LANES_INLINE uint32_t lanes_equal_part(float32x4_t x, float32x4_t y)
{
    const uint32x4_t bit = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vceqq_f32(x, y), bit));
}
LANES_INLINE uint32_t lanes_equal_bits(lanes x, lanes y)
{
    return lanes_equal_part(x.a, y.a) | lanes_equal_part(x.b, y.b) << 4 | lanes_equal_part(x.c, y.c) << 8 |
           lanes_equal_part(x.d, y.d) << 12;
}
LANES_INLINE lanes lanes_swap_pairs(lanes x) { return LANES_MAP1(lanes, vrev64q_f32, x); }
LANES_INLINE float lanes_first(lanes x) { return vgetq_lane_f32(x.a, 0); }
LANES_INLINE float lanes_sum(lanes x)
{
    float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
LANES_INLINE float lanes_max_all(lanes x)
{
    float32x4_t four = lanes_max_part(lanes_max_part(x.a, x.c), lanes_max_part(x.b, x.d));
    four = lanes_max_part(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(lanes_max_part(four, vextq_f32(four, four, 1)), 0);
}
LANES_INLINE uint32_t lanes_max_all_u(lanes_i x)
{
    return vmaxvq_u32(vreinterpretq_u32_s32(lanes_max_u_part(lanes_max_u_part(x.a, x.c), lanes_max_u_part(x.b, x.d))));
}
LANES_INLINE int32_t lanes_sum_i(lanes_i x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.c), vaddq_s32(x.b, x.d))); }

// Two words a lane, and the two largest of two such pairs.
struct lanes_two_parts {
    int32x4_t most, less;
};
LANES_INLINE struct lanes_two_parts lanes_two_merge(struct lanes_two_parts x, struct lanes_two_parts y)
{
    return (struct lanes_two_parts){lanes_max_u_part(x.most, y.most),
                                    lanes_max_u_part(lanes_min_u_part(x.most, y.most), lanes_max_u_part(x.less, y.less))};
}
LANES_INLINE struct lanes_two lanes_two_largest(lanes_i x, lanes_i y)
{
    lanes_i most = lanes_max_u(x, y), less = lanes_min_u(x, y);
    struct lanes_two_parts low =
        lanes_two_merge((struct lanes_two_parts){most.a, less.a}, (struct lanes_two_parts){most.b, less.b});
    struct lanes_two_parts high =
        lanes_two_merge((struct lanes_two_parts){most.c, less.c}, (struct lanes_two_parts){most.d, less.d});
    struct lanes_two_parts four = lanes_two_merge(low, high);
    four = lanes_two_merge(four, (struct lanes_two_parts){vextq_s32(four.most, four.most, 2), vextq_s32(four.less, four.less, 2)});
    four = lanes_two_merge(four, (struct lanes_two_parts){vextq_s32(four.most, four.most, 1), vextq_s32(four.less, four.less, 1)});
    return (struct lanes_two){vgetq_lane_f32(vreinterpretq_f32_s32(four.most), 0),
                              vgetq_lane_f32(vreinterpretq_f32_s32(four.less), 0)};
}

// --- words of bytes and halves -----------------------------------------------------------------------------------------

LANES_INLINE int32x4_t lanes_load_i_part(const void *p, uint32_t part)
{
    return vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p + 16 * part));
}
LANES_INLINE lanes lanes_spread(const float *p)
{
    float32x4_t all = vld1q_dup_f32(p);
    return (lanes){all, all, all, all};
}
LANES_INLINE int32x4_t lanes_srl_i_part(int32x4_t x, int bits)
{
    return vreinterpretq_s32_u32(vreinterpretq_u32_s32(x) >> (uint32_t)bits);
}
LANES_INLINE lanes_i lanes_srl_i(lanes_i x, int bits)
{
    return (lanes_i){lanes_srl_i_part(x.a, bits), lanes_srl_i_part(x.b, bits), lanes_srl_i_part(x.c, bits),
                     lanes_srl_i_part(x.d, bits)};
}
LANES_INLINE void lanes_store_i(void *p, lanes_i x)
{
    vst1q_u8((uint8_t *)p, vreinterpretq_u8_s32(x.a));
    vst1q_u8((uint8_t *)p + 16, vreinterpretq_u8_s32(x.b));
    vst1q_u8((uint8_t *)p + 32, vreinterpretq_u8_s32(x.c));
    vst1q_u8((uint8_t *)p + 48, vreinterpretq_u8_s32(x.d));
}
LANES_INLINE lanes_i lanes_load_i(const void *p) { return LANES_PARTS(lanes_i, lanes_load_i_part, p); }
#define LANES_SHIFT_16(from, to, x, shift) \
    ((lanes_i){to(from((x).a) shift), to(from((x).b) shift), to(from((x).c) shift), to(from((x).d) shift)})
LANES_INLINE lanes_i lanes_srl_16(lanes_i x, int bits)
{
    return LANES_SHIFT_16(vreinterpretq_u16_s32, vreinterpretq_s32_u16, x, >> (uint16_t)bits);
}
LANES_INLINE lanes_i lanes_sra_16(lanes_i x, int bits)
{
    return LANES_SHIFT_16(vreinterpretq_s16_s32, vreinterpretq_s32_s16, x, >> (int16_t)bits);
}
LANES_INLINE lanes_i lanes_sll_16(lanes_i x, int bits)
{
    return LANES_SHIFT_16(vreinterpretq_u16_s32, vreinterpretq_s32_u16, x, << (uint16_t)bits);
}
LANES_INLINE int32x4_t lanes_add_pairs_part(int32x4_t sum, int32x4_t x, int32x4_t y)
{
    int16x8_t p = vreinterpretq_s16_s32(x), q = vreinterpretq_s16_s32(y);
    sum = vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(p), vget_low_s16(q)), vmull_high_s16(p, q)));
    __asm__("" : "+w"(sum)); // otherwise gcc may add products to each other first, and run out of registers
    return sum;
}
LANES_INLINE lanes_i lanes_add_pairs(lanes_i sum, lanes_i x, lanes_i y)
{
    return LANES_MAP3(lanes_i, lanes_add_pairs_part, sum, x, y);
}
#if defined(__ARM_FEATURE_DOTPROD)
#define LANES_DOT_S8 1
LANES_INLINE int32x4_t lanes_dot_s8_part(int32x4_t sum, int32x4_t x, int32x4_t y)
{
    return vdotq_s32(sum, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(y));
}
LANES_INLINE lanes_i lanes_dot_s8(lanes_i sum, lanes_i x, lanes_i y) { return LANES_MAP3(lanes_i, lanes_dot_s8_part, sum, x, y); }
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define LANES_DOT_U8S8 1
LANES_INLINE int32x4_t lanes_dot_u8s8_part(int32x4_t sum, int32x4_t x, int32x4_t y)
{
    return vusdotq_s32(sum, vreinterpretq_u8_s32(x), vreinterpretq_s8_s32(y));
}
LANES_INLINE lanes_i lanes_dot_u8s8(lanes_i sum, lanes_i x, lanes_i y)
{
    return LANES_MAP3(lanes_i, lanes_dot_u8s8_part, sum, x, y);
}
#endif
// A look-up beyond the table gives 0.
LANES_INLINE int32x4_t lanes_pick_bytes(int32x4_t x, uint8x16_t pattern)
{
    return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(x), pattern));
}
LANES_INLINE lanes_i lanes_pack_pairs(lanes_i x)
{
    const uint8x16_t p = {0, 1, 8, 9, 4, 5, 12, 13, 255, 255, 255, 255, 255, 255, 255, 255};
    return (lanes_i){lanes_pick_bytes(x.a, p), lanes_pick_bytes(x.b, p), lanes_pick_bytes(x.c, p), lanes_pick_bytes(x.d, p)};
}
LANES_INLINE lanes_i lanes_pack_bytes(lanes_i x)
{
    const uint8x16_t p = {0, 4, 8, 12, 1, 5, 9, 13, 255, 255, 255, 255, 255, 255, 255, 255};
    return (lanes_i){lanes_pick_bytes(x.a, p), lanes_pick_bytes(x.b, p), lanes_pick_bytes(x.c, p), lanes_pick_bytes(x.d, p)};
}

#endif
