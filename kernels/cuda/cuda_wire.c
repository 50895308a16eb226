// cuda_wire.c: what is exchanged with KV workers: q, k, v straight into the messages that go out, o out of those that came.
//
// Messages lie in pinned memory that the backend lends to the process (cuda_host_memory), and their rows one behind the other, so those
// of a worker are a copy each of q, k, v and o: the device's copy engines make them, beside the products of other mini-batches. They
// are on a stream of their own, beside attention of the local rows:
//
//     compute:  … segment s ─┬─ attention of the local rows ───────────┬─▶ segment s + 1 …
//     wire:                  └─▶ q, k, v down ─▶ out        o up ─▶ up ─┘
//
// A row whose message lies elsewhere (there was no room left), or that has none (its o is the engine's zeros), makes a detour by the
// mini-batch's own buffers. The wire's stream runs down and up in their order, and down waits for the segment that has read att: so o comes
// into rows of att that nobody reads, beside those that attention of the local rows writes; and compute waits for `up`.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "kernels/cuda/cuda.h"

enum { ROWS_A_CLAIM = 8, HOST_BYTES_LEAST = 16 << 20 };

// A mini-batch has requests for all its rows, replies, and a frame for the next of each; blocks are powers of two, so this is at most twice
// the sum. Links that bring little read into 64 KiB. With more links, or fragmented memory, some messages make a detour.
uint64_t cuda_host_bytes(const struct backend_config *config)
{
    const struct model_shape *shape = &config->model->shape;
    uint64_t row = (3ull * shape->heads + 2ull * shape->kv_heads) * shape->head_dim * sizeof(float);
    return HOST_BYTES_LEAST + 2 * row * config->max_rows * config->max_batches;
}

void cuda_host_memory(const struct backend *backend, void **memory, uint64_t *bytes)
{
    *memory = backend->host_memory;
    *bytes = backend->host_memory ? cuda_host_bytes(&backend->config) : 0;
}

static bool is_reached(const struct backend *backend, const float *at, uint64_t floats)
{
    const uintptr_t first = (uintptr_t)backend->host_memory, bytes = cuda_host_bytes(&backend->config);
    return first && (uintptr_t)at >= first && (uintptr_t)at - first <= bytes - floats * sizeof(float);
}

enum status cuda_wire_open(struct backend_batch *batch)
{
    struct cuda_wire *wire = &batch->wire;

    if (!(wire->detour = calloc(batch->backend->config.max_rows, sizeof *wire->detour)))
        return STATUS_RESOURCE_EXHAUSTED;
    cuda_must(cudaStreamCreateWithFlags(&wire->stream, cudaStreamNonBlocking), "a stream");
    cuda_must(cudaEventCreateWithFlags(&wire->up, cudaEventDisableTiming), "an event");
    cuda_must(cudaEventCreateWithFlags(&wire->computed, cudaEventDisableTiming), "an event");
    cuda_must(cudaEventCreateWithFlags(&wire->out, cudaEventDisableTiming), "an event");
    return STATUS_OK;
}

void cuda_wire_close(struct backend_batch *batch)
{
    struct cuda_wire *wire = &batch->wire;
    cudaEvent_t events[] = {wire->up, wire->computed, wire->out};

    if (wire->stream)
        cudaStreamSynchronize(wire->stream);
    for (uint32_t i = 0; i < ARRAY_COUNT(events); i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    if (wire->stream)
        cudaStreamDestroy(wire->stream);
    free(wire->detour);
}

// --- rows that make a detour ---

struct detour_job {
    struct backend_batch *batch;
    const struct backend_links *links;
    bool up;
};

static void move_row(const struct detour_job *job, uint32_t row)
{
    const struct backend *backend = job->batch->backend;
    size_t q = backend->q_width, kv = backend->kv_width;

    if (job->up) {
        memcpy(job->batch->o_host + row * q, job->links->o[row], q * sizeof(float));
        return;
    }
    const float *from = job->batch->qkv_host + (size_t)row * backend->qkv_width;
    memcpy(job->links->q[row], from, q * sizeof(float));
    memcpy(job->links->k[row], from + q, kv * sizeof(float));
    memcpy(job->links->v[row], from + q + kv, kv * sizeof(float));
}

static void detour_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    const struct detour_job *job = arg;
    const uint32_t rows = job->batch->row_count;

    (void)thread_index, (void)thread_count;
    for (uint32_t first; (first = thread_pool_claim(job->batch->backend->config.pool) * ROWS_A_CLAIM) < rows;)
        for (uint32_t row = first; row < MIN(first + ROWS_A_CLAIM, rows); row++)
            if (job->batch->wire.detour[row])
                move_row(job, row);
}

static void make_detour(struct backend_batch *batch, const struct backend_links *links, bool up)
{
    struct detour_job job = {.batch = batch, .links = links, .up = up};
    if (memchr(batch->wire.detour, true, batch->row_count))
        thread_pool_run(batch->backend->config.pool, detour_thread, &job);
}

// Counts the rows from `row` on that make a detour.
static uint32_t detour_rows(const struct backend_batch *batch, uint32_t row)
{
    uint32_t count = 0;
    while (row + count < batch->row_count && batch->wire.detour[row + count])
        count++;
    return count;
}

// --- o up ---

