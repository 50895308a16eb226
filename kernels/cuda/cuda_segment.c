// cuda_segment.c: a segment of the forward pass: what KV workers sent goes up before it and q, k, v come down behind it (cuda_wire.c).
// Between them its kernels and products run as a graph if there is one, else launch by launch (cuda_layer.c). The stages
// of a chain hand x on between two segments.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/cuda/cuda.h"

// --- graphs of the segments ---
//
// CUDA graphs of the segments.
//
// A segment is some ten launches of a few microseconds of the host's each, where the kernels of a small model, or of a large one's 4-bit
// weights at a few rows, take no longer on the device. A graph is one launch. It holds what cuda_compute queues, with the pointers it had
// when it was captured: those of the mini-batch's buffers and of the segment's weights, which stay where they are. So there is one for
// each mini-batch, bucket of rows and segment:
//
//     o up ─▶ [ narrow, o, norm, gate_up, silu, down, norm, qkv, rope ] ─┬▶ q, k, v down
//               one graph (of a llama; others have more nodes)           └▶ attention: plain launches
//
// Copies and attention stay outside, because they differ from step to step: which rows are a worker's, how long the longest context is,
// how many rows are local. Inside, they would need ten times as many graphs, or node parameters set anew, which costs as much as the
// launch. Attention is three launches a layer, which are queued while the segment runs.
//
// Graphs are made when the mini-batch is opened, so that no step waits for one: capturing and instantiating ten nodes takes some hundreds
// of microseconds, 32 layers in 13 buckets well under a second. They are made bucket by bucket, fewest rows (the shortest steps) first,
// and the device memory that the driver takes for them is watched. A graph that cannot be made is no error: its segment is launched
// plainly, computes the same rows with the same algorithms, and gives the same bytes.

enum { RUN_FIRST_ROWS = 64 }; // more have the same kernels, or those that were tried with the products

// Captures, but does not run, a segment of batch->padded_rows.
static cudaError_t capture(struct backend_batch *batch, uint32_t s, cudaGraph_t *out)
{
    // Relaxed: a kernel that has not run yet is loaded meanwhile, which the other modes may take for a forbidden call.
    cudaError_t error = cudaStreamBeginCapture(batch->stream, cudaStreamCaptureModeRelaxed), launch;

    *out = NULL;
    if (error)
        return error;
    cuda_compute(batch, s);
    launch = cudaGetLastError();
    error = cudaStreamEndCapture(batch->stream, out);
    if (!error && launch) { // it lacks a node
        cudaGraphDestroy(*out);
        error = launch;
    }
    return error;
}

static cudaError_t make(struct backend_batch *batch, uint32_t s, cudaGraphExec_t *out)
{
    cudaGraph_t graph;
    cudaError_t error = capture(batch, s, &graph);

    *out = NULL;
    if (error)
        return error;
    error = cudaGraphInstantiateWithFlags(out, graph, 0);
    cudaGraphDestroy(graph);
    if (error)
        *out = NULL;
    return error ? error : cudaGraphUpload(*out, batch->stream); // now, not with its first launch
}

// Makes the graphs of all segments of the next bucket; on an error, none of them.
static cudaError_t make_bucket(struct backend_batch *batch, uint32_t rows)
{
    struct cuda_graphs *graphs = &batch->graphs;
    const uint32_t layers = batch->backend->range.count, segments = layers + 1;
    cudaGraphExec_t *execs = graphs->execs + (size_t)graphs->buckets * segments;
    cudaError_t error = cudaSuccess;

    batch->padded_rows = rows;
    if (rows <= RUN_FIRST_ROWS) { // so that kernels are loaded, and a fault of theirs shows as what it is
        cuda_compute(batch, 0);
        cuda_compute(batch, layers);
        cuda_must(cudaGetLastError(), "running a segment before its graph is made");
        cuda_must(cudaStreamSynchronize(batch->stream), "running a segment before its graph is made");
    }
    for (uint32_t s = 0; !error && s < segments; s++)
        error = make(batch, s, &execs[s]);
    if (!error) {
        graphs->rows[graphs->buckets++] = rows;
        return error;
    }
    (void)cudaGetLastError(); // it is told by its name
    cuda_must(cudaStreamSynchronize(batch->stream), "making graphs");
    for (uint32_t s = 0; s < segments; s++) {
        if (execs[s])
            cudaGraphExecDestroy(execs[s]);
        execs[s] = NULL;
    }
    return error;
}

void cuda_graphs_open(struct backend_batch *batch, uint32_t max_graphs, uint64_t max_bytes)
{
    struct cuda_graphs *graphs = &batch->graphs;
    const uint32_t max_rows = batch->backend->config.max_rows, segments = batch->backend->range.count + 1;
    uint32_t wanted[GPU_BUCKETS_MAX], count = gpu_buckets(max_rows, wanted);
    size_t free_before = 0, free_now = 0, total;
    const uint64_t began_us = clock_now_us();
    cudaError_t error = cudaSuccess;

    graphs->execs = calloc((size_t)count * segments, sizeof *graphs->execs);
    if (!graphs->execs)
        return;
    // token 0 at position 0 for all rows: begin, too, puts only tokens and positions that exist
    cuda_must(cudaMemsetAsync(batch->words, 0, 2 * (size_t)max_rows * sizeof *batch->words, batch->stream), "making graphs");
    cuda_must(cudaMemGetInfo(&free_before, &total), "asking for the device's memory");
    free_now = free_before;
    while (!error && graphs->buckets < count && (graphs->buckets + 1) * segments <= max_graphs &&
           free_before - MIN(free_now, free_before) < max_bytes) {
        error = make_bucket(batch, wanted[graphs->buckets]);
        cuda_must(cudaMemGetInfo(&free_now, &total), "asking for the device's memory");
    }
    cuda_must(cudaStreamSynchronize(batch->stream), "making graphs");
    if (error)
        log_warn("GRAPHS-NOT-MADE", "why=\"%s\" rows=%u what=\"steps of so many rows and more are launched plainly\"",
                 cudaGetErrorString(error), wanted[graphs->buckets]);
    log_info("GRAPHS", "made=%u rows_up_to=%u mib=%.1f ms=%llu", graphs->buckets * segments,
             graphs->buckets ? wanted[graphs->buckets - 1] : 0, (double)(free_before - MIN(free_now, free_before)) / 1048576,
             (unsigned long long)(clock_now_us() - began_us) / 1000);
}

void cuda_graphs_close(struct backend_batch *batch)
{
    struct cuda_graphs *graphs = &batch->graphs;
    for (uint32_t i = 0; i < graphs->buckets * (batch->backend->range.count + 1); i++)
        cudaGraphExecDestroy(graphs->execs[i]);
    free(graphs->execs);
    *graphs = (struct cuda_graphs){.buckets = 0};
}

static bool cuda_graph_launch(struct backend_batch *batch, uint32_t s)
{
    struct cuda_graphs *graphs = &batch->graphs;
    const uint32_t bucket = gpu_class_of(graphs->rows, graphs->buckets, batch->padded_rows);

    if (bucket == graphs->buckets || graphs->rows[bucket] != batch->padded_rows)
        return false;
    cuda_must(cudaGraphLaunch(graphs->execs[(size_t)bucket * (batch->backend->range.count + 1) + s], batch->stream),
              "launching a graph");
    graphs->launched++;
    return true;
}

// --- segments ---

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
