// sample.cu: from logits to tokens. A block a row; three kernels, each started where a row of the block of rows needs it:
//
//     score    what log-probabilities are made of: max, total, the best tokens               raw logits, 2 reads
//     adjust   penalties and biases, put into the row; what was there is kept                a few entries
//     draw     greedy                          the best token                                1 read
//              temperature alone, or min-p     down to the part of the row with the draw     2 reads
//              top-k up to 512                 candidates into shared memory, see below      2 reads
//              top-p                           total, candidates into shared memory          3 reads
//
// Candidates are what can matter: for top-p, and as the host has it, what has a share of the mass left out that is not below half the
// average; for top-k, what is not below the k-th largest of the threads' own maxima, which are that many tokens of the row. Where they
// fit into the list in shared memory, selection (select.cuh) costs some microseconds. If not (a model that is unsure: tens of thousands
// of candidates), there is one more read for the first bins, one a filter and one for the draw. The best tokens for log-probabilities
// are found by their threads' maxima too; where more than the list holds are level, one read a token.
//
// A read of 256 rows of 128,256 tokens is 131 MB: 27 us of the 4.8 TB/s of an H200. The kernels have two blocks of 512 threads a
// multiprocessor (45 KiB of shared memory each, 64 registers a thread), 264 in all, so that these 256 rows are resident at once, and one
// reads while the other selects; four loads of 16 bytes a thread are 64 KiB in flight a multiprocessor, three times what latency
// times bandwidth asks for. (Reckoned, not measured.)
//
// All is deterministic, and the same as on the host up to the order of f64 sums (select.cuh): weights and the f32 sums that
// lanes make of them have the host's bits.
#include "kernels/cuda/select.cuh"

// --- adjust ---

// Each token that was seen is once in the list. Biases may name a token twice: the first entry adds them all, in order.
__global__ void __launch_bounds__(SELECT_THREADS) adjust_row(struct gpu_sampling s)
{
    const struct gpu_sample p = s.samples[blockIdx.x]; // a copy: stores below might be to it, for all that is known
    const struct gpu_adjust *adjust = s.adjust + p.adjust_first;
    float *row = s.logits + (size_t)blockIdx.x * s.vocab, *raw = s.raw + p.adjust_first;

    for (uint32_t i = threadIdx.x; i < p.seen_count; i += SELECT_THREADS) {
        const float logit = row[adjust[i].token];
        float adjusted = logit > 0 ? __fdiv_rn(logit, p.repetition_penalty) : __fmul_rn(logit, p.repetition_penalty);
        if (adjust[i].generated)
            adjusted =
                __fsub_rn(adjusted, __fadd_rn(p.presence_penalty, __fmul_rn(p.frequency_penalty, (float)adjust[i].generated)));
        raw[i] = logit;
        row[adjust[i].token] = adjusted;
    }
    __syncthreads();
    adjust += p.seen_count, raw += p.seen_count;
    for (uint32_t i = threadIdx.x; i < p.bias_count; i += SELECT_THREADS) {
        const uint32_t token = adjust[i].token;
        bool is_first = true;
        for (uint32_t j = 0; is_first && j < i; j++)
            is_first = adjust[j].token != token;
        if (!is_first)
            continue;
        float logit = row[token];
        raw[i] = logit;
        for (uint32_t j = i; j < p.bias_count; j++)
            if (adjust[j].token == token)
                logit = __fadd_rn(logit, adjust[j].bias);
        row[token] = logit;
    }
}

// The token's logit before it was adjusted. By all threads.
__device__ __forceinline__ float raw_logit(struct select_shared *sh, const struct gpu_sampling &s, const struct gpu_sample &p,
                                           const float *row, uint32_t token)
{
    const uint32_t count = p.seen_count + p.bias_count;
    if (count == 0)
        return row[token];
    __syncthreads();
    if (threadIdx.x == 0)
        sh->first = NO_TOKEN;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += SELECT_THREADS)
        if (s.adjust[p.adjust_first + i].token == token)
            atomicMin(&sh->first, i); // the first entry is the one that found it as it was
    __syncthreads();
    const uint32_t first = sh->first;
    return first == NO_TOKEN ? row[token] : s.raw[p.adjust_first + first];
}

