// attend.cu: K and V into pages, and attention of single rows over them, as decoding has it (FlashDecoding's split of the context,
// merged by log-sum-exp; Dao et al., "Flash-Decoding for long-context inference", 2023).
//
// A block takes one row, the query heads of one KV head (up to GROUP_MAX of them) and one range of RANGE_TOKENS positions, so K and V
// are read once for all those heads. Its warps take pages in turn. In a warp LANES_A_TOKEN lanes hold eight values each of a token's
// K or V, 16 bytes a load, so that a warp reads 512 contiguous bytes; scores are summed over those lanes by shuffles:
//
//     lane        0 .. 7    8 .. 15   16 .. 23  24 .. 31      (head_dim 64)
//     token       t         t + 1     t + 2     t + 3
//
// Every lane keeps acc of its eight values for its own tokens; tokens, warps, ranges and spans are summed at the end, in a fixed order.
//
// Memory bounds it, as long as enough is on its way: 4.8 TB/s (H200) and some 1,200 cycles of latency under load want 25 KiB a
// multiprocessor. A lane asks for four tokens' K and V at once, 128 bytes, and knows its next page by then; with 80 registers (head_dim
// 128, one query head a KV head) six blocks fit, 24 warps or 96 KiB, of which what computes may be two thirds. It computes some 220
// instructions for 4 KiB of a warp: 75 bytes a cycle and multiprocessor, where memory gives 21. Four query heads a KV head are 540 (three
// blocks, 48 KiB, 30 bytes a cycle), eight 1,000: about as fast as memory. Parts are a hundredth of what is read.
#include "kernels/cuda/pages.cuh"

static constexpr unsigned RANGE_TOKENS = 256, WARPS = 4, GROUP_MAX = 8, VALUES = 8;
static_assert(GPU_MAX_CONTEXT / RANGE_TOKENS <= 65535, "ranges are the third dimension of a grid");

// A block a row and head of K, then of V; a thread eight values.
__global__ void store_kv(struct place p, __half *__restrict__ pages, struct gpu_rows rows, const float *__restrict__ qkv)
{
    const uint32_t i = blockIdx.x, head = blockIdx.y % p.kv_heads, is_v = blockIdx.y / p.kv_heads, at = threadIdx.x * VALUES;
    if (at >= p.head_dim)
        return;
    const uint32_t position = rows.position[i], page = rows.pages[rows.table[i] + position / PAGE];
    const float4 *from =
        (const float4 *)(qkv + ((size_t)rows.row[i] * (p.heads + 2 * p.kv_heads) + p.heads + blockIdx.y) * p.head_dim + at);
    const float4 first = from[0], second = from[1];
    union {
        uint4 words;
        __half halves[VALUES];
    } out = {{0, 0, 0, 0}};
    const float values[VALUES] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
    for (unsigned k = 0; k < VALUES; k++)
        out.halves[k] = gpu_from<__half>(values[k]);
    *(uint4 *)(pages + page_offset(p, page, head) + (size_t)(is_v * PAGE + position % PAGE) * p.head_dim + at) = out.words;
}

void gpu_store_kv(const struct gpu_pool *pool, uint32_t layer, const struct gpu_rows *rows, const float *qkv, cudaStream_t stream)
{
    GPU_LAUNCH(store_kv, dim3(rows->count, 2 * pool->kv_heads), (pool->head_dim / VALUES + LANES - 1) / LANES * LANES, 0, stream,
               place_of(pool, layer), (__half *)pool->pages, *rows, qkv);
}

struct eight {
    float v[VALUES];
};

__device__ __forceinline__ eight widen(const uint4 &words)
{
    union {
        uint4 words;
        __half halves[VALUES];
    } loaded;
    eight out;
    loaded.words = words;
    for (unsigned i = 0; i < VALUES; i++)
        out.v[i] = __half2float(loaded.halves[i]);
    return out;
}

// Partial results of (row, head, range): [head_dim] sum of p * v, then the largest score and the sum of p.
static __device__ __forceinline__ size_t part_offset(const struct place &p, uint32_t i, uint32_t head, uint32_t range,
                                                     uint32_t ranges)
{
    return (((size_t)i * p.heads + head) * ranges + range) * (p.head_dim + 2);
}

// A lane's part of each head: acc of its eight values over its own tokens, the largest score so far, and the sum of p.
template <unsigned GROUP> struct running {
    eight acc[GROUP];
    float m[GROUP], l[GROUP];
};

