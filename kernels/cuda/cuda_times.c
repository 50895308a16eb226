/* cuda_times.c: what a step takes on the device, by events on its stream. The host cannot tell: it queues a whole step ahead.
 *
 * An event a layer and span would cost as much as a small kernel, so one layer of a step is measured, another one each step, and stands
 * for all; the head is measured itself. Layer l is segment l, which ends layer l - 1 and starts layer l; segment 0 and the last one are
 * half a layer each, so they are measured only where there is no other.
 */
#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { SPAN_BEGIN, SPAN_END };

void cuda_times_open(struct backend_batch *batch)
{
    for (uint32_t span = 0; span < CUDA_SPANS; span++)
        for (uint32_t end = SPAN_BEGIN; end <= SPAN_END; end++)
            cuda_must(cudaEventCreateWithFlags(&batch->mark[span][end], cudaEventDefault), "an event");
}

void cuda_times_close(struct backend_batch *batch)
{
    for (uint32_t span = 0; span < CUDA_SPANS; span++)
        for (uint32_t end = SPAN_BEGIN; end <= SPAN_END; end++)
            if (batch->mark[span][end])
                cudaEventDestroy(batch->mark[span][end]);
}

void cuda_times_begin_step(struct backend_batch *batch)
{
    uint32_t layers = batch->backend->shape.layers;

    batch->timed_layer = batch->timed_layer + 1 < layers ? batch->timed_layer + 1 : MIN(1u, layers - 1);
    for (uint32_t span = 0; span < CUDA_SPANS; span++)
        batch->marked[span] = false;
}

static bool is_timed(const struct backend_batch *batch, enum cuda_span span, uint32_t layer)
{
    return span == CUDA_HEAD || layer == batch->timed_layer;
}

void cuda_span_begin(struct backend_batch *batch, enum cuda_span span, uint32_t layer)
{
    if (is_timed(batch, span, layer))
        cuda_must(cudaEventRecord(batch->mark[span][SPAN_BEGIN], batch->stream), "recording a time");
}

void cuda_span_end(struct backend_batch *batch, enum cuda_span span, uint32_t layer)
{
    if (!is_timed(batch, span, layer))
        return;
    cuda_must(cudaEventRecord(batch->mark[span][SPAN_END], batch->stream), "recording a time");
    batch->marked[span] = true;
}

static double span_us(const struct backend_batch *batch, enum cuda_span span)
{
    float ms = 0;
    if (batch->marked[span])
        cuda_must(cudaEventElapsedTime(&ms, batch->mark[span][SPAN_BEGIN], batch->mark[span][SPAN_END]), "reading a time");
    return ms * 1e3;
}

void cuda_times(struct backend_batch *batch, uint32_t *segments_us, uint32_t *attend_us)
{
    uint32_t layers = batch->backend->shape.layers;
    *segments_us = (uint32_t)(span_us(batch, CUDA_SEGMENT) * layers + span_us(batch, CUDA_HEAD));
    *attend_us = (uint32_t)(span_us(batch, CUDA_ATTEND) * layers);
}
