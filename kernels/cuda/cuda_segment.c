// cuda_segment.c: a segment of the forward pass: what KV workers sent goes up before it and q, k, v come down behind it (cuda_wire.c).
// Between them its kernels and products run as a graph (cuda_graph.c) if there is one, else launch by launch (cuda_layer.c). The stages
// of a chain hand x on between two segments.
#include "kernels/cuda/cuda.h"

void cuda_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    const bool remote = batch->local_count < batch->row_count;

    if (s > 0 && remote)
        cuda_wire_up(batch, s, links);
    cuda_tier_enter(&batch->backend->tier, &batch->visit, s, batch->stream);
    cuda_span_begin(batch, CUDA_SEGMENT, s);
    if (!cuda_graph_launch(batch, s))
        cuda_compute(batch, s);
    cuda_span_end(batch, CUDA_SEGMENT, s);
    cuda_tier_leave(&batch->backend->tier, &batch->visit, s, batch->stream);
    if (s < batch->backend->range.count && remote)
        cuda_wire_down(batch, s, links);
    cuda_queued(batch, "starting a segment");
}

void cuda_put_x(struct backend_batch *batch, const float *x)
{
    const size_t row_floats = batch->backend->shape.hidden;

    assert_always(!batch->backend->range.is_first);
    cuda_must(cudaMemcpyAsync(batch->x, x, batch->row_count * row_floats * sizeof *x, cudaMemcpyHostToDevice, batch->stream),
              "copying x to the device");
    cuda_must(cudaMemsetAsync(batch->x + batch->row_count * row_floats, 0,
                              (batch->padded_rows - batch->row_count) * row_floats * sizeof *x, batch->stream),
              "clearing rows that are padding");
    cuda_queued(batch, "copying x to the device");
}

void cuda_get_x(struct backend_batch *batch, float *x)
{
    assert_always(!batch->backend->range.is_last);
    cuda_must(cudaMemcpyAsync(x, batch->x, (size_t)batch->row_count * batch->backend->shape.hidden * sizeof *x,
                              cudaMemcpyDeviceToHost, batch->stream),
              "copying x from the device");
    cuda_queued(batch, "copying x from the device");
}
