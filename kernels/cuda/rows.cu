// rows.cu: embedding, norms, RoPE and biases, activations, scales: one pass over memory each. A row's result depends on its own row alone.
#include "kernels/cuda/gpu.cuh"

static unsigned blocks_of(size_t count, unsigned threads) { return (unsigned)((count + threads - 1) / threads); }

template <typename T> __global__ void embed(const T *table, const uint32_t *token, uint32_t hidden, float *x)
{
    const T *from = table + (size_t)token[blockIdx.x] * hidden;
    float *to = x + (size_t)blockIdx.x * hidden;
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x)
        to[i] = gpu_float(from[i]);
}

void gpu_embed(enum gpu_type type, const void *table, const uint32_t *token, uint32_t rows, uint32_t hidden, float *x,
               cudaStream_t stream)
{
    if (type == GPU_F16)
        GPU_LAUNCH(embed<__half>, rows, 256, 0, stream, (const __half *)table, token, hidden, x);
    else
        GPU_LAUNCH(embed<__nv_bfloat16>, rows, 256, 0, stream, (const __nv_bfloat16 *)table, token, hidden, x);
}

// A thread asks for all its values and weights before the first of them is there: at few rows a block is alone, and would otherwise wait
// for memory as often as it loops.
static constexpr unsigned KEPT = 8;

template <typename T>
__global__ void rms_norm(const float *__restrict__ x, const uint32_t *row_index, const float *__restrict__ weight, float epsilon,
                         uint32_t hidden, T *__restrict__ out)
{
    const float *from = x + (size_t)(row_index ? row_index[blockIdx.x] : blockIdx.x) * hidden;
    T *to = out + (size_t)blockIdx.x * hidden;
    float values[KEPT], weights[KEPT], sum = 0;
#pragma unroll
    for (unsigned k = 0; k < KEPT; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        values[k] = i < hidden ? from[i] : 0.0f;
        weights[k] = i < hidden ? weight[i] : 0.0f;
    }
#pragma unroll
    for (unsigned k = 0; k < KEPT; k++)
        sum += values[k] * values[k];
    for (uint32_t i = threadIdx.x + KEPT * blockDim.x; i < hidden; i += blockDim.x)
        sum += from[i] * from[i];
    const float scale = rsqrtf(block_sum(sum) / (float)hidden + epsilon);
#pragma unroll
    for (unsigned k = 0; k < KEPT; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        if (i < hidden)
            to[i] = gpu_from<T>(values[k] * scale * weights[k]);
    }
    for (uint32_t i = threadIdx.x + KEPT * blockDim.x; i < hidden; i += blockDim.x)
        to[i] = gpu_from<T>(from[i] * scale * weight[i]);
}

static unsigned threads_of(uint32_t hidden) { return hidden > 4096 ? 1024 : hidden >= 2048 ? 512 : 256; }

void gpu_rms_norm(enum gpu_type type, const float *x, const uint32_t *row_index, const float *weight, float epsilon, uint32_t rows,
                  uint32_t hidden, void *out, cudaStream_t stream)
{
    const unsigned threads = threads_of(hidden);
    if (type == GPU_F16)
        GPU_LAUNCH(rms_norm<__half>, rows, threads, 0, stream, x, row_index, weight, epsilon, hidden, (__half *)out);
    else
        GPU_LAUNCH(rms_norm<__nv_bfloat16>, rows, threads, 0, stream, x, row_index, weight, epsilon, hidden, (__nv_bfloat16 *)out);
}

