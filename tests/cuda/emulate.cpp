/* emulate.cpp: see emulate.h. */
#include "tests/cuda/emulate.h"

#include <stdio.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <vector>

dim3 emulate_thread, emulate_block, emulate_block_dim, emulate_grid_dim;
uint64_t emulate_device_bytes = 2ull << 30;

/* --- fibers --------------------------------------------------------------------------------------------------------- */

enum { STACK_BYTES = 64 * 1024, THREADS_MAX = 1024, LANES = 32, SHARED_MAX = 228 * 1024 };
enum fiber_state { READY, AT_BLOCK, AT_WARP, ENDED };

struct fiber {
    void *stack_pointer;
    enum fiber_state state;
    dim3 thread;
    uint64_t given[2];      /* of this exchange and the one before: who is late reads there what nobody overwrites yet */
    float fragments[2][12]; /* the same for a and b of a product */
    unsigned exchanges;
};

static struct fiber fibers[THREADS_MAX];
static unsigned char *stacks;
static unsigned fiber_count, current;
static void *scheduler_pointer;
static const std::function<void()> *body_now;
static const char *kernel_now;

/* Saves the registers that a call keeps, and the stack pointer at *from; goes on where `to` was saved. x86-64, System V. */
extern "C" void emulate_switch(void **from, void *to);
__asm__(".text\n.globl emulate_switch\n.type emulate_switch,@function\nemulate_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size emulate_switch,.-emulate_switch\n");

static void fiber_main(void)
{
    (*body_now)();
    fibers[current].state = ENDED;
    emulate_switch(&fibers[current].stack_pointer, scheduler_pointer);
    abort();
}

static void wait_at(enum fiber_state state)
{
    fibers[current].state = state;
    emulate_switch(&fibers[current].stack_pointer, scheduler_pointer);
}

void __syncthreads(void) { wait_at(AT_BLOCK); }

uint64_t emulate_exchange(uint64_t value, unsigned from_lane)
{
    unsigned first = current / LANES * LANES;
    unsigned now = fibers[current].exchanges++ % 2;
    fibers[current].given[now] = value;
    wait_at(AT_WARP);
    return fibers[first + from_lane].given[now];
}

void emulate_multiply(float d[4], const float a[8], const float b[4])
{
    const unsigned first = current / LANES * LANES, lane = current % LANES, now = fibers[current].exchanges++ % 2;
    std::copy(a, a + 8, fibers[current].fragments[now]);
    std::copy(b, b + 4, fibers[current].fragments[now] + 8);
    wait_at(AT_WARP);
    for (unsigned i = 0; i < 4; i++) { /* row lane / 4 + i / 2 * 8, column lane % 4 * 2 + i % 2 */
        double sum = d[i];
        for (unsigned t = 0; t < 4; t++) {
            const float *of_row = fibers[first + lane / 4 * 4 + t].fragments[now] + i / 2 * 2,
                        *of_column = fibers[first + (lane % 4 * 2 + i % 2) * 4 + t].fragments[now] + 8;
            for (unsigned k = 0; k < 4; k++) /* 2t, 2t + 1, 2t + 8, 2t + 9 */
                sum += (double)of_row[k / 2 * 4 + k % 2] * (double)of_column[k];
        }
        d[i] = (float)sum;
    }
}

/* Opens the barriers that all have reached. False: nobody can go on. */
static bool open_barriers(void)
{
    bool opened = false;
    unsigned at_block = 0, live = 0;
    for (unsigned first = 0; first < fiber_count; first += LANES) {
        unsigned last = std::min(first + LANES, fiber_count), waiting = 0, here = 0;
        for (unsigned i = first; i < last; i++) {
            here += fibers[i].state != ENDED;
            waiting += fibers[i].state == AT_WARP;
            at_block += fibers[i].state == AT_BLOCK;
        }
        live += here;
        for (unsigned i = first; waiting && waiting == here && i < last; i++)
            if (fibers[i].state == AT_WARP)
                fibers[i].state = READY, opened = true;
    }
    for (unsigned i = 0; at_block && at_block == live && i < fiber_count; i++)
        if (fibers[i].state == AT_BLOCK)
            fibers[i].state = READY, opened = true;
    return opened;
}

static void run_block(void)
{
    for (unsigned i = 0; i < fiber_count; i++) {
        void **top = (void **)(stacks + (size_t)(i + 1) * STACK_BYTES);
        *--top = NULL; /* so that the stack is aligned as at a call */
        *--top = (void *)fiber_main;
        for (int saved = 0; saved < 6; saved++)
            *--top = NULL;
        fibers[i].stack_pointer = top;
        fibers[i].state = READY;
        fibers[i].exchanges = 0;
        fibers[i].thread = dim3(i % emulate_block_dim.x, i / emulate_block_dim.x % emulate_block_dim.y,
                                i / (emulate_block_dim.x * emulate_block_dim.y));
    }
    do {
        for (current = 0; current < fiber_count; current++)
            if (fibers[current].state == READY) {
                emulate_thread = fibers[current].thread;
                emulate_switch(&scheduler_pointer, fibers[current].stack_pointer);
            }
    } while (open_barriers());
    for (unsigned i = 0; i < fiber_count; i++)
        if (fibers[i].state != ENDED) {
            fprintf(stderr, "%s: block %u,%u,%u: thread %u waits at a barrier that not all reach\n", kernel_now, emulate_block.x,
                    emulate_block.y, emulate_block.z, i);
            abort();
        }
}

