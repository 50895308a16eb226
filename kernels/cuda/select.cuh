// select.cuh: the heaviest tokens of a row without a sort: what sample.cu draws with. One block of SELECT_THREADS works on a row.
//
// A token's weight is exp((logit - max) / temperature), computed with the operations of common/sampler/softmax.c in its order (no
// fused multiply-add), so that it has the bits that the host's would have. The tokens of a row have an order: the heavier first, of
// equal ones the lower id. Top-k, top-p and the draw itself are the same question about it: where is the first token at which what
// has gone before, and itself, reach a goal: a number of tokens (top-k) or a mass (top-p, the draw). It is answered by radix selection
// (as in RadiK, Li et al. 2024, with masses beside counts): the bits of a positive float order like the float, and a weight, at most
// 1, has 30 of them. Three times 10 bits are counted into 1,024 bins, and the bin that holds the answer is opened.
//
// Sums have one result whatever the order in which threads come. In a bin a weight is 2^e times (what its bins have in common + rest),
// so the bin's mass is made of two integers, how many and the sum of their rests, counted by integer atomics in shared memory: exact.
// Sums of masses over bins are f64, in a fixed order. What is kept of the row after a cut has the masses of the first bins up to the
// cut: they are counted once.
//
// Candidates are in a list in shared memory where they fit in it (SELECT_LIST). Else the row is read for the first bins, and for those
// that are in the one that is opened, an eighth of an octave of weights: these fit, but where a row is flat or has many equal values.
#ifndef FD_KERNELS_CUDA_SELECT_CUH
#define FD_KERNELS_CUDA_SELECT_CUH

#include "kernels/cuda/gpu.cuh"

static constexpr uint32_t SELECT_THREADS = 512, SELECT_WARPS = SELECT_THREADS / LANES, SELECT_LIST = 3072, SELECT_BITS = 10,
                          SELECT_BINS = 1u << SELECT_BITS, SELECT_LARGEST = (1u << 3 * SELECT_BITS) - 1, NO_TOKEN = ~0u;
static_assert(SELECT_BINS == 2 * SELECT_THREADS, "a thread sums two bins");

// 46 KiB: two blocks fit where a multiprocessor has 100 KiB.
struct select_shared {
    uint32_t key[SELECT_LIST], id[SELECT_LIST]; // the list, in no order
    uint32_t count[SELECT_BINS];
    uint32_t low[SELECT_BINS], high[SELECT_BINS]; // sums of the lowest 10 bits of the rests, and of the 10 above
    double mass_of_bin[SELECT_BINS];              // of the first bins, of what is kept
    uint32_t length;                              // of the list; more than SELECT_LIST: it did not fit
    uint32_t first, last;
    double mass_before;
    uint32_t count_before;
    double mass_of_warp[SELECT_WARPS];
    double count_of_warp[SELECT_WARPS];
    float best_value[SELECT_WARPS];
    uint32_t best_id[SELECT_WARPS];
};

// --- a row's values ---

// f(i, from[i]) for i = begin, begin + stride, ... below end. AHEAD of them are asked for before the first is used: what f does (it
// branches) would else stand between the loads.
template <uint32_t AHEAD, typename T, typename F>
__device__ __forceinline__ void each_ahead(const T *__restrict__ from, uint32_t begin, uint32_t end, uint32_t stride, F f)
{
#pragma unroll 1
    for (uint32_t i = begin; i < end; i += AHEAD * stride) {
        T values[AHEAD] = {};
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++)
            if (i + j * stride < end)
                values[j] = __ldg(from + i + j * stride);
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++)
            if (i + j * stride < end)
                f(i + j * stride, values[j]);
    }
}

// f(id, value) for all values, by all threads; each thread has rising ids.
template <typename F> __device__ __forceinline__ void each_value(const float *row, uint32_t vocab, F f)
{
    if (vocab % 4 == 0)
        each_ahead<4>((const float4 *)row, threadIdx.x, vocab / 4, SELECT_THREADS,
                      [&](uint32_t i, float4 v) { f(4 * i, v.x), f(4 * i + 1, v.y), f(4 * i + 2, v.z), f(4 * i + 3, v.w); });
    else
        each_ahead<8>(row, threadIdx.x, vocab, SELECT_THREADS, f);
}

// exp as softmax.c has it, operation by operation.
__device__ __forceinline__ float weight_of(float value, float max, float scale)
{
    float x = __fmul_rn(__fsub_rn(value, max), scale);
    if (!(x > -87.0f)) // NaN too
        return 0.0f;
    x = x < 0.0f ? x : 0.0f;
    const float n = __fsub_rn(__fadd_rn(__fmul_rn(x, 1.44269504f), 12582912.0f), 12582912.0f);
    const float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, -2.12194440e-4f));
    float p = 1.3981999507e-3f;
    p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
    p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
    return __fmul_rn(p, __uint_as_float((uint32_t)((int32_t)n + 127) << 23));
}