static bool is_reached_row(const struct backend_batch *batch, uint32_t row)
{
    return row < batch->row_count && !batch->rows[row].local && !batch->wire.detour[row];
}

void cuda_wire_up(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    const struct backend *backend = batch->backend;
    const size_t width = backend->q_width;
    struct cuda_wire *wire = &batch->wire;

    for (uint32_t row = 0; row < batch->row_count; row++)
        wire->detour[row] = !batch->rows[row].local && !is_reached(backend, links->o[row], width);
    make_detour(batch, links, true);
    cuda_span_begin(batch, CUDA_UP, s - 1);
    for (uint32_t row = 0, count; row < batch->row_count; row += MAX(count, 1u)) {
        const float *from = batch->o_host + row * width;
        if (!(count = detour_rows(batch, row)) && is_reached_row(batch, row)) {
            from = links->o[row];
            for (count = 1; is_reached_row(batch, row + count) && links->o[row + count] == from + count * width;)
                count++;
        }
        if (count)
            cuda_must(cudaMemcpyAsync(batch->att + row * width, from, count * width * sizeof(float), cudaMemcpyHostToDevice,
                                      wire->stream),
                      "copying o to the device");
    }
    cuda_span_end(batch, CUDA_UP, s - 1);
    cuda_must(cudaEventRecord(wire->up, wire->stream), "copying o to the device");
    cuda_must(cudaStreamWaitEvent(batch->stream, wire->up, 0), "copying o to the device");
}

// --- q, k, v down ---

// Whether row first + count lies in a message within reach, directly behind the `count` rows from `first` on.
static bool goes_behind(const struct backend_batch *batch, const struct backend_links *links, uint32_t first, uint32_t count)
{
    const struct backend *backend = batch->backend;
    const uint32_t row = first + count;
    return row < batch->row_count && !batch->rows[row].local && links->q[row] && !batch->wire.detour[row] &&
           links->q[row] == links->q[first] + (size_t)count * backend->q_width &&
           links->k[row] == links->k[first] + (size_t)count * backend->kv_width &&
           links->v[row] == links->v[first] + (size_t)count * backend->kv_width;
}

static void copy_down(struct backend_batch *batch, float *to, const float *from, size_t width, uint32_t rows)
{
    cuda_must(cudaMemcpy2DAsync(to, width * sizeof(float), from, batch->backend->qkv_width * sizeof(float), width * sizeof(float),
                                rows, cudaMemcpyDeviceToHost, batch->wire.stream),
              "copying q, k, v from the device");
}

// Copies rows of one message. Returns their count; 0: the row is lost and goes nowhere.
static uint32_t copy_message(struct backend_batch *batch, const struct backend_links *links, uint32_t row)
{
    const struct backend *backend = batch->backend;
    const float *qkv = batch->qkv + (size_t)row * backend->qkv_width;
    uint32_t count = 0;

    while (goes_behind(batch, links, row, count))
        count++;
    if (!count)
        return 0;
    copy_down(batch, links->q[row], qkv, backend->q_width, count);
    copy_down(batch, links->k[row], qkv + backend->q_width, backend->kv_width, count);
    copy_down(batch, links->v[row], qkv + backend->q_width + backend->kv_width, backend->kv_width, count);
    return count;
}

void cuda_wire_down(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    const struct backend *backend = batch->backend;
    const size_t width = backend->qkv_width;
    struct cuda_wire *wire = &batch->wire;

    for (uint32_t row = 0; row < batch->row_count; row++)
        wire->detour[row] = !batch->rows[row].local && links->q[row] &&
                            !(is_reached(backend, links->q[row], backend->q_width) &&
                              is_reached(backend, links->k[row], backend->kv_width) &&
                              is_reached(backend, links->v[row], backend->kv_width));
    if (!wire->told && memchr(wire->detour, true, batch->row_count)) {
        wire->told = true;
        log_warn("MESSAGES-OUT-OF-REACH",
                 "what=\"a message to a worker had no room in %llu MiB of pinned memory: such are copied once more\"",
                 (unsigned long long)(cuda_host_bytes(&backend->config) >> 20));
    }
    cuda_must(cudaEventRecord(wire->computed, batch->stream), "ending a segment");
    cuda_must(cudaStreamWaitEvent(wire->stream, wire->computed, 0), "ending a segment");
    cuda_span_begin(batch, CUDA_DOWN, s);
    for (uint32_t row = 0, count; row < batch->row_count; row += MAX(count, 1u)) {
        if ((count = detour_rows(batch, row)))
            cuda_must(cudaMemcpyAsync(batch->qkv_host + row * width, batch->qkv + row * width, count * width * sizeof(float),
                                      cudaMemcpyDeviceToHost, wire->stream),
                      "copying q, k, v from the device");
        else
            count = copy_message(batch, links, row);
    }
    cuda_span_end(batch, CUDA_DOWN, s);
    cuda_must(cudaEventRecord(wire->out, wire->stream), "copying q, k, v from the device");
    wire->links = links;
}

bool cuda_qkv_ready(struct backend_batch *batch)
{
    struct cuda_wire *wire = &batch->wire;

    if (!wire->links)
        return true;
    if (!cuda_has_come(wire->out, "q, k, v"))
        return false;
    make_detour(batch, wire->links, false);
    wire->links = NULL;
    return true;
}
