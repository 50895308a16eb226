// test_tokenizer.c: ids against Hugging Face's tokenizers and sentencepiece (tests/golden/tokenizer.json), segments, special
// tokens, round trips, streams cut everywhere, and that long words take no quadratic time. Rules of small vocabularies, and what is
// refused: test_tokenizer_open.c.
//
// The byte-level vocabulary is the default model's: FD_MODEL, else models/SmolLM2-135M-Instruct.Q4_1.gguf.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/model/gguf/gguf.h"
#include "common/model/model.h"
#include "tests/cmocka.h"
#include "tests/unit/test_tokenizer.h"

static struct model *model;
static json_t *golden;
static struct text_span *tokens, *merges;
static int32_t *types;
static struct tokenizer *smollm;

static struct text_span *spans_of(const struct gguf_array *array)
{
    struct text_span *spans = calloc(array->count + 1, sizeof *spans);
    struct gguf_strings walk = gguf_strings_of(array);
    struct gguf_string text;
    for (size_t i = 0; gguf_next_string(&walk, &text); i++)
        spans[i] = (struct text_span){text.data, text.length};
    return spans;
}

static struct tokenizer_spec bpe_spec(const char *pre)
{
    const struct model_tokenizer *source = &model->tokenizer;
    return (struct tokenizer_spec){.model = "gpt2",
                                   .pre = pre,
                                   .token_count = (uint32_t)source->tokens.count,
                                   .tokens = tokens,
                                   .types = types,
                                   .merge_count = (uint32_t)source->merges.count,
                                   .merges = merges,
                                   .bos_id = source->bos,
                                   .eos_id = source->eos,
                                   .unknown_id = -1,
                                   .eot_id = -1};
}

static int set_up(void **state)
{
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
    for (uint64_t i = 0; i < model->tokenizer.token_types.count; i++)
        types[i] = (int32_t)gguf_array_integer(&model->tokenizer.token_types, i);
    struct tokenizer_spec spec = bpe_spec("smollm");
    smollm = open_spec(&spec);
    return 0;
}

static int tear_down(void **state)
{
    tokenizer_close(smollm);
    model_close(model);
    json_decref(golden);
    free(tokens);
    free(merges);
    free(types);
    return 0;
}

// --- golden files -------------------------------------------------------------------------------------------------------
static size_t decode_base64(const char *text, char *out)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    unsigned bits = 0, held = 0;
    for (; *text && *text != '='; text++) {
        held = held << 6 | (unsigned)(strchr(alphabet, *text) - alphabet);
        bits += 6;
        if (bits >= 8)
            out[n++] = (char)(held >> (bits -= 8) & 0xff);
    }
    return n;
}

// The bytes of a case and a zero behind them; malloc'd.
static char *text_of(json_t *item, size_t *length)
{
    json_t *text = json_object_get(item, "text");
    const char *base64 = json_string_value(json_object_get(item, "base64"));
    size_t one = text ? json_string_length(text) : strlen(base64), times = 1;
    if (json_object_get(item, "times"))
        times = (size_t)json_integer_value(json_object_get(item, "times"));
    char *out = malloc(one * times + 1);
    if (text)
        memcpy(out, json_string_value(text), one);
    else
        one = decode_base64(base64, out);
    for (size_t i = 1; i < times; i++)
        memcpy(out + i * one, out, one);
    *length = one * times;
    out[*length] = '\0';
    return out;
}

static uint32_t encode(const struct tokenizer *tokenizer, const char *text, size_t length, bool special, uint32_t **ids)
{
    struct text_segment segment = {text, length, special};
    uint32_t count;
    struct error error = {0};
    if (tokenizer_encode(tokenizer, &segment, 1, false, UINT32_MAX, ids, &count, &error))
        fail_msg("%s", error.text);
    return count;
}

static unsigned compare_case(const struct tokenizer *tokenizer, const char *name, size_t index, json_t *item)
{
    size_t length;
    char *text = text_of(item, &length);
    json_t *want = json_object_get(item, "ids");
    uint32_t *ids;
    uint32_t count = encode(tokenizer, text, length, json_is_true(json_object_get(item, "special")), &ids);
    size_t first = 0;
    while (first < count && first < json_array_size(want) && ids[first] == json_integer_value(json_array_get(want, first)))
        first++;
    bool same = first == count && first == json_array_size(want);
    if (!same)
        fprintf(stderr, "%s case %zu \"%.40s\": %u ids, wanted %zu; first difference at %zu: %lld, wanted %lld\n", name, index,
                text, count, json_array_size(want), first, first < count ? (long long)ids[first] : -1,
                first < json_array_size(want) ? (long long)json_integer_value(json_array_get(want, first)) : -1);
    free(ids);
    free(text);
    return !same;
}

