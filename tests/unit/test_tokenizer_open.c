// test_tokenizer_open.c: tokenizers of vocabularies of a few tokens, made by hand: which tokens "llama" takes and where sequences end, and
// which vocabularies are refused. Real ones: test_tokenizer.c.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "common/model/vocabulary.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"
#include "tests/unit/test_tokenizer.h"

#define SPAN(text)            \
    {                         \
        text, sizeof text - 1 \
    }
static void test_spm_rules(void **state)
{
    const struct text_span pieces[] = {SPAN("<unk>"),
                                       SPAN("<s>"),
                                       SPAN("</s>"),
                                       SPAN("\xe2\x96\x81"),
                                       SPAN("a"),
                                       SPAN("b"),
                                       SPAN("\xe2\x96\x81"
                                            "a"),
                                       SPAN("ab"),
                                       SPAN("[X]"),
                                       SPAN("cd")};
    const float scores[] = {0, 0, 0, -9, -9, -9, -2, -1, 0, -5};
    const int32_t kinds[] = {2, 3, 3, 1, 1, 1, 1, 1, 4, 1};
    struct tokenizer_spec spec = {.model = "llama",
                                  .token_count = ARRAY_COUNT(pieces),
                                  .tokens = pieces,
                                  .scores = scores,
                                  .types = kinds,
                                  .bos_id = 1,
                                  .eos_id = 2,
                                  .unknown_id = 0,
                                  .eot_id = -1,
                                  .add_bos = true,
                                  .add_eos = true,
                                  .add_space_prefix = true};
    struct tokenizer *tokenizer = open_spec(&spec);
    const struct {
        const char *text;
        bool special;
        uint32_t count, ids[8];
    } cases[] = {
        {"", true, 2, {1, 2}},
        {"ab", true, 4, {1, 3, 7, 2}}, // ab is worth more than ▁a
        {"a", true, 3, {1, 6, 2}},
        {" a", true, 4, {1, 3, 6, 2}},
        {"cd", true, 4, {1, 3, 9, 2}},                     // c and d are no pieces: cd is
        {"xyz a", true, 5, {1, 3, 0, 6, 2}},               // a run of unknown characters is one <unk>
        {"a[X]a</s>b", true, 8, {1, 6, 8, 4, 2, 3, 5, 2}}, // a space again after a special token, not after a user-defined one
        {"a[X]</s>", false, 5, {1, 6, 8, 0, 2}},           // which is ordinary text
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct text_segment segment = {cases[i].text, strlen(cases[i].text), cases[i].special};
        uint32_t *ids, count;
        assert_int_equal(tokenizer_encode(tokenizer, &segment, 1, true, 100, &ids, &count, NULL), STATUS_OK);
        if (count != cases[i].count || memcmp(ids, cases[i].ids, count * sizeof *ids) != 0)
            fail_msg("\"%s\": %u ids: %u %u %u", cases[i].text, count, ids[0], ids[1], ids[2]);
        free(ids);
    }
    tokenizer_close(tokenizer);
}

static void refuse(struct tokenizer_spec spec, enum status wanted, const char *words)
{
    struct tokenizer *tokenizer;
    struct error error = {0};
    assert_int_equal(tokenizer_open(&spec, &tokenizer, &error), wanted);
    assert_null(tokenizer);
    if (!strstr(error.text, words))
        fail_msg("\"%s\" lacks \"%s\"", error.text, words);
}

static void test_refusals(void **state)
{
    const struct text_span some[] = {SPAN("a"), SPAN("b"), SPAN("ab")}, bad_merge[] = {SPAN("a c")}, no_merge[] = {SPAN("ab")};
    const int32_t bad_types[] = {1, 1, 7};
    const float bad_scores[] = {0, 0, 0.0f / 0.0f};
    const struct text_span broken[] = {SPAN("a"), SPAN("b"), SPAN("a\xff")};
    struct text_span *huge = calloc(3, sizeof *huge);
    char *long_text = calloc(1, TOKENIZER_MAX_TOKEN_BYTES + 1);
    huge[2] = (struct text_span){long_text, TOKENIZER_MAX_TOKEN_BYTES + 1};
    const struct tokenizer_spec good = {.model = "gpt2",
                                        .pre = "gpt-2",
                                        .token_count = 3,
                                        .tokens = some,
                                        .bos_id = -1,
                                        .eos_id = -1,
                                        .unknown_id = -1,
                                        .eot_id = -1};
    struct tokenizer_spec spec = good;
    tokenizer_close(open_spec(&spec));
    spec.model = "bert", refuse(spec, STATUS_UNIMPLEMENTED, "supported: gpt2, llama"), spec = good;
    spec.pre = "nobody", refuse(spec, STATUS_UNIMPLEMENTED, "\"nobody\" is not supported; supported: gpt-2, smollm"), spec = good;
    spec.token_count = 0, refuse(spec, STATUS_INVALID_ARGUMENT, "0 tokens"), spec = good;
    spec.eos_id = 3, refuse(spec, STATUS_INVALID_ARGUMENT, "eos id 3 is none of the 3 tokens"), spec = good;
    spec.types = bad_types, refuse(spec, STATUS_INVALID_ARGUMENT, "token 2 has type 7"), spec = good;
    spec.tokens = huge, refuse(spec, STATUS_INVALID_ARGUMENT, "token 2 has 4097 bytes"), spec = good;
    spec.merge_count = 1, spec.merges = bad_merge, refuse(spec, STATUS_INVALID_ARGUMENT, "merge 0: its right part is no token"),
    spec = good;
    spec.merge_count = 1, spec.merges = no_merge, refuse(spec, STATUS_INVALID_ARGUMENT, "merge 0 is not \"left right\""),
    spec = good;
    spec.model = "llama", refuse(spec, STATUS_INVALID_ARGUMENT, "needs scores");
    spec.scores = bad_scores, refuse(spec, STATUS_INVALID_ARGUMENT, "score of token 2 is not a number");
    spec.tokens = broken, refuse(spec, STATUS_INVALID_ARGUMENT, "token 2 is not UTF-8");
    free(huge);
    free(long_text);
}

