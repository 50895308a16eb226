// kv_choice.c: see kv_choice.h.
#include "services/s-part/kv_choice.h"

#include <math.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/model/vocabulary.h"
#include "common/sampler/softmax.h"
#include "kernels/backend/text_pass.h"

enum { HEAD_ROWS = 16, POSITIONS_MOST = 128 };

static const double VALUES_READ = 2e11; // tokens times the model's values

// Prose, numbers and code, as models are asked to go on with.
static const char TEXT[] =
    "The ferry left the harbour at half past six, an hour before the tide turned. On deck stood a farmer with two crates of apples, a teacher "
    "who was reading a letter for the third time, and a boy who counted gulls. \"Seventeen,\" he said, \"and one more behind the chimney.\" Nobody "
    "answered, but the farmer gave him an apple.\n\nWater boils at 100 degrees Celsius at sea level, at about 93 degrees in a town 2,000 metres "
    "above it. The reason is pressure: the thinner the air, the less it takes for bubbles to form. Cooks in the mountains therefore let beans "
    "simmer longer, and some use a pot with a lid that closes tightly.\n\n```python\ndef mean(values):\n    total = 0.0\n    for value in values:\n"
    "        total += value\n    return total / len(values) if values else None\n```\n\nQuestion: A train covers 240 km in three hours, then 90 km "
    "in one and a half. What is its average speed?\nAnswer: It covers 330 km in 4.5 hours, which is 73.3 km per hour.\n\nIn 1869 the canal was "
    "opened; ships from Europe no longer had to sail around Africa to reach India. The journey became shorter by seven thousand kilometres, and the "
    "price of tea fell. Ports along the old route lost most of their trade within ten years, while new towns grew beside the canal.\n";

enum kv_type kv_choice_of(double kl, double floor)
{
    return isfinite(kl) && isfinite(floor) && kl - floor < KV_CHOICE_KL_MOST ? KV_INT8 : KV_F16;
}

uint32_t kv_choice_tokens(const struct model *model)
{
    const double tokens = VALUES_READ / (double)MAX(model->parameters, 1u);
    return MIN((uint32_t)MIN(MAX(tokens, KV_CHOICE_TOKENS_LEAST), KV_CHOICE_TOKENS_MOST), model->shape.context_length);
}

static uint32_t compared_rows(uint32_t tokens, uint32_t vocab)
{
    return (uint32_t)MIN(MIN(tokens, (uint32_t)POSITIONS_MOST), MAX(KV_CHOICE_LOGITS_BYTES / (vocab * sizeof(float)), 1u));
}

uint64_t kv_choice_bytes(const struct model *model)
{
    const struct model_shape *shape = &model->shape;
    const uint64_t tokens = kv_choice_tokens(model), row_bytes = shape->vocab * sizeof(float);
    const uint64_t kv_bytes = tokens * shape->layers * 2 * shape->kv_heads * shape->head_dim * sizeof(float);
    return kv_bytes + (compared_rows((uint32_t)tokens, shape->vocab) + HEAD_ROWS) * row_bytes;
}

// --- quality ---------------------------------------------------------------------------------------------------------

// The text as tokens, and the rows whose logits are compared: evenly spaced, up to the last.
struct subject {
    const struct kv_choice_config *config;
    uint32_t *tokens, count;
    uint32_t rows[POSITIONS_MOST], row_count;
    float *reference, *logits; // [row_count][vocab], [HEAD_ROWS][vocab] f32
    struct divergence divergence[POSITIONS_MOST];
};

static enum status open_subject(const struct kv_choice_config *config, struct subject *s, struct error *error)
{
    const struct text_segment segment = {.bytes = TEXT, .length = sizeof TEXT - 1};
    const uint64_t row_bytes = config->model->shape.vocab * sizeof(float);
    struct tokenizer *tokenizer;

    *s = (struct subject){.config = config};
    if (vocabulary_open(config->model, &tokenizer, error))
        return error->status;
    enum status status = tokenizer_encode(tokenizer, &segment, 1, true, UINT32_MAX, &s->tokens, &s->count, error);
    tokenizer_close(tokenizer);
    if (status)
        return status;
    s->count = MIN(s->count, kv_choice_tokens(config->model));
    if (s->count < 2)
        return error_set(error, STATUS_INVALID_ARGUMENT, "the built-in text has %u tokens with this vocabulary", s->count);
    s->row_count = compared_rows(s->count, config->model->shape.vocab);
    for (uint32_t i = 0; i < s->row_count; i++)
        s->rows[i] = (uint32_t)((uint64_t)(i + 1) * s->count / s->row_count) - 1;
    s->reference = malloc(s->row_count * row_bytes);
    s->logits = malloc(HEAD_ROWS * row_bytes);
    return s->reference && s->logits ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the logits");
}

