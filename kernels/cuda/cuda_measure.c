// cuda_measure.c: what a device can do, for descriptions of hardware: memory read by a kernel that does nothing else, weights read by
// products of one row, and the fastest product. Host time of work that is queued many times over and waited for once, so that
// launching it is not in it; of the passes, the one that a quarter are faster than.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/measure.h"
#include "kernels/backend/device.h"
#include "kernels/cuda/cuda.h"

enum { PASSES_MIN = 3, PASSES_MAX = 31, WORK_US = 5000, QUEUED_MAX = 64 };
enum { MATRICES = 8, INPUTS = 4096, SIDE_MIN = 512, SIDE_MAX = 8192, SIDE_US = 1000 };
#define STREAM_BYTES (1ull << 30)

struct bench {
    cudaStream_t stream;
    unsigned char *bytes; // device: [count], values in f16; what products write lies in it too
    uint64_t count;
    unsigned char *workspace; // of products; its first word is the sink of reads
    struct gpu_gemm *gemm;
    struct gpu_product product;
    uint32_t next; // of MATRICES
};

typedef void work_fn(struct bench *b);

static void read_all(struct bench *b) { gpu_read(b->bytes, b->count, (uint32_t *)b->workspace, b->stream); }

static void multiply(struct bench *b) { gpu_gemm_run(b->gemm, &b->product, b->workspace, b->stream); }

// Products of one row, each with another matrix, so that none is in a cache.
static void multiply_next(struct bench *b)
{
    uint64_t matrix = 2ull * b->product.outputs * b->product.inputs;
    b->product.w = b->bytes + b->next++ % MATRICES * matrix;
    multiply(b);
}

static double queued_us(struct bench *b, work_fn *work, uint32_t times)
{
    uint64_t began_ns = clock_now_ns();
    for (uint32_t i = 0; i < times; i++)
        work(b);
    cuda_must(cudaGetLastError(), "measuring");
    cuda_must(cudaStreamSynchronize(b->stream), "measuring");
    return (double)(clock_now_ns() - began_ns) * 1e-3 / times;
}

// Returns the microseconds of one product.
static double measure(struct bench *b, work_fn *work, uint64_t limit_us)
{
    double passes[PASSES_MAX], first_us = queued_us(b, work, 1); // warms up: algorithms are found, clocks rise
    uint64_t until_us = clock_now_us() + limit_us;
    uint32_t count = 0, times;

    first_us = MIN(first_us, queued_us(b, work, 1));
    times = (uint32_t)MIN(MAX(WORK_US / first_us, 1), QUEUED_MAX);
    while (count < PASSES_MIN || (count < PASSES_MAX && clock_now_us() < until_us))
        passes[count++] = queued_us(b, work, times);
    return quartile_of(passes, count);
}

static enum status open_product(struct bench *b, uint32_t rows, uint32_t outputs, uint32_t inputs, uint64_t w_bytes,
                                struct error *error)
{
    unsigned char *x = b->bytes + w_bytes;
    b->product = (struct gpu_product){
        .w = b->bytes, .x = x, .y = x + 2ull * rows * inputs, .rows = rows, .outputs = outputs, .inputs = inputs, .y_wide = true};
    return gpu_gemm_open(GPU_F16, rows, &b->gemm, error);
}

static void close_product(struct bench *b)
{
    gpu_gemm_close(b->gemm);
    b->gemm = NULL;
}

static enum status measure_weights(struct bench *b, uint64_t limit_us, double *bytes_per_s, struct error *error)
{
    // what is left behind the matrices holds x and y of a row: outputs are at most an eighth of those of all matrices
    uint32_t outputs = (uint32_t)MAX((b->count - (1 << 20)) / MATRICES / (2 * INPUTS) / 64 * 64, 64ull);
    uint64_t matrix = 2ull * outputs * INPUTS;
    enum status status = open_product(b, 1, outputs, INPUTS, MATRICES * matrix, error);

    if (!status)
        *bytes_per_s = (double)matrix / measure(b, multiply_next, limit_us) * 1e6;
    close_product(b);
    return status;
}

// Products of square matrices, each side twice the last, until one takes so long that launching it does not matter.
static enum status measure_products(struct bench *b, uint64_t limit_us, double *operations_per_s, struct error *error)
{
    enum status status = STATUS_OK;
    double us = 0;

    *operations_per_s = 0;
    for (uint64_t side = SIDE_MIN; !status && side <= SIDE_MAX && us < SIDE_US && 6 * side * side <= b->count; side *= 2) {
        gpu_fill(b->bytes, 2 * side * side, 1, b->stream); // the last one's results lie there
        status = open_product(b, (uint32_t)side, (uint32_t)side, (uint32_t)side, 2 * side * side, error);
        if (!status) {
            us = measure(b, multiply, limit_us / 4);
            *operations_per_s = MAX(*operations_per_s, 2.0 * (double)(side * side * side) / us * 1e6);
        }
        close_product(b);
    }
    return status;
}

static enum status measure_all(struct bench *b, uint64_t limit_us, struct device_rates *out, struct error *error)
{
    enum status status;

    gpu_fill(b->bytes, b->count / 2, 1, b->stream);
    out->read_bytes = (double)b->count / measure(b, read_all, limit_us / 3) * 1e6;
    if ((status = measure_weights(b, limit_us / 3, &out->weight_bytes, error)))
        return status;
    return measure_products(b, limit_us / 3, &out->f16_operations, error);
}

enum status cuda_measure(int index, uint64_t limit_us, struct device_rates *out, struct error *error)
{
    struct cudaDeviceProp properties;
    struct bench bench = {0}, *b = &bench;
    size_t free_bytes = 0, total = 0;
    enum status status = STATUS_OK;

    cuda_must(cudaSetDevice(index), "choosing the device");
    cuda_must(cudaGetDeviceProperties(&properties, index), "asking what the device is");
    cuda_must(cudaMemGetInfo(&free_bytes, &total), "asking for the device's memory");
    *out = (struct device_rates){.memory_bytes = free_bytes, .compute_capability = properties.major + properties.minor / 10.0};
    snprintf(out->name, sizeof out->name, "%s", properties.name);
    b->count = MIN((uint64_t)free_bytes / 4, STREAM_BYTES) / GPU_READ_BLOCK_BYTES * GPU_READ_BLOCK_BYTES;
    cuda_must(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "a stream");
    if (b->count < 8 << 20 || cudaMalloc((void **)&b->bytes, b->count) || cudaMalloc((void **)&b->workspace, GPU_GEMM_WORKSPACE)) {
        (void)cudaGetLastError(); // it is answered
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "cuda:%d has %.0f MiB free: too little to measure with", index,
                           (double)free_bytes / 1048576);
    } else {
        status = measure_all(b, limit_us, out, error);
    }
    cudaFree(b->bytes);
    cudaFree(b->workspace);
    cudaStreamDestroy(b->stream);
    return status;
}
