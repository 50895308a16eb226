// prefill.cu: attention of a chunk of a prompt over paged K and V by tensor cores: FlashAttention-2 (Dao, "FlashAttention-2: faster
// attention with better parallelism and work partitioning", 2023), its context split where a step has few tiles (as FlashDecoding).
//
// A block takes a tile: ITEMS = 128 items of one KV head, an item being a query head of a row, so that all heads of a KV head read its
// K and V once, and one span of the context (mostly all of it). Item i is row i / group, head i % group; positions of the rows follow
// each other, so the causal limit of an item is the first row's position plus i / group. Four warps have 32 items each:
//
//                 keys, 64 a turn ─▶                            dims ─▶
//     items  ┌──────────────────────┐            items  ┌──────────────────────┐
//     0..31  │ S = Q Kᵀ   2 x 8     │ ─ exp2 ─▶  0..31  │ O += P V  2 x D / 8  │   tiles of m16n8, f32 in registers
//       …    │   of m16n8           │   P f16      …    │                      │
//            └──────────────────────┘                   └──────────────────────┘
//
// S never leaves the registers: the fragment of a 16 x 16 piece of P as left operand is the one that S has as result.
//
// Shared memory: Q [128][D + 8], K [64][D + 8], V [64][D + 8] f16, 68 KiB for D = 128, so that two blocks, whose turns interleave, fit on
// a multiprocessor of sm_80 and sm_90 (one on sm_86 and 89). On sm_75, which has 64 KiB a block, turns of D = 128 have 32 keys. A row has
// an odd number of 16-byte pieces: the eight rows of an ldmatrix tile lie in different banks without a swizzle, at addresses that are
// constants from the lane's first. K and V have a buffer each and take turns: while S is computed, V of the same keys comes (cp.async), while O is computed, K of the next. A turn of D = 128 is 4.2 MFLOP,
// at least 1,500 cycles of a multiprocessor's tensor cores, half of it longer than memory's latency; it reads 32 KiB, 21 bytes a cycle
// and multiprocessor even at the full rate, from L2 for all tiles but the first of a sequence (neighbours in the grid).
//
// Why 32 items a warp: ldmatrix brings 512 bytes in four cycles. Of D = 128, a warp's turn needs 8 x (2 + 4) of them for S and 4 x 8 for O,
// four warps 1,280 cycles; with 16 items a warp, and eight warps, it would be 2,304, more than the 1,500 of the tensor cores.
//
// Rounding. q is multiplied by log2(e) / sqrt(head_dim) in f32 and then rounded to f16, so that scores are exponents of 2: an error
// of at most 2^-11 a product q·k, that is about 2^-12 sqrt(sum (q k)^2) ~ 2e-4 of a score for values near one (saturating at 65,504,
// which q reaches at 513,000 for head_dim 128). P is rounded to f16, 2^-11 each; so that small weights of long contexts keep that, and
// do not end at f16's 2^-24, P is 2^14 times what it would be: exp2(s - m + 14), at most 16,384. Its sum has the same factor.
//
// A row's result does not depend on the others: keys come in the same pieces from position 0 on, and a piece that an item does not see
// leaves it as it is (a factor of exactly one, weights of exactly zero).
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pages.cuh"

static constexpr unsigned ITEMS = 128, WARPS = 4, THREADS = WARPS * LANES, OWN = ITEMS / WARPS, GROUP_MAX = 32;
static constexpr unsigned KEYS_USUAL = 64, KEYS_SMALL = 32; // of a turn; where 68 KiB of shared memory are too much, half as many
template <unsigned KEYS> static constexpr unsigned KEY_PAGES = KEYS / PAGE;
template <unsigned KEYS> static constexpr unsigned WINDOW = LANES / KEY_PAGES<KEYS>; // turns whose pages the lanes of a warp name
static constexpr unsigned MERGED = 16;                                               // items of a block that merges
static constexpr float WEIGHT_LOG2 = 14;
static_assert(GPU_TILE_SPAN % (LANES * PAGE) == 0, "a span begins with a window");
static_assert(GPU_MAX_CONTEXT / GPU_TILE_SPAN <= 65535, "spans are the third dimension of a grid");