// --- a bound for the best tokens ---

// At least `rank` values of the row have keys (ordered() / 4) that are not smaller: the rank-th largest of the threads' maxima.
// rank <= SELECT_THREADS.
__device__ __forceinline__ uint32_t rank_floor(struct select_shared *sh, float own_max, uint32_t rank)
{
    struct candidates maxima = {nullptr, 0, 0, 0, true, false, 0, 0, NO_TOKEN};
    double unused;
    __syncthreads();
    sh->key[threadIdx.x] = ordered(own_max) >> 2;
    sh->id[threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0)
        sh->length = SELECT_THREADS;
    return select_key(sh, &maxima, {SELECT_COUNT, (double)rank}, false, 0, &unused); // it begins with a barrier
}

// --- score ---

// If so many are level that the list does not hold them: one after the other.
__device__ __forceinline__ void top_of_row(struct select_shared *sh, const float *row, uint32_t vocab, uint32_t top_count,
                                           struct gpu_sampled *out)
{
    struct best previous = {INFINITY, NO_TOKEN};
#pragma unroll 1
    for (uint32_t rank = 0; rank < top_count; rank++) {
        struct best own = {-INFINITY, NO_TOKEN};
        each_value(row, vocab, [&](uint32_t id, float value) {
            const struct best here = {value == value ? value : -INFINITY, id};
            if ((previous.id == NO_TOKEN || better(previous, here)) && better(here, own))
                own = here;
        });
        previous = block_best(sh, own);
        if (threadIdx.x == 0)
            out->top[rank].token = previous.id, out->top[rank].logit = previous.value;
    }
}

__global__ void __launch_bounds__(SELECT_THREADS, 2) score_row(struct gpu_sampling s)
{
    __shared__ struct select_shared shared;
    struct select_shared *sh = &shared;
    const struct gpu_sample p = s.samples[blockIdx.x]; // a copy: stores below might be to it, for all that is known
    const float *row = s.logits + (size_t)blockIdx.x * s.vocab;
    struct gpu_sampled *out = s.out + blockIdx.x;
    float own_max;

    if (!(p.flags & GPU_SCORE))
        return;
    const float max = row_best(sh, row, s.vocab, &own_max).value;
    const uint32_t floor_key = p.top_count ? rank_floor(sh, own_max, p.top_count) : ~0u;
    bool full = false;
    empty_list(sh);
    const double total = row_total(sh, row, s.vocab, max, 1.0f, [&](uint32_t id, float value) {
        const uint32_t key = ordered(value == value ? __fadd_rn(value, 0.0f) : -INFINITY); // -0 is 0
        if (key >> 2 >= floor_key)
            append(sh, key, id, &full);
    });
    __syncthreads();
    const uint32_t length = sh->length;
    if (threadIdx.x == 0) {
        out->max = max, out->total = total;
        if (!(p.flags & GPU_DRAW))
            out->token = p.token, out->logit = row[p.token];
    }
    if (length > SELECT_LIST) {
        top_of_row(sh, row, s.vocab, p.top_count, out);
        return;
    }
    for (uint32_t i = threadIdx.x; p.top_count && i < length; i += SELECT_THREADS) { // as many before it as it has betters
        const uint32_t key = sh->key[i], id = sh->id[i];
        uint32_t rank = 0;
        for (uint32_t j = 0; rank < p.top_count && j < length; j++)
            rank += sh->key[j] > key || (sh->key[j] == key && sh->id[j] < id);
        if (rank < p.top_count)
            out->top[rank].token = id, out->top[rank].logit = from_ordered(key);
    }
}

// --- draw ---

