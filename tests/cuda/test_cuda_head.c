/* test_cuda_head.c: the CUDA backend's head: more rows than its buffer of logits holds, drawn and scored on the device, rows whose logits
 * are wanted, and rows that the host draws because their penalties and biases are too many. Everything is compared with common/sampler
 * on the logits that come down.
 */
#include <math.h>

#include "kernels/dispatch/kernels.h"
#include "kernels/quant/dequant.h"
#include "tests/cuda/backend_rig.h"

enum { ROWS = CUDA_HEAD_ROWS + 57, NOT_YET = 0x7eadbeef };

static struct rig rig;
static struct sampler *samplers[ROWS];
static uint32_t row_index[ROWS];

/* A row each of a sequence of its own; the head is of the embeddings, no layer is run. */
static void begin_rows(void)
{
    struct backend_row rows[ROWS];
    for (uint32_t i = 0; i < ROWS; i++)
        rows[i] = (struct backend_row){.needs_output = true, .sequence = i + 1, .token = (i * 31 + 5) % rig_model->shape.vocab};
    rig_begin_step(&rig, rows, ROWS);
    rig_wait(&rig);
}

static bool with_typical;

static struct sampler *sampler_of(uint32_t i, uint32_t bias_count)
{
    static const float temperature[] = {0, 1, 0.6f, 1.4f, 1};
    struct sampler_bias bias[SAMPLER_BIAS_MAX];
    struct sampler_params params = {.temperature = temperature[i % 5],
                                    .top_k = i % 4 == 1 ? 20 : 0,
                                    .top_p = i % 3 ? 0.9f : 1,
                                    .min_p = i % 7 ? 0 : 0.01f,
                                    .repetition_penalty = i % 6 ? 1 : 1.2f,
                                    .typical_p = with_typical && i % 5 == 3 ? 0.7f : 0,
                                    .seed = i,
                                    .logprobs = i % 2,
                                    .top_logprobs = i % 4,
                                    .bias = bias,
                                    .bias_count = bias_count};
    struct sampler *sampler;
    struct error error;
    for (uint32_t b = 0; b < bias_count; b++)
        bias[b] = (struct sampler_bias){(b * 7 + i) % rig_model->shape.vocab, (float)(b % 5) - 2};
    if (sampler_open(&params, rig_model->shape.vocab, 100, &sampler, &error))
        fail_msg("%s", error.text);
    for (uint32_t t = 0; t < 20; t++)
        t % 3 ? sampler_see_generated(sampler, t * i % rig_model->shape.vocab) : sampler_see_prompt(sampler, t + i);
    return sampler;
}

/* Every eighth is scored, the others drawn with `bias_count` biases each. */
static void ask(uint32_t count, uint32_t bias_count)
{
    for (uint32_t i = 0; i < ROWS; i++)
        rig.results[i].token = NOT_YET;
    for (uint32_t i = 0; i < count; i++) {
        row_index[i] = (i * 7 + 3) % ROWS;
        samplers[i] = i % 8 ? sampler_of(i, bias_count) : NULL;
        rig.samples[i] = (struct backend_sample){.sampler = samplers[i],
                                                 .index = i,
                                                 .token = i % rig_model->shape.vocab,
                                                 .top_count = i % 21,
                                                 .result = &rig.results[i]};
    }
}

/* The answers to what was asked beside the host's, of these logits. */
static void check_and_close(uint32_t count)
{
    struct sampler_scratch *scratch;
    struct sampler_result want;
    uint32_t vocab = rig_model->shape.vocab;

    assert_int_equal(sampler_scratch_open(vocab, &scratch), STATUS_OK);
    for (uint32_t i = 0; i < count; i++) {
        const float *row = rig.logits + (size_t)i * vocab;
        if (rig.samples[i].sampler)
            sampler_sample(rig.samples[i].sampler, row, rig.samples[i].allowed, rig.samples[i].index, scratch, &want);
        else
            sampler_score(row, vocab, rig.samples[i].token, rig.samples[i].top_count, scratch, &want);
        assert_int_equal(rig.results[i].token, want.token);
        assert_true(fabsf(rig.results[i].logprob - want.logprob) <= 1e-6f);
        assert_int_equal(rig.results[i].top_count, want.top_count);
        for (uint32_t t = 0; t < want.top_count; t++) {
            assert_int_equal(rig.results[i].top[t].token, want.top[t].token);
            assert_true(fabsf(rig.results[i].top[t].logprob - want.top[t].logprob) <= 1e-6f);
        }
        sampler_close(samplers[i]);
    }
    sampler_scratch_close(scratch);
}