static unsigned compare_cases(const struct tokenizer *tokenizer, const char *name, json_t *cases)
{
    unsigned wrong = 0;
    size_t index;
    json_t *item;
    json_array_foreach (cases, index, item)
        wrong += compare_case(tokenizer, name, index, item);
    return wrong;
}

static void test_golden_bpe(void **state)
{
    static const struct {
        const char *pre;
        size_t least;
    } rules[] = {{"smollm", 250}, {"gpt-2", 60}, {"llama-bpe", 60}, {"qwen2", 60}};
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

// A tokenizer of one of the golden file's sentencepiece models.
static struct tokenizer *open_spm(json_t *source)
{
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
    struct tokenizer_spec spec = {.model = "llama",
                                  .token_count = (uint32_t)count,
                                  .tokens = pieces,
                                  .scores = scores,
                                  .types = kinds,
                                  .bos_id = 1,
                                  .eos_id = 2,
                                  .unknown_id = json_integer_value(json_object_get(source, "unknown")),
                                  .eot_id = -1,
                                  .add_bos = true,
                                  .add_space_prefix = json_is_true(json_object_get(source, "prefix"))};
    struct tokenizer *tokenizer = open_spec(&spec);
    free(pieces);
    free(scores);
    free(kinds);
    return tokenizer;
}

// Checks a user's text between two control tokens: it has the same ids, user-defined ones among them, and never a control token.
static unsigned compare_chat(const struct tokenizer *tokenizer, const char *name, size_t index, json_t *item)
{
    size_t length;
    char *text = text_of(item, &length);
    struct text_segment segments[] = {{"<s>", 3, true}, {text, length, false}, {"</s>", 4, true}};
    json_t *want = json_object_get(item, "ids");
    uint32_t *ids, count;
    struct error error = {0};
    if (tokenizer_encode(tokenizer, segments, 3, false, UINT32_MAX, &ids, &count, &error))
        fail_msg("%s", error.text);
    bool same = count == json_array_size(want) + 2 && ids[0] == 1 && ids[count - 1] == 2;
    for (size_t i = 1; same && i + 1 < count; i++)
        same = ids[i] == json_integer_value(json_array_get(want, i - 1));
    if (!same)
        fprintf(stderr, "%s case %zu \"%.40s\" in a chat: %u ids, wanted %zu\n", name, index, text, count,
                json_array_size(want) + 2);
    free(ids);
    free(text);
    return !same;
}

static void test_golden_spm(void **state)
{
    size_t index;
    json_t *source;
    unsigned wrong = 0;
    json_array_foreach (json_object_get(golden, "spm"), index, source) {
        struct tokenizer *tokenizer = open_spm(source);
        char name[16];
        snprintf(name, sizeof name, "spm-%zu", index);
        wrong += compare_cases(tokenizer, name, json_object_get(source, "cases"));
        size_t number;
        json_t *item;
        json_array_foreach (json_object_get(source, "cases"), number, item)
            wrong += compare_chat(tokenizer, name, number, item);
        tokenizer_close(tokenizer);
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(index, 4);
}

// --- segments and special tokens ------------------------------------------------------------------------------------------
static uint32_t encode_segments(const struct tokenizer *tokenizer, const struct text_segment *segments, uint32_t segment_count,
                                uint32_t **ids)
{
    uint32_t count;
    struct error error = {0};
    if (tokenizer_encode(tokenizer, segments, segment_count, false, UINT32_MAX, ids, &count, &error))
        fail_msg("%s", error.text);
    return count;
}

static unsigned count_id(const uint32_t *ids, uint32_t count, uint32_t id)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < count; i++)
        n += ids[i] == id;
    return n;
}