template <unsigned D> static constexpr unsigned STRIDE = D + 8; // f16 of a row in shared memory
template <unsigned D, unsigned KEYS> static constexpr unsigned SHARED_BYTES = (ITEMS + 2 * KEYS) * STRIDE<D> * 2;

// A tile as its block sees it.
struct tile {
    uint32_t first, items, group, kv_head, position; // of the first row
    uint32_t begin, end;                             // positions of the context that this block takes
};

// --- K and V to shared memory ---

// The source of K and V of a block's KV head. The lanes of a warp know the pages of a window of turns, one each.
struct source {
    const __half *pages; // of the layer and KV head
    const uint32_t *table;
    size_t page_halves;
    uint32_t head_dim, end;
    uint32_t ids, ids_next; // a lane's page of this window and of the next
};

__device__ __forceinline__ uint32_t page_id(const struct source &from, uint32_t window)
{
    const uint32_t page = window * LANES + threadIdx.x % LANES;
    return page < (from.end + PAGE - 1) / PAGE ? from.table[page] : 0;
}

// K (part 0) or V (1) of a turn's keys; zeros behind the end, where a page may hold anything, and beyond head_dim.
template <unsigned D, unsigned KEYS>
__device__ __forceinline__ void copy_keys(const struct source &from, uint32_t turn, unsigned part, __half *to)
{
    constexpr unsigned PIECES = D / 8;
#pragma unroll 4 // all of them at once would spill
    for (unsigned i = 0; i < KEYS * PIECES / THREADS; i++) {
        const unsigned at = i * THREADS + threadIdx.x, key = at / PIECES, piece = at % PIECES;
        const uint32_t page = __shfl_sync(FULL_WARP, from.ids, turn % WINDOW<KEYS> * KEY_PAGES<KEYS> + key / PAGE);
        const bool any = turn * KEYS + key < from.end && piece * 8 < from.head_dim;
        const __half *values = from.pages + page * from.page_halves + (part * PAGE + key % PAGE) * from.head_dim + piece * 8;
        gpu_copy_async(to + key * STRIDE<D> + piece * 8, any ? values : from.pages, any);
    }
}

// --- Q ---

__device__ __forceinline__ uint32_t pack_scaled(float first, float second, float scale)
{
    return gpu_pack(f16_range(first * scale), f16_range(second * scale));
}

// Scaled, as f16; zeros for items that there are not, and beyond head_dim.
template <unsigned D>
__device__ __forceinline__ void store_queries(const struct place &p, const struct gpu_rows &rows, const struct tile &t,
                                              const float *qkv, __half *to)
{
    constexpr unsigned PIECES = D / 8;
    const size_t width = (size_t)(p.heads + 2 * p.kv_heads) * p.head_dim;
    const float scale = 1.44269504f * rsqrtf((float)p.head_dim);
#pragma unroll 2
    for (unsigned at = threadIdx.x; at < ITEMS * PIECES; at += THREADS) {
        const unsigned item = at / PIECES, piece = at % PIECES;
        uint4 words = {0, 0, 0, 0};
        if (item < t.items && piece * 8 < p.head_dim) {
            const uint32_t row = rows.row[t.first + item / t.group], head = t.kv_head * t.group + item % t.group;
            const float4 *q = (const float4 *)(qkv + row * width + head * p.head_dim + piece * 8);
            const float4 a = q[0], b = q[1];
            words.x = pack_scaled(a.x, a.y, scale), words.y = pack_scaled(a.z, a.w, scale);
            words.z = pack_scaled(b.x, b.y, scale), words.w = pack_scaled(b.z, b.w, scale);
        }
        *(uint4 *)(to + item * STRIDE<D> + piece * 8) = words;
    }
}

// The left fragments of a warp's 32 items: in registers where they leave room, else read again each turn.
template <unsigned D> struct queries {
    static constexpr bool KEPT = D <= 64;
    const __half *at; // a lane's first address for ldmatrix
    uint32_t kept[KEPT ? D / 16 : 1][2][4];

    __device__ __forceinline__ void load(unsigned k, uint32_t (*out)[4]) const
    {
        gpu_load_tiles(out[0], at + k * 16);
        gpu_load_tiles(out[1], at + 16 * STRIDE<D> + k * 16);
    }
    __device__ __forceinline__ void keep(void)
    {
        if constexpr (KEPT)
#pragma unroll
            for (unsigned k = 0; k < D / 16; k++)
                load(k, kept[k]);
    }
};

