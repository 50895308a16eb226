/* test_tokenizer.c: ids against Hugging Face's tokenizers and sentencepiece (tests/golden/tokenizer.json), segments, special
 * tokens, round trips, streams cut everywhere, refusals, and that long words take no quadratic time.
 *
 * The byte-level vocabulary is the default model's: FD_MODEL, else models/SmolLM2-135M-Instruct.Q4_1.gguf.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/model/gguf.h"
#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"

static struct model *model;
static json_t *golden;
static struct text_span *tokens, *merges;
static int32_t *types;
static struct tokenizer *smollm;

static struct text_span *spans_of(const struct gguf_array *array) {
    struct text_span *spans = calloc(array->count + 1, sizeof *spans);
    struct gguf_strings walk = gguf_strings_of(array);
    struct gguf_string text;
    for (size_t i = 0; gguf_next_string(&walk, &text); i++) spans[i] = (struct text_span){text.data, text.length};
    return spans;
}

static struct tokenizer_spec bpe_spec(const char *pre) {
    const struct model_tokenizer *source = &model->tokenizer;
    return (struct tokenizer_spec){.model = "gpt2", .pre = pre, .token_count = (uint32_t)source->tokens.count, .tokens = tokens, .types = types,
                                   .merge_count = (uint32_t)source->merges.count, .merges = merges, .bos_id = source->bos, .eos_id = source->eos,
                                   .unknown_id = -1, .eot_id = -1};
}

static struct tokenizer *open_spec(const struct tokenizer_spec *spec) {
    struct tokenizer *tokenizer;
    struct error error = {0};
    if (tokenizer_open(spec, &tokenizer, &error)) fail_msg("%s", error.text);
    return tokenizer;
}

static int set_up(void **state) {
    (void)state;
    const char *path = getenv("FD_MODEL");
    struct error error = {0};
    if (model_open(path ? path : "models/SmolLM2-135M-Instruct.Q4_1.gguf", &model, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    json_error_t json_error;
    golden = json_load_file("tests/golden/tokenizer.json", 0, &json_error);
    if (!golden) {
        fprintf(stderr, "tests/golden/tokenizer.json:%d: %s\n", json_error.line, json_error.text);
        return 1;
    }
    tokens = spans_of(&model->tokenizer.tokens);
    merges = spans_of(&model->tokenizer.merges);
    types = calloc(model->tokenizer.tokens.count, sizeof *types);
    for (uint64_t i = 0; i < model->tokenizer.token_types.count; i++) types[i] = (int32_t)gguf_array_integer(&model->tokenizer.token_types, i);
    struct tokenizer_spec spec = bpe_spec("smollm");
    smollm = open_spec(&spec);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    tokenizer_close(smollm);
    model_close(model);
    json_decref(golden);
    free(tokens);
    free(merges);
    free(types);
    return 0;
}

/* --- golden files ------------------------------------------------------------------------------------------------------- */
static size_t decode_base64(const char *text, char *out) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    unsigned bits = 0, held = 0;
    for (; *text && *text != '='; text++) {
        held = held << 6 | (unsigned)(strchr(alphabet, *text) - alphabet);
        bits += 6;
        if (bits >= 8) out[n++] = (char)(held >> (bits -= 8) & 0xff);
    }
    return n;
}

/* The bytes of a case; malloc'd. */
static char *text_of(json_t *item, size_t *length) {
    json_t *text = json_object_get(item, "text");
    const char *base64 = json_string_value(json_object_get(item, "base64"));
    size_t one = text ? json_string_length(text) : strlen(base64), times = 1;
    if (json_object_get(item, "times")) times = (size_t)json_integer_value(json_object_get(item, "times"));
    char *out = malloc(one * times + 1);
    if (text) memcpy(out, json_string_value(text), one);
    else one = decode_base64(base64, out);
    for (size_t i = 1; i < times; i++) memcpy(out + i * one, out, one);
    *length = one * times;
    return out;
}

