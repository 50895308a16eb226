/* rows.cu: embedding, norm, RoPE and biases, activation: one pass over memory each. A row's result depends on its own row alone. */
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

template <typename T>
__global__ void rms_norm(const float *x, const uint32_t *row_index, const float *weight, float epsilon, uint32_t hidden, T *out)
{
    const float *from = x + (size_t)(row_index ? row_index[blockIdx.x] : blockIdx.x) * hidden;
    T *to = out + (size_t)blockIdx.x * hidden;
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x)
        sum += from[i] * from[i];
    const float scale = rsqrtf(block_sum(sum) / (float)hidden + epsilon);
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x)
        to[i] = gpu_from<T>(from[i] * scale * weight[i]);
}

void gpu_rms_norm(enum gpu_type type, const float *x, const uint32_t *row_index, const float *weight, float epsilon, uint32_t rows,
                  uint32_t hidden, void *out, cudaStream_t stream)
{
    const unsigned threads = hidden >= 2048 ? 512 : 256;
    if (type == GPU_F16)
        GPU_LAUNCH(rms_norm<__half>, rows, threads, 0, stream, x, row_index, weight, epsilon, hidden, (__half *)out);
    else
        GPU_LAUNCH(rms_norm<__nv_bfloat16>, rows, threads, 0, stream, x, row_index, weight, epsilon, hidden, (__nv_bfloat16 *)out);
}

/* A block a row; a thread a pair that is rotated together, a value that is not, or one of v. */
__global__ void rope(struct gpu_rope r, const float *q_bias, const float *k_bias, const float *v_bias, float *qkv)
{
    const uint32_t q_width = r.heads * r.head_dim, kv_width = r.kv_heads * r.head_dim, half = r.dims / 2;
    const uint32_t a_head = half + (r.head_dim - r.dims); /* items: pairs, then what passes through */
    const float *cosine = r.table + (size_t)r.position[blockIdx.x] * 2 * r.dims, *sine = cosine + r.dims;
    float *row = qkv + (size_t)blockIdx.x * (q_width + 2 * kv_width);
    for (uint32_t item = threadIdx.x; item < (r.heads + r.kv_heads) * a_head; item += blockDim.x) {
        const uint32_t head = item / a_head, i = item % a_head;
        float *x = row + (size_t)head * r.head_dim;
        const float *bias = head < r.heads ? q_bias : k_bias;
        bias = bias ? bias + (size_t)(head < r.heads ? head : head - r.heads) * r.head_dim : nullptr;
        if (i >= half) {
            const uint32_t at = r.dims + (i - half);
            x[at] += bias ? bias[at] : 0.0f;
            continue;
        }
        const uint32_t a = r.neox ? i : 2 * i, b = r.neox ? i + half : 2 * i + 1;
        const float first = x[a] + (bias ? bias[a] : 0.0f), second = x[b] + (bias ? bias[b] : 0.0f);
        x[a] = first * cosine[a] + second * sine[a];
        x[b] = second * cosine[b] + first * sine[b];
    }
    for (uint32_t i = threadIdx.x; v_bias && i < kv_width; i += blockDim.x)
        row[q_width + kv_width + i] += v_bias[i];
}

void gpu_rope(const struct gpu_rope *r, const float *q_bias, const float *k_bias, const float *v_bias, uint32_t rows, float *qkv,
              cudaStream_t stream)
{
    GPU_LAUNCH(rope, rows, 256, 0, stream, *r, q_bias, k_bias, v_bias, qkv);
}

__device__ __forceinline__ float f32_range(float x) { return x > 3e38f ? 3e38f : x < -3e38f ? -3e38f : x; }

template <typename T> __global__ void silu_mul(const T *gate_up, uint32_t ffn, size_t count, T *out)
{
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count)
        return;
    const size_t row = at / ffn, i = at % ffn;
    /* a product beyond f16 came as an infinity; NaN stays */
    const float gate = f32_range(gpu_float(gate_up[row * 2 * ffn + i])),
                up = f32_range(gpu_float(gate_up[(row * 2 + 1) * ffn + i]));
    out[at] = gpu_from<T>(gate / (1.0f + expf(-gate)) * up);
}

void gpu_silu_mul(enum gpu_type type, const void *gate_up, uint32_t rows, uint32_t ffn, void *out, cudaStream_t stream)
{
    const size_t count = (size_t)rows * ffn;
    if (type == GPU_F16)
        GPU_LAUNCH(silu_mul<__half>, blocks_of(count, 256), 256, 0, stream, (const __half *)gate_up, ffn, count, (__half *)out);
    else
        GPU_LAUNCH(silu_mul<__nv_bfloat16>, blocks_of(count, 256), 256, 0, stream, (const __nv_bfloat16 *)gate_up, ffn, count,
                   (__nv_bfloat16 *)out);
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