// As rms_norm, with the mean taken off first. Squares are of what is left, so that a large mean costs no digits.
template <typename T>
__global__ void layer_norm(const float *__restrict__ x, const uint32_t *row_index, const float *__restrict__ weight,
                           const float *__restrict__ bias, float epsilon, uint32_t hidden, T *__restrict__ out)
{
    const float *from = x + (size_t)(row_index ? row_index[blockIdx.x] : blockIdx.x) * hidden;
    T *to = out + (size_t)blockIdx.x * hidden;
    float values[KEPT], sum = 0, squares = 0;
#pragma unroll
    for (unsigned k = 0; k < KEPT; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        values[k] = i < hidden ? from[i] : 0.0f;
        sum += values[k];
    }
    for (uint32_t i = threadIdx.x + KEPT * blockDim.x; i < hidden; i += blockDim.x)
        sum += from[i];
    const float mean = block_sum(sum) / (float)hidden;
#pragma unroll
    for (unsigned k = 0; k < KEPT; k++) {
        values[k] -= mean;
        squares += threadIdx.x + k * blockDim.x < hidden ? values[k] * values[k] : 0.0f;
    }
    for (uint32_t i = threadIdx.x + KEPT * blockDim.x; i < hidden; i += blockDim.x)
        squares += (from[i] - mean) * (from[i] - mean);
    const float scale = rsqrtf(block_sum(squares) / (float)hidden + epsilon);
#pragma unroll
    for (unsigned k = 0; k < KEPT; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        if (i < hidden)
            to[i] = gpu_from<T>(values[k] * scale * weight[i] + (bias ? bias[i] : 0.0f));
    }
    for (uint32_t i = threadIdx.x + KEPT * blockDim.x; i < hidden; i += blockDim.x)
        to[i] = gpu_from<T>((from[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0.0f));
}

void gpu_layer_norm(enum gpu_type type, const float *x, const uint32_t *row_index, const float *weight, const float *bias,
                    float epsilon, uint32_t rows, uint32_t hidden, void *out, cudaStream_t stream)
{
    const unsigned threads = threads_of(hidden);
    if (type == GPU_F16)
        GPU_LAUNCH(layer_norm<__half>, rows, threads, 0, stream, x, row_index, weight, bias, epsilon, hidden, (__half *)out);
    else
        GPU_LAUNCH(layer_norm<__nv_bfloat16>, rows, threads, 0, stream, x, row_index, weight, bias, epsilon, hidden,
                   (__nv_bfloat16 *)out);
}

// x := factor * norm(x + bias), of `count` values by a block. Without a weight there is no norm, without a bias nothing is added.
__device__ __forceinline__ void norm_in_place(float *x, uint32_t count, const float *bias, const float *weight, float epsilon,
                                              float factor)
{
    float sum = 0;
    if (weight) { // the same for the whole block: there are barriers
        for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
            const float value = x[i] + (bias ? bias[i] : 0.0f);
            sum += value * value;
        }
        factor *= rsqrtf(block_sum(sum) / (float)count + epsilon);
    }
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
        x[i] = (x[i] + (bias ? bias[i] : 0.0f)) * factor * (weight ? weight[i] : 1.0f);
}

// A block a row and head, or, where all heads are normed as one, a row and q or k.
__global__ void heads(struct gpu_heads h, float *__restrict__ qkv)
{
    const uint32_t group = blockIdx.y, q_groups = h.whole ? 1 : h.heads, values = h.head_dim;
    const bool is_q = group < q_groups;
    const uint32_t first = is_q ? group * values : (h.heads + (group - q_groups)) * values;
    const uint32_t count = !h.whole ? values : (is_q ? h.heads : h.kv_heads) * values;
    const float *bias = is_q ? h.q_bias : h.k_bias;
    if (bias)
        bias += is_q ? first : first - h.heads * values;
    norm_in_place(qkv + (size_t)blockIdx.x * (h.heads + 2 * h.kv_heads) * values + first, count, bias, is_q ? h.q_norm : h.k_norm,
                  h.epsilon, is_q ? h.q_factor : 1.0f);
}

void gpu_heads(const struct gpu_heads *h, uint32_t rows, float *qkv, cudaStream_t stream)
{
    const uint32_t of_q = h->whole ? 1 : h->heads, of_k = !h->k_norm && !h->k_bias ? 0 : h->whole ? 1 : h->kv_heads;
    GPU_LAUNCH(heads, dim3(rows, of_q + of_k), h->whole ? 256 : h->head_dim > 64 ? 64 : 32, 0, stream, *h, qkv);
}

// A block a row and head; a thread a pair that is rotated together, a value that is not, or one of v.
__global__ void rope(struct gpu_rope r, const float *__restrict__ q_bias, const float *__restrict__ k_bias,
                     const float *__restrict__ v_bias, float *__restrict__ qkv)
{
    const uint32_t head = blockIdx.y, half = r.dims / 2, values = r.head_dim;
    const float *cosine = r.table + (size_t)r.position[blockIdx.x] * 2 * r.dims, *sine = cosine + r.dims;
    float *x = qkv + ((size_t)blockIdx.x * (r.heads + 2 * r.kv_heads) + head) * values;
    const float *bias = head < r.heads ? q_bias : head < r.heads + r.kv_heads ? k_bias : v_bias;
    if (bias)
        bias += (size_t)(head < r.heads ? head : (head - r.heads) % r.kv_heads) * values;
    const bool rotates = head < r.heads + r.kv_heads;
    for (uint32_t i = threadIdx.x; rotates && i < half; i += blockDim.x) {
        const uint32_t a = r.neox ? i : 2 * i, b = r.neox ? i + half : 2 * i + 1;
        const float cosine_a = cosine[a], sine_a = sine[a], cosine_b = cosine[b], sine_b = sine[b];
        const float first = x[a] + (bias ? bias[a] : 0.0f), second = x[b] + (bias ? bias[b] : 0.0f);
        x[a] = first * cosine_a + second * sine_a;
        x[b] = second * cosine_b + first * sine_b;
    }
    for (uint32_t i = threadIdx.x + (rotates ? r.dims : 0); bias && i < values; i += blockDim.x)
        x[i] += bias[i];
}

