// cuda_hidden.c: hidden states behind the final norm, for prompts that are pooled: x of the rows comes down as it is, in f32, and the host
// normalizes it once it has come, with the kernels of the CPU backend. So nothing of it is rounded to the type in which the device computes.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/quant/dequant.h"

uint64_t cuda_hidden_bytes(const struct model_shape *shape) { return 3ull * shape->hidden * sizeof(float); }

static bool read_vector(const struct tensor_view *view, uint32_t count, float *out)
{
    unsigned char *buffer = view->stored ? malloc(view->bytes) : NULL;
    const void *values = view->stored && !buffer ? NULL : model_view_rows(view, 0, 1, buffer);

    if (values)
        dequantize(view->type, values, count, out);
    free(buffer);
    return values != NULL;
}

enum status cuda_hidden_open(struct backend *backend, struct error *error)
{
    const struct model *model = backend->config.model;
    const uint32_t hidden = backend->shape.hidden;
    struct cuda_hidden *out = &backend->hidden;

    if (!backend->range.is_last)
        return STATUS_OK;
    out->weight = calloc(3ull * hidden, sizeof *out->weight);
    if (!out->weight || !read_vector(&model->output_norm, hidden, out->weight))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the final norm");
    out->bias = model->output_norm_bias.data ? out->weight + hidden : NULL;
    out->row = out->weight + 2ull * hidden;
    if (out->bias && !read_vector(&model->output_norm_bias, hidden, out->bias))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the final norm");
    for (uint32_t i = 0; backend->shape.norm_plus_one && i < hidden; i++)
        out->weight[i] += 1;
    return STATUS_OK;
}

void cuda_hidden_close(struct backend *backend) { free(backend->hidden.weight); }

// Rows that follow one another, as those of a prompt do, come in one copy.
void cuda_hidden(struct backend_batch *batch, const uint32_t *row_index, float *out, uint32_t count)
{
    const size_t hidden = batch->backend->shape.hidden;

    assert_always(batch->backend->range.is_last && count <= batch->backend->config.max_rows);
    for (uint32_t i = 0, next; i < count; i = next) {
        for (next = i + 1; next < count && row_index[next] == row_index[next - 1] + 1; next++) {}
        cuda_must(cudaMemcpyAsync(out + i * hidden, batch->x + row_index[i] * hidden, (next - i) * hidden * sizeof *out,
                                  cudaMemcpyDeviceToHost, batch->stream),
                  "copying hidden states from the device");
    }
    batch->hidden = out;
    batch->hidden_count = count;
    cuda_queued(batch, "copying hidden states from the device");
}

void cuda_hand_out_hidden(struct backend_batch *batch)
{
    const struct backend *backend = batch->backend;
    const struct cuda_hidden *norm = &backend->hidden;
    const struct model_shape *shape = &backend->shape;

    for (uint32_t i = 0; i < batch->hidden_count; i++) {
        float *out = batch->hidden + (size_t)i * shape->hidden;
        memcpy(norm->row, out, shape->hidden * sizeof *out);
        if (shape->norm == NORM_LAYER)
            kernels->layer_norm(norm->row, norm->weight, norm->bias, shape->norm_epsilon, shape->hidden, out);
        else
            kernels->rms_norm(norm->row, norm->weight, shape->norm_epsilon, shape->hidden, out);
    }
    batch->hidden = NULL;
    batch->hidden_count = 0;
}