// Loads of a lane's tokens that are on their way at once. `token` of load j is first + j * TOKENS; what lies at and beyond `end`, and
// where a lane has no values of the head, is zero: it may be anything.
template <unsigned TOKENS, unsigned LOADS>
__device__ __forceinline__ void load_tokens(const __half *at, uint32_t head_dim, uint32_t first, uint32_t end, bool inside,
                                            uint4 *out)
{
#pragma unroll
    for (unsigned j = 0; j < LOADS; j++) {
        const uint32_t token = first + j * TOKENS;
        out[j] = inside && token < end ? *(const uint4 *)(at + token * head_dim) : uint4{0, 0, 0, 0};
    }
}

// Scores of one head for the loaded tokens become p; its running m, l and acc are brought to the new largest score.
template <unsigned LANES_A_TOKEN, unsigned TOKENS, unsigned LOADS>
__device__ __forceinline__ void soften(const eight &q, const eight *k, uint32_t first, uint32_t end, float *p, float &m, float &l,
                                       eight &acc)
{
    float best = -INFINITY;
#pragma unroll
    for (unsigned j = 0; j < LOADS; j++) {
        float sum = 0;
#pragma unroll
        for (unsigned n = 0; n < VALUES; n++)
            sum += q.v[n] * k[j].v[n];
#pragma unroll
        for (unsigned step = LANES_A_TOKEN / 2; step; step /= 2)
            sum += __shfl_xor_sync(FULL_WARP, sum, step);
        p[j] = first + j * TOKENS < end ? sum : -INFINITY;
        best = fmaxf(best, p[j]);
    }
#pragma unroll
    for (unsigned step = LANES_A_TOKEN; step < LANES; step *= 2)
        best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, step));
    best = fmaxf(best, m); // of at least one token: finite unless a score is not
    const float old = expf(m - best);
    m = best, l *= old;
#pragma unroll
    for (unsigned j = 0; j < LOADS; j++) {
        p[j] = expf(p[j] - best);
        l += p[j];
    }
#pragma unroll
    for (unsigned n = 0; n < VALUES; n++)
        acc.v[n] *= old;
}

// The parts of a block's warps, for its heads.
template <unsigned GROUP, unsigned WIDTH> struct of_warps {
    float m[WARPS][GROUP], l[WARPS][GROUP], acc[WARPS][GROUP][WIDTH];
};

// Sums over a warp's tokens into shared memory.
template <unsigned LANES_A_TOKEN, unsigned GROUP, unsigned WIDTH>
__device__ __forceinline__ void put_warp(running<GROUP> &run, of_warps<GROUP, WIDTH> &shared)
{
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
#pragma unroll
    for (unsigned g = 0; g < GROUP; g++) {
#pragma unroll
        for (unsigned step = LANES_A_TOKEN; step < LANES; step *= 2) {
            run.l[g] += __shfl_xor_sync(FULL_WARP, run.l[g], step);
#pragma unroll
            for (unsigned n = 0; n < VALUES; n++)
                run.acc[g].v[n] += __shfl_xor_sync(FULL_WARP, run.acc[g].v[n], step);
        }
#pragma unroll
        for (unsigned n = 0; n < VALUES; n++)
            if (lane < LANES_A_TOKEN)
                shared.acc[warp][g][lane * VALUES + n] = run.acc[g].v[n];
        if (lane == 0)
            shared.m[warp][g] = run.m[g], shared.l[warp][g] = run.l[g];
    }
}

// Value `dim` of head g over all warps, and what belongs to it, into the range's part.
template <unsigned GROUP, unsigned WIDTH>
__device__ __forceinline__ void merge_warps(const of_warps<GROUP, WIDTH> &shared, uint32_t g, uint32_t dim, uint32_t head_dim,
                                            float *part)
{
    float best = -INFINITY, sum = 0, all = 0;
    for (unsigned w = 0; w < WARPS; w++)
        best = fmaxf(best, shared.m[w][g]);
    for (unsigned w = 0; w < WARPS; w++) {
        const float factor = shared.m[w][g] == -INFINITY ? 0.0f : expf(shared.m[w][g] - best); // a warp without a page
        sum += factor * shared.acc[w][g][dim], all += factor * shared.l[w][g];
    }
    part[dim] = sum;
    if (dim == 0)
        part[head_dim] = best, part[head_dim + 1] = all;
}