// Control tokens are found only in segments that may have them, whether in the text as it is or normalized; user-defined ones everywhere.
static void test_special_only_where_allowed(void **state)
{
    const uint32_t im_end = 2;
    const struct {
        struct text_segment parts[3];
        unsigned wanted, as_text; // if it is a control token; if it is user-defined
    } cases[] = {
        {{{"a<|im_end|>", 11, false}, {"", 0, false}, {"", 0, false}}, 0, 1},
        {{{"a<|im_end|>", 11, true}, {"", 0, false}, {"", 0, false}}, 1, 1},
        {{{"<|im_", 5, true}, {"end|>", 5, true}, {"", 0, false}}, 1, 1},
        {{{"<|im_", 5, true}, {"end|>", 5, false}, {"", 0, false}}, 0, 1},
        {{{"<|im_", 5, false}, {"end|>", 5, true}, {"", 0, false}}, 0, 1},
        {{{"<|im_", 5, true}, {"", 0, false}, {"end|>", 5, true}}, 0, 1},
        {{{"<|im_end|>", 10, true}, {"<|im_end|>", 10, false}, {"<|im_end|>", 10, true}}, 2, 3},
        {{{"e", 1, false}, {"\xcc\x81<|im_end|>e", 13, true}, {"\xcc\x81<|im_end|>", 12, false}}, 1, 2},
        {{{"<|im_end|>", 10, true}, {"<|endof", 7, false}, {"text|><|im_end|>", 16, true}}, 2, 2},
    };
    uint8_t *flags = calloc(model->tokenizer.tokens.count, 1);
    int32_t own = types[im_end];
    for (int way = 0; way < 4; way++) { // as it is, normalized; twice
        struct tokenizer_spec spec = bpe_spec(way & 1 ? "qwen2" : "smollm");
        for (uint32_t id = 0; id < spec.token_count; id++)
            flags[id] = types[id] == TOKEN_CONTROL ? TOKEN_FLAG_ADDED | TOKEN_FLAG_NORMALIZED : 0;
        spec.flags = way & 1 ? flags : NULL;
        types[im_end] = way & 2 ? TOKEN_USER_DEFINED : own;
        struct tokenizer *tokenizer = open_spec(&spec);
        types[im_end] = own;
        for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
            uint32_t *ids, count = encode_segments(tokenizer, cases[i].parts, 3, &ids);
            unsigned wanted = way & 2 ? cases[i].as_text : cases[i].wanted;
            if (count_id(ids, count, im_end) != wanted || count_id(ids, count, 0) != 0)
                fail_msg("way %d, case %zu: %u, wanted %u", way, i, count_id(ids, count, im_end), wanted);
            free(ids);
        }
        tokenizer_close(tokenizer);
    }
    free(flags);
}

// Words are not cut where segments are, characters neither.
static void test_segments_are_one_text(void **state)
{
    static const char text[] = "antidisestablishmentarianism 日本語 naïve   \n\n x";
    size_t length = sizeof text - 1;
    uint32_t *whole, *cut, count = encode(smollm, text, length, false, &whole);
    for (size_t at = 0; at <= length; at++) {
        struct text_segment parts[2] = {{text, at, at % 2 == 0}, {text + at, length - at, false}};
        assert_int_equal(encode_segments(smollm, parts, 2, &cut), count);
        assert_memory_equal(cut, whole, count * sizeof *cut);
        free(cut);
    }
    free(whole);
}

static void test_max_tokens(void **state)
{
    struct text_segment segment = {"one two three four", 18, true};
    struct error error = {0};
    uint32_t *ids, count;
    assert_int_equal(tokenizer_encode(smollm, &segment, 1, false, 4, &ids, &count, &error), STATUS_OK);
    assert_int_equal(count, 4);
    free(ids);
    assert_int_equal(tokenizer_encode(smollm, &segment, 1, false, 3, &ids, &count, &error), STATUS_OUT_OF_RANGE);
    assert_int_equal(count, 4);
    assert_null(ids);
    assert_non_null(strstr(error.text, "more than 3 tokens"));
    assert_int_equal(tokenizer_encode(smollm, NULL, 0, true, 0, &ids, &count, &error), STATUS_OK);
    assert_int_equal(count, 0);
    free(ids);
}