void gpu_rope(const struct gpu_rope *r, const float *q_bias, const float *k_bias, const float *v_bias, uint32_t rows, float *qkv,
              cudaStream_t stream)
{
    const uint32_t heads = r->heads + r->kv_heads * (v_bias ? 2 : 1);
    GPU_LAUNCH(rope, dim3(rows, heads), r->head_dim > 64 ? 64 : 32, 0, stream, *r, q_bias, k_bias, v_bias, qkv);
}

__device__ __forceinline__ float f32_range(float x) { return x > 3e38f ? 3e38f : x < -3e38f ? -3e38f : x; }

// `COUNT` values one behind the other, read and written at once.
template <typename T, unsigned COUNT> struct alignas(sizeof(T) * COUNT) pack {
    T values[COUNT];
};

// A block some packs of a row.
template <typename T, unsigned COUNT> __global__ void silu_mul(const T *__restrict__ gate_up, uint32_t ffn, T *__restrict__ out)
{
    const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * COUNT;
    if (i >= ffn)
        return;
    const T *row = gate_up + (size_t)blockIdx.y * 2 * ffn + i;
    const pack<T, COUNT> gates = *(const pack<T, COUNT> *)row, ups = *(const pack<T, COUNT> *)(row + ffn);
    pack<T, COUNT> products;
#pragma unroll
    for (unsigned k = 0; k < COUNT; k++) {
        // a product beyond f16 came as an infinity; NaN stays
        const float gate = f32_range(gpu_float(gates.values[k])), up = f32_range(gpu_float(ups.values[k]));
        products.values[k] = gpu_from<T>(gate / (1.0f + expf(-gate)) * up);
    }
    *(pack<T, COUNT> *)(out + (size_t)blockIdx.y * ffn + i) = products;
}

template <typename T> static void launch_silu_mul(const void *gate_up, uint32_t rows, uint32_t ffn, void *out, cudaStream_t stream)
{
    if (ffn % 8 == 0)
        GPU_LAUNCH((silu_mul<T, 8>), dim3(blocks_of(ffn / 8, 128), rows), 128, 0, stream, (const T *)gate_up, ffn, (T *)out);
    else
        GPU_LAUNCH((silu_mul<T, 1>), dim3(blocks_of(ffn, 128), rows), 128, 0, stream, (const T *)gate_up, ffn, (T *)out);
}

void gpu_silu_mul(enum gpu_type type, const void *gate_up, uint32_t rows, uint32_t ffn, void *out, cudaStream_t stream)
{
    if (type == GPU_F16)
        launch_silu_mul<__half>(gate_up, rows, ffn, out, stream);
    else
        launch_silu_mul<__nv_bfloat16>(gate_up, rows, ffn, out, stream);
}

// The activation of other MLPs than silu(gate) * up; biases are of [ffn], or NULL. NaN stays.
template <enum gpu_activation KIND> __device__ __forceinline__ float activated(float gate)
{
    if (KIND == GPU_RELU)
        return gate < 0.0f ? 0.0f : gate;
    // GELU's (1 + tanh(z / 2)) / 2 is 1 / (1 + exp(-z))
    const float z = KIND == GPU_GELU || KIND == GPU_GELU_PLAIN ? 1.5957691216f * (gate + 0.044715f * gate * gate * gate) : gate;
    return gate / (1.0f + expf(-z));
}

// As silu_mul: a block some packs of a row, which has gates and, if there is an `up` for them, as many of these.
template <typename T, unsigned COUNT, enum gpu_activation KIND>
__global__ void activate(const T *__restrict__ gate_up, const float *__restrict__ gate_bias, const float *__restrict__ up_bias,
                         uint32_t ffn, T *__restrict__ out)
{
    constexpr bool GATED = KIND != GPU_RELU && KIND != GPU_GELU_PLAIN;
    const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * COUNT;
    if (i >= ffn)
        return;
    const T *row = gate_up + (size_t)blockIdx.y * (GATED ? 2 : 1) * ffn + i;
    const pack<T, COUNT> gates = *(const pack<T, COUNT> *)row, ups = *(const pack<T, COUNT> *)(GATED ? row + ffn : row);
    pack<T, COUNT> products;
#pragma unroll
    for (unsigned k = 0; k < COUNT; k++) {
        const float gate = f32_range(gpu_float(gates.values[k])) + (gate_bias ? gate_bias[i + k] : 0.0f);
        const float up = f32_range(gpu_float(ups.values[k])) + (up_bias ? up_bias[i + k] : 0.0f);
        products.values[k] = gpu_from<T>(activated<KIND>(gate) * (GATED ? up : 1.0f));
    }
    *(pack<T, COUNT> *)(out + (size_t)blockIdx.y * ffn + i) = products;
}