// --- a turn ---

// Fragments of a warp: [16 items][8 columns] each; items g and g + 8 of them, columns 2t and 2t + 1, in a lane.
template <unsigned D> struct running {
    float acc[2][D / 8][4];
    float m[2][2], l[2][2]; // of an item: the largest score; the sum of the weights of this lane's columns
};
template <unsigned KEYS> using scores = float[2][KEYS / 8][4];
template <unsigned KEYS> using weights = uint32_t[2][KEYS / 16][4];

template <unsigned D, unsigned KEYS> __device__ __forceinline__ void score(const queries<D> &q, const __half *keys, scores<KEYS> &s)
{
#pragma unroll
    for (unsigned mt = 0; mt < 2; mt++)
#pragma unroll
        for (unsigned n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (unsigned i = 0; i < 4; i++)
                s[mt][n][i] = 0;
#pragma unroll
    for (unsigned k = 0; k < D / 16; k++) {
        uint32_t loaded[2][4];
        if constexpr (!queries<D>::KEPT)
            q.load(k, loaded);
#pragma unroll
        for (unsigned n = 0; n < KEYS / 16; n++) {
            uint32_t b[4];
            gpu_load_tiles(b, keys + n * 16 * STRIDE<D> + k * 16);
#pragma unroll
            for (unsigned mt = 0; mt < 2; mt++) {
                const uint32_t *a = queries<D>::KEPT ? q.kept[queries<D>::KEPT ? k : 0][mt] : loaded[mt];
                multiply_fragments<__half>(s[mt][2 * n], a, b[0], b[1]);
                multiply_fragments<__half>(s[mt][2 * n + 1], a, b[2], b[3]);
            }
        }
    }
}

// Masks what lies behind an item's own position.
template <unsigned KEYS>
__device__ __forceinline__ void mask(const struct tile &t, uint32_t turn, unsigned warp, unsigned lane, scores<KEYS> &s)
{
#pragma unroll
    for (unsigned mt = 0; mt < 2; mt++)
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const uint32_t own = t.position + (warp * OWN + mt * 16 + half * 8 + lane / 4) / t.group;
#pragma unroll
            for (unsigned n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (unsigned i = 0; i < 2; i++)
                    if (turn * KEYS + n * 8 + lane % 4 * 2 + i > own)
                        s[mt][n][half * 2 + i] = -INFINITY;
        }
}

// Scores become weights relative to the largest so far; what was summed before is brought to it.
template <unsigned D, unsigned KEYS> __device__ __forceinline__ void soften(scores<KEYS> &s, running<D> &run, weights<KEYS> &w)
{
#pragma unroll
    for (unsigned mt = 0; mt < 2; mt++) {
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            float best = run.m[mt][half];
#pragma unroll
            for (unsigned n = 0; n < KEYS / 8; n++)
                best = fmaxf(best, fmaxf(s[mt][n][half * 2], s[mt][n][half * 2 + 1]));
            best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 1));
            best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 2));
            const float finite = best == -INFINITY ? 0.0f : best; // an item that has seen nothing of this span
            const float old = gpu_exp2(run.m[mt][half] - finite), shifted = finite - WEIGHT_LOG2;
            const float zero = finite - shifted > WEIGHT_LOG2 ? finite : shifted; // from 2^25 on the difference is rounded itself
            float sum = run.l[mt][half] * old;
#pragma unroll
            for (unsigned n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (unsigned i = half * 2; i < half * 2 + 2; i++) {
                    s[mt][n][i] = gpu_exp2(s[mt][n][i] - zero);
                    sum += s[mt][n][i];
                }
            run.m[mt][half] = best, run.l[mt][half] = sum;
#pragma unroll
            for (unsigned n = 0; n < D / 8; n++)
                run.acc[mt][n][half * 2] *= old, run.acc[mt][n][half * 2 + 1] *= old;
        }
#pragma unroll
        for (unsigned k = 0; k < KEYS / 16; k++)