static void head(uint32_t count)
{
    rig.ops->head(rig.batch, row_index, rig.samples, count);
    memset(row_index, 0xff, sizeof row_index); /* it was copied */
}

static void fetch_logits(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        row_index[i] = (i * 7 + 3) % ROWS, rig.samples[i].logits = rig.logits + (size_t)i * rig_model->shape.vocab;
    memset(rig.logits, 0xff, (size_t)count * rig_model->shape.vocab * sizeof *rig.logits);
}

/* Nothing comes down but results; they are there when done says so, and not before. */
static void test_drawn_on_the_device(void **state)
{
    const uint32_t counts[] = {1, 3, CUDA_HEAD_ROWS, ROWS};
    begin_rows();
    for (uint32_t c = 0; c < ARRAY_COUNT(counts); c++) {
        if (c >= 2 && !rig_sample(c, 2))
            continue;
        ask(counts[c], c == 1 ? 40 : 2);
        head(counts[c]);
        assert_int_equal(rig.batch->fetched_count, 0);
        for (uint32_t i = 0; i < ROWS; i++)
            assert_int_equal(rig.results[i].token, NOT_YET);
        rig_wait(&rig);
        for (uint32_t i = 0; i < ROWS; i++)
            assert_true((rig.results[i].token == NOT_YET) == (i >= counts[c]));
        assert_true(rig.ops->done(rig.batch)); /* and stays so */
        struct sampler_result drawn[ROWS];
        memcpy(drawn, rig.results, sizeof drawn);
        fetch_logits(counts[c]); /* the same again, with their logits: the same bits */
        head(counts[c]);
        rig_wait(&rig);
        for (uint32_t i = 0; i < counts[c]; i++)
            assert_true(drawn[i].token == rig.results[i].token && drawn[i].logprob == rig.results[i].logprob);
        check_and_close(counts[c]);
    }
}

/* Some rows want their logits: up to as many as there is room for, head does not wait; the adjusted ones are not what they get. */
static void test_logits_that_are_wanted(void **state)
{
    uint32_t vocab = rig_model->shape.vocab;
    float *of_all = malloc((size_t)ROWS * vocab * sizeof *of_all);
    assert_non_null(of_all);
    begin_rows();
    ask(ROWS, 3);
    fetch_logits(ROWS);
    head(ROWS);
    rig_wait(&rig);
    check_and_close(ROWS);
    memcpy(of_all, rig.logits, (size_t)ROWS * vocab * sizeof *of_all);
    ask(ROWS, 3);
    for (uint32_t i = 0; i < CUDA_LOGITS_ROWS; i++)
        rig.samples[i * 19].logits = rig.logits + (size_t)i * 19 * vocab;
    memset(rig.logits, 0xff, (size_t)ROWS * vocab * sizeof *rig.logits);
    head(ROWS);
    assert_int_equal(rig.batch->fetched_count, CUDA_LOGITS_ROWS);
    assert_int_equal(rig.results[0].token, NOT_YET);
    rig_wait(&rig);
    for (uint32_t i = 0; i < CUDA_LOGITS_ROWS; i++)
        assert_memory_equal(rig.logits + (size_t)i * 19 * vocab, of_all + (size_t)i * 19 * vocab, vocab * sizeof *rig.logits);
    memcpy(rig.logits, of_all, (size_t)ROWS * vocab * sizeof *of_all);
    check_and_close(ROWS);
    free(of_all);
}

