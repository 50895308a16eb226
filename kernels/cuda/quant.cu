// quant.cu: products with matrices in 4- and 8-bit groups (quant.h has their layout), for few rows.
//
// At few rows a product is bound by reading the weights, and the aim is that all of a device's bandwidth goes there. A block of eight
// warps has a tile of 16 outputs (4 bits, more than eight rows and registers left: two, so that x is loaded half as often), the warps take its steps of
// 64 inputs in turn: together they read a stretch of memory of 4 KB and more, in lines of 512 bytes. A warp's next steps are on their way
// while one is multiplied: about 2 KB a warp. An H200 needs some 4.8 TB/s * 700 ns = 3.4 MB in flight, 25 KB an SM; Llama-7B's smallest
// matrix (4,096 x 4,096) has 256 blocks for 132 SMs: 2 * 8 * 2 KB an SM, all its weights on their way at once or nearly so.
//
// The tensor cores multiply, at one row as well: at 4.3 TB/s and 1.75 GHz an SM has 124 to 138 issue slots for the 1,024 weights of a
// step (576 to 640 bytes), far fewer than a multiplication a weight would take. Integers come out of the packed words two at a time, with
// an exponent put in front of their bits (1,024 + q is an f16), and are exact in f16 and in bf16; so a group's sum of q * x is that of
// exact products in f32, and is multiplied by the group's scale in f32. A minimum is multiplied by the group's sum of x, which is a
// product with ones: one for all tiles of a warp. Nothing is rounded to 16 bits but x, which came so. As compiled for sm_90, instructions
// a step, one tile, up to eight rows: U4 89, U4_MIN 105, U4_SUPER 125 (whose scales are products of a super and a small one); S8, twice the
// bytes, 85.
//
// x stays in L1 (the weights do not go in there): each SM takes it from L2 once, or nearly so. The warps' sums are added up in shared
// memory in the order of the warps. Which step is whose depends on inputs alone: a row's bits do not depend on its companions, nor on
// whether one or two tiles are a block's.
#include "kernels/cuda/fragment.cuh"

extern "C" {
#include "kernels/cuda/quant.h"
}

static constexpr unsigned WARPS = 8, TILE = GPU_TILE_OUTPUTS, STEP = GPU_STEP_INPUTS, GROUP = GPU_GROUP_INPUTS,
                          COLUMNS = 8; // rows of x in one product of the tensor cores
static constexpr unsigned STEPS_A_SUPER = GPU_SUPER_INPUTS / GPU_STEP_INPUTS;

// The differences between the forms.
template <int FORM> struct traits {
    static constexpr enum gpu_form AS = (enum gpu_form)FORM;
    static constexpr unsigned LOADS = gpu_form_bits(AS) == 4 ? 1 : 2; // a step and lane
    static constexpr bool HALVES = FORM == GPU_S8_HALVES, SUPER = gpu_form_has_super(AS), MINIMUM = gpu_form_has_minimum(AS);
    static constexpr unsigned SCALE_BYTES = gpu_form_scale_bytes(AS), SUPER_BYTES = gpu_form_super_bytes(AS); // of a g
    static constexpr int OFFSET = FORM == GPU_U4 ? 8 : LOADS == 2 ? 128 : 0; // of the stored integers
    static constexpr unsigned SCALES = HALVES ? 2 : 1;                       // a group and output
};

// A step of a tile as it was loaded: what a lane needs of it.
template <int FORM> struct loaded {
    uint4 quants[traits<FORM>::LOADS];
    uint2 scales, more; // more: the minima; SUPER: super scales, super minima
};

// The place at which a lane reads in a tile: at a step, and each WARPS steps on by a constant.
template <int FORM> struct stream {
    const uint8_t *quants, *scales, *super;
};