#pragma unroll
            for (unsigned i = 0; i < 4; i++)
                w[mt][k][i] = gpu_pack(s[mt][2 * k + i / 2][i % 2 * 2], s[mt][2 * k + i / 2][i % 2 * 2 + 1]);
    }
}

template <unsigned D, unsigned KEYS>
__device__ __forceinline__ void add_values(const weights<KEYS> &w, const __half *values, running<D> &run)
{
#pragma unroll
    for (unsigned k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (unsigned n = 0; n < D / 16; n++) {
            uint32_t b[4];
            gpu_load_tiles_transposed(b, values + k * 16 * STRIDE<D> + n * 16);
#pragma unroll
            for (unsigned mt = 0; mt < 2; mt++) {
                multiply_fragments<__half>(run.acc[mt][2 * n], w[mt][k], b[0], b[1]);
                multiply_fragments<__half>(run.acc[mt][2 * n + 1], w[mt][k], b[2], b[3]);
            }
        }
}

// --- results ---

// A block's part where the context is cut: [ITEMS][head_dim] sums, then of each item the largest score and the sum of the weights.
static __device__ __forceinline__ size_t part_offset(const struct place &p, uint32_t tile, uint32_t kv_head, uint32_t span,
                                                     uint32_t spans)
{
    return (((size_t)tile * p.kv_heads + kv_head) * spans + span) * ITEMS * (p.head_dim + 2);
}

template <unsigned D>
__device__ __forceinline__ void put(const struct place &p, const struct gpu_rows &rows, const struct tile &t, const running<D> &run,
                                    float *part, float *o)
{
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
#pragma unroll
    for (unsigned mt = 0; mt < 2; mt++)
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const unsigned item = warp * OWN + mt * 16 + half * 8 + lane / 4;
            float sum = run.l[mt][half], *to, factor = 1;
            sum += __shfl_xor_sync(FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(FULL_WARP, sum, 2);
            if (item >= t.items)
                continue;
            if (part) {
                to = part + item * p.head_dim;
                if (lane % 4 == 0)
                    *(float2 *)(part + ITEMS * p.head_dim + item * 2) = make_float2(run.m[mt][half], sum);
            } else {
                const uint32_t row = rows.row[t.first + item / t.group], head = t.kv_head * t.group + item % t.group;
                to = o + ((size_t)row * p.heads + head) * p.head_dim;
                factor = 1.0f / sum;
            }
#pragma unroll
            for (unsigned n = 0; n < D / 8; n++)
                if (n * 8 < p.head_dim)
                    *(float2 *)(to + n * 8 + lane % 4 * 2) =
                        make_float2(run.acc[mt][n][half * 2] * factor, run.acc[mt][n][half * 2 + 1] * factor);
        }
}

// --- the kernel ---

// All turns of a block; `from.end` and t.end are the same. Every warp copies and comes to the barriers; who sees nothing computes
// nothing.
template <unsigned D, unsigned KEYS>
__device__ __forceinline__ void take_turns(const struct tile &t, struct source &from, __half *shared, running<D> &run)
{
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const uint32_t own_first = t.position + warp * OWN / t.group; // positions of the warp's rows
    const uint32_t own_last = t.position + (min(t.items, (warp + 1) * OWN) - 1) / t.group;
    const bool own = warp * OWN < t.items;
    __half *keys = shared + ITEMS * STRIDE<D>, *values = keys + KEYS * STRIDE<D>;
    const __half *keys_at = keys + (lane / 16 * 8 + lane % 8) * STRIDE<D> + lane / 8 % 2 * 8;
    const __half *values_at = values + lane % 16 * STRIDE<D> + lane / 16 * 8;
    queries<D> q;

    q.at = shared + (warp * OWN + lane % 16) * STRIDE<D> + lane / 16 * 8;
    q.keep();
    for (uint32_t turn = t.begin / KEYS; turn * KEYS < t.end; turn++) {
        const bool sees = own && turn * KEYS <= own_last;
        weights<KEYS> w;
        gpu_copy_wait();
        __syncthreads(); // K is there, and nobody reads the V before it any more
        copy_keys<D, KEYS>(from, turn, 1, values);
        if (sees) {
            scores<KEYS> s;
            score<D, KEYS>(q, keys_at, s);
            if (turn * KEYS + KEYS - 1 > own_first)
                mask<KEYS>(t, turn, warp, lane, s);
            soften<D, KEYS>(s, run, w);
        }
        gpu_copy_wait();
        __syncthreads(); // V is there, and nobody reads this K any more
        if ((turn + 1) * KEYS < t.end) {
            if ((turn + 1) % WINDOW<KEYS> == 0) {
                from.ids = from.ids_next;
                from.ids_next = page_id(from, (turn + 1) / WINDOW<KEYS> + 1);
            }
            copy_keys<D, KEYS>(from, turn + 1, 0, keys);
        }
        if (sees)
            add_values<D, KEYS>(w, values_at, run);
    }
}

template <unsigned D, unsigned KEYS>
__global__ __launch_bounds__(THREADS, 2) void attend_tile(struct place p, const __half *pages, struct gpu_rows rows,
                                                          struct gpu_tiles tiles, const float *qkv, float *parts, float *o)
{
    GPU_DYNAMIC_SHARED(shared_memory);
    __half *shared = (__half *)shared_memory;
    const uint32_t index = gridDim.x - 1 - blockIdx.x; // the last first: of a prompt they have most to do
    const uint32_t count = tiles.words[2 * index + 1];
    struct tile t;
    struct source from;
    running<D> run;

    t.first = tiles.words[2 * index], t.group = p.heads / p.kv_heads, t.items = count * t.group;
    t.kv_head = blockIdx.y, t.position = rows.position[t.first];
    t.begin = blockIdx.z ? blockIdx.z * tiles.span : 0;
    t.end = t.position + count;
    if (t.begin >= t.end)
        return;
    t.end = min(t.end, t.begin + min(tiles.span, t.end));
    from.pages = pages + page_offset(p, 0, t.kv_head);
    from.table = rows.pages + rows.table[t.first];
    from.page_halves = page_offset(p, 1, 0) - page_offset(p, 0, 0);
    from.head_dim = p.head_dim, from.end = t.end;
    from.ids = page_id(from, t.begin / (WINDOW<KEYS> * KEYS));
    from.ids_next = page_id(from, t.begin / (WINDOW<KEYS> * KEYS) + 1);
    copy_keys<D, KEYS>(from, t.begin / KEYS, 0, shared + ITEMS * STRIDE<D>);
    store_queries<D>(p, rows, t, qkv, shared);
#pragma unroll
    for (unsigned mt = 0; mt < 2; mt++) {
        run.m[mt][0] = run.m[mt][1] = -INFINITY, run.l[mt][0] = run.l[mt][1] = 0;
#pragma unroll
        for (unsigned n = 0; n < D / 8; n++)
#pragma unroll
            for (unsigned i = 0; i < 4; i++)
                run.acc[mt][n][i] = 0;
    }
    __syncthreads(); // Q is there
    take_turns<D, KEYS>(t, from, shared, run);
    put<D>(p, rows, t, run, parts ? parts + part_offset(p, index, t.kv_head, blockIdx.z, gridDim.z) : nullptr, o);
}

// The parts of MERGED items of a tile and KV head, by log-sum-exp.
__global__ void merge_spans(struct place p, struct gpu_rows rows, struct gpu_tiles tiles, const float *parts, uint32_t spans,
                            float *o)
{
    const uint32_t first = tiles.words[2 * blockIdx.x], group = p.heads / p.kv_heads, kv_head = blockIdx.y;
    const uint32_t begin = blockIdx.z * MERGED, end = min(begin + MERGED, tiles.words[2 * blockIdx.x + 1] * group);
    const size_t part_floats = (size_t)ITEMS * (p.head_dim + 2);
    const float *part = parts + part_offset(p, blockIdx.x, kv_head, 0, spans);

    for (uint32_t at = begin * p.head_dim + threadIdx.x; at < end * p.head_dim; at += blockDim.x) {
        const uint32_t item = at / p.head_dim, row = first + item / group;
        const uint32_t seen = rows.position[row] / tiles.span + 1;
        const float *of_item = part + ITEMS * p.head_dim + item * 2;
        float best = -INFINITY, sum = 0, all = 0;
        for (uint32_t s = 0; s < seen; s++)
            best = fmaxf(best, of_item[s * part_floats]);
        for (uint32_t s = 0; s < seen; s++) {
            const float factor = gpu_exp2(of_item[s * part_floats] - best);
            sum += factor * part[s * part_floats + at], all += factor * of_item[s * part_floats + 1];
        }
        o[((size_t)rows.row[row] * p.heads + kv_head * group + item % group) * p.head_dim + at % p.head_dim] = sum / all;
    }
}

// --- launches ---

uint32_t gpu_tile_rows(const struct gpu_pool *pool)
{
    const uint32_t group = pool->heads / pool->kv_heads;
    return pool->head_dim <= 128 && group <= GROUP_MAX ? ITEMS / group : 0;
}

// Calls `function` for the least D that heads fit, and the most keys a turn that shared memory allows.
#define FOR_HEAD_DIM(pool, function, ...)                              \
    ((pool)->head_dim <= 32   ? function<32, KEYS_USUAL>(__VA_ARGS__)  \
     : (pool)->head_dim <= 64 ? function<64, KEYS_USUAL>(__VA_ARGS__)  \
     : (pool)->head_dim <= 80 ? function<80, KEYS_USUAL>(__VA_ARGS__)  \
     : (pool)->head_dim <= 96 ? function<96, KEYS_USUAL>(__VA_ARGS__)  \
     : !(pool)->small_shared  ? function<128, KEYS_USUAL>(__VA_ARGS__) \
                              : function<128, KEYS_SMALL>(__VA_ARGS__))
static_assert(SHARED_BYTES<96, KEYS_USUAL> <= GPU_SMALL_SHARED && SHARED_BYTES<128, KEYS_SMALL> <= GPU_SMALL_SHARED,
              "the least shared memory is enough");

static uint32_t spans_of(const struct gpu_tiles *tiles) { return (tiles->longest - 1) / tiles->span + 1; }

size_t gpu_tile_scratch(const struct gpu_pool *pool, const struct gpu_tiles *tiles)
{
    const uint32_t spans = spans_of(tiles);
    return spans == 1 ? 0 : (size_t)tiles->count * pool->kv_heads * spans * ITEMS * (pool->head_dim + 2);
}

template <unsigned D, unsigned KEYS> static cudaError_t allow(uint32_t *blocks)
{
    const void *kernel = (const void *)attend_tile<D, KEYS>;
    int resident = 0;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED_BYTES<D, KEYS>);
    if (!error)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (!error)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, THREADS, SHARED_BYTES<D, KEYS>);
    *blocks = resident > 0 ? (uint32_t)resident : 1;
    return error;
}

