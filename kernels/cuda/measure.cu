// measure.cu: kernels that measure: a stream of reads with nothing else, the ceiling that products of one row and attention are judged by;
// and values to measure with.
//
// A block of 256 threads reads 64 KiB: four rounds of four 16-byte loads a thread, neighbours at neighbouring addresses (512 bytes a
// warp and load). In flight at once are 64 bytes a thread, 96 KiB a multiprocessor (35 registers: 1,536 threads), 13 MB on the 132 of an
// H200: at 4.8 TB/s and 1 us of latency 5 MB are enough. Blocks are many (16,384 a GiB) and short, so that none is left to wait for.
#include "kernels/cuda/gpu.cuh"

static constexpr unsigned READ_THREADS = 256, READ_LOADS = 4, READ_ROUNDS = 4;
static_assert(READ_THREADS * READ_LOADS * READ_ROUNDS * 16 == (unsigned)GPU_READ_BLOCK_BYTES, "what a block reads");

__global__ void read_block(const uint4 *__restrict__ from, uint32_t *sink)
{
    const uint4 *at = from + (size_t)blockIdx.x * (READ_THREADS * READ_LOADS * READ_ROUNDS) + threadIdx.x;
    uint32_t sum = 0;
#pragma unroll
    for (unsigned round = 0; round < READ_ROUNDS; round++) {
        uint4 loaded[READ_LOADS];
#pragma unroll
        for (unsigned i = 0; i < READ_LOADS; i++)
            loaded[i] = at[(round * READ_LOADS + i) * READ_THREADS];
#pragma unroll
        for (unsigned i = 0; i < READ_LOADS; i++)
            sum += loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
    }
    if (sum == 0x5bd1e995u) // hardly ever: the compiler cannot know, and must load
        *sink = sum;
}

__global__ void fill_block(__half *out, size_t count, uint32_t seed)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32) ^ seed; // finished as in MurmurHash3 (A. Appleby)
        x = (x ^ x >> 16) * 0x85ebca6bu;
        x = (x ^ x >> 13) * 0xc2b2ae35u;
        out[i] = gpu_from<__half>((float)(int32_t)(x ^ x >> 16) * 0x1p-31f);
    }
}

void gpu_read(const void *from, size_t bytes, uint32_t *sink, cudaStream_t stream)
{
    GPU_LAUNCH(read_block, (unsigned)(bytes / GPU_READ_BLOCK_BYTES), READ_THREADS, 0, stream, (const uint4 *)from, sink);
}

void gpu_fill(void *out, size_t count, uint32_t seed, cudaStream_t stream)
{
    const size_t blocks = (count + READ_THREADS - 1) / READ_THREADS;
    GPU_LAUNCH(fill_block, (unsigned)(blocks < 4096 ? blocks : 4096), READ_THREADS, 0, stream, (__half *)out, count, seed);
}