template <int FORM>
__device__ __forceinline__ struct stream<FORM> stream_at(const struct gpu_quant &quant, uint32_t tile, uint32_t step,
                                                         unsigned lane) {
    using form = traits<FORM>;
    const uint8_t *at = (const uint8_t *)quant.data + tile * quant.tile_bytes;
    return {at + (step * form::LOADS * LANES + lane) * sizeof(uint4),
            at + quant.scale_offset + (step * 8 + lane / 4) * form::SCALE_BYTES,
            at + quant.super_offset + (step / STEPS_A_SUPER * 8 + lane / 4) * form::SUPER_BYTES};
}

// The step that is `bytes`, those of whole tiles, and `rounds` times WARPS steps on.
template <int FORM>
__device__ __forceinline__ void load_step(const struct stream<FORM> &from, uint32_t bytes, uint32_t rounds,
                                          struct loaded<FORM> &out)
{
    using form = traits<FORM>;
    const uint4 *quants = (const uint4 *)(from.quants + bytes) + rounds * WARPS * form::LOADS * LANES;
    const uint8_t *scales = from.scales + bytes + rounds * WARPS * 8 * form::SCALE_BYTES,
                  *super = from.super + bytes + rounds * (WARPS / STEPS_A_SUPER) * 8 * form::SUPER_BYTES;
#pragma unroll
    for (unsigned i = 0; i < form::LOADS; i++)
        out.quants[i] = load_once(quants + i * LANES);
    if (form::MINIMUM && !form::SUPER) {
        const uint4 both = __ldg((const uint4 *)scales);
        out.scales = {both.x, both.y};
        out.more = {both.z, both.w};
    } else {
        out.scales = __ldg((const uint2 *)scales);
        out.more = {0, 0};
        if (form::SUPER && form::MINIMUM)
            out.more = __ldg((const uint2 *)super);
        else if (form::SUPER)
            out.more.x = __ldg((const uint32_t *)super);
    }
}

__device__ __forceinline__ uint32_t word_of(const uint4 &v, unsigned i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// 2^23 + byte i of a word.
__device__ __forceinline__ float byte_of(uint32_t word, unsigned i)
{
    return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7650 | i));
}

// Scales of a group and minimum of the lane's outputs; products of f16 and small integers, exact in f32.
template <int FORM>
__device__ __forceinline__ void group_scales(const struct loaded<FORM> &step, unsigned group,
                                             float (&scale)[traits<FORM>::SCALES][2], float (&minimum)[2])
{
    using form = traits<FORM>;
    const uint32_t word = group ? step.scales.y : step.scales.x, more = group ? step.more.y : step.more.x;
    if constexpr (!form::SUPER) {
        scale[0][0] = pair_low<__half>(word), scale[0][1] = pair_high<__half>(word);
        minimum[0] = form::MINIMUM ? pair_low<__half>(more) : 0.0f, minimum[1] = form::MINIMUM ? pair_high<__half>(more) : 0.0f;
    } else {
#pragma unroll
        for (unsigned output = 0; output < 2; output++) {
            const float super = output ? pair_high<__half>(step.more.x) : pair_low<__half>(step.more.x);
            const float super_minimum = output ? pair_high<__half>(step.more.y) : pair_low<__half>(step.more.y);
            minimum[output] = 0;
            if (form::MINIMUM) { // a fused multiply-add takes the 2^23 off again
                scale[0][output] = __fmaf_rn(super, byte_of(step.scales.x, group * 2 + output), super * -8388608.0f);
                minimum[output] = __fmaf_rn(-super_minimum, byte_of(step.scales.y, group * 2 + output), super_minimum * 8388608.0f);
            } else {
                scale[0][output] = super * (byte_of(word, output * 2) - 8388736.0f);
                scale[form::SCALES - 1][output] = super * (byte_of(word, output * 2 + 1) - 8388736.0f);
            }
        }
    }
}

// --- packed words to pairs of integers ---