template <unsigned LANES_A_TOKEN, unsigned GROUP>
__global__ __launch_bounds__(WARPS *LANES) void attend_range(struct place p, const __half *pages, struct gpu_rows rows,
                                                             const float *qkv, float *parts)
{
    constexpr unsigned TOKENS = LANES / LANES_A_TOKEN;                // of a load
    constexpr unsigned LOADS = PAGE / TOKENS < 4 ? PAGE / TOKENS : 4; // on their way at once
    __shared__ struct of_warps<GROUP, LANES_A_TOKEN * VALUES> shared;

    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, sub = lane % LANES_A_TOKEN, own = lane / LANES_A_TOKEN;
    const uint32_t i = blockIdx.x, group = p.heads / p.kv_heads, chunks = (group + GROUP - 1) / GROUP;
    const uint32_t kv_head = blockIdx.y / chunks, first = kv_head * group + blockIdx.y % chunks * GROUP; // head
    const uint32_t count = min(GROUP, (kv_head + 1) * group - first), limit = rows.position[i] + 1;
    const uint32_t begin = blockIdx.z * RANGE_TOKENS, end = min(limit, begin + RANGE_TOKENS);
    const uint32_t *table = rows.pages + rows.table[i];
    const bool inside = sub * VALUES < p.head_dim;
    const float *q_row = qkv + (size_t)rows.row[i] * (p.heads + 2 * p.kv_heads) * p.head_dim + (size_t)first * p.head_dim;
    eight q[GROUP];
    running<GROUP> run;

    if (begin >= limit)
        return;
#pragma unroll
    for (unsigned g = 0; g < GROUP; g++) {
        run.m[g] = -INFINITY, run.l[g] = 0;
#pragma unroll
        for (unsigned n = 0; n < VALUES; n++) {
            run.acc[g].v[n] = 0;
            q[g].v[n] = g < count && inside ? rsqrtf((float)p.head_dim) * q_row[g * p.head_dim + sub * VALUES + n] : 0.0f;
        }
    }
    uint32_t id = (begin / PAGE + warp) * PAGE < end ? table[begin / PAGE + warp] : 0;
    for (uint32_t page = begin / PAGE + warp; page * PAGE < end; page += WARPS) {
        const __half *keys = pages + page_offset(p, id, kv_head) + sub * VALUES, *values = keys + PAGE * p.head_dim;
        const uint32_t seen = min(PAGE, end - page * PAGE); // tokens of the page
        id = (page + WARPS) * PAGE < end ? table[page + WARPS] : 0;
#pragma unroll 1 // twice would cost a block a multiprocessor its registers, and gain nothing: other warps load meanwhile
        for (uint32_t at = 0; at < seen; at += TOKENS * LOADS) {
            uint4 k_words[LOADS], v_words[LOADS];
            float weight[GROUP][LOADS];
            load_tokens<TOKENS, LOADS>(keys, p.head_dim, at + own, seen, inside, k_words);
            load_tokens<TOKENS, LOADS>(values, p.head_dim, at + own, seen, inside, v_words);
            eight k[LOADS];
#pragma unroll
            for (unsigned j = 0; j < LOADS; j++)
                k[j] = widen(k_words[j]);
#pragma unroll
            for (unsigned g = 0; g < GROUP; g++)
                soften<LANES_A_TOKEN, TOKENS, LOADS>(q[g], k, at + own, seen, weight[g], run.m[g], run.l[g], run.acc[g]);
#pragma unroll
            for (unsigned j = 0; j < LOADS; j++) {
                const eight v = widen(v_words[j]);
#pragma unroll
                for (unsigned g = 0; g < GROUP; g++)
#pragma unroll
                    for (unsigned n = 0; n < VALUES; n++)
                        run.acc[g].v[n] += weight[g][j] * v.v[n];
            }
        }
    }
    put_warp<LANES_A_TOKEN>(run, shared);
    __syncthreads();
    for (uint32_t at = threadIdx.x; at < count * p.head_dim; at += blockDim.x)
        merge_warps(shared, at / p.head_dim, at % p.head_dim, p.head_dim,
                    parts + part_offset(p, i, first + at / p.head_dim, blockIdx.z, gridDim.z));
}

// A block a (row, head); a thread some values. As on CPUs (kernels/attention/attention.h) there are two levels: ranges of a span are summed in
// order, relative to the span's largest score, and spans are folded in order. Factors are computed once a span, not by each thread.
static constexpr unsigned MERGE_THREADS = 64, SPAN_RANGES = 4096 / RANGE_TOKENS, MERGE_DIMS = GPU_MAX_HEAD_DIM / MERGE_THREADS;