template <typename T, enum gpu_activation KIND>
static void launch_activate(const struct gpu_mlp *m, uint32_t rows, cudaStream_t stream)
{
    if (m->ffn % 8 == 0)
        GPU_LAUNCH((activate<T, 8, KIND>), dim3(blocks_of(m->ffn / 8, 128), rows), 128, 0, stream, (const T *)m->gate_up,
                   m->gate_bias, m->up_bias, m->ffn, (T *)m->out);
    else
        GPU_LAUNCH((activate<T, 1, KIND>), dim3(blocks_of(m->ffn, 128), rows), 128, 0, stream, (const T *)m->gate_up, m->gate_bias,
                   m->up_bias, m->ffn, (T *)m->out);
}

template <typename T> static void launch_activation(const struct gpu_mlp *m, uint32_t rows, cudaStream_t stream)
{
    switch (m->activation) {
    case GPU_SILU: launch_activate<T, GPU_SILU>(m, rows, stream); break;
    case GPU_GELU: launch_activate<T, GPU_GELU>(m, rows, stream); break;
    case GPU_GELU_PLAIN: launch_activate<T, GPU_GELU_PLAIN>(m, rows, stream); break;
    case GPU_RELU: launch_activate<T, GPU_RELU>(m, rows, stream); break;
    }
}

void gpu_activate(enum gpu_type type, const struct gpu_mlp *mlp, uint32_t rows, cudaStream_t stream)
{
    if (type == GPU_F16)
        launch_activation<__half>(mlp, rows, stream);
    else
        launch_activation<__nv_bfloat16>(mlp, rows, stream);
}

template <typename T> __global__ void narrow(const float *x, size_t count, T *out)
{
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count)
        out[at] = gpu_from<T>(x[at]);
}

void gpu_narrow(enum gpu_type type, const float *x, size_t count, void *out, cudaStream_t stream)
{
    if (type == GPU_F16)
        GPU_LAUNCH(narrow<__half>, blocks_of(count, 256), 256, 0, stream, x, count, (__half *)out);
    else
        GPU_LAUNCH(narrow<__nv_bfloat16>, blocks_of(count, 256), 256, 0, stream, x, count, (__nv_bfloat16 *)out);
}

__global__ void add_bias(float *x, const float *bias, uint32_t columns, size_t count)
{
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count)
        x[at] += bias[at % columns];
}

void gpu_add_bias(float *x, const float *bias, uint32_t rows, uint32_t columns, cudaStream_t stream)
{
    const size_t count = (size_t)rows * columns;
    GPU_LAUNCH(add_bias, blocks_of(count, 256), 256, 0, stream, x, bias, columns, count);
}

// A block a row.
__global__ void add_scaled(struct gpu_residual r, uint32_t hidden, float *__restrict__ y, float *__restrict__ x)
{
    y += (size_t)blockIdx.x * hidden;
    x += (size_t)blockIdx.x * hidden;
    norm_in_place(y, hidden, r.bias, r.norm, r.epsilon, r.factor);
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x) // what this thread has just written
        x[i] += y[i];
}

void gpu_add_scaled(const struct gpu_residual *r, uint32_t rows, uint32_t hidden, float *y, float *x, cudaStream_t stream)
{
    GPU_LAUNCH(add_scaled, rows, threads_of(hidden), 0, stream, *r, hidden, y, x);
}

__global__ void place(float factor, const float *__restrict__ table, const uint32_t *position, uint32_t hidden,
                      float *__restrict__ x)
{
    x += (size_t)blockIdx.x * hidden;
    const float *from = table ? table + (size_t)position[blockIdx.x] * hidden : nullptr;
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x)
        x[i] = x[i] * factor + (from ? from[i] : 0.0f);
}

void gpu_place(float factor, const float *table, const uint32_t *position, uint32_t rows, uint32_t hidden, float *x,
               cudaStream_t stream)
{
    GPU_LAUNCH(place, rows, 256, 0, stream, factor, table, position, hidden, x);
}

__global__ void scale_logits(float *logits, size_t count, float factor, float soft_cap)
{
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count)
        return;
    const float logit = logits[at] * factor;
    logits[at] = soft_cap > 0.0f ? soft_cap * tanhf(logit / soft_cap) : logit;
}

void gpu_scale_logits(float *logits, size_t count, float factor, float soft_cap, cudaStream_t stream)
{
    GPU_LAUNCH(scale_logits, blocks_of(count, 256), 256, 0, stream, logits, count, factor, soft_cap);
}