struct exact_sum { // of f32 values, about f64, in f32: f64 is 1/64 as fast on many devices. Knuth's TwoSum
    float high, low;
};
__device__ __forceinline__ void add(struct exact_sum *sum, float x)
{
    const float high = __fadd_rn(sum->high, x), of_x = __fsub_rn(high, sum->high);
    const float error = __fadd_rn(__fsub_rn(sum->high, __fsub_rn(high, of_x)), __fsub_rn(x, of_x));
    sum->high = high;
    sum->low = __fadd_rn(sum->low, error);
}

// The last step: one token a thread, from the first id up.
__device__ __forceinline__ uint32_t draw_among(struct select_shared *sh, uint32_t begin, double weight, double mass_before,
                                               double target)
{
    __syncthreads();
    if (threadIdx.x == 0)
        sh->first = NO_TOKEN, sh->last = 0;
    const double mass = mass_before + block_before_f64(sh->mass_of_warp, weight) + weight; // it has barriers
    if (weight > 0) {
        atomicMax(&sh->last, threadIdx.x);
        if (mass > target)
            atomicMin(&sh->first, threadIdx.x);
    }
    __syncthreads();
    return begin + (sh->first != NO_TOKEN ? sh->first : sh->last);
}

// No top-k, no top-p: in the order of ids. Each warp sums a part of what is left of the row; the part with the draw is what is left.
__device__ __forceinline__ uint32_t draw_in_order(struct select_shared *sh, const float *__restrict__ row, uint32_t vocab,
                                                  float max, const struct gpu_sample &p)
{
    const uint32_t lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    uint32_t begin = 0, end = vocab;
    double mass_before = 0, target = 0;
    const auto kept_weight = [&](float value) {
        const float weight = weight_of(value, max, p.scale);
        return weight >= p.min_p ? weight : 0.0f;
    };

#pragma unroll 1
    for (bool whole = true; whole || end - begin > SELECT_THREADS; whole = false) {
        const uint32_t part = ((end - begin + SELECT_WARPS - 1) / SELECT_WARPS + LANES - 1) / LANES * LANES;
        const uint32_t part_end = min(begin + (warp + 1) * part, end);
        struct exact_sum sum = {0, 0};
        each_ahead<8>(row, begin + warp * part + lane, part_end, LANES,
                      [&](uint32_t, float value) { add(&sum, kept_weight(value)); });
        const double of_warp = warp_sum((double)sum.high + (double)sum.low);
        __syncthreads();
        if (lane == 0)
            sh->mass_of_warp[warp] = of_warp;
        __syncthreads();
        if (whole) {
            double total = 0;
            for (uint32_t w = 0; w < SELECT_WARPS; w++)
                total += sh->mass_of_warp[w];
            target = p.uniform * total;
        }
        uint32_t chosen = 0;
        double before = mass_before, mass = mass_before;
        bool found = false;
        for (uint32_t w = 0; w < SELECT_WARPS && !found; w++) {
            const double own = sh->mass_of_warp[w];
            if (own > 0)
                chosen = w, before = mass; // the last that has any, where rounding lets none reach the target
            mass += own;
            found = own > 0 && mass > target;
        }
        mass_before = before;
        begin += chosen * part;
        end = min(begin + part, end);
    }
    const uint32_t id = begin + threadIdx.x;
    return draw_among(sh, begin, id < end ? (double)kept_weight(row[id]) : 0, mass_before, target);
}

// Lighter candidates cannot be kept; where the candidates are not too many they are listed.
__device__ __forceinline__ struct candidates find_candidates(struct select_shared *sh, const float *row, uint32_t vocab, float max,
                                                             float own_max, const struct gpu_sample &p, double *total)
{
    float least = 0x1p-126f; // weights are 0 or above
    bool full = false;

    if (!p.top_k || p.top_p >= 1) // else top-p is of what min-p drops too
        least = fmaxf(least, p.min_p);
    if (p.top_k && p.top_k <= SELECT_THREADS) {
        // of values less apart than the rounding of exp the larger may have the smaller weight
        const float value = from_ordered(rank_floor(sh, own_max, p.top_k) << 2);
        least = fmaxf(least, 0.99999f * weight_of(value, max, p.scale));
    } else if (!p.top_k) {
        *total = row_total(sh, row, vocab, max, p.scale, [](uint32_t, float) {});
        least = fmaxf(least, (float)((1.0 - (double)p.top_p) * *total / (double)vocab * 0.5));
    }
    empty_list(sh);
    each_value(row, vocab, [&](uint32_t id, float value) {
        const float weight = weight_of(value, max, p.scale);
        if (weight >= least)
            append(sh, __float_as_uint(weight), id, &full);
    });
    __syncthreads();
    return {row, vocab, max, p.scale, sh->length <= SELECT_LIST, false, __float_as_uint(least), 0, NO_TOKEN};
}