static void test_end_tokens(void **state)
{
    uint32_t ends[TOKENIZER_MAX_END_TOKENS];
    assert_int_equal(tokenizer_end_tokens(smollm, ends, 16), 2); // <|endoftext|>, <|im_end|>
    assert_int_equal(ends[0], 0);
    assert_int_equal(ends[1], 2);
    assert_true(tokenizer_is_end(smollm, 2) && !tokenizer_is_end(smollm, 1) && !tokenizer_is_end(smollm, UINT32_MAX));
    assert_true(tokenizer_is_control(smollm, 1) && !tokenizer_is_control(smollm, 100) && !tokenizer_is_control(smollm, UINT32_MAX));
    assert_int_equal(tokenizer_token_bytes(smollm, UINT32_MAX).length, 0);
    assert_int_equal(tokenizer_vocab(smollm), 49152);
}

// --- back to text -----------------------------------------------------------------------------------------------------------
static size_t decode(const struct tokenizer *tokenizer, const uint32_t *ids, uint32_t count, bool skip, char *out)
{
    struct detokenizer detokenizer;
    detokenizer_init(&detokenizer, tokenizer, skip);
    size_t room = tokenizer_max_token_bytes(tokenizer) + 8, n = 0;
    for (uint32_t i = 0; i < count; i++)
        n += detokenizer_push(&detokenizer, ids[i], out + n, room);
    return n + detokenizer_flush(&detokenizer, out + n, room);
}

static unsigned round_trip(const struct tokenizer *tokenizer, json_t *cases)
{
    unsigned tried = 0;
    size_t index;
    json_t *item;
    json_array_foreach (cases, index, item) {
        if (!json_object_get(item, "text"))
            continue; // broken UTF-8 does not come back
        size_t length;
        char *text = text_of(item, &length), *out = malloc(4 * length + 4096);
        uint32_t *ids, count = encode(tokenizer, text, length, true, &ids);
        size_t got = decode(tokenizer, ids, count, false, out);
        if (strstr(text, "\xe2\x96\x81") == NULL && (got != length || memcmp(out, text, length) != 0))
            fail_msg("case %zu \"%.40s\" came back as \"%.*s\"", index, text, (int)got, out);
        free(ids);
        free(out);
        free(text);
        tried++;
    }
    return tried;
}

static void test_round_trip(void **state)
{
    assert_true(round_trip(smollm, json_object_get(json_object_get(golden, "bpe"), "smollm")) > 300);
    json_t *source = json_array_get(json_object_get(golden, "spm"), 0);
    struct tokenizer *spm = open_spm(source);
    assert_true(round_trip(spm, json_object_get(source, "cases")) > 100);
    tokenizer_close(spm);
}

// Bytes, each as the token of that byte, and what Python's decode(errors="replace") says.
static void test_stream_of_bytes(void **state)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"caf\xc3\xa9!", "café!"},
        {"\xf0\x9f\x98\x80", "😀"},
        {"\xff"
         "a",
         "\xef\xbf\xbd"
         "a"},
        {"\xe2\x82", "\xef\xbf\xbd"},
        {"\xe2\x82x", "\xef\xbf\xbdx"},
        {"\xe2\xe2\x82\xac", "\xef\xbf\xbd€"},
        {"\xf0\x9f\x98\xc3\xa9", "\xef\xbf\xbdé"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\x80\xc3", "\xef\xbf\xbd\xef\xbf\xbd"},
    };
    json_t *source = json_array_get(json_object_get(golden, "spm"), 0); // it has a token for each byte
    struct tokenizer *spm = open_spm(source);
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        uint32_t ids[16], count = 0;
        for (const char *in = cases[i].in; *in; in++)
            ids[count++] = 3 + (unsigned char)*in; // <unk> <s> </s> <0x00> …
        char out[4096];
        size_t length = decode(spm, ids, count, false, out);
        out[length] = '\0';
        assert_string_equal(out, cases[i].out);
        struct detokenizer detokenizer; // nothing is given out before it is whole
        detokenizer_init(&detokenizer, spm, false);
        if (i == 1)
            for (int k = 0; k < 3; k++)
                assert_int_equal(detokenizer_push(&detokenizer, ids[k], out, sizeof out), 0);
    }
    uint32_t hello[] = {1, 3 + 'h', 2};
    char out[4096];
    assert_int_equal(decode(spm, hello, 3, true, out), 1);  // <s> and </s> are skipped
    assert_int_equal(decode(spm, hello, 3, false, out), 8); // or shown
    tokenizer_close(spm);
}