// Unsigned integers in the order of the floats.
__device__ __forceinline__ uint32_t ordered(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }

// --- of the block: the same in each thread, sums in a fixed order ---

__device__ __forceinline__ double block_sum_f64(struct select_shared *sh, double x)
{
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % LANES == 0)
        sh->mass_of_warp[threadIdx.x / LANES] = x;
    __syncthreads();
    x = 0;
    for (uint32_t w = 0; w < SELECT_WARPS; w++)
        x += sh->mass_of_warp[w];
    return x;
}

// The sum over the threads before this one.
__device__ __forceinline__ double block_before_f64(double *of_warp, double own)
{
    const uint32_t lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    double sum = own;
    for (unsigned step = 1; step < LANES; step *= 2) {
        const double other = __shfl_up_sync(FULL_WARP, sum, step);
        sum += lane >= step ? other : 0;
    }
    double before = __shfl_up_sync(FULL_WARP, sum, 1);
    before = lane ? before : 0;
    __syncthreads();
    if (lane == LANES - 1)
        of_warp[warp] = sum;
    __syncthreads();
    double warps = 0;
    for (uint32_t w = 0; w < warp; w++)
        warps += of_warp[w];
    return warps + before;
}

struct best {
    float value;
    uint32_t id; // NO_TOKEN: none
};

// Larger, of equal ones the lower id; none is behind all.
__device__ __forceinline__ bool better(struct best a, struct best b)
{
    return a.id != NO_TOKEN && (b.id == NO_TOKEN || a.value > b.value || (a.value == b.value && a.id < b.id));
}

__device__ __forceinline__ struct best block_best(struct select_shared *sh, struct best own)
{
    for (unsigned step = LANES / 2; step; step /= 2) {
        const struct best other = {__shfl_xor_sync(FULL_WARP, own.value, step), __shfl_xor_sync(FULL_WARP, own.id, step)};
        own = better(other, own) ? other : own;
    }
    __syncthreads();
    if (threadIdx.x % LANES == 0)
        sh->best_value[threadIdx.x / LANES] = own.value, sh->best_id[threadIdx.x / LANES] = own.id;
    __syncthreads();
    for (uint32_t w = 0; w < SELECT_WARPS; w++) {
        const struct best other = {sh->best_value[w], sh->best_id[w]};
        own = better(other, own) ? other : own;
    }
    return own;
}

// The largest value that is a number, and its lowest id; *own: this thread's largest, -inf where it has none.
__device__ __forceinline__ struct best row_best(struct select_shared *sh, const float *row, uint32_t vocab, float *own)
{
    struct best mine = {-INFINITY, NO_TOKEN};
    each_value(row, vocab, [&](uint32_t id, float value) {
        if (value > mine.value || (value == mine.value && mine.id == NO_TOKEN))
            mine.value = value, mine.id = id;
    });
    *own = mine.value;
    return block_best(sh, mine);
}

// The sum of the weights as softmax_weights() has it: f32 in 16 lanes of 4,096 values each, one thread a lane, and f64 over them.
// f(id, value) on the way.
template <typename F>
__device__ __forceinline__ double row_total(struct select_shared *sh, const float *__restrict__ row, uint32_t vocab, float max,
                                            float scale, F f)
{
    constexpr uint32_t BLOCK = 4096, WIDTH = 16;
    const uint32_t lanes = (vocab + BLOCK - 1) / BLOCK * WIDTH;
    double total = 0;
    for (uint32_t lane = threadIdx.x; lane < lanes; lane += SELECT_THREADS) {
        const uint32_t begin = lane / WIDTH * BLOCK, end = min(begin + BLOCK, vocab), full = end - (end - begin) % WIDTH;
        float sum = 0;
        each_ahead<16>(row, begin + lane % WIDTH, full, WIDTH, [&](uint32_t i, float value) {
            sum = __fadd_rn(sum, weight_of(value, max, scale));
            f(i, value);
        });
        for (uint32_t i = lane % WIDTH ? end : full; i < end; i++) { // the tail is the first lane's
            sum = __fadd_rn(sum, weight_of(row[i], max, scale));
            f(i, row[i]);
        }
        total += (double)sum;
    }
    return block_sum_f64(sh, total);
}

// --- selection ---

// The tokens to select from: of the list, or of the row; those not lighter than `least` and not behind (bound_key, bound_id).
struct candidates {
    const float *row;
    uint32_t vocab;
    float max, scale;
    bool listed, counted; // counted: mass_of_bin has what is kept of them
    uint32_t least, bound_key, bound_id;
};

