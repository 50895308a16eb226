/* emulate.cpp: see emulate.h. */
#include "tests/cuda/emulate.h"

#include <stdio.h>

#include <algorithm>
#include <chrono>
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
    uint64_t given[2]; /* of this exchange and the one before: who is late reads there what nobody overwrites yet */
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

/* Values that the lanes of a warp exchange: room for this operation's and for those of the one before, as with `given`. */
enum { LAID_BYTES = 48 };
static unsigned char laid[2][THREADS_MAX][LAID_BYTES];

static const unsigned char *lay_down(const void *value, size_t bytes) /* [LANES][LAID_BYTES] of the warp */
{
    unsigned now = fibers[current].exchanges++ % 2;
    memcpy(laid[now][current], value, bytes);
    wait_at(AT_WARP);
    return laid[now][current / LANES * LANES];
}

uint64_t emulate_exchange(uint64_t value, unsigned from_lane)
{
    unsigned first = current / LANES * LANES;
    unsigned now = fibers[current].exchanges++ % 2;
    fibers[current].given[now] = value;
    wait_at(AT_WARP);
    return fibers[first + from_lane].given[now];
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

/* --- single instructions ---------------------------------------------------------------------------------------------- */

struct laid_operands {
    float a[8], b[4];
};

void emulate_multiply(float d[4], const float a[8], const float b[4])
{
    struct laid_operands own;
    static_assert(sizeof own <= LAID_BYTES, "");
    std::copy(a, a + 8, own.a);
    std::copy(b, b + 4, own.b);
    const unsigned char *all = lay_down(&own, sizeof own);
    const unsigned g = emulate_lane() / 4, t = emulate_lane() % 4;
    for (unsigned at = 0; at < 4; at++) { /* row g + 8 (at / 2), column 2 t + at % 2 */
        const unsigned column = 2 * t + at % 2;
        double sum = d[at];
        for (unsigned k = 0; k < 16; k++) {
            const struct laid_operands *of_row = (const struct laid_operands *)(all + (g * 4 + k % 8 / 2) * LAID_BYTES),
                                       *of_column = (const struct laid_operands *)(all + (column * 4 + k % 8 / 2) * LAID_BYTES);
            sum += (double)of_row->a[k % 2 + 2 * (at / 2) + 4 * (k / 8)] * of_column->b[k % 2 + 2 * (k / 8)];
        }
        d[at] = (float)sum;
    }
}

static void must_be_aligned(const void *at, const char *what)
{
    if ((uintptr_t)at % 16) {
        fprintf(stderr, "%s: %s of %p, which is no multiple of 16 bytes\n", kernel_now, what, at);
        abort();
    }
}

void emulate_load_tiles(uint32_t *out, const void *row, bool transposed)
{
    must_be_aligned(row, "ldmatrix");
    const unsigned char *all = lay_down(&row, sizeof row);
    const unsigned g = emulate_lane() / 4, t = emulate_lane() % 4;
    for (unsigned tile = 0; tile < 4; tile++) {
        out[tile] = 0;
        for (unsigned half = 0; half < 2; half++) {
            const unsigned r = transposed ? 2 * t + half : g, column = transposed ? g : 2 * t + half;
            const uint16_t *values;
            memcpy(&values, all + (8 * tile + r) * LAID_BYTES, sizeof values);
            out[tile] |= (uint32_t)values[column] << 16 * half;
        }
    }
}

struct copy {
    void *to;
    const void *from; /* NULL: zeros */
};
static std::vector<struct copy> copies[THREADS_MAX]; /* that a thread has started */

void gpu_copy_async(void *shared, const void *from, bool any)
{
    must_be_aligned(shared, "cp.async to");
    must_be_aligned(from, "cp.async from");
    copies[current].push_back({shared, any ? from : NULL});
}

void gpu_copy_wait(void)
{
    for (const struct copy &copy : copies[current])
        if (copy.from)
            memcpy(copy.to, copy.from, 16);
        else
            memset(copy.to, 0, 16);
    copies[current].clear();
}

/* --- grids ------------------------------------------------------------------------------------------------------------ */

static void run_block(void)
{
    for (unsigned i = 0; i < fiber_count; i++) {
        copies[i].clear();
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

unsigned char *emulate_dynamic_shared;
enum { GUARD = 256 };

static void run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body)
{
    if (!emulate_dynamic_shared)
        emulate_dynamic_shared = (unsigned char *)aligned_alloc(128, SHARED_MAX + GUARD);
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
                memset(emulate_dynamic_shared, 0xff, shared_bytes + GUARD);
                run_block();
                for (unsigned i = 0; i < GUARD; i++)
                    if (emulate_dynamic_shared[shared_bytes + i] != 0xff) {
                        fprintf(stderr, "%s: block %u,%u,%u writes behind its %zu bytes of shared memory\n", kernel, x, y, z,
                                shared_bytes);
                        abort();
                    }
            }
}

/* --- streams ---------------------------------------------------------------------------------------------------------- */

struct task {
    std::function<void()> run;
    enum emulate_lane lane; /* of the virtual clock, where it takes LAUNCH_NS and what its bytes take */
    size_t bytes;
};

struct emulate_graph {
    std::vector<struct task> tasks; /* in the order of the stream that was captured */
    bool invalid;
};

struct emulate_graph_exec {
    std::vector<struct task> tasks;
    uint64_t bytes;              /* that it took */
    struct emulate_stream *last; /* where it was launched last, and behind which of its operations that launch has ended */
    uint64_t after;
};

struct operation {
    struct task task;
    double queued_ns;              /* by the host's virtual time */
    uint64_t number;               /* in the order of the host's calls */
    struct emulate_stream *behind; /* NULL, or whose operations must be done first, */
    uint64_t after;                /* so many of them */
};

struct emulate_stream {
    std::deque<struct operation> queued;
    uint64_t put, done;              /* operations */
    struct emulate_graph *capturing; /* NULL: it is not captured */
    std::vector<double> ended_ns;    /* of each operation that is done, while there is a clock */
};

struct emulate_event {
    struct emulate_stream *stream;
    uint64_t after; /* operations of the stream */
    bool timed;
    std::chrono::steady_clock::time_point at;
    double at_ns; /* the same, by the virtual clock */
};

static std::vector<struct emulate_stream *> streams;
static uint64_t chance = 1, operations_done, queued_count;
static cudaError_t last_error;

/* A stream whose capture was spoiled takes nothing until that has ended. */
static cudaError_t refuses(const struct emulate_stream *stream)
{
    if (!stream->capturing || !stream->capturing->invalid)
        return cudaSuccess;
    return last_error = cudaErrorStreamCaptureInvalidated;
}

/* --- the virtual clock ------------------------------------------------------------------------------------------------- */

enum { LAUNCH_NS = 1000 };
double emulate_link_mbs, emulate_memory_mbs;
static struct emulate_clock clock_now;
static double host_ns, lane_free_ns[EMULATE_LANES];

static bool has_clock(void) { return emulate_link_mbs > 0; }

void emulate_clock_start(double link_mbs, double memory_mbs)
{
    emulate_link_mbs = link_mbs, emulate_memory_mbs = memory_mbs;
    clock_now = {};
    host_ns = 0;
    std::fill(lane_free_ns, lane_free_ns + EMULATE_LANES, 0.0);
    for (struct emulate_stream *stream : streams)
        stream->ended_ns.assign(stream->done, 0.0);
}

struct emulate_clock emulate_clock_read(void) { return clock_now; }

static double lasts_ns(const struct task &task)
{
    const double mbs = task.lane == EMULATE_COMPUTE ? emulate_memory_mbs : emulate_link_mbs;
    return task.lane == EMULATE_NO_LANE ? 0 : LAUNCH_NS + (double)task.bytes * 1e3 / mbs;
}

/* When so many of the stream's operations had ended. */
static double ended_ns(const struct emulate_stream *stream, uint64_t operations)
{
    return operations && operations <= stream->ended_ns.size() ? stream->ended_ns[operations - 1] : 0;
}

static double start_ns(const struct emulate_stream *stream)
{
    const struct operation &operation = stream->queued.front();
    double start = std::max(operation.queued_ns, ended_ns(stream, stream->done));
    if (operation.behind)
        start = std::max(start, ended_ns(operation.behind, operation.after));
    return start;
}

static void advance(struct emulate_stream *stream, const struct task &task, double start)
{
    const double ns = lasts_ns(task);
    if (task.lane != EMULATE_NO_LANE) {
        start = std::max(start, lane_free_ns[task.lane]);
        lane_free_ns[task.lane] = start + ns;
        clock_now.busy_ns[task.lane] += ns;
    }
    stream->ended_ns.push_back(start + ns);
    clock_now.end_ns = std::max(clock_now.end_ns, start + ns);
}

/* --- what runs when ----------------------------------------------------------------------------------------------------- */

static cudaError_t queue(cudaStream_t stream, struct task task)
{
    if (refuses(stream))
        return last_error;
    if (stream->capturing) {
        stream->capturing->tasks.push_back(std::move(task));
        return cudaSuccess;
    }
    stream->queued.push_back({std::move(task), host_ns, queued_count++, NULL, 0});
    stream->put++;
    return cudaSuccess;
}

/* Queues a task that takes no time of its own. */
static cudaError_t queue(cudaStream_t stream, std::function<void()> run)
{
    return queue(stream, (struct task){std::move(run), EMULATE_NO_LANE, 0});
}

/* FD_EMULATE_FAILS_AFTER: so many operations, then the device is lost, and with it all that it had to do. */
static bool is_lost(void)
{
    static const char *limit = getenv("FD_EMULATE_FAILS_AFTER");
    static const uint64_t operations = limit ? strtoull(limit, NULL, 10) : UINT64_MAX;
    return operations_done >= operations;
}

/* FD_EMULATE_HANGS_AFTER: so many operations, then none ever ends, without an error. */
static bool hangs(void)
{
    static const char *limit = getenv("FD_EMULATE_HANGS_AFTER");
    static const uint64_t operations = limit ? strtoull(limit, NULL, 10) : UINT64_MAX;
    return operations_done >= operations;
}

static bool can_run(const struct emulate_stream *stream)
{
    if (stream->queued.empty() || is_lost() || hangs())
        return false;
    return !stream->queued.front().behind || stream->queued.front().behind->done >= stream->queued.front().after;
}

static bool run_one(struct emulate_stream *stream)
{
    if (!can_run(stream))
        return false;
    const double start = has_clock() ? start_ns(stream) : 0;
    struct operation operation = std::move(stream->queued.front());
    stream->queued.pop_front();
    operation.task.run();
    stream->done++;
    if (has_clock())
        advance(stream, operation.task, start);
    operations_done++;
    return true;
}

static bool starts_before(const struct emulate_stream *a, const struct emulate_stream *b)
{
    const double a_ns = start_ns(a), b_ns = start_ns(b);
    return a_ns < b_ns || (a_ns == b_ns && a->queued.front().number < b->queued.front().number);
}

/* Runs the operation that starts first by the virtual clock. */
static bool run_first(void)
{
    struct emulate_stream *first = NULL;
    for (struct emulate_stream *stream : streams)
        if (can_run(stream) && (!first || starts_before(stream, first)))
            first = stream;
    return first && run_one(first);
}

/* A few operations of any streams. */
static void run_some(void)
{
    if (has_clock()) {
        for (unsigned i = 0; i < 8 && run_first(); i++) {}
        return;
    }
    for (unsigned i = 0; i < 8 && !streams.empty(); i++) {
        chance = chance * 6364136223846793005u + 1442695040888963407u;
        run_one(streams[(chance >> 33) % streams.size()]);
    }
}

/* Called by everything that a capture does not allow. Returns an error if the stream (NULL: any) is captured: its capture then gives no graph. */
static cudaError_t spoils_capture(const struct emulate_stream *stream)
{
    cudaError_t error = cudaSuccess;

    if (stream && refuses(stream))
        return last_error;
    for (struct emulate_stream *s : streams)
        if (s->capturing && (!stream || s == stream)) {
            s->capturing->invalid = true;
            error = last_error = cudaErrorStreamCaptureUnsupported;
        }
    return error;
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
    queue(stream, (struct task){[kernel, grid, block, shared_bytes, body] { run_grid(kernel, grid, block, shared_bytes, body); },
                                EMULATE_COMPUTE, 0});
}

static std::unordered_map<const void *, size_t> shared_allowed; /* beyond what every kernel may ask for */

bool emulate_shared_allowed(const char *name, const void *kernel, size_t bytes)
{
    auto allowed = shared_allowed.find(kernel);
    if (bytes <= std::max((size_t)48 * 1024, allowed == shared_allowed.end() ? 0 : allowed->second))
        return true;
    fprintf(stderr, "%s: %zu bytes of shared memory, which it has not been allowed\n", name, bytes);
    last_error = cudaErrorInvalidValue;
    return false;
}

void emulate_queue(cudaStream_t stream, void (*run)(void *work), const void *work, size_t bytes, size_t memory_bytes)
{
    std::vector<unsigned char> kept((const unsigned char *)work, (const unsigned char *)work + bytes);
    queue(stream, (struct task){[run, kept]() mutable { run(kept.data()); }, EMULATE_COMPUTE, memory_bytes});
}

/* --- the runtime ------------------------------------------------------------------------------------------------------ */

static constexpr size_t PATTERN_BYTES = 64 << 20;
static std::unordered_map<void *, size_t> allocated;
static uint64_t allocated_bytes;

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    if (spoils_capture(NULL))
        return last_error;
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
    if (spoils_capture(NULL))
        return last_error;
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
    const char *bytes = getenv("FD_EMULATE_DEVICE_BYTES"), *link = getenv("FD_EMULATE_LINK_MBS");
    if (bytes)
        emulate_device_bytes = strtoull(bytes, NULL, 10);
    if (link && !has_clock()) {
        const char *memory = getenv("FD_EMULATE_MEMORY_MBS");
        emulate_clock_start(strtod(link, NULL), memory ? strtod(memory, NULL) : 20 * strtod(link, NULL));
    }
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
    if (!(*out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)))
        return cudaErrorMemoryAllocation;
    memset(*out, 0xff, std::min(bytes, PATTERN_BYTES));
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *at)
{
    free(at);
    return cudaSuccess;
}