/* 273 rows with 1,024 biases each are more than there is room for: the last ones are the host's. */
static void test_rows_for_the_host(void **state)
{
    const struct sampler_params *p;
    begin_rows();
    ask(ROWS, SAMPLER_BIAS_MAX);
    p = sampler_params_of(samplers[1]);
    assert_true(ROWS * 7 / 8 * p->bias_count > CUDA_ADJUST_MAX && cuda_adjust_limit(&rig.backend->config) == CUDA_ADJUST_MAX);
    head(ROWS);
    assert_true(rig.batch->fetched_count > 0 && rig.batch->fetched_count <= CUDA_LOGITS_ROWS);
    rig_wait(&rig);
    struct sampler_result drawn[ROWS];
    memcpy(drawn, rig.results, sizeof drawn);
    fetch_logits(ROWS);
    head(ROWS);
    rig_wait(&rig);
    for (uint32_t i = 0; i < ROWS; i++)
        assert_true(drawn[i].token == rig.results[i].token && drawn[i].logprob == rig.results[i].logprob);
    check_and_close(ROWS);
}

/* Rows with a mask, or with a step that the device does not have, are the host's; their neighbours stay the device's. */
static void test_rows_that_the_device_cannot_draw(void **state)
{
    const uint32_t vocab = rig_model->shape.vocab, words = (vocab + 31) / 32;
    uint32_t *mask = calloc(words, sizeof *mask);
    for (uint32_t token = 0; token < vocab; token += 7)
        mask[token / 32] |= 1u << token % 32;
    begin_rows();
    with_typical = true;
    ask(ROWS, 3);
    with_typical = false;
    for (uint32_t i = 2; i < ROWS; i += 9)
        rig.samples[i].allowed = rig.samples[i].sampler ? mask : NULL;
    fetch_logits(ROWS);
    head(ROWS);
    rig_wait(&rig);
    for (uint32_t i = 2; i < ROWS; i += 9)
        assert_true(!rig.samples[i].allowed || rig.results[i].token % 7 == 0);
    check_and_close(ROWS);
    free(mask);
}

/* Rows in any order, runs of them among these, come normalized; a head that is queued behind does not change them. */
static void test_hidden_states(void **state)
{
    enum { COUNT = 40 };
    const uint32_t hidden = rig_model->shape.hidden;
    uint32_t rows[COUNT], token;
    float *got = calloc((size_t)COUNT * hidden, sizeof *got), *x = calloc(2ull * hidden, sizeof *x), *want = x + hidden;
    float *weight = calloc(hidden, sizeof *weight);
    assert_true(got && x && weight);
    for (uint32_t i = 0; i < COUNT; i++)
        rows[i] = i < 20 ? 70 + i : (i * 17 + 1) % ROWS;
    begin_rows();
    rig.ops->hidden(rig.batch, rows, got, COUNT);
    ask(ROWS, 0);
    head(ROWS);
    rig_wait(&rig);
    dequantize(rig_model->output_norm.type, rig_model->output_norm.data, hidden, weight);
    for (uint32_t i = 0; i < COUNT; i++) {
        token = (rows[i] * 31 + 5) % rig_model->shape.vocab;
        dequantize(rig_model->embedding.type,
                   (const unsigned char *)rig_model->embedding.data +
                       token * (rig_model->embedding.bytes / rig_model->embedding.rows),
                   hidden, x);
        kernels->rms_norm(x, weight, rig_model->shape.norm_epsilon, hidden, want);
        for (uint32_t k = 0; k < hidden; k++)
            assert_true(fabsf(got[(size_t)i * hidden + k] - want[k]) < 1e-2f * (1 + fabsf(want[k])));
    }
    check_and_close(ROWS);
    free(got);
    free(x);
    free(weight);
}

static int open_rig(void **state)
{
    struct backend_config config = rig_config(ROWS);
    config.max_sequences = ROWS;
    rig_open(&rig, fastdecode_device.ops, config, 0);
    return 0;
}

static int close_rig(void **state)
{
    rig_close(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_drawn_on_the_device), cmocka_unit_test(test_logits_that_are_wanted),
                                       cmocka_unit_test(test_rows_for_the_host), cmocka_unit_test(test_hidden_states),
                                       cmocka_unit_test(test_rows_that_the_device_cannot_draw)};
    const struct tiny_llama tiny = TINY_LLAMA;
    return rig_begin(&tiny) ? rig_end(cmocka_run_group_tests_name("cuda head", tests, open_rig, close_rig)) : 0;
}
