/* test_cuda_prompt.c: a prompt of 1,300 tokens through the backends in chunks, beside the CPU: pieces of 64 keys, windows of pages, and
 * contexts that the plan of a step cuts into spans because a chunk has few tiles. Another sequence decodes in the same steps.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "kernels/backend/device.h"
#include "kernels/dispatch/kernels.h"
#include "tests/unit/gguf_build.h"

extern const struct device_library fastdecode_device;

enum { CONTEXT = 2048, PROMPT = 1300, ROWS = 160, LAST_ROWS = 21, SIDES = 2, OUTPUTS = 2 };

/* As in test_cuda_backend.c. */
#define LIMIT 0.04f

static struct model *model;
static struct thread_pool *pool;

/* Logits of the last row of each sequence, [OUTPUTS][vocab]. */
static void run_step(const struct backend_ops *ops, struct backend_batch *batch, const struct backend_row *rows, uint32_t count,
                     float *logits)
{
    const struct backend_links links = {0};
    const uint32_t output[OUTPUTS] = {0, count - 1};
    struct backend_sample samples[OUTPUTS];
    struct sampler_result results[OUTPUTS];
    struct error error;
    uint32_t bad;

    if (ops->begin(batch, rows, count, &bad, &error))
        fail_msg("begin: %s", error.text);
    for (uint32_t s = 0; s <= model->shape.layers; s++) {
        ops->segment(batch, s, &links);
        while (!ops->done(batch)) {}
        if (s < model->shape.layers)
            ops->attend(batch, s);
        while (!ops->done(batch)) {}
    }
    for (uint32_t i = 0; i < OUTPUTS; i++)
        samples[i] = (struct backend_sample){
            .token = 7, .top_count = 2, .result = &results[i], .logits = logits + (size_t)i * model->shape.vocab};
    ops->head(batch, output, samples, OUTPUTS);
    while (!ops->done(batch)) {}
}

static struct backend_row row_of(uint64_t sequence, uint32_t position)
{
    return (struct backend_row){
        .sequence = sequence, .token = (uint32_t)(sequence * 37 + position * 11) % 300 + 5, .position = position, .local = true};
}

/* Logits of all steps. */
static uint32_t run_prompt(const struct backend_ops *ops, enum compute_mode compute, float *logits)
{
    struct backend_config config = {.model = model,
                                    .compute = compute,
                                    .pool = pool,
                                    .max_rows = ROWS,
                                    .max_batches = 1,
                                    .context_tokens = CONTEXT,
                                    .kv_type = 1,
                                    .page_tokens = 16,
                                    .max_sequences = 4};
    struct backend_row rows[ROWS];
    struct backend_plan plan;
    struct backend *backend;
    struct backend_batch *batch;
    struct error error;
    uint32_t steps = 0;

    assert_int_equal(ops->plan(&config, &plan, &error), STATUS_OK);
    config.local_pool_bytes = 100 * plan.pool_page_bytes;
    assert_int_equal(ops->open(&config, &backend, &error), STATUS_OK);
    assert_int_equal(ops->batch_open(backend, &batch, &error), STATUS_OK);
    for (uint32_t first = 0, count; first < PROMPT; first += count, steps++) {
        const uint32_t left = PROMPT - first;
        count = left > LAST_ROWS ? MIN((uint32_t)ROWS - 1, left - LAST_ROWS) : left;
        rows[0] = row_of(1, steps);
        for (uint32_t i = 0; i < count; i++)
            rows[1 + i] = row_of(2, first + i);
        run_step(ops, batch, rows, 1 + count, logits + (size_t)steps * OUTPUTS * model->shape.vocab);
    }
    ops->batch_close(batch);
    ops->close(backend);
    return steps;
}

static void test_prompt(void **state)
{
    const size_t most = (size_t)(PROMPT / (ROWS - 1) + 2) * OUTPUTS * model->shape.vocab;
    float *cpu = malloc(most * sizeof *cpu), *cuda = malloc(most * sizeof *cuda), largest = 0;
    (void)state;
    uint32_t steps = run_prompt(&backend_cpu, COMPUTE_F32, cpu);
    assert_int_equal(run_prompt(fastdecode_device.ops, COMPUTE_AUTO, cuda), steps);
    for (size_t i = 0; i < (size_t)steps * OUTPUTS * model->shape.vocab; i++) {
        if (!(fabsf(cuda[i] - cpu[i]) <= LIMIT))
            fail_msg("step %zu: %.6g for %.6g", i / model->shape.vocab / OUTPUTS, (double)cuda[i], (double)cpu[i]);
        largest = fmaxf(largest, fabsf(cuda[i] - cpu[i]));
    }
    print_message("%u steps, largest difference %.3g\n", steps, (double)largest);
    free(cpu), free(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prompt)};
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct error error;
    char name[200];
    size_t count;

    if (fastdecode_device.probe(0, name, sizeof name, &error)) {
        printf("%s: skipped\n", error.text);
        return 0;
    }
    tiny.context = CONTEXT;
    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    if (kernels_init(NULL, &error) || model_open_memory("tiny.gguf", bytes, count, &model, &error) || thread_pool_open(2, &pool))
        return 1;
    int failed = cmocka_run_group_tests_name("cuda prompt", tests, NULL, NULL);
    thread_pool_close(pool);
    model_close(model);
    free(bytes);
    return failed;
}
