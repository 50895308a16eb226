// pooler.c: see pooler.h.
#include "services/s-part/step/pooler.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

struct pooler {
    uint32_t hidden;
    struct model_head head; // outputs 0: there is none
    float *scratch;         // [hidden] of the head
};

struct pooled_sequence {
    struct pooler *pooler;
    enum model_pool kind;
    uint32_t prompt_tokens;
    uint32_t next; // how many positions were taken, or need not be
    bool done;
    uint32_t result_count;
    double *sum;   // [hidden] of a mean; otherwise NULL
    float *result; // [result_count]
};

uint64_t pooler_planned_bytes(const struct model *model, const struct model_pooling *pooling, uint32_t sequences)
{
    const uint64_t hidden = model->shape.hidden;
    const uint64_t each = hidden * (sizeof(float) + sizeof(double)) + sizeof(struct pooled_sequence);

    if (pooling->kind == MODEL_POOL_NONE)
        return 0;
    return model_head_bytes(model, pooling) + hidden * sizeof(float) + sequences * each;
}

enum status pooler_open(const struct model *model, const struct model_pooling *pooling, struct pooler **out, struct error *error)
{
    struct pooler *pooler = calloc(1, sizeof *pooler);
    enum status status = STATUS_OK;

    if (pooler)
        pooler->scratch = calloc(model->shape.hidden, sizeof *pooler->scratch);
    if (!pooler || !pooler->scratch) {
        pooler_close(pooler);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to pool with");
    }
    pooler->hidden = model->shape.hidden;
    if (pooling->kind == MODEL_POOL_RANK)
        status = model_head_open(model, pooling, &pooler->head, error);
    if (status)
        pooler_close(pooler);
    else
        *out = pooler;
    return status;
}

void pooler_close(struct pooler *pooler)
{
    if (!pooler)
        return;
    model_head_close(&pooler->head);
    free(pooler->scratch);
    free(pooler);
}

enum status pooled_open(struct pooler *pooler, enum model_pool kind, uint32_t prompt_tokens, struct pooled_sequence **out,
                        struct error *error)
{
    struct pooled_sequence *pooled;

    if (kind <= MODEL_POOL_NONE || kind > MODEL_POOL_RANK || (kind == MODEL_POOL_RANK && !pooler->head.outputs))
        return error_set(error, STATUS_UNIMPLEMENTED, "pooling %d: this s-part cannot", (int)kind);
    pooled = calloc(1, sizeof *pooled);
    if (pooled) {
        *pooled = (struct pooled_sequence){.pooler = pooler, .kind = kind, .prompt_tokens = prompt_tokens};
        pooled->result_count = kind == MODEL_POOL_RANK ? pooler->head.outputs : pooler->hidden;
        pooled->result = calloc(pooled->result_count, sizeof *pooled->result);
        pooled->sum = kind == MODEL_POOL_MEAN ? calloc(pooler->hidden, sizeof *pooled->sum) : NULL;
    }
    if (!pooled || !pooled->result || (kind == MODEL_POOL_MEAN && !pooled->sum)) {
        pooled_close(pooled);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to pool a sequence with");
    }
    *out = pooled;
    return STATUS_OK;
}

void pooled_close(struct pooled_sequence *pooled)
{
    if (!pooled)
        return;
    free(pooled->sum);
    free(pooled->result);
    free(pooled);
}

bool pooled_lacks(const struct pooled_sequence *pooled, uint32_t position)
{
    switch (pooled->kind) {
    case MODEL_POOL_MEAN: return position > pooled->next;
    case MODEL_POOL_CLS: return position > 0 && pooled->next == 0;
    default: return false;
    }
}

bool pooled_wants(const struct pooled_sequence *pooled, uint32_t position)
{
    if (pooled->done)
        return false;
    switch (pooled->kind) {
    case MODEL_POOL_MEAN: return position >= pooled->next && position < pooled->prompt_tokens;
    case MODEL_POOL_CLS: // the last one, too: the result is given with it
        return (position == 0 && pooled->next == 0) || position + 1 == pooled->prompt_tokens;
    default: return position + 1 == pooled->prompt_tokens;
    }
}

static void take_mean(struct pooled_sequence *pooled, const float *row)
{
    const uint32_t hidden = pooled->pooler->hidden;

    for (uint32_t i = 0; i < hidden; i++)
        pooled->sum[i] += (double)row[i];
    for (uint32_t i = 0; pooled->next + 1 == pooled->prompt_tokens && i < hidden; i++)
        pooled->result[i] = (float)(pooled->sum[i] / pooled->prompt_tokens);
}

void pooled_take(struct pooled_sequence *pooled, uint32_t position, const float *row)
{
    const size_t bytes = pooled->pooler->hidden * sizeof *row;

    assert_always(!pooled->done && !pooled_lacks(pooled, position));
    switch (pooled->kind) {
    case MODEL_POOL_MEAN: take_mean(pooled, row); break;
    case MODEL_POOL_CLS:
        if (position == 0)
            memcpy(pooled->result, row, bytes);
        break;
    case MODEL_POOL_RANK: model_head_apply(&pooled->pooler->head, row, pooled->pooler->scratch, pooled->result); break;
    default: memcpy(pooled->result, row, bytes); break;
    }
    pooled->next = position + 1;
    pooled->done = pooled->next == pooled->prompt_tokens;
}

const float *pooled_result(const struct pooled_sequence *pooled, uint32_t *count)
{
    *count = pooled->result_count;
    return pooled->done ? pooled->result : NULL;
}