// Eight nibbles, less OFFSET. f16: a nibble behind 0x64 is 1,024 + q, the one above it 1,024 + 16 q.
template <int OFFSET> __device__ __forceinline__ void unpack_nibbles(uint32_t word, uint32_t (&pairs)[4], __half)
{
    constexpr uint32_t LOW = (0xe400u | OFFSET) * 0x10001u, HIGH = (0xd400u | OFFSET * 16u) * 0x10001u; // -1,024 - o, -64 - o
#pragma unroll
    for (unsigned i = 0; i < 4; i += 2, word >>= 8) {
        pairs[i] = pair_fma<__half>(and_or(word, 0x000f000f, 0x64006400), 0x3c003c00, LOW);
        pairs[i + 1] = pair_fma<__half>(and_or(word, 0x00f000f0, 0x64006400), 0x2c002c00, HIGH);
    }
}

// bf16: behind 0x43 it is 128 + q.
template <int OFFSET> __device__ __forceinline__ void unpack_nibbles(uint32_t word, uint32_t (&pairs)[4], __nv_bfloat16)
{
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        pairs[i] =
            pair_fma<__nv_bfloat16>(and_or(word >> 4 * i, 0x000f000f, 0x43004300), 0x3f803f80, (0xc300u | OFFSET) * 0x10001u);
}

// Four bytes, less 128.
__device__ __forceinline__ void unpack_bytes(uint32_t word, uint32_t *pairs, __half)
{
    pairs[0] = pair_fma<__half>(__byte_perm(word, 0x64646464, 0x4140), 0x3c003c00, 0xe480e480);
    pairs[1] = pair_fma<__half>(__byte_perm(word, 0x64646464, 0x4342), 0x3c003c00, 0xe480e480);
}

// bf16 has seven bits behind the point: 128 + the lower seven, less 256, or less 128 where the eighth is set.
__device__ __forceinline__ void unpack_bytes(uint32_t word, uint32_t *pairs, __nv_bfloat16)
{
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        const uint32_t two = __byte_perm(word, 0, i ? 0x4342 : 0x4140);
        pairs[i] = pair_fma<__nv_bfloat16>(and_or(two, 0x007f007f, 0x43004300), 0x3f803f80, 0xc380c380 ^ (two & 0x00800080));
    }
}

// The eight integers of a group that the lane has of one of its outputs; pair i is that of inputs pair_input(i).
template <typename T, int FORM>
__device__ __forceinline__ void unpack(const struct loaded<FORM> &step, unsigned group, unsigned output, uint32_t (&pairs)[4])
{
    using form = traits<FORM>;
    if (form::LOADS == 1) {
        unpack_nibbles<form::OFFSET>(word_of(step.quants[0], group * 2 + output), pairs, T());
        return;
    }
    unpack_bytes(word_of(step.quants[group % form::LOADS], output * 2), pairs, T());
    unpack_bytes(word_of(step.quants[group % form::LOADS], output * 2 + 1), pairs + 2, T());
}

// In the group.
template <int FORM> __device__ __forceinline__ unsigned pair_input(unsigned lane, unsigned pair)
{
    const unsigned t = lane % 4;
    return traits<FORM>::HALVES ? pair / 2 * (GROUP / 2) + 4 * t + pair % 2 * 2 : 8 * t + pair * 2;
}

// --- product ---

struct product_place {
    struct gpu_quant quant;
    struct gpu_quant_product product;
    uint32_t row_blocks;
};

// The place at which a lane reads x, and for how many rounds of WARPS steps there is a first and a second group for it.
struct x_stream {
    const uint16_t *at;
    uint32_t first, second;
};

// x of a step: of each group what pairs 0 to 3 multiply; 0 where there is none.
template <int FORM> __device__ __forceinline__ void load_x(const struct x_stream &from, uint32_t rounds, uint32_t (&x)[2][4])
{
#pragma unroll
    for (unsigned group = 0; group < 2; group++) {
        const uint16_t *at = from.at + rounds * WARPS * STEP + group * GROUP;
        uint4 v = {0, 0, 0, 0};
        if (rounds < (group ? from.second : from.first)) {
            if (traits<FORM>::HALVES) {
                const uint2 first = __ldg((const uint2 *)at), second = __ldg((const uint2 *)(at + GROUP / 2));
                v = {first.x, first.y, second.x, second.y};
            } else {
                v = __ldg((const uint4 *)at);
            }
        }
        x[group][0] = v.x, x[group][1] = v.y, x[group][2] = v.z, x[group][3] = v.w;
    }
}