__global__ void merge_ranges(struct place p, struct gpu_rows rows, const float *__restrict__ parts, uint32_t ranges, float *o)
{
    __shared__ float largest[SPAN_RANGES], factors[SPAN_RANGES];
    const uint32_t i = blockIdx.x, head = blockIdx.y, seen = rows.position[i] / RANGE_TOKENS + 1, part_floats = p.head_dim + 2;
    const float *first = parts + part_offset(p, i, head, 0, ranges);
    float best = -INFINITY, sums[MERGE_DIMS] = {0}, all = 0;
    for (uint32_t begin = 0; begin < seen; begin += SPAN_RANGES) {
        const uint32_t count = min(SPAN_RANGES, seen - begin);
        const float *span = first + (size_t)begin * part_floats;
        float span_best = -INFINITY, span_sums[MERGE_DIMS] = {0}, span_all = 0;
        __syncthreads(); // the factors of the span before have been used
        if (threadIdx.x < count)
            largest[threadIdx.x] = span[(size_t)threadIdx.x * part_floats + p.head_dim];
        __syncthreads();
        for (uint32_t r = 0; r < count; r++)
            span_best = fmaxf(span_best, largest[r]);
        if (threadIdx.x < count)
            factors[threadIdx.x] = expf(largest[threadIdx.x] - span_best);
        __syncthreads();
#pragma unroll 8
        for (uint32_t r = 0; r < count; r++)
            span_all += factors[r] * span[(size_t)r * part_floats + p.head_dim + 1];
#pragma unroll
        for (unsigned n = 0; n < MERGE_DIMS; n++) {
            const uint32_t dim = threadIdx.x + n * MERGE_THREADS;
            if (dim >= p.head_dim)
                break;
#pragma unroll 8
            for (uint32_t r = 0; r < count; r++)
                span_sums[n] += factors[r] * span[(size_t)r * part_floats + dim];
        }
        const float top = fmaxf(best, span_best), kept = begin ? expf(best - top) : 0.0f, gained = expf(span_best - top);
        best = top, all = all * kept + span_all * gained;
#pragma unroll
        for (unsigned n = 0; n < MERGE_DIMS; n++)
            sums[n] = sums[n] * kept + span_sums[n] * gained;
    }
    for (unsigned n = 0; n < MERGE_DIMS; n++) {
        const uint32_t dim = threadIdx.x + n * MERGE_THREADS;
        if (dim < p.head_dim)
            o[((size_t)rows.row[i] * p.heads + head) * p.head_dim + dim] = sums[n] / all;
    }
}

static uint32_t ranges_of(uint32_t longest) { return (longest + RANGE_TOKENS - 1) / RANGE_TOKENS; }

size_t gpu_attend_scratch(const struct gpu_pool *pool, uint32_t count, uint32_t longest)
{
    return (size_t)count * pool->heads * ranges_of(longest) * (pool->head_dim + 2);
}

template <unsigned LANES_A_TOKEN, unsigned GROUP>
static void launch_ranges(const struct place &p, const void *pages, const struct gpu_rows *rows, const float *qkv, float *scratch,
                          cudaStream_t stream)
{
    const uint32_t group = p.heads / p.kv_heads, chunks = (group + GROUP - 1) / GROUP;
    const dim3 grid(rows->count, p.kv_heads * chunks, ranges_of(rows->longest));
    GPU_LAUNCH((attend_range<LANES_A_TOKEN, GROUP>), grid, WARPS * LANES, 0, stream, p, (const __half *)pages, *rows, qkv, scratch);
}

template <unsigned LANES_A_TOKEN>
static void launch_group(const struct place &p, const void *pages, const struct gpu_rows *rows, const float *qkv, float *scratch,
                         cudaStream_t stream)
{
    switch (p.heads / p.kv_heads) {
    case 1: launch_ranges<LANES_A_TOKEN, 1>(p, pages, rows, qkv, scratch, stream); break;
    case 2: launch_ranges<LANES_A_TOKEN, 2>(p, pages, rows, qkv, scratch, stream); break;
    case 3:
    case 4: launch_ranges<LANES_A_TOKEN, 4>(p, pages, rows, qkv, scratch, stream); break;
    default: launch_ranges<LANES_A_TOKEN, GROUP_MAX>(p, pages, rows, qkv, scratch, stream); break;
    }
}

void gpu_attend(const struct gpu_pool *pool, uint32_t layer, const struct gpu_rows *rows, const float *qkv, float *o,
                float *scratch, cudaStream_t stream)
{
    const struct place p = place_of(pool, layer);
    if (p.head_dim <= 32)
        launch_group<4>(p, pool->pages, rows, qkv, scratch, stream);
    else if (p.head_dim <= 64)
        launch_group<8>(p, pool->pages, rows, qkv, scratch, stream);
    else if (p.head_dim <= 128)
        launch_group<16>(p, pool->pages, rows, qkv, scratch, stream);
    else
        launch_group<32>(p, pool->pages, rows, qkv, scratch, stream);
    GPU_LAUNCH(merge_ranges, dim3(rows->count, p.heads), MERGE_THREADS, 0, stream, p, *rows, (const float *)scratch,
               ranges_of(rows->longest), o);
}