// Top-k, then top-p of what is left, then min-p, then the draw: each cuts what is kept at a token, in the order of weights.
__device__ __forceinline__ uint32_t draw_by_weight(struct select_shared *sh, const float *row, uint32_t vocab, float max,
                                                   float own_max, const struct gpu_sample &p)
{
    enum { TOP_K, TOP_P, MIN_P, DRAW };
    double mass = 0;
    struct candidates c = find_candidates(sh, row, vocab, max, own_max, p, &mass);
    struct selected chosen = {0, NO_TOKEN, 0};

#pragma unroll 1
    for (int step = TOP_K; step <= DRAW; step++) {
        struct select_goal goal = {SELECT_COUNT, (double)p.top_k};
        if ((step == TOP_K && !p.top_k) || (step == TOP_P && p.top_p >= 1))
            continue;
        if (step == TOP_P)
            goal = {SELECT_MASS_REACHED, (double)p.top_p * mass};
        if (step == MIN_P) {
            const uint32_t least = __float_as_uint(p.min_p);
            if (p.min_p == 0 || c.bound_key >= least) // they all are above it
                continue;
            c.least = c.least > least ? c.least : least;
            c.counted = false;
            goal = {SELECT_MASS_REACHED, INFINITY}; // all of them: the sum
        }
        if (step == DRAW)
            goal = {SELECT_MASS_BEYOND, p.uniform * mass};
        chosen = select_token(sh, c, goal);
        mass = chosen.mass;
        c.bound_key = chosen.key, c.bound_id = chosen.id, c.counted = true;
    }
    return chosen.id;
}

__global__ void __launch_bounds__(SELECT_THREADS, 2) draw_row(struct gpu_sampling s)
{
    __shared__ struct select_shared shared;
    struct select_shared *sh = &shared;
    const struct gpu_sample p = s.samples[blockIdx.x]; // a copy: stores below might be to it, for all that is known
    const float *row = s.logits + (size_t)blockIdx.x * s.vocab;
    float own_max;

    if (!(p.flags & GPU_DRAW))
        return;
    const struct best best = row_best(sh, row, s.vocab, &own_max);
    uint32_t token = best.id == NO_TOKEN ? 0 : best.id;
    if (p.scale > 0 && best.value > -INFINITY && best.value < INFINITY)
        token = p.top_k || p.top_p < 1 ? draw_by_weight(sh, row, s.vocab, best.value, own_max, p)
                                       : draw_in_order(sh, row, s.vocab, best.value, p);
    const float logit = p.flags & GPU_SCORE ? raw_logit(sh, s, p, row, token) : 0.0f;
    if (threadIdx.x == 0)
        s.out[blockIdx.x].token = token, s.out[blockIdx.x].logit = logit;
}

void gpu_sample_rows(const struct gpu_sampling *s, cudaStream_t stream)
{
    if (s->flags & GPU_SCORE)
        GPU_LAUNCH(score_row, s->rows, SELECT_THREADS, 0, stream, *s);
    if (s->adjusted)
        GPU_LAUNCH(adjust_row, s->rows, SELECT_THREADS, 0, stream, *s);
    if (s->flags & GPU_DRAW)
        GPU_LAUNCH(draw_row, s->rows, SELECT_THREADS, 0, stream, *s);
}