static void close_subject(struct subject *s)
{
    free(s->tokens);
    free(s->reference);
    free(s->logits);
}

struct compare_job {
    struct subject *subject;
    uint32_t first, count;
};

static void compare_rows(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    const struct compare_job *job = arg;
    struct subject *s = job->subject;
    const size_t vocab = s->config->model->shape.vocab;

    (void)thread_index, (void)thread_count;
    for (uint32_t i; (i = thread_pool_claim(s->config->pool)) < job->count;)
        divergence_of(s->reference + (job->first + i) * vocab, s->logits + i * vocab, (uint32_t)vocab, 0,
                      &s->divergence[job->first + i]);
}

// Takes the logits of those rows that lie in the step of tokens [begin, end): the reference's, or compares them with the reference's.
static void take_logits(struct subject *s, struct text_pass *pass, uint32_t begin, uint32_t end, bool is_reference)
{
    const uint32_t most = MIN(s->config->step_rows, (uint32_t)HEAD_ROWS);
    uint32_t at = 0, rows[HEAD_ROWS];

    while (at < s->row_count && s->rows[at] < begin)
        at++;
    while (at < s->row_count && s->rows[at] < end) {
        struct compare_job job = {.subject = s, .first = at};
        for (; job.count < most && at < s->row_count && s->rows[at] < end; at++)
            rows[job.count++] = s->rows[at] - begin;
        text_pass_logits(pass, rows, job.count,
                         is_reference ? s->reference + (size_t)job.first * s->config->model->shape.vocab : s->logits);
        if (!is_reference)
            thread_pool_run(s->config->pool, compare_rows, &job);
    }
}

// Reads the text with KV of a type. mean: out, the mean KL divergence from f16; for f16 itself 0.
static enum status read_text(struct subject *s, struct backend_batch *batch, enum kv_type type, double *mean, struct error *error)
{
    const struct kv_choice_config *c = s->config;
    const struct text_pass_config config = {.ops = c->ops,
                                            .backend = c->backend,
                                            .batch = batch,
                                            .model = c->model,
                                            .pool = c->pool,
                                            .kv_type = type,
                                            .context_tokens = s->count,
                                            .step_rows = MIN(c->step_rows, (uint32_t)TEXT_PASS_ROWS)};
    struct text_pass *pass;
    enum status status = text_pass_open(&config, &pass, error);

    if (status)
        return status;
    for (uint32_t begin = 0, count; !status && begin < s->count; begin += count) {
        count = MIN(s->count - begin, config.step_rows);
        status = text_pass_step(pass, s->tokens + begin, count, error);
        if (!status)
            take_logits(s, pass, begin, begin + count, type == KV_F16);
    }
    text_pass_close(pass);
    *mean = 0;
    for (uint32_t i = 0; i < s->row_count && type != KV_F16; i++)
        *mean += s->divergence[i].kl / s->row_count;
    return status;
}

static enum status compare_types(const struct kv_choice_config *config, struct kv_choice *out, struct error *error)
{
    struct backend_batch *batch = NULL;
    struct subject subject;
    double none;
    enum status status = open_subject(config, &subject, error);

    out->positions = subject.row_count;
    if (!status)
        status = config->ops->batch_open(config->backend, &batch, error);
    if (!status)
        status = read_text(&subject, batch, KV_F16, &none, error);
    if (!status)
        status = read_text(&subject, batch, KV_F32, &out->floor, error);
    if (!status)
        status = read_text(&subject, batch, KV_INT8, &out->kl, error);
    if (batch)
        config->ops->batch_close(batch);
    close_subject(&subject);
    return status;
}

enum status kv_choice_make(const struct kv_choice_config *config, struct kv_choice *out, struct error *error)
{
    *out = (struct kv_choice){.type = KV_F16};
    enum status status = compare_types(config, out, error);
    if (!status)
        out->type = kv_choice_of(out->kl, out->floor);
    return status;
}