// One group of a tile: total += scale * (q x) + minimum * sum of x. sum: of the group, of the rows of the lane's results.
template <typename T, int FORM, unsigned BLOCKS>
__device__ __forceinline__ void multiply_group(const struct loaded<FORM> &step, unsigned group, const uint32_t (&x)[BLOCKS][2][4],
                                               const float (&sum)[BLOCKS][4], float (&total)[BLOCKS][4])
{
    using form = traits<FORM>;
    float scale[form::SCALES][2], minimum[2];
    uint32_t first[4], second[4];
    group_scales<FORM>(step, group, scale, minimum);
    unpack<T, FORM>(step, group, 0, first);
    unpack<T, FORM>(step, group, 1, second);
    const uint32_t a[2][4] = {{first[0], second[0], first[1], second[1]}, {first[2], second[2], first[3], second[3]}};
#pragma unroll
    for (unsigned block = 0; block < BLOCKS; block++) {
        float part[4] = {0, 0, 0, 0};
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            multiply_fragments<T>(part, a[half], x[block][group][half * 2], x[block][group][half * 2 + 1]);
            if (!half && !form::HALVES)
                continue;
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                total[block][i] = __fmaf_rn(scale[form::HALVES ? half : 0][i / 2], part[i], total[block][i]);
                part[i] = 0;
            }
        }
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
            if (form::MINIMUM)
                total[block][i] = __fmaf_rn(minimum[i / 2], sum[block][i], total[block][i]);
    }
}

template <typename T> __device__ __forceinline__ uint32_t ones();
template <> __device__ __forceinline__ uint32_t ones<__half>() { return 0x3c003c00; }
template <> __device__ __forceinline__ uint32_t ones<__nv_bfloat16>() { return 0x3f803f80; }

template <typename T, int FORM, unsigned BLOCKS, unsigned TILES>
__device__ __forceinline__ void multiply_step(const struct loaded<FORM> (&step)[TILES], const uint32_t (&x)[BLOCKS][2][4],
                                              float (&total)[TILES][BLOCKS][4])
{
    const uint32_t one[4] = {ones<T>(), ones<T>(), ones<T>(), ones<T>()};
#pragma unroll
    for (unsigned group = 0; group < 2; group++) {
        float sum[BLOCKS][4] = {};
        if (traits<FORM>::MINIMUM) {
#pragma unroll
            for (unsigned block = 0; block < BLOCKS; block++) {
                multiply_fragments<T>(sum[block], one, x[block][group][0], x[block][group][1]);
                multiply_fragments<T>(sum[block], one, x[block][group][2], x[block][group][3]);
            }
        }
#pragma unroll
        for (unsigned tile = 0; tile < TILES; tile++)
            multiply_group<T, FORM, BLOCKS>(step[tile], group, x, sum, total[tile]);
    }
}

// The rounds of the warp (each a step of the block's WARPS), its first row of x `row`.
template <int FORM>
__device__ __forceinline__ struct x_stream x_stream_at(const struct product_place &p, uint32_t row, uint32_t rounds)
{
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const bool half = p.quant.inputs % STEP && rounds && warp + (rounds - 1) * WARPS == p.quant.steps - 1; // of its last step
    if (row + lane / 4 >= p.product.rows)
        return {(const uint16_t *)p.product.x, 0, 0};
    return {(const uint16_t *)p.product.x + (size_t)(row + lane / 4) * p.quant.inputs + warp * STEP + pair_input<FORM>(lane, 0),
            rounds, rounds - half};
}

