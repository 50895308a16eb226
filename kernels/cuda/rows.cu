// rows.cu: embedding, norm, RoPE and biases, activation: one pass over memory each. A row's result depends on its own row alone.
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

void gpu_rms_norm(enum gpu_type type, const float *x, const uint32_t *row_index, const float *weight, float epsilon, uint32_t rows,
                  uint32_t hidden, void *out, cudaStream_t stream)
{
    const unsigned threads = hidden > 4096 ? 1024 : hidden >= 2048 ? 512 : 256;
    if (type == GPU_F16)
        GPU_LAUNCH(rms_norm<__half>, rows, threads, 0, stream, x, row_index, weight, epsilon, hidden, (__half *)out);
    else
        GPU_LAUNCH(rms_norm<__nv_bfloat16>, rows, threads, 0, stream, x, row_index, weight, epsilon, hidden, (__nv_bfloat16 *)out);
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
