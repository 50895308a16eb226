/* test_hf_pooling.c: what a directory says of embeddings: the files of sentence-transformers, and classes without an output projection. */
#include <string.h>

#include "common/base/checked.h"
#include "tests/cmocka.h"
#include "tests/unit/hf_assert.h"

#define STEP(kind, path) \
    "{\"idx\": 0, \"name\": \"0\", \"path\": \"" path "\", \"type\": \"sentence_transformers.models." kind "\"}"
#define POOLED STEP("Transformer", "") ", " STEP("Pooling", "1_Pooling")

static void build_modules(struct hf_build *build, const char *modules, const char *pooling)
{
    hf_build_tiny(build);
    hf_build_text(build, "modules.json", modules);
    if (pooling)
        hf_build_text(build, "1_Pooling/config.json", pooling);
}

static void modules_say_how_rows_become_a_vector(void **state)
{
    static const struct {
        const char *modules, *pooling;
        uint32_t kind;
        bool normalize;
    } rows[] = {
        {"[" POOLED "]", "{\"pooling_mode_mean_tokens\": true, \"pooling_mode_cls_token\": false}", 1, false},
        {"[" POOLED ", " STEP("Normalize", "2_Normalize") "]", "{\"pooling_mode_cls_token\": true}", 2, true},
        {"[" POOLED ", " STEP("Normalize", "2_Normalize") "]", "{\"pooling_mode_lasttoken\": true}", 3, true},
        {"[" POOLED "]", "{\"pooling_mode\": \"mean\"}", 1, false},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct hf_build build;
        build_modules(&build, rows[i].modules, rows[i].pooling);
        struct gguf *gguf = open_built(&build);
        assert_int_equal(u32_of(gguf, "llama.pooling_type"), rows[i].kind);
        assert_true(is_set(gguf, "fastdecode.pooling_normalize") == rows[i].normalize);
        gguf_close(gguf);
    }
}

static void what_is_not_built_is_refused(void **state)
{
    static const struct {
        const char *modules, *pooling, *message;
    } rows[] = {
        {"{}", NULL, "not a JSON array"},
        {"[5]", NULL, "step 0 has no type"},
        {"[" STEP("Dense", "2_Dense") "]", NULL, "Dense"},
        {"[" POOLED "]", NULL, "1_Pooling/config.json: it is missing"},
        {"[" STEP("Pooling", "../1_Pooling") "]", NULL, "not the name of a folder"},
        {"[" POOLED "]", "{\"pooling_mode_max_tokens\": true}", "the pooling is max"},
        {"[" POOLED "]", "{\"pooling_mode_mean_tokens\": true, \"pooling_mode_cls_token\": true}", "several at once"},
        {"[" POOLED "]", "{}", "the pooling is nothing"},
        {"[" POOLED "]", "{\"pooling_mode_mean_tokens\": 1}", "true or false"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct hf_build build;
        build_modules(&build, rows[i].modules, rows[i].pooling);
        assert_true(is_refused(&build, rows[i].message, STATUS_OK, rows[i].message));
    }
}

/* "LlamaModel": lm_head may be missing though nothing says that it is tied. */
static void a_class_without_an_output_projection(void **state)
{
    struct hf_build build;
    hf_build_tiny(&build);
    hf_build_edit(&build, "config.json", "LlamaForCausalLM", "LlamaModel");
    struct gguf *gguf = open_built(&build);
    assert_text(gguf, "general.architecture", "llama");
    gguf_close(gguf);
}

static void a_class_with_a_head(void **state)
{
    struct hf_build build;
    hf_build_tiny(&build);
    hf_build_edit(&build, "config.json", "LlamaForCausalLM", "LlamaForSequenceClassification");
    assert_true(is_refused(&build, "no score", STATUS_INVALID_ARGUMENT, "'score.weight' is missing"));
    hf_build_tiny(&build);
    hf_build_edit(&build, "config.json", "LlamaForCausalLM", "LlamaForSequenceClassification");
    hf_build_tensor(&build, HF_SHARD, "score.weight", "F32", 1, 8);
    struct gguf *gguf = open_built(&build);
    assert_int_equal(u32_of(gguf, "llama.pooling_type"), 4);
    assert_non_null(gguf_find_tensor(gguf, "cls.output.weight"));
    gguf_close(gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules_say_how_rows_become_a_vector),
        cmocka_unit_test(what_is_not_built_is_refused),
        cmocka_unit_test(a_class_without_an_output_projection),
        cmocka_unit_test(a_class_with_a_head),
    };
    return cmocka_run_group_tests_name("hf pooling", tests, NULL, NULL);
}