static struct task copy_task(std::function<void()> run, enum cudaMemcpyKind kind, size_t bytes)
{
    if (kind == cudaMemcpyDeviceToDevice)
        return {std::move(run), EMULATE_COMPUTE, 2 * bytes};
    return {std::move(run), kind == cudaMemcpyHostToDevice ? EMULATE_UP : EMULATE_DOWN, bytes};
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return queue(stream, copy_task([=] { memcpy(to, from, bytes); }, kind, bytes));
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (width > to_pitch || width > from_pitch)
        return last_error = cudaErrorInvalidValue;
    auto run = [=] {
        for (size_t row = 0; row < height; row++)
            memcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    };
    return queue(stream, copy_task(run, kind, width * height));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    if (spoils_capture(stream) ||
        (event->stream && spoils_capture(event->stream))) /* it would become an edge; nothing here wants that */
        return last_error;
    if (event->stream && event->stream != stream) {
        stream->queued.push_back({{[] {}, EMULATE_NO_LANE, 0}, host_ns, queued_count++, event->stream, event->after});
        stream->put++;
    }
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
cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
    return queue(stream, [=] { memset(at, value, bytes); });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (spoils_capture(stream))
        return last_error;
    while (!stream->queued.empty() && !is_lost())
        if (has_clock() || !run_one(stream)) /* it waits for another */
            run_some();
    host_ns = std::max(host_ns, ended_ns(stream, stream->done));
    return stream->queued.empty() ? cudaSuccess : cudaErrorECCUncorrectable;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = new emulate_event{};
    (*out)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (spoils_capture(stream)) /* it would become a node; nothing here wants that */
        return last_error;
    if (event->timed)
        queue(stream, [event, stream] {
            event->at = std::chrono::steady_clock::now();
            event->at_ns = ended_ns(stream, stream->done);
        });
    event->stream = stream;
    event->after = stream->put;
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!event->stream || event->stream->done >= event->after) {
        if (event->stream)
            host_ns = std::max(host_ns, ended_ns(event->stream, event->after));
        return cudaSuccess;
    }
    run_some();
    return last_error = is_lost() ? cudaErrorECCUncorrectable : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    for (cudaEvent_t event : {from, to})
        if (!event->timed || !event->stream)
            return cudaErrorInvalidValue;
        else if (event->stream->done < event->after)
            return cudaErrorNotReady;
    *ms = has_clock() ? (float)((to->at_ns - from->at_ns) * 1e-6)
                      : std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return cudaSuccess;
}

