// pooling.c: see pooling.h.
#include "common/model/pooling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/metadata.h"
#include "kernels/quant/dequant.h"

static const char *const names[] = {"none", "mean", "cls", "last", "rank"};

const char *model_pool_name(enum model_pool kind) { return names[kind]; }

enum status model_pooling_choose(const struct model *model, const char *name, struct model_pooling *out, struct error *error)
{
    *out = model->pooling;
    if (strcmp(name, "auto") == 0)
        return STATUS_OK;
    for (size_t i = 0; i < ARRAY_COUNT(names); i++)
        if (strcmp(names[i], name) == 0)
            out->kind = (enum model_pool)i;
    if (out->kind == MODEL_POOL_RANK && !out->outputs && !model_take_words(model, out))
        return error_set(error, STATUS_UNIMPLEMENTED,
                         "--pooling rank: %s has no classification head (cls.output.weight), and no tokens 'yes' and 'no'",
                         gguf_label(model->gguf));
    return STATUS_OK;
}

// --- the head ---------------------------------------------------------------------------------------------------------------

uint64_t model_head_bytes(const struct model *model, const struct model_pooling *pooling)
{
    const uint64_t hidden = model->shape.hidden;

    if (pooling->kind != MODEL_POOL_RANK)
        return 0;
    return (pooling->outputs * (hidden + 1) + (model->cls.data ? hidden * (hidden + 1) : 0)) * sizeof(float);
}

// Returns rows of a view in f32, which the caller frees. NULL: a failure.
static float *read_rows(const struct model *model, const struct tensor_view *view, uint32_t row, uint32_t count,
                        struct error *error)
{
    float *out = malloc((size_t)count * view->columns * sizeof *out);
    void *buffer = view->stored ? malloc(view->bytes / view->rows * count) : NULL;
    const void *blocks = out && (buffer || !view->stored) ? model_view_rows(view, row, count, buffer) : NULL;

    if (blocks) {
        dequantize(view->type, blocks, (uint64_t)count * view->columns, out);
    } else {
        error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: cannot read the classification head", gguf_label(model->gguf));
        free(out);
        out = NULL;
    }
    free(buffer);
    return out;
}

// Reads a view that the file may lack.
static bool read_optional(const struct model *model, const struct tensor_view *view, float **out, struct error *error)
{
    return !view->data || (*out = read_rows(model, view, 0, view->rows, error));
}

// Reads the output projection's rows for the words.
static bool read_words(const struct model *model, const struct model_pooling *pooling, struct model_head *out, struct error *error)
{
    const uint32_t ids[] = {pooling->yes_token, pooling->no_token};

    out->output = calloc((size_t)ARRAY_COUNT(ids) * out->hidden, sizeof *out->output);
    if (!out->output) {
        error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the classification head");
        return false;
    }
    for (size_t i = 0; i < ARRAY_COUNT(ids); i++) {
        float *row = read_rows(model, &model->output, ids[i], 1, error);
        if (!row)
            return false;
        for (uint32_t k = 0; k < out->hidden; k++)
            out->output[i * out->hidden + k] = row[k] * model->shape.logit_scale;
        free(row);
    }
    return true;
}

enum status model_head_open(const struct model *model, const struct model_pooling *pooling, struct model_head *out,
                            struct error *error)
{
    *out = (struct model_head){.hidden = model->shape.hidden, .outputs = pooling->outputs};
    if (pooling->yes_token != MODEL_NO_TOKEN)
        return read_words(model, pooling, out, error) ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
    if (read_optional(model, &model->cls, &out->dense, error) && read_optional(model, &model->cls_bias, &out->dense_bias, error) &&
        read_optional(model, &model->cls_output, &out->output, error) &&
        read_optional(model, &model->cls_output_bias, &out->output_bias, error))
        return STATUS_OK;
    return STATUS_RESOURCE_EXHAUSTED;
}

void model_head_close(struct model_head *head)
{
    free(head->dense);
    free(head->dense_bias);
    free(head->output);
    free(head->output_bias);
    *head = (struct model_head){0};
}

static double head_product(const float *weights, const float *row, uint32_t count, double sum)
{
    for (uint32_t i = 0; i < count; i++)
        sum += (double)weights[i] * (double)row[i];
    return sum;
}

void model_head_apply(const struct model_head *head, const float *row, float *scratch, float *outputs)
{
    const uint32_t hidden = head->hidden;

    for (uint32_t i = 0; head->dense && i < hidden; i++)
        scratch[i] = (float)tanh(
            head_product(head->dense + (size_t)i * hidden, row, hidden, head->dense_bias ? (double)head->dense_bias[i] : 0));
    for (uint32_t i = 0; i < head->outputs; i++)
        outputs[i] = (float)head_product(head->output + (size_t)i * hidden, head->dense ? scratch : row, hidden,
                                         head->output_bias ? (double)head->output_bias[i] : 0);
}
