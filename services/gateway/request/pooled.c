// pooled.c: from a parsed body of /v1/embeddings or /v1/rerank to a request's prompts: one for each input, or for each document and the query.
//
// Text of a query or document never becomes a special token, as in a chat; that of an input may, as in a completion.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/request/request_internal.h"

// Bytes of a vector's value as text, "-1.23456e-05,", and in base64.
enum { BYTES_OF_VALUE = 14, BYTES_OF_BASE64 = 6 };

// Whether the model does what is asked of it.
static bool check_kind(const struct api_request *api, const struct language_pooling *pooling, struct api_error *error)
{
    const enum model_pool kind = pooling->model.kind;

    if (api->kind == API_RERANK)
        return kind == MODEL_POOL_RANK ||
               api_fail(error, 400, "unsupported_model", "model", "this model does not rank: it has no classification head");
    if (kind == MODEL_POOL_RANK)
        return api_fail(error, 400, "unsupported_model", "model", "this model ranks: ask /v1/rerank");
    if (kind == MODEL_POOL_NONE)
        return api_fail(
            error, 400, "unsupported_model", "model",
            "this model's file does not say how it makes embeddings: start the server with --pooling mean, cls or last");
    if (api->pool.dimensions > (int64_t)pooling->hidden)
        return api_fail(error, 400, "invalid_value", "dimensions", "'dimensions' is %lld, this model's vectors have %u values",
                        (long long)api->pool.dimensions, pooling->hidden);
    return true;
}

static const char *param_of(const struct api_request *api) { return api->kind == API_RERANK ? "documents" : "input"; }

static bool encoded(const struct api_request *api, enum status status, uint32_t context, const struct request_prompt *prompt,
                    const struct error *reason, struct api_error *error)
{
    const char *param = param_of(api);

    if (status == STATUS_OUT_OF_RANGE)
        return api_too_long(error, param, context, "at least ", prompt->count);
    if (status != STATUS_OK)
        return api_fail(error, reason->status == STATUS_INVALID_ARGUMENT ? 400 : 500, "invalid_value", param, "%s", reason->text);
    if (prompt->count > context) // ids
        return api_too_long(error, param, context, "", prompt->count);
    return prompt->count > 0 || api_fail(error, 400, "invalid_value", param, "'%s' has a text without tokens", param);
}

// Cuts a text at the end, but for the special token that a model looks for there.
static void cut(const struct language *language, uint32_t context, struct request_prompt *prompt)
{
    if (prompt->count <= context)
        return;
    if (language_is_special(language, prompt->ids[prompt->count - 1]))
        prompt->ids[context - 1] = prompt->ids[prompt->count - 1];
    prompt->count = context;
}

static bool encode_input(const struct language *language, const struct api_request *api, struct api_prompt *given, uint32_t context,
                         struct request_prompt *out, struct api_error *error)
{
    struct error reason = {0};
    enum status status = STATUS_OK;

    if (given->text) {
        status = language_encode(language, given->text, given->bytes, true, true, api->pool.truncates ? UINT32_MAX : context,
                                 &out->ids, &out->count, &reason);
    } else {
        out->ids = given->ids;
        out->count = given->id_count;
        given->ids = NULL;
    }
    if (!status && api->pool.truncates)
        cut(language, context, out);
    return encoded(api, status, context, out, &reason, error);
}

// The model's prompt, with query and document in their places.
static enum status encode_template(const struct language *language, const struct api_request *api,
                                   const struct api_prompt *document, uint32_t context, struct request_prompt *out,
                                   struct error *reason)
{
    static const char query_mark[] = "{query}", document_mark[] = "{document}";
    enum { SEGMENTS_MAX = 64 };
    struct text_segment segments[SEGMENTS_MAX + 2];
    const char *at = language_pooling(language)->rank_prompt;
    uint32_t count = 0;