cudaError_t gpu_tile_open(const struct gpu_pool *pool, uint32_t *blocks) { return FOR_HEAD_DIM(pool, allow, blocks); }

template <unsigned D, unsigned KEYS>
static void launch_tiles(const struct place &p, const void *pages, const struct gpu_rows *rows, const struct gpu_tiles *tiles,
                         const float *qkv, float *parts, float *o, cudaStream_t stream)
{
    GPU_LAUNCH((attend_tile<D, KEYS>), dim3(tiles->count, p.kv_heads, spans_of(tiles)), THREADS, (SHARED_BYTES<D, KEYS>), stream, p,
               (const __half *)pages, *rows, *tiles, qkv, parts, o);
}

void gpu_attend_tiles(const struct gpu_pool *pool, uint32_t layer, const struct gpu_rows *rows, const struct gpu_tiles *tiles,
                      const float *qkv, float *o, float *scratch, cudaStream_t stream)
{
    const struct place p = place_of(pool, layer);
    const uint32_t spans = spans_of(tiles);
    float *parts = spans > 1 ? scratch : nullptr;

    FOR_HEAD_DIM(pool, launch_tiles, p, pool->pages, rows, tiles, qkv, parts, o, stream);
    if (spans > 1)
        GPU_LAUNCH(merge_spans, dim3(tiles->count, p.kv_heads, ITEMS / MERGED), 128, 0, stream, p, *rows, *tiles,
                   (const float *)parts, spans, o);
}