// --- long words -------------------------------------------------------------------------------------------------------------------
static void encode_run(const struct tokenizer *tokenizer, const char *unit, size_t length)
{
    char *text = malloc(length);
    for (size_t i = 0, n = strlen(unit); i < length; i++)
        text[i] = unit[i % n];
    uint32_t *ids;
    (void)encode(tokenizer, text, length, true, &ids);
    free(ids);
    struct text_segment segment = {text, length, true};
    uint32_t count;
    assert_int_equal(tokenizer_encode(tokenizer, &segment, 1, false, 100, &ids, &count, NULL), STATUS_OUT_OF_RANGE);
    assert_true(count > 100);
    free(text);
}

// Were one of these quadratic, four times the length would take 16 times as long. Processor time.
static void test_long_runs(void **state)
{
    enum { SHORT = 100000, LONG = 400000 };
    double took[2] = {0};
    static const char *const units[] = {"a", " ", "\n", " \n", "\xcc\x81\xcc\xa3", "\xff", "<|im_end|", "1", "!"};
    struct tokenizer_spec spec = bpe_spec("qwen2");
    struct tokenizer *tokenizers[3] = {open_spec(&spec), open_spm(json_array_get(json_object_get(golden, "spm"), 0)),
                                       open_spm(json_array_get(json_object_get(golden, "spm"), 1))};
    for (size_t t = 0; t < 3; t++) {
        for (size_t i = 0; i < ARRAY_COUNT(units) * 2; i++) {
            clock_t start = clock();
            if (t != 2 || i < 4)
                encode_run(tokenizers[t], units[i / 2], i % 2 ? LONG : SHORT);
            took[i % 2] += (double)(clock() - start) / CLOCKS_PER_SEC;
        }
        tokenizer_close(tokenizers[t]);
    }
    print_message("%.3f s and %.3f s of processor time\n", took[0], took[1]);
    assert_true(took[1] < 10 * took[0]);
}

// Encodes a run with a limit; returns its processor time.
static double time_run(const struct tokenizer *tokenizer, const char *unit, size_t length, uint32_t max_tokens, enum status wanted)
{
    char *text = malloc(length);
    for (size_t i = 0, n = strlen(unit); i < length; i++)
        text[i] = unit[i % n];
    struct text_segment segment = {text, length, true};
    uint32_t *ids, count;
    clock_t start = clock();
    assert_int_equal(tokenizer_encode(tokenizer, &segment, 1, false, max_tokens, &ids, &count, NULL), wanted);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    free(ids);
    free(text);
    return seconds;
}

// A word that must have too many tokens is refused before it is merged, which is most of the work. What a vocabulary has no token
// for does not count: SmolLM2's lacks 21 bytes, the second "llama" model has no byte tokens.
static void test_long_word_is_refused_early(void **state)
{
    const size_t length = 1000000;
    struct tokenizer *spm = open_spm(json_array_get(json_object_get(golden, "spm"), 1));
    const struct {
        const struct tokenizer *tokenizer;
        const char *unit;
    } cases[] = {{smollm, "a"}, {smollm, " "}, {spm, "to"}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        double merged = INFINITY, refused = INFINITY;
        for (int round = 0; round < 3 && !(refused <= merged / 4); round++) { // again where that is not clear
            merged = fmin(merged, time_run(cases[i].tokenizer, cases[i].unit, length, UINT32_MAX, STATUS_OK));
            refused = fmin(refused, time_run(cases[i].tokenizer, cases[i].unit, length, 2048, STATUS_OUT_OF_RANGE));
        }
        if (refused > merged / 2)
            fail_msg("\"%s\": refused in %.3f s, merged in %.3f s", cases[i].unit, refused, merged);
    }
    (void)time_run(smollm, "\x04", 1000000, 0, STATUS_OK);     // no token at all
    (void)time_run(spm, "\xe2\x98\x83", 999999, 2, STATUS_OK); // a space and one <unk>
    tokenizer_close(spm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_bpe),
        cmocka_unit_test(test_golden_spm),
        cmocka_unit_test(test_special_only_where_allowed),
        cmocka_unit_test(test_segments_are_one_text),
        cmocka_unit_test(test_max_tokens),
        cmocka_unit_test(test_end_tokens),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_stream_of_bytes),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_long_word_is_refused_early),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