static uint32_t encode(const struct tokenizer *tokenizer, const char *text, size_t length, bool special, uint32_t **ids) {
    struct text_segment segment = {text, length, special};
    uint32_t count;
    struct error error = {0};
    if (tokenizer_encode(tokenizer, &segment, 1, false, UINT32_MAX, ids, &count, &error)) fail_msg("%s", error.text);
    return count;
}

static unsigned compare_case(const struct tokenizer *tokenizer, const char *name, size_t index, json_t *item) {
    size_t length;
    char *text = text_of(item, &length);
    json_t *want = json_object_get(item, "ids");
    uint32_t *ids;
    uint32_t count = encode(tokenizer, text, length, json_is_true(json_object_get(item, "special")), &ids);
    size_t first = 0;
    while (first < count && first < json_array_size(want) && ids[first] == json_integer_value(json_array_get(want, first))) first++;
    bool same = first == count && first == json_array_size(want);
    if (!same)
        fprintf(stderr, "%s case %zu \"%.40s\": %u ids, wanted %zu; first difference at %zu: %lld, wanted %lld\n", name, index, text, count,
                json_array_size(want), first, first < count ? (long long)ids[first] : -1,
                first < json_array_size(want) ? (long long)json_integer_value(json_array_get(want, first)) : -1);
    free(ids);
    free(text);
    return !same;
}

static unsigned compare_cases(const struct tokenizer *tokenizer, const char *name, json_t *cases) {
    unsigned wrong = 0;
    size_t index;
    json_t *item;
    json_array_foreach(cases, index, item) wrong += compare_case(tokenizer, name, index, item);
    return wrong;
}

static void test_golden_bpe(void **state) {
    (void)state;
    static const struct { const char *pre; size_t least; } rules[] = {{"smollm", 250}, {"gpt-2", 60}, {"llama-bpe", 60}, {"qwen2", 60}};
    unsigned wrong = 0;
    for (size_t i = 0; i < ARRAY_COUNT(rules); i++) {
        struct tokenizer_spec spec = bpe_spec(rules[i].pre);
        struct tokenizer *tokenizer = open_spec(&spec);
        json_t *cases = json_object_get(json_object_get(golden, "bpe"), rules[i].pre);
        assert_true(json_array_size(cases) >= rules[i].least);
        wrong += compare_cases(tokenizer, rules[i].pre, cases);
        tokenizer_close(tokenizer);
    }
    assert_int_equal(wrong, 0);
}

/* A tokenizer of one of the golden file's sentencepiece models. */
static struct tokenizer *open_spm(json_t *source) {
    size_t count = json_array_size(json_object_get(source, "pieces"));
    struct text_span *pieces = calloc(count, sizeof *pieces);
    float *scores = calloc(count, sizeof *scores);
    int32_t *kinds = calloc(count, sizeof *kinds);
    for (size_t i = 0; i < count; i++) {
        json_t *piece = json_array_get(json_object_get(source, "pieces"), i);
        pieces[i] = (struct text_span){json_string_value(piece), json_string_length(piece)};
        scores[i] = (float)json_number_value(json_array_get(json_object_get(source, "scores"), i));
        kinds[i] = (int32_t)json_integer_value(json_array_get(json_object_get(source, "types"), i));
    }
    struct tokenizer_spec spec = {.model = "llama", .token_count = (uint32_t)count, .tokens = pieces, .scores = scores, .types = kinds, .bos_id = 1, .eos_id = 2,
                                  .unknown_id = json_integer_value(json_object_get(source, "unknown")), .eot_id = -1, .add_bos = true, .add_space_prefix = true};
    struct tokenizer *tokenizer = open_spec(&spec);
    free(pieces);
    free(scores);
    free(kinds);
    return tokenizer;
}

static void test_golden_spm(void **state) {
    (void)state;
    size_t index;
    json_t *source;
    unsigned wrong = 0;
    json_array_foreach(json_object_get(golden, "spm"), index, source) {
        struct tokenizer *tokenizer = open_spm(source);
        wrong += compare_cases(tokenizer, index ? "spm-1" : "spm-0", json_object_get(source, "cases"));
        tokenizer_close(tokenizer);
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(index, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_bpe),
        cmocka_unit_test(test_golden_spm),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