__device__ __forceinline__ void empty_list(struct select_shared *sh)
{
    __syncthreads();
    if (threadIdx.x == 0)
        sh->length = 0;
    __syncthreads();
}

__device__ __forceinline__ void append(struct select_shared *sh, uint32_t key, uint32_t id, bool *full)
{
    if (*full)
        return;
    const uint32_t at = atomicAdd(&sh->length, 1u);
    if (at < SELECT_LIST)
        sh->key[at] = key, sh->id[at] = id;
    else
        *full = true;
}

template <typename F> __device__ __forceinline__ void each_candidate(struct select_shared *sh, const struct candidates &c, F f)
{
    const auto offer = [&](uint32_t key, uint32_t id) {
        if (key >= c.least && (key > c.bound_key || (key == c.bound_key && id <= c.bound_id)))
            f(key, id);
    };
    if (c.listed) {
        const uint32_t length = sh->length;
        for (uint32_t i = threadIdx.x; i < length; i += SELECT_THREADS)
            offer(sh->key[i], sh->id[i]);
    } else {
        each_value(c.row, c.vocab, [&](uint32_t id, float value) { offer(__float_as_uint(weight_of(value, c.max, c.scale)), id); });
    }
}

// Count: the token of this number, from 1. Mass: the first at which the sum reaches the goal, itself counted; with `beyond`, exceeds
// it. Where that is not reached: the last token.
enum select_kind { SELECT_COUNT, SELECT_MASS_REACHED, SELECT_MASS_BEYOND };
struct select_goal {
    enum select_kind kind;
    double value;
};

struct selected {
    uint32_t key, id;
    double mass; // of the tokens up to this one
};

__device__ __forceinline__ bool reached(const struct select_goal &goal, double count, double mass)
{
    return goal.kind == SELECT_COUNT          ? count >= goal.value
           : goal.kind == SELECT_MASS_REACHED ? mass >= goal.value
                                              : mass > goal.value;
}

// Returns the sum of `count` weights with the common leading bits `key` whose remaining `shift` bits add up to `rest`.
__device__ __forceinline__ double mass_of(uint32_t key, uint32_t count, uint64_t rest)
{
    const uint64_t mantissas = (uint64_t)count * ((key & 0x7fffffu) | 0x800000u) + rest;
    return (double)mantissas * ((double)__uint_as_float(key & 0x7f800000u) * 0x1p-23);
}

// Opens one bin: gives its number, what is in bins before it goes to shared memory. prefix: the bits above those of the bins. Masses
// are put into mass_of_bin or, `counted`, taken from there; counts are not known then.
__device__ __forceinline__ uint32_t find_bin(struct select_shared *sh, const struct select_goal &goal, uint32_t prefix,
                                             uint32_t shift, bool put, bool counted)
{
    const double mass_before = sh->mass_before, count_before = (double)sh->count_before;
    uint32_t counts[2];
    double masses[2];
    for (uint32_t j = 0; j < 2; j++) { // from the heaviest bin down
        const uint32_t bin = SELECT_BINS - 1 - (2 * threadIdx.x + j);
        const uint64_t rest = shift ? sh->low[bin] + ((uint64_t)(shift > SELECT_BITS ? sh->high[bin] : 0) << SELECT_BITS) : 0;
        counts[j] = counted ? 0 : sh->count[bin];
        masses[j] = counted     ? sh->mass_of_bin[bin]
                    : counts[j] ? mass_of((prefix << SELECT_BITS | bin) << shift, counts[j], rest)
                                : 0;
        if (put)
            sh->mass_of_bin[bin] = masses[j];
    }
    double count = count_before + block_before_f64(sh->count_of_warp, (double)(counts[0] + counts[1]));
    double mass = mass_before + block_before_f64(sh->mass_of_warp, masses[0] + masses[1]);
    const double start_count = count, start_mass = mass;
    for (uint32_t j = 0; j < 2; j++) {
        count += (double)counts[j], mass += masses[j];
        if (counts[j] == 0 && !(counted && masses[j] > 0))
            continue;
        atomicMax(&sh->last, 2 * threadIdx.x + j + 1);
        if (reached(goal, count, mass))
            atomicMin(&sh->first, 2 * threadIdx.x + j);
    }
    __syncthreads();
    const uint32_t chosen = sh->first != NO_TOKEN ? sh->first : max(sh->last, 1u) - 1;
    if (threadIdx.x == chosen / 2) { // who read mass_before has passed a barrier
        sh->count_before = (uint32_t)start_count + (chosen % 2 ? counts[0] : 0);
        sh->mass_before = start_mass + (chosen % 2 ? masses[0] : 0);
    }
    __syncthreads();
    return SELECT_BINS - 1 - chosen;
}