extern "C" unsigned char __start_emulated_shared[] __attribute__((weak)), __stop_emulated_shared[] __attribute__((weak));

static void run_grid(const char *kernel, dim3 grid, dim3 block, const std::function<void()> &body)
{
    fiber_count = block.x * block.y * block.z;
    if (!stacks)
        stacks = (unsigned char *)aligned_alloc(4096, (size_t)THREADS_MAX * STACK_BYTES);
    kernel_now = kernel, body_now = &body;
    emulate_grid_dim = grid, emulate_block_dim = block;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                emulate_block = dim3(x, y, z);
                if (__start_emulated_shared)
                    memset(__start_emulated_shared, 0xff, (size_t)(__stop_emulated_shared - __start_emulated_shared));
                run_block();
            }
}

/* --- streams ---------------------------------------------------------------------------------------------------------- */

struct emulate_stream {
    std::deque<std::function<void()>> queued;
    uint64_t put, done; /* operations */
};

struct emulate_event {
    struct emulate_stream *stream;
    uint64_t after; /* operations of the stream */
};

static std::vector<struct emulate_stream *> streams;
static uint64_t chance = 1;
static cudaError_t last_error;

static void queue(cudaStream_t stream, std::function<void()> operation)
{
    stream->queued.push_back(std::move(operation));
    stream->put++;
}

static bool run_one(struct emulate_stream *stream)
{
    if (stream->queued.empty())
        return false;
    std::function<void()> operation = std::move(stream->queued.front());
    stream->queued.pop_front();
    operation();
    stream->done++;
    return true;
}

/* A few operations of any streams. */
static void run_some(void)
{
    for (unsigned i = 0; i < 8 && !streams.empty(); i++) {
        chance = chance * 6364136223846793005u + 1442695040888963407u;
        run_one(streams[(chance >> 33) % streams.size()]);
    }
}

void emulate_launch(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, std::function<void()> body)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!threads || threads > THREADS_MAX || shared_bytes > SHARED_MAX || !grid.x || !grid.y || !grid.z || grid.y > 65535 ||
        grid.z > 65535) {
        fprintf(stderr, "%s: a grid of %u x %u x %u blocks of %llu threads\n", kernel, grid.x, grid.y, grid.z,
                (unsigned long long)threads);
        last_error = cudaErrorInvalidValue;
        return;
    }
    queue(stream, [kernel, grid, block, body] { run_grid(kernel, grid, block, body); });
}

void emulate_queue(cudaStream_t stream, void (*run)(void *work), const void *work, size_t bytes)
{
    std::vector<unsigned char> kept((const unsigned char *)work, (const unsigned char *)work + bytes);
    queue(stream, [run, kept]() mutable { run(kept.data()); });
}

/* --- the runtime ------------------------------------------------------------------------------------------------------ */

static constexpr size_t PATTERN_BYTES = 64 << 20;
static std::unordered_map<void *, size_t> allocated;
static uint64_t allocated_bytes;

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    if (bytes > emulate_device_bytes - allocated_bytes)
        return cudaErrorMemoryAllocation;
    if (!(*out = aligned_alloc(256, (bytes + 255) / 256 * 256)))
        return cudaErrorMemoryAllocation;
    memset(*out, 0xff, std::min(bytes, PATTERN_BYTES)); /* a pool is not touched as a whole */
    allocated[*out] = bytes;
    allocated_bytes += bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void *at)
{
    for (struct emulate_stream *stream : streams) /* it waits for the device */
        cudaStreamSynchronize(stream);
    if (at) {
        allocated_bytes -= allocated.at(at);
        allocated.erase(at);
        free(at);
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count)
{
    const char *bytes = getenv("FD_EMULATE_DEVICE_BYTES");
    if (bytes)
        emulate_device_bytes = strtoull(bytes, NULL, 10);
    *count = emulate_device_bytes ? 1 : 0;
    return *count ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    *out = {"emulated device", 9, 0, 2, emulate_device_bytes, SHARED_MAX};
    return cudaSetDevice(device);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = emulate_device_bytes - allocated_bytes;
    *total = emulate_device_bytes;
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned)
{
    *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *at)
{
    free(at);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind, cudaStream_t stream)
{
    queue(stream, [=] { memcpy(to, from, bytes); });
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned)
{
    *out = new emulate_stream{};
    streams.push_back(*out);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaStreamSynchronize(stream);
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    while (run_one(stream)) {}
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    *out = new emulate_event{};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    *event = {stream, stream->put};
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!event->stream || event->stream->done >= event->after)
        return cudaSuccess;
    run_some();
    return last_error = cudaErrorNotReady;
}
cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : error == cudaErrorMemoryAllocation ? "out of memory" : "emulated error";
}
