// answer_pool.c: what a prompt was pooled to: taken from the mesh, and rendered for the client.
//
//     mesh: [hidden] f32 ─▶ scaled to length 1, if the model's vectors are ─▶ cut to `dimensions`, and scaled again ─▶ numbers or base64
//     mesh: 1 or 2 outputs of the head ─▶ sigmoid, or the softmax's "yes" ─▶ relevance_score, best first
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/request/request_internal.h"

static uint32_t value_count(const struct request *request)
{
    return request->kind == API_RERANK ? request->pooling->model.outputs : request->pooling->hidden;
}

// Renders the vector as its prompt is done: all of a large answer at its end would hold up the streams of others.
static bool render(struct choice *choice);

bool choice_take_pooled(struct choice *choice, const ProtobufCBinaryData *pooled)
{
    const uint32_t count = value_count(choice->request);

    if (choice->pooled)
        return true; // again, after a resubmission
    if (pooled->len != count * sizeof *choice->pooled || !(choice->pooled = malloc(pooled->len)))
        return false;
    memcpy(choice->pooled, pooled->data, pooled->len); // both are little-endian
    for (uint32_t i = 0; i < count; i++)
        if (!isfinite(choice->pooled[i])) {
            free(choice->pooled);
            choice->pooled = NULL;
            return false;
        }
    return choice->request->kind == API_RERANK || render(choice);
}

// --- embeddings -------------------------------------------------------------------------------------------------------------

static void normalize(float *values, uint32_t count)
{
    double squares = 0;

    for (uint32_t i = 0; i < count; i++)
        squares += (double)values[i] * (double)values[i];
    const double length = sqrt(squares);
    for (uint32_t i = 0; length > 0 && i < count; i++)
        values[i] = (float)((double)values[i] / length);
}

static void append_base64(struct text *out, const float *values, uint32_t count)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)values;
    const size_t size = count * sizeof *values;

    text_append(out, "\"", 1);
    for (size_t i = 0; i < size; i += 3) {
        const size_t left = MIN(size - i, (size_t)3);
        const uint32_t word = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                              (left > 2 ? bytes[i + 2] : 0);
        const char four[4] = {digits[word >> 18], digits[word >> 12 & 63], left > 1 ? digits[word >> 6 & 63] : '=',
                              left > 2 ? digits[word & 63] : '='};
        text_append(out, four, sizeof four);
    }
    text_append(out, "\"", 1);
}

static void append_values(struct text *out, const float *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        text_append(out, i ? "," : "[", 1);
        text_json_float(out, values[i]);
    }
    text_append(out, "]", 1);
}

static bool render(struct choice *choice)
{
    const struct request *request = choice->request;

    if (request->pooling->model.normalize || request->scales)
        normalize(choice->pooled, request->pooling->hidden);
    if (request->is_cut)
        normalize(choice->pooled, request->dimensions);
    (request->base64 ? append_base64 : append_values)(&choice->visible, choice->pooled, request->dimensions);
    return !choice->visible.failed;
}

static void append_usage(struct text *out, const struct respond_usage *usage)
{
    text_format(out, "\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
                (unsigned long long)usage->prompt_tokens, (unsigned long long)usage->prompt_tokens,
                (unsigned long long)usage->cached_tokens);
}

static void answer_embeddings(const struct request *request, const struct respond_usage *usage, struct text *out)
{
    text_string(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < request->choice_count; i++) {
        const struct text *vector = &request->choices[i].visible;
        text_format(out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
        text_append(out, vector->data, vector->bytes);
        text_append(out, "}", 1);
    }
    text_string(out, "],\"model\":");
    text_json_string(out, request->head.model);
    text_append(out, ",", 1);
    append_usage(out, usage);
    text_string(out, "}\n");
}

// --- ranks ------------------------------------------------------------------------------------------------------------------

struct ranked {
    uint32_t index;
    double score;
};

static double score_of(const struct request *request, const float *outputs)
{
    const struct model_pooling *model = &request->pooling->model;
    const double logit = model->outputs == 1 ? (double)outputs[0]
                                             : (double)outputs[model->yes] - (double)outputs[1 - model->yes]; // softmax of two

    return 1 / (1 + exp(-logit));
}

// Best first; of equal ones that which came first.
static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *one = a, *other = b;

    if (one->score != other->score)
        return one->score > other->score ? -1 : 1;
    return one->index < other->index ? -1 : 1;
}

static void answer_ranks(const struct request *request, const struct respond_usage *usage, struct text *out)
{
    const uint32_t count = request->choice_count, shown = request->top_n ? MIN(request->top_n, count) : count;
    struct ranked ranked[API_MAX_PROMPTS];

    assert_always(count <= ARRAY_COUNT(ranked));
    for (uint32_t i = 0; i < count; i++)
        ranked[i] = (struct ranked){i, score_of(request, request->choices[i].pooled)};
    qsort(ranked, count, sizeof *ranked, compare_ranked);
    text_string(out, "{\"id\":");
    text_json_string(out, request->id);
    text_string(out, ",\"object\":\"list\",\"model\":");
    text_json_string(out, request->head.model);
    text_string(out, ",\"results\":[");
    for (uint32_t i = 0; i < shown; i++) {
        const struct text *document = &request->choices[ranked[i].index].prompt->echo;
        text_format(out, "%s{\"index\":%u,\"relevance_score\":%.9g", i ? "," : "", ranked[i].index, ranked[i].score);
        if (request->return_documents) {
            text_string(out, ",\"document\":{\"text\":");
            text_json(out, document->data ? document->data : "", document->bytes);
            text_append(out, "}", 1);
        }
        text_append(out, "}", 1);
    }
    text_string(out, "],");
    append_usage(out, usage);
    text_string(out, "}\n");
}

void request_answer_pool(const struct request *request, const struct respond_usage *usage, struct text *out)
{
    (request->kind == API_RERANK ? answer_ranks : answer_embeddings)(request, usage, out);
}