// Counts candidates by the 10 bits above `shift`, those with `prefix` above these. by_id: by SELECT_LARGEST - id, those with only_key. At
// the last level sh->high[bin] is the id of one in the bin.
__device__ __forceinline__ void count_bins(struct select_shared *sh, const struct candidates &c, int shift, uint32_t prefix,
                                           bool by_id, uint32_t only_key)
{
    for (uint32_t bin = threadIdx.x; bin < SELECT_BINS; bin += SELECT_THREADS)
        sh->count[bin] = sh->low[bin] = sh->high[bin] = 0;
    __syncthreads();
    each_candidate(sh, c, [&](uint32_t key, uint32_t id) {
        if (by_id && key != only_key)
            return;
        key = by_id ? SELECT_LARGEST - id : key;
        if ((key >> shift) >> SELECT_BITS != prefix)
            return;
        const uint32_t bin = (key >> shift) % SELECT_BINS;
        atomicAdd(&sh->count[bin], 1u);
        if (shift == 0)
            sh->high[bin] = id;
        else
            atomicAdd(&sh->low[bin], key % SELECT_BINS);
        if (shift > (int)SELECT_BITS)
            atomicAdd(&sh->high[bin], (key >> SELECT_BITS) % SELECT_BINS);
    });
}

// Those of the row that are in the first bin that was opened, to the list: if they fit, they are all there is to be selected from.
__device__ __forceinline__ void list_bin(struct select_shared *sh, struct candidates *c, uint32_t bin)
{
    bool full = false;
    empty_list(sh);
    each_candidate(sh, *c, [&](uint32_t key, uint32_t id) {
        if (key >> 2 * SELECT_BITS == bin)
            append(sh, key, id, &full);
    });
    __syncthreads();
    c->listed = sh->length <= SELECT_LIST;
}

// Three bins deep: the key. With by_id the keys are ids, the lowest first, of the candidates with this key; masses mean nothing then.
// *before: the mass before the first bin that was opened.
__device__ __forceinline__ uint32_t select_key(struct select_shared *sh, struct candidates *c, const struct select_goal &goal,
                                               bool by_id, uint32_t only_key, double *before)
{
    uint32_t prefix = 0;
#pragma unroll 1
    for (int shift = 2 * (int)SELECT_BITS; shift >= 0; shift -= (int)SELECT_BITS) {
        const bool is_first = shift == 2 * (int)SELECT_BITS, put = is_first && !by_id && !c->counted,
                   counted = is_first && !by_id && c->counted;
        __syncthreads();
        if (threadIdx.x == 0) {
            sh->first = NO_TOKEN, sh->last = 0;
            if (is_first)
                sh->mass_before = 0, sh->count_before = 0;
        }
        if (!counted)
            count_bins(sh, *c, shift, prefix, by_id, only_key);
        __syncthreads();
        prefix = prefix << SELECT_BITS | find_bin(sh, goal, prefix, (uint32_t)shift, put, counted);
        if (is_first && !by_id) {
            *before = sh->mass_before;
            if (!c->listed)
                list_bin(sh, c, prefix);
        }
    }
    return prefix;
}

// Sets the mass of what is cut off at a selected token to 0.
__device__ __forceinline__ void keep_masses(struct select_shared *sh, const struct selected &at, double before)
{
    const uint32_t cut = at.key >> 2 * SELECT_BITS;
    for (uint32_t bin = threadIdx.x; bin <= cut; bin += SELECT_THREADS)
        sh->mass_of_bin[bin] = bin == cut ? at.mass - before : 0;
}

// All threads get the same. There is at least one candidate; what `least` and the bound leave out is not there.
__device__ __forceinline__ struct selected select_token(struct select_shared *sh, const struct candidates &all,
                                                        struct select_goal goal)
{
    struct candidates c = all;
    struct selected out = {0, NO_TOKEN, 0};
    double before = 0;
#pragma unroll 1
    for (bool by_id = false;; by_id = true) {
        const uint32_t key = select_key(sh, &c, goal, by_id, out.key, &before), bin = key % SELECT_BINS, ties = sh->count[bin];
        if (by_id) {
            out.id = SELECT_LARGEST - key;
            break;
        }
        const double weight = (double)__uint_as_float(key);
        double wanted = 1; // of the tokens of this weight, by id
        if (ties > 1) {
            const double quotient = (goal.value - sh->mass_before) / weight;
            wanted = goal.kind == SELECT_COUNT          ? goal.value - (double)sh->count_before
                     : goal.kind == SELECT_MASS_REACHED ? ceil(quotient)
                                                        : floor(quotient) + 1;
            wanted = wanted >= 1 ? min(wanted, (double)ties) : 1;
        }
        out = {key, sh->high[bin], sh->mass_before + wanted * weight};
        if (ties <= 1)
            break;
        goal = {SELECT_COUNT, wanted};
    }
    keep_masses(sh, out, before);
    return out;
}

#endif