    while (*at && count < SEGMENTS_MAX) {
        const char *query = strstr(at, query_mark), *text = strstr(at, document_mark);
        const bool is_query = query && (!text || query < text);
        const char *mark = is_query ? query : text;
        const size_t length = mark ? (size_t)(mark - at) : strlen(at);
        segments[count++] = (struct text_segment){.bytes = at, .length = length, .parse_special = true};
        at += length;
        if (!mark)
            continue;
        segments[count++] = is_query ? (struct text_segment){.bytes = api->pool.query, .length = api->pool.query_bytes}
                                     : (struct text_segment){.bytes = document->text, .length = document->bytes};
        at += strlen(is_query ? query_mark : document_mark);
    }
    if (*at)
        return error_set(reason, STATUS_INVALID_ARGUMENT, "the model's prompt for ranking names query and document too often");
    return language_encode_segments(language, segments, count, false, context, &out->ids, &out->count, reason);
}

// Query and document, each as the tokenizer makes a text, one behind the other; the document without what begins a text.
static enum status encode_pair(const struct language *language, const struct api_request *api, const struct api_prompt *document,
                               uint32_t context, struct request_prompt *out, struct error *reason)
{
    const struct text_segment query = {.bytes = api->pool.query, .length = api->pool.query_bytes};
    const struct text_segment text = {.bytes = document->text, .length = document->bytes};
    uint32_t *behind = NULL, count = 0;
    enum status status = language_encode_segments(language, &query, 1, true, context, &out->ids, &out->count, reason);

    if (!status)
        status = language_encode_segments(language, &text, 1, true, context, &behind, &count, reason);
    const uint32_t skip = !status && count && out->count && behind[0] == out->ids[0] && language_is_special(language, behind[0]);
    if (!status && out->count + count - skip > context)
        status = error_set(reason, STATUS_OUT_OF_RANGE, "query and document have %u tokens", out->count + count - skip);
    uint32_t *both = status ? NULL : realloc(out->ids, (out->count + count) * sizeof *both + 1);
    if (both) {
        memcpy(both + out->count, behind + skip, (count - skip) * sizeof *both);
        out->ids = both;
    } else if (!status) {
        status = error_set(reason, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    out->count += count - skip;
    free(behind);
    return status;
}

static bool encode_document(const struct language *language, const struct api_request *api, const struct api_prompt *document,
                            uint32_t context, struct request_prompt *out, struct api_error *error)
{
    struct error reason = {0};
    const enum status status =
        (language_pooling(language)->rank_prompt ? encode_template : encode_pair)(language, api, document, context, out, &reason);

    if (!encoded(api, status, context, out, &reason, error))
        return false;
    if (api->pool.return_documents) {
        text_append(&out->echo, document->text, document->bytes);
        if (out->echo.failed)
            return api_no_memory(error);
    }
    return true;
}

// The size of the answer is bounded as that of a completion is: about 100 bytes a token.
static bool check_answer(const struct api_request *api, const struct request *request, uint32_t limit, struct api_error *error)
{
    const uint64_t values = (uint64_t)request->prompt_count * request->pool.dimensions;
    const uint32_t value_bytes = request->pool.base64 ? BYTES_OF_BASE64 : BYTES_OF_VALUE;

    if (api->kind == API_RERANK || values * value_bytes / 100 <= limit)
        return true;
    return api_fail(
        error, 400, "request_too_large", "input",
        "the answer would have %llu values; at most %llu are allowed in one request (--max-request-tokens), more in base64",
        (unsigned long long)values, (unsigned long long)limit * 100 / value_bytes);
}

static bool encode(const struct language *language, const struct api_request *api, struct api_prompt *given, uint32_t context,
                   struct request_prompt *out, struct api_error *error)
{
    return api->kind == API_RERANK ? encode_document(language, api, given, context, out, error)
                                   : encode_input(language, api, given, context, out, error);
}

bool request_prepare_pool(struct api_request *api, const struct language *language, uint32_t context, uint32_t limit,
                          struct request *request, struct api_error *error)
{
    const struct language_pooling *pooling = language_pooling(language);

    if (!check_kind(api, pooling, error))
        return false;
    request->pool.pooling = pooling;
    request->pool.base64 = api->pool.base64;
    request->pool.scales = api->pool.scales;
    request->pool.return_documents = api->pool.return_documents;
    request->pool.dimensions = api->pool.dimensions ? (uint32_t)api->pool.dimensions : pooling->hidden;
    request->pool.is_cut = api->pool.dimensions != 0;
    request->pool.top_n = (uint32_t)MIN(api->pool.top_n, (int64_t)api->prompt_count);
    request->prompts = calloc(api->prompt_count, sizeof *request->prompts);
    if (!request->prompts)
        return api_no_memory(error);
    request->prompt_count = api->prompt_count;
    if (!check_answer(api, request, limit, error))
        return false;
    for (uint32_t i = 0; i < api->prompt_count; i++)
        if (!encode(language, api, &api->prompts[i], context, &request->prompts[i], error))
            return false;
    fastdecode__sampling__init(&request->draw.sampling);
    request->draw.sampling.pooling = (Fastdecode__Pooling)pooling->model.kind;
    return true;
}

// --- vectors and ranks ----------------------------------------------------------------------------------------------
//     mesh: [hidden] f32 ─▶ scaled to length 1, if the model's vectors are ─▶ cut to `dimensions`, and scaled again ─▶ numbers or base64
//     mesh: 1 or 2 outputs of the head ─▶ sigmoid, or the softmax's "yes" ─▶ relevance_score, best first
static uint32_t value_count(const struct request *request)
{
    return request->kind == API_RERANK ? request->pool.pooling->model.outputs : request->pool.pooling->hidden;
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
    if (choice->request->kind == API_RERANK || render(choice))
        return true;
    free(choice->pooled);
    choice->pooled = NULL;
    return false;
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

    if (request->pool.pooling->model.normalize || request->pool.scales)
        normalize(choice->pooled, request->pool.pooling->hidden);
    if (request->pool.is_cut)
        normalize(choice->pooled, request->pool.dimensions);
    (request->pool.base64 ? append_base64 : append_values)(&choice->text.visible, choice->pooled, request->pool.dimensions);
    return !choice->text.visible.failed;
}

static void answer_embeddings(const struct request *request, const struct dialect_end *end, struct text *out)
{
    struct dialect_vector vectors[API_MAX_PROMPTS];

    assert_always(request->choice_count <= ARRAY_COUNT(vectors));
    for (uint32_t i = 0; i < request->choice_count; i++)
        vectors[i] = (struct dialect_vector){request->choices[i].text.visible.data, request->choices[i].text.visible.bytes};
    request->run->dialect->vectors(request->run, end, vectors, request->choice_count, out);
}

// --- ranks ------------------------------------------------------------------------------------------------------------------

static double score_of(const struct request *request, const float *outputs)
{
    const struct model_pooling *model = &request->pool.pooling->model;
    const double logit = model->outputs == 1 ? (double)outputs[0]
                                             : (double)outputs[model->yes] - (double)outputs[1 - model->yes]; // softmax of two

    return 1 / (1 + exp(-logit));
}

// Best first; of equal ones that which came first.
static int compare_ranked(const void *a, const void *b)
{
    const struct dialect_rank *one = a, *other = b;

    if (one->score != other->score)
        return one->score > other->score ? -1 : 1;
    return one->index < other->index ? -1 : 1;
}

static void answer_ranks(const struct request *request, const struct dialect_end *end, struct text *out)
{
    const uint32_t count = request->choice_count;
    struct dialect_rank ranks[API_MAX_PROMPTS];

    assert_always(count <= ARRAY_COUNT(ranks));
    for (uint32_t i = 0; i < count; i++) {
        const struct choice *choice = &request->choices[i];
        ranks[i] = (struct dialect_rank){.index = i,
                                         .score = score_of(request, choice->pooled),
                                         .document = request->pool.return_documents ? &choice->prompt->echo : NULL};
    }
    qsort(ranks, count, sizeof *ranks, compare_ranked);
    request->run->dialect->ranks(request->run, end, ranks, request->pool.top_n ? MIN(request->pool.top_n, count) : count, out);
}

void request_answer_pool(const struct request *request, const struct dialect_end *end, struct text *out)
{
    (request->kind == API_RERANK ? answer_ranks : answer_embeddings)(request, end, out);
}