// The warp's share of the sums: steps warp, warp + WARPS, … DEPTH of them are held or on their way.
template <typename T, int FORM, unsigned BLOCKS, unsigned TILES, unsigned DEPTH>
__device__ __forceinline__ void multiply_steps(const struct product_place &p, uint32_t tile, uint32_t row,
                                               float (&total)[TILES][BLOCKS][4])
{
    constexpr bool AHEAD = BLOCKS == 1; // x of the next step is on its way too, where registers are left for it
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const uint32_t rounds = p.quant.steps > warp ? (p.quant.steps - warp + WARPS - 1) / WARPS : 0;
    struct loaded<FORM> ring[DEPTH][TILES];
    struct x_stream x_from[BLOCKS];
    uint32_t x[BLOCKS][2][4], x_next[BLOCKS][2][4];

    const struct stream<FORM> from = stream_at<FORM>(p.quant, tile, warp, lane);
    const uint32_t next_tile = tile + 1 < p.quant.tiles ? (uint32_t)p.quant.tile_bytes
                                                        : 0; // one too many is the last once more, and dropped
#pragma unroll
    for (unsigned i = 0; i < DEPTH * TILES; i++)
        if (i / TILES < rounds)
            load_step<FORM>(from, i % TILES * next_tile, i / TILES, ring[i / TILES][i % TILES]);
#pragma unroll
    for (unsigned i = 0; i < BLOCKS; i++) {
        x_from[i] = x_stream_at<FORM>(p, row + i * COLUMNS, rounds);
        if (AHEAD)
            load_x<FORM>(x_from[i], 0, x[i]);
    }
    for (uint32_t begin = 0; begin < rounds; begin += DEPTH) {
#pragma unroll
        for (unsigned i = 0; i < DEPTH; i++) {
            if (begin + i >= rounds) // the same in all lanes
                break;
#pragma unroll
            for (unsigned j = 0; j < BLOCKS; j++)
                load_x<FORM>(x_from[j], begin + i + AHEAD, AHEAD ? x_next[j] : x[j]);
            multiply_step<T, FORM, BLOCKS, TILES>(ring[i], x, total);
#pragma unroll
            for (unsigned j = 0; j < TILES; j++)
                if (begin + i + DEPTH < rounds)
                    load_step<FORM>(from, j * next_tile, begin + i + DEPTH, ring[i][j]);
#pragma unroll
            for (unsigned j = 0; AHEAD && j < BLOCKS * 8; j++)
                x[j / 8][j / 4 % 2][j % 4] = x_next[j / 8][j / 4 % 2][j % 4];
        }
    }
}

// A block: TILES tiles, BLOCKS * 8 rows.
template <typename T, int FORM, unsigned BLOCKS, unsigned TILES>
__global__ __launch_bounds__(WARPS *LANES, 2) void multiply(struct product_place p)
{
    constexpr unsigned OUTPUTS = TILES * TILE, ROWS = BLOCKS * COLUMNS, STRIDE = OUTPUTS + 4; // + 4: lanes meet no bank twice
    constexpr unsigned DEPTH = TILES == 2 ? 2 : traits<FORM>::LOADS == 1 ? 4 : 3;             // as many as registers hold
    __shared__ float of_warp[WARPS][ROWS][STRIDE];
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const uint32_t tile = blockIdx.x / p.row_blocks * TILES, row = blockIdx.x % p.row_blocks * ROWS;
    float total[TILES][BLOCKS][4] = {};

    multiply_steps<T, FORM, BLOCKS, TILES, DEPTH>(p, tile, row, total);
#pragma unroll
    for (unsigned i = 0; i < TILES * BLOCKS * 4; i++)
        of_warp[warp][i / 4 % BLOCKS * COLUMNS + lane % 4 * 2 + i % 2][i / (4 * BLOCKS) * TILE + i / 2 % 2 * 8 + lane / 4] =
            total[i / (4 * BLOCKS)][i / 4 % BLOCKS][i % 4];
    __syncthreads();
    for (unsigned item = threadIdx.x; item < ROWS * OUTPUTS; item += WARPS * LANES) {
        const unsigned o = item % OUTPUTS, r = item / OUTPUTS;
        if (row + r >= p.product.rows || tile * TILE + o >= p.quant.outputs)
            continue;
        const size_t at = (size_t)(row + r) * p.product.y_stride + tile * TILE + o;
        float sum = 0;
        for (unsigned w = 0; w < WARPS; w++)
            sum += of_warp[w][r][o];
        if (p.product.y_wide)
            ((T *)p.product.y)[at] = gpu_from<T>(sum);
        else
            ((float *)p.product.y)[at] = p.product.add ? ((float *)p.product.y)[at] + sum : sum;
    }
}

