/* test_backend.c: what the CPU backend says of a model before anything is loaded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "tests/unit/gguf_build.h"

static enum status plan(uint32_t head_dim, struct error *error)
{
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct backend_config config = {.max_rows = 16, .max_batches = 1, .context_tokens = 64, .kv_type = 1, .page_tokens = 16};
    struct backend_plan plan;
    struct model *model;
    size_t count;

    tiny.head_dim = head_dim;
    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    assert_int_equal(model_open_memory("tiny.gguf", bytes, count, &model, error), STATUS_OK);
    assert_int_equal(thread_pool_open(1, &config.pool), STATUS_OK);
    config.model = model;
    enum status status = backend_cpu.plan(&config, &plan, error);
    thread_pool_close(config.pool);
    model_close(model);
    free(bytes);
    return status;
}

static void heads_that_attention_cannot_take_are_refused(void **state)
{
    struct error error;
    (void)state;

    assert_int_equal(plan(16, &error), STATUS_OK);
    assert_int_equal(plan(48, &error), STATUS_OK);
    assert_int_equal(plan(100, &error), STATUS_UNIMPLEMENTED);
    assert_string_equal(error.text, "tiny.gguf: heads of 100 dimensions: supported are multiples of 16 up to 256");
    assert_int_equal(plan(272, &error), STATUS_UNIMPLEMENTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(heads_that_attention_cannot_take_are_refused)};
    return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
