// cuda_events.c: errors and events of the device, and what a step takes on it, by events on its streams. The host cannot tell: it queues a whole step ahead.
//
// An event a layer and span would cost as much as a small kernel, so one layer of a step is measured, another one each step, and stands
// for all; the head is measured itself. Layer l is segment l, which ends layer l - 1 and starts layer l; segment 0 and the last one are
// half a layer each, so they are measured only where there is no other. With a trace every layer has its events, and the steps are as
// much slower; their times are of one layer all the same.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "kernels/cuda/cuda.h"

// --- the answers of the device: errors, which end the process, and events that are polled ---

void cuda_die(const char *format, ...)
{
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log_error("DEVICE-FAILED", "why=\"%s\" what=\"this s-part ends, and goes on when it is started again\"", text);
    _exit(EXIT_CODE_ENVIRONMENT); // no handlers: they might wait for what does not come
}

void cuda_must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        cuda_die("%s: %s", what, cudaGetErrorString(error));
}

bool cuda_has_come(cudaEvent_t event, const char *what)
{
    cudaError_t error = cudaEventQuery(event);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); // it is no error, and must not be taken for that of a launch
        return false;
    }
    cuda_must(error, what);
    return true;
}

void cuda_queued(struct backend_batch *batch, const char *what)
{
    cuda_must(cudaGetLastError(), what);
    cuda_must(cudaEventRecord(batch->event, batch->stream), what);
}

enum status cuda_times_open(struct backend_batch *batch)
{
    batch->mark_layers = batch->backend->config.trace ? batch->backend->range.count + 1 : 1;
    batch->marks = calloc((size_t)CUDA_SPANS * batch->mark_layers, sizeof *batch->marks);
    if (!batch->marks)
        return STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t i = 0; i < CUDA_SPANS * batch->mark_layers; i++) {
        cuda_must(cudaEventCreateWithFlags(&batch->marks[i].begin, cudaEventDefault), "an event");
        cuda_must(cudaEventCreateWithFlags(&batch->marks[i].end, cudaEventDefault), "an event");
    }
    return STATUS_OK;
}

void cuda_times_close(struct backend_batch *batch)
{
    for (uint32_t i = 0; batch->marks && i < CUDA_SPANS * batch->mark_layers; i++) {
        cudaEventDestroy(batch->marks[i].begin);
        cudaEventDestroy(batch->marks[i].end);
    }
    free(batch->marks);
}

void cuda_times_begin_step(struct backend_batch *batch)
{
    uint32_t layers = batch->backend->range.count;

    batch->timed_layer = batch->timed_layer + 1 < layers ? batch->timed_layer + 1 : MIN(1u, layers - 1);
    for (uint32_t i = 0; i < CUDA_SPANS * batch->mark_layers; i++)
        batch->marks[i].made = false;
    batch->last_mark = NULL;
}

// Returns the mark of a span; NULL: it is not timed.
static struct cuda_mark *mark_of(const struct backend_batch *batch, enum cuda_span span, uint32_t layer)
{
    if (batch->mark_layers == 1 && span != CUDA_HEAD && layer != batch->timed_layer)
        return NULL;
    return &batch->marks[span * batch->mark_layers + (batch->mark_layers == 1 || span == CUDA_HEAD ? 0 : layer)];
}

static cudaStream_t stream_of(const struct backend_batch *batch, enum cuda_span span)
{
    return span == CUDA_UP || span == CUDA_DOWN ? batch->wire.stream : batch->stream;
}

void cuda_span_begin(struct backend_batch *batch, enum cuda_span span, uint32_t layer)
{
    struct cuda_mark *mark = mark_of(batch, span, layer);
    if (mark)
        cuda_must(cudaEventRecord(mark->begin, stream_of(batch, span)), "recording a time");
}

void cuda_span_end(struct backend_batch *batch, enum cuda_span span, uint32_t layer)
{
    struct cuda_mark *mark = mark_of(batch, span, layer);
    if (!mark)
        return;
    cuda_must(cudaEventRecord(mark->end, stream_of(batch, span)), "recording a time");
    mark->made = true;
    batch->last_mark = mark;
}

static double between_us(cudaEvent_t from, cudaEvent_t to)
{
    float ms = 0;
    cuda_must(cudaEventElapsedTime(&ms, from, to), "reading a time");
    return ms * 1e3;
}

static double span_us(const struct backend_batch *batch, enum cuda_span span)
{
    const struct cuda_mark *mark = mark_of(batch, span, batch->timed_layer);
    return mark->made ? between_us(mark->begin, mark->end) : 0;
}

void cuda_times(struct backend_batch *batch, struct backend_step_times *out)
{
    uint32_t layers = batch->backend->range.count;
    *out = (struct backend_step_times){
        .segments_us = (uint32_t)(span_us(batch, CUDA_SEGMENT) * layers + span_us(batch, CUDA_HEAD)),
        .attend_us = (uint32_t)(span_us(batch, CUDA_ATTEND) * layers),
        .copies_us = (uint32_t)((span_us(batch, CUDA_UP) + span_us(batch, CUDA_DOWN)) * layers),
    };
}

// Adds a span if it was timed and there is room. Returns the new count.
static uint32_t put_span(const struct backend_batch *batch, enum cuda_span span, uint32_t layer, struct backend_span *out,
                         uint32_t count, uint32_t capacity)
{
    static const struct backend_span what[CUDA_SPANS] = {[CUDA_SEGMENT] = {.track = BACKEND_S_PART, .name = "device segment"},
                                                         [CUDA_ATTEND] = {.track = BACKEND_R_PART, .name = "device attend"},
                                                         [CUDA_UP] = {.track = BACKEND_TRANSFER, .name = "o up"},
                                                         [CUDA_DOWN] = {.track = BACKEND_TRANSFER, .name = "q, k, v down"},
                                                         [CUDA_HEAD] = {.track = BACKEND_S_PART, .name = "device head"}};
    const struct cuda_mark *mark = mark_of(batch, span, layer);

    if (!mark || !mark->made || count == capacity)
        return count;
    out[count] = what[span];
    out[count].layer = layer;
    out[count].began_ns = batch->ended_ns - (uint64_t)(1e3 * MAX(between_us(mark->begin, batch->last_mark->end), 0));
    out[count].ended_ns = batch->ended_ns - (uint64_t)(1e3 * MAX(between_us(mark->end, batch->last_mark->end), 0));
    return count + 1;
}

uint32_t cuda_spans(struct backend_batch *batch, struct backend_span *out, uint32_t capacity)
{
    const uint32_t layers = batch->backend->range.count;
    uint32_t count = 0;

    for (uint32_t layer = 0; layer <= layers; layer++)
        for (enum cuda_span span = 0; span < CUDA_HEAD; span++)
            count = put_span(batch, span, layer, out, count, capacity);
    return put_span(batch, CUDA_HEAD, layers, out, count, capacity);
}