// --- values ---

// Pair `pair` of a group as the source's values: one rounding for the product, one for the sum.
template <typename T, int FORM>
__device__ __forceinline__ void values_of(const struct loaded<FORM> &step, unsigned group, unsigned output, float (&out)[8])
{
    using form = traits<FORM>;
    float scale[form::SCALES][2], minimum[2];
    uint32_t pairs[4];
    group_scales<FORM>(step, group, scale, minimum);
    unpack<T, FORM>(step, group, output, pairs);
#pragma unroll
    for (unsigned i = 0; i < 8; i++) {
        const float q = i % 2 ? pair_high<T>(pairs[i / 2]) : pair_low<T>(pairs[i / 2]);
        const float product = __fmul_rn(scale[form::HALVES ? i / 4 : 0][output], q);
        out[i] = form::MINIMUM ? __fadd_rn(product, minimum[output]) : product;
    }
}

// A block of 256: a tile and eight of its steps, a warp each. Stores go out in whole sectors of 32 bytes.
template <typename T, int FORM>
__global__ __launch_bounds__(WARPS *LANES) void expand(struct gpu_quant quant, uint32_t first, uint32_t count, T *out)
{
    const unsigned lane = threadIdx.x % LANES;
    const uint32_t step = blockIdx.y * WARPS + threadIdx.x / LANES, tile = first / TILE + blockIdx.x;
    struct loaded<FORM> held;
    if (step >= quant.steps)
        return;
    load_step<FORM>(stream_at<FORM>(quant, tile, step, lane), 0, 0, held);
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        const unsigned group = i / 2, output = i % 2;
        const uint32_t o = blockIdx.x * TILE + output * 8 + lane / 4, at = step * STEP + group * GROUP;
        float values[8];
        if (o >= count || at >= quant.inputs)
            continue;
        values_of<T, FORM>(held, group, output, values);
        T *to = out + (size_t)o * quant.inputs + at + pair_input<FORM>(lane, 0);
        const uint4 v = {pair_of<T>(values[0], values[1]), pair_of<T>(values[2], values[3]), pair_of<T>(values[4], values[5]),
                         pair_of<T>(values[6], values[7])};
        if (traits<FORM>::HALVES) {
            *(uint2 *)to = {v.x, v.y};
            *(uint2 *)(to + GROUP / 2) = {v.z, v.w};
        } else {
            *(uint4 *)to = v;
        }
    }
}

// A block a row, a thread a quarter of a step.
template <int FORM> __global__ void embed_packed(struct gpu_quant quant, const uint32_t *token, float *x)
{
    const uint32_t id = token[blockIdx.x];
    for (uint32_t item = threadIdx.x; item < quant.steps * 4; item += blockDim.x) {
        const unsigned lane = id % 8 * 4 + item % 4;
        struct loaded<FORM> held;
        load_step<FORM>(stream_at<FORM>(quant, id / TILE, item / 4, lane), 0, 0, held);
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const uint32_t group = i / 2, output = i % 2, at = item / 4 * STEP + group * GROUP;
            float values[8];
            if (output != id % TILE / 8 || at >= quant.inputs)
                continue;
            values_of<__half, FORM>(held, group, output, values);
            float *to = x + (size_t)blockIdx.x * quant.inputs + at;
#pragma unroll
            for (unsigned j = 0; j < 8; j++)
                to[pair_input<FORM>(lane, j / 2) + j % 2] = values[j];
        }
    }
}

// --- host ---