// A model of several ends (llama 3.1: end of turn, of text, of message) stops at each, whichever the file calls eos.
static void test_all_ends_by_name(void **state)
{
    const struct text_span some[] = {SPAN("a"), SPAN("<|end_of_text|>"), SPAN("<|eom_id|>"), SPAN("<|eot_id|>")};
    const int32_t kinds[] = {1, 3, 3, 3};
    const struct tokenizer_spec spec = {.model = "gpt2",
                                        .pre = "llama-bpe",
                                        .token_count = 4,
                                        .tokens = some,
                                        .types = kinds,
                                        .bos_id = -1,
                                        .eos_id = 3,
                                        .unknown_id = -1,
                                        .eot_id = -1};
    struct tokenizer *tokenizer = open_spec(&spec);
    assert_true(tokenizer_is_end(tokenizer, 1) && tokenizer_is_end(tokenizer, 2) && tokenizer_is_end(tokenizer, 3));
    assert_false(tokenizer_is_end(tokenizer, 0));
    tokenizer_close(tokenizer);
}

// gpt-oss thinks in one message and answers in another: <|end|> is between them, <|return|> and <|call|> are at the end. Phi ends with <|end|>.
static void test_an_end_between_messages(void **state)
{
    const struct text_span some[] = {SPAN("a"), SPAN("<|end|>"), SPAN("<|return|>"), SPAN("<|call|>")};
    const int32_t kinds[] = {1, 3, 3, 3};
    struct tokenizer_spec spec = {.model = "gpt2",
                                  .pre = "gpt-4o",
                                  .token_count = 4,
                                  .tokens = some,
                                  .types = kinds,
                                  .bos_id = -1,
                                  .eos_id = -1,
                                  .unknown_id = -1,
                                  .eot_id = 1};
    struct tokenizer *tokenizer = open_spec(&spec);
    assert_false(tokenizer_is_end(tokenizer, 0) || tokenizer_is_end(tokenizer, 1));
    assert_true(tokenizer_is_end(tokenizer, 2) && tokenizer_is_end(tokenizer, 3));
    tokenizer_close(tokenizer);
    spec.token_count = 2, spec.eot_id = -1;
    tokenizer = open_spec(&spec);
    assert_true(tokenizer_is_end(tokenizer, 1));
    tokenizer_close(tokenizer);
}

// Names that converters give to pre-tokenizers which are the same as another model's.
static void test_other_names_of_pre_tokenizers(void **state)
{
    static const char *const names[] = {"refact", "smaug-bpe", "deepseek-r1-qwen", "llama3", "llama-v3"};
    const struct text_span some[] = {SPAN("a")};
    for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
        const struct tokenizer_spec spec = {.model = "gpt2",
                                            .pre = names[i],
                                            .token_count = 1,
                                            .tokens = some,
                                            .bos_id = -1,
                                            .eos_id = -1,
                                            .unknown_id = -1,
                                            .eot_id = -1};
        tokenizer_close(open_spec(&spec));
    }
}

// Files of Llama 3 and of Mistral's that do not say whether a text begins with <s> mean that it does.
static void test_bos_where_a_file_does_not_say(void **state)
{
    static const struct {
        const char *pre;
        uint32_t tokens;
    } cases[] = {{"smollm", 1}, {"qwen2", 1}, {"llama-bpe", 2}, {"tekken", 2}};
    const struct text_segment text = {"x", 1, false};
    struct tiny_llama tiny = TINY_LLAMA;
    struct gguf_build build = {.drop = "tokenizer.ggml.add_bos_token"};
    struct model *model;
    struct error error = {0};
    size_t bytes;

    gguf_build_llama(&build, &tiny);
    unsigned char *file = gguf_build_finish(&build, &bytes);
    assert_int_equal(model_open_memory("tiny.gguf", file, bytes, &model, &error), STATUS_OK);
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct tokenizer *tokenizer;
        uint32_t *ids, count;
        model->tokenizer.pre = (struct gguf_string){cases[i].pre, strlen(cases[i].pre)};
        assert_int_equal(vocabulary_open(model, &tokenizer, &error), STATUS_OK);
        assert_int_equal(tokenizer_encode(tokenizer, &text, 1, true, 10, &ids, &count, &error), STATUS_OK);
        assert_int_equal(count, cases[i].tokens);
        free(ids);
        tokenizer_close(tokenizer);
    }
    model_close(model);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bos_where_a_file_does_not_say),
        cmocka_unit_test(test_spm_rules),
        cmocka_unit_test(test_all_ends_by_name),
        cmocka_unit_test(test_an_end_between_messages),
        cmocka_unit_test(test_other_names_of_pre_tokenizers),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