/* --- graphs ----------------------------------------------------------------------------------------------------------- */

uint64_t emulate_graph_bytes = 64 << 10;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
    if (refuses(stream))
        return last_error;
    if (stream->capturing)
        return last_error = cudaErrorInvalidValue;
    stream->capturing = new emulate_graph{};
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    *out = stream->capturing;
    stream->capturing = NULL;
    if (!*out)
        return last_error = cudaErrorInvalidValue;
    if (!(*out)->invalid)
        return cudaSuccess;
    delete *out;
    *out = NULL;
    return last_error = cudaErrorStreamCaptureInvalidated;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    if (emulate_graph_bytes > emulate_device_bytes - allocated_bytes)
        return last_error = cudaErrorMemoryAllocation;
    *out = new emulate_graph_exec{graph->tasks, emulate_graph_bytes, NULL, 0};
    allocated_bytes += emulate_graph_bytes;
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t stream)
{
    return queue(stream, [] {});
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (refuses(stream))
        return last_error;
    for (const struct task &task : exec->tasks)
        queue(stream, task); /* a copy: as it was captured */
    exec->last = stream, exec->after = stream->put;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    if (exec->last && exec->last->done < exec->after) {
        fprintf(stderr, "a graph is destroyed while it runs\n");
        abort();
    }
    allocated_bytes -= exec->bytes;
    delete exec;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t)
{
    *blocks = 2;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || value > SHARED_MAX - 1024)
            return cudaErrorInvalidValue;
        shared_allowed[kernel] = (size_t)value;
    }
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
    default: return "emulated error";
    }
}