// Calls `function` with the form as a constant.
#define EACH_FORM(form, function, ...)                               \
    switch (form) {                                                  \
    case GPU_U4: function<GPU_U4>(__VA_ARGS__); break;               \
    case GPU_U4_MIN: function<GPU_U4_MIN>(__VA_ARGS__); break;       \
    case GPU_U4_SUPER: function<GPU_U4_SUPER>(__VA_ARGS__); break;   \
    case GPU_S8: function<GPU_S8>(__VA_ARGS__); break;               \
    case GPU_S8_MIN: function<GPU_S8_MIN>(__VA_ARGS__); break;       \
    case GPU_S8_SUPER: function<GPU_S8_SUPER>(__VA_ARGS__); break;   \
    case GPU_S8_HALVES: function<GPU_S8_HALVES>(__VA_ARGS__); break; \
    default: break; /* GPU_WIDE: the caller's (cuda_product.c) */    \
    }

template <int FORM> static void multiply_form(enum gpu_type type, struct product_place p, cudaStream_t stream)
{
    const bool few = p.product.rows <= COLUMNS;
    // 8 bits: one has as many bytes of weights to those of x; SUPER: two do not go into the registers
    constexpr unsigned MOST_TILES = traits<FORM>::LOADS == 1 && !traits<FORM>::SUPER ? 2 : 1;
    const unsigned rows = few ? COLUMNS : 2 * COLUMNS, tiles = few ? 1 : MOST_TILES;
    void (*f16)(struct product_place) = few ? multiply<__half, FORM, 1, 1> : multiply<__half, FORM, 2, MOST_TILES>;
    void (*bf16)(struct product_place) = few ? multiply<__nv_bfloat16, FORM, 1, 1> : multiply<__nv_bfloat16, FORM, 2, MOST_TILES>;
    void (*quant_multiply)(struct product_place) = type == GPU_F16 ? f16 : bf16;
    p.row_blocks = (p.product.rows + rows - 1) / rows;
    GPU_LAUNCH(quant_multiply, (p.quant.tiles + tiles - 1) / tiles * p.row_blocks, WARPS * LANES, 0, stream, p);
}

void gpu_quant_multiply(enum gpu_type type, const struct gpu_quant *quant, const struct gpu_quant_product *product,
                        cudaStream_t stream)
{
    const struct product_place p = {*quant, *product, 1};
    EACH_FORM(quant->form, multiply_form, type, p, stream);
}

template <int FORM>
static void expand_form(enum gpu_type type, const struct gpu_quant &quant, uint32_t first, uint32_t count, void *out,
                        cudaStream_t stream)
{
    const dim3 grid((count + TILE - 1) / TILE, (quant.steps + WARPS - 1) / WARPS);
    void (*f16)(struct gpu_quant, uint32_t, uint32_t, __half *) = expand<__half, FORM>;
    void (*bf16)(struct gpu_quant, uint32_t, uint32_t, __nv_bfloat16 *) = expand<__nv_bfloat16, FORM>;
    if (type == GPU_F16)
        GPU_LAUNCH(f16, grid, WARPS * LANES, 0, stream, quant, first, count, (__half *)out);
    else
        GPU_LAUNCH(bf16, grid, WARPS * LANES, 0, stream, quant, first, count, (__nv_bfloat16 *)out);
}

void gpu_quant_expand(enum gpu_type type, const struct gpu_quant *quant, uint32_t first, uint32_t count, void *out,
                      cudaStream_t stream)
{
    EACH_FORM(quant->form, expand_form, type, *quant, first, count, out, stream);
}

template <int FORM>
static void embed_form(const struct gpu_quant &quant, const uint32_t *token, uint32_t rows, float *x, cudaStream_t stream)
{
    GPU_LAUNCH(embed_packed<FORM>, rows, 256, 0, stream, quant, token, x);
}

void gpu_quant_embed(const struct gpu_quant *quant, const uint32_t *token, uint32_t rows, float *x, cudaStream_t stream)
{
    EACH_FORM(quant->form, embed_form, *quant, token, rows, x, stream);
}
