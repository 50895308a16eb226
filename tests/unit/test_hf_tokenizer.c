/* test_hf_tokenizer.c: tokenizer.json and the files beside it become the vocabulary that common/tokenizer reads. */
#include <jansson.h>

#include "common/base/checked.h"
#include "tests/cmocka.h"
#include "tests/unit/hf_assert.h"

static void tokens_around_a_text_are_found(void **state)
{
    struct hf_build build;
    hf_build_tiny(&build);
    hf_build_edit(
        &build, TOKENIZER, "\"post_processor\": null",
        "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, {\"type\": \"TemplateProcessing\", "
        "\"single\": [{\"SpecialToken\": {\"id\": \"<|im_start|>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\"}}]}]}");
    struct gguf *gguf = open_built(&build);
    assert_true(is_set(gguf, "tokenizer.ggml.add_bos_token") && !is_set(gguf, "tokenizer.ggml.add_eos_token"));
    gguf_close(gguf);

    hf_build_tiny(&build); /* tokenizer_config.json alone says so, and the template is a file */
    hf_build_edit(&build, "tokenizer_config.json", "\"pad_token\": null",
                  "\"add_bos_token\": true, \"pad_token\": \"<|endoftext|>\"");
    hf_build_text(&build, "chat_template.jinja", "{{ bos_token }}");
    hf_build_text(&build, "generation_config.json", "{\"eos_token_id\": 0, \"temperature\": 0.5}");
    gguf = open_built(&build);
    assert_true(is_set(gguf, "tokenizer.ggml.add_bos_token"));
    assert_int_equal(u32_of(gguf, "tokenizer.ggml.padding_token_id"), 0);
    assert_int_equal(u32_of(gguf, "tokenizer.ggml.eot_token_id"), 0);
    assert_text(gguf, "tokenizer.chat_template", "{{ bos_token }}");
    assert_false(gguf_has(gguf, "general.sampling.temp")); /* no do_sample */
    gguf_close(gguf);

    hf_build_tiny(&build); /* an older directory has a file for special tokens */
    hf_build_text(&build, "tokenizer_config.json", "{\"eos_token\": null}");
    hf_build_text(&build, "special_tokens_map.json",
                  "{\"bos_token\": {\"content\": \"<|endoftext|>\"}, \"eos_token\": \"<|im_start|>\"}");
    gguf = open_built(&build);
    assert_int_equal(u32_of(gguf, "tokenizer.ggml.bos_token_id"), 0);
    assert_int_equal(u32_of(gguf, "tokenizer.ggml.eos_token_id"), 2); /* generation_config.json's first: null means none */
    gguf_close(gguf);
}

/* Chat templates by name: in a list, or in files. */
static void named_templates_are_found(void **state)
{
    static const char list[] =
        "\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"}, {\"name\": \"default\", \"template\": "
        "\"d\"}, {\"name\": \"tool_use\", \"template\": \"again\"}, {\"name\": \"a b\", \"template\": \"odd\"}, "
        "{\"name\": \"rerank\", \"template\": \"r\"}, {\"name\": 7}, 8], \"pad_token\": null";
    struct hf_build build;
    for (int files = 0; files < 3; files++) {
        hf_build_tiny(&build);
        hf_build_edit(&build, "tokenizer_config.json", "\"chat_template\": ", "\"unused\": ");
        hf_build_edit(&build, "tokenizer_config.json", "\"pad_token\": null", list);
        if (files)
            hf_build_text(&build, "additional_chat_templates/rag.jinja", "g");
        if (files == 2)
            hf_build_text(&build, "chat_template.jinja", "file");
        hf_build_text(&build, "additional_chat_templates/readme.md", "no template");
        struct gguf *gguf = open_built(&build);
        assert_text(gguf, "tokenizer.chat_template", files == 2 ? "file" : "d");
        if (files)
            assert_text(gguf, "tokenizer.chat_template.rag", "g");
        else
            assert_text(gguf, "tokenizer.chat_template.tool_use", "t");
        assert_int_equal(gguf_has(gguf, "tokenizer.chat_template.tool_use"), files == 0);
        assert_false(gguf_has(gguf, "tokenizer.chat_template.rerank") || gguf_has(gguf, "tokenizer.chat_template.a b") ||
                     gguf_has(gguf, "tokenizer.chat_template.readme"));
        gguf_close(gguf);
    }
}

/* As published: a backslash of the expression is two in JSON, four here. */
#define CASED_WORDS(after)                                                                                                      \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+" after \
    "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*" after
#define CASED_REST "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define GPT4O_REGEX CASED_WORDS("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") "|\\\\p{N}{1,3}" CASED_REST
#define TEKKEN_REGEX CASED_WORDS("") "|\\\\p{N}" CASED_REST
#define QWEN2_REGEX                                                                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|" \
    "\\\\s+(?!\\\\S)|\\\\s+"

static void pre_tokenizers_are_recognized(void **state)
{
    static const char gpt2[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}";
    static const char smollm[] =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": true}, "
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}]}";
    static const struct {
        const char *steps, *regex; /* steps NULL: a Split by regex */
        bool nfc, ignore_merges;
        const char *pre;
    } cases[] = {
        {gpt2, NULL, false, false, "gpt-2"},
        {smollm, NULL, false, false, "smollm"},
        {NULL, HF_LLAMA3_REGEX, false, true, "llama-bpe"},
        {NULL, HF_LLAMA3_REGEX, false, false, "dbrx"},
        {NULL, QWEN2_REGEX, true, false, "qwen2"},
        {NULL, GPT4O_REGEX, false, false, "gpt-4o"},
        {NULL, GPT4O_REGEX, false, true, "gpt-oss"},
        {NULL, TEKKEN_REGEX, false, true, "tekken"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct hf_build build;
        hf_build_tiny(&build);
        char *text = hf_build_find(&build, TOKENIZER)->text, *begin = strstr(text, "\"pre_tokenizer\": ") + 17;
        char *end = strstr(begin, ",\n\"post_processor\"");
        struct gguf_bytes edited = {0};
        gguf_append(&edited, text, (size_t)(begin - text));
        if (cases[i].steps) {
            hf_append_text(&edited, cases[i].steps);
        } else {
            hf_append_text(&edited,
                           "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"");
            hf_append_text(&edited, cases[i].regex);
            hf_append_text(&edited,
                           "\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                           "false, \"use_regex\": false}]}");
        }
        gguf_append(&edited, end, strlen(end) + 1);
        hf_build_text(&build, TOKENIZER, (char *)edited.bytes);
        free(edited.bytes);
        if (!cases[i].ignore_merges)
            hf_build_edit(&build, TOKENIZER, "\"ignore_merges\": true", "\"ignore_merges\": false");
        if (cases[i].nfc)
            hf_build_edit(&build, TOKENIZER, "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}");
        struct tokenizer *tokenizer;
        struct gguf *gguf = open_kept(&build);
        assert_text(gguf, "tokenizer.ggml.pre", cases[i].pre);
        gguf_close(gguf);
        tokenizer = open_tokenizer(&build); /* which knows the name */
        tokenizer_close(tokenizer);
    }
}

/* SentencePiece-style: merges by rank become scores that common/tokenizer merges by. */
#define MARK "\xe2\x96\x81"
static const char spm_tokenizer[] =
    "{\"added_tokens\": [{\"id\": 0, \"content\": \"<unk>\", \"special\": true}, {\"id\": 1, \"content\": \"<s>\", \"special\": true},"
    " {\"id\": 2, \"content\": \"</s>\", \"special\": true}, {\"id\": 300, \"content\": \"<image>\", \"special\": false}],"
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"" MARK
    "\"}, {\"type\": \"Replace\","
    " \"pattern\": {\"String\": \" \"}, \"content\": \"" MARK "\"}]}, \"pre_tokenizer\": null,"
    "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\":"
    " {\"id\": \"A\", \"type_id\": 0}}]},"
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": true, \"byte_fallback\": true, \"vocab\": {\"<unk>\": 0, \"<s>\": 1,"
    " \"</s>\": 2, \"<0x0A>\": 3, \"<0xC3>\": 4, \"<0xA9>\": 5, \"" MARK
    "\": 6, \"a\": 7, \"b\": 8, \"c\": 9, \"ab\": 10, \"bc\": 11,"
    " \"" MARK "a\": 12, \"abc\": 13, \"" MARK "abc\": 14, \"ca\": 15},"
    /* bc before ab: "abc" is a + bc; "ca" is no merge's result, so it cannot come of a text */
    "\"merges\": [\"b c\", \"a b\", \"" MARK " a\", \"a bc\", \"ab c\", \"" MARK " abc\"]}}";

static void merges_become_scores(void **state)
{
    static const struct {
        const char *text;
        uint32_t ids[8], count;
    } cases[] = {
        {"abc", {1, 14}, 2},
        {"ab", {1, 6, 10}, 3},
        {"a bc", {1, 12, 6, 11}, 4},
        {"ca", {1, 6, 9, 7}, 4},
        {"\xc3\xa9\n", {1, 6, 4, 5, 3}, 5},
    };
    struct hf_build build;
    hf_build_tiny(&build);
    hf_build_text(&build, TOKENIZER, spm_tokenizer);
    hf_build_text(&build, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"unk_token\": \"<unk>\"}");
    struct gguf *gguf = open_built(&build);
    assert_text(gguf, "tokenizer.ggml.model", "llama");
    assert_true(is_set(gguf, "tokenizer.ggml.add_space_prefix"));
    static const int64_t types[][2] = {{0, 2}, {1, 3}, {2, 3}, {3, 6}, {5, 6}, {6, 1}, {7, 1}, {13, 1}, {15, 5}, {16, 5}};
    for (size_t i = 0; i < ARRAY_COUNT(types); i++)
        assert_int_equal(type_of(gguf, (uint64_t)types[i][0]), types[i][1]);
    gguf_close(gguf);

    hf_build_tiny(&build);
    hf_build_text(&build, TOKENIZER, spm_tokenizer);
    hf_build_text(&build, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}");
    struct tokenizer *tokenizer = open_tokenizer(&build);
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++)
        assert_ids(tokenizer, cases[i].text, cases[i].ids, cases[i].count);
    tokenizer_close(tokenizer);
}

/* Metaspace puts a space in front where there is none, by its scheme at the start only. */
static void metaspace_puts_one_space_in_front(void **state)
{
    static const struct {
        const char *scheme, *text;
        uint32_t ids[8], count;
    } cases[] = {
        {"always", "abc", {1, 14}, 2},       {"always", " abc", {1, 14}, 2},
        {"always", "  abc", {1, 6, 14}, 3},  {"always", "a</s>abc", {1, 12, 2, 14}, 4},
        {"first", "abc", {1, 14}, 2},        {"first", "a</s>abc", {1, 12, 2, 13}, 4},
        {"first", "</s>abc", {1, 2, 13}, 3}, {"never", "abc", {1, 13}, 2},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct hf_build build;
        char step[160];
        hf_build_tiny(&build);
        hf_build_text(&build, TOKENIZER, spm_tokenizer);
        snprintf(step, sizeof step,
                 "{\"type\": \"Metaspace\", \"replacement\": \"" MARK "\", \"prepend_scheme\": \"%s\", \"split\": false}",
                 cases[i].scheme);
        hf_build_edit(&build, TOKENIZER, "\"pre_tokenizer\": null", "\"pre_tokenizer\": STEP");
        hf_build_edit(&build, TOKENIZER, "STEP", step);
        hf_build_edit(&build, TOKENIZER, "\"normalizer\": {\"type\": \"Sequence\"",
                      "\"normalizer\": null, \"old\": {\"type\": \"Sequence\"");
        hf_build_text(&build, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}");
        struct tokenizer *tokenizer = open_tokenizer(&build);
        assert_ids(tokenizer, cases[i].text, cases[i].ids, cases[i].count);
        tokenizer_close(tokenizer);
    }
}

static void every_end_token_ends_an_answer(void **state)
{
    struct hf_build build;
    hf_build_tiny(&build);
    hf_build_edit(&build, "generation_config.json", "[2, 0]", "[10, 264, 11, 4000000000, 12, 13]");
    struct tokenizer *tokenizer = open_tokenizer(&build); /* ids that are no token's are left out */
    for (uint32_t id = 0; id < 20; id++)
        assert_int_equal(tokenizer_is_end(tokenizer, id), id == 2 || (id >= 10 && id <= 13) || id == 0); /* 0: <|endoftext|> */
    tokenizer_close(tokenizer);
}

/* Ids of a golden case, in a raw prompt and, where no special token is in the text, from a user. */
static unsigned compare_added(const struct tokenizer *tokenizer, const char *kind, json_t *item)
{
    json_t *text = json_object_get(item, "text"), *want = json_object_get(item, "ids");
    unsigned wrong = 0;
    for (int special = json_is_true(json_object_get(item, "plain")) ? 0 : 1; special < 2; special++) {
        struct text_segment segment = {json_string_value(text), json_string_length(text), special};
        struct error error = {0};
        uint32_t *ids, count;
        if (tokenizer_encode(tokenizer, &segment, 1, false, 1000, &ids, &count, &error))
            fail_msg("%s", error.text);
        bool same = count == json_array_size(want);
        for (uint32_t i = 0; same && i < count; i++)
            same = ids[i] == json_integer_value(json_array_get(want, i));
        if (!same)
            fprintf(stderr, "%s \"%s\": %u ids, wanted %zu\n", kind, segment.bytes, count, json_array_size(want));
        wrong += !same;
        free(ids);
    }
    return wrong;
}

/* Tokens with lstrip, rstrip, single_word and normalized, special and not, as the library `tokenizers` finds them. */
static void added_tokens_are_found_as_golden_data_has_them(void **state)
{
    json_error_t error;
    json_t *golden = json_load_file("tests/golden/tokenizer.json", 0, &error), *of_kind, *set, *item;
    const char *kind;
    size_t index, number, count = 0;
    unsigned wrong = 0;
    if (!golden)
        fail_msg("tests/golden/tokenizer.json:%d: %s", error.line, error.text);
    json_object_foreach (json_object_get(golden, "added"), kind, of_kind)
        json_array_foreach (json_object_get(of_kind, "sets"), index, set) {
            struct hf_build build;
            json_t *document = json_object_get(of_kind, "document");
            json_object_set(document, "added_tokens", json_object_get(set, "added"));
            char *text = json_dumps(document, 0);
            hf_build_tiny_rows(&build, 352);
            hf_build_text(&build, TOKENIZER, text);
            hf_build_text(&build, "tokenizer_config.json", "{}");
            struct tokenizer *tokenizer = open_tokenizer(&build);
            json_array_foreach (json_object_get(set, "cases"), number, item) {
                wrong += compare_added(tokenizer, kind, item);
                count++;
            }
            tokenizer_close(tokenizer);
            free(text);
        }
    json_decref(golden);
    assert_int_equal(wrong, 0);
    assert_true(count > 800);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_around_a_text_are_found),
        cmocka_unit_test(named_templates_are_found),
        cmocka_unit_test(pre_tokenizers_are_recognized),
        cmocka_unit_test(merges_become_scores),
        cmocka_unit_test(metaspace_puts_one_space_in_front),
        cmocka_unit_test(every_end_token_ends_an_answer),
        cmocka_unit_test(added_tokens_are_found_as_golden_data_has_them),
    };
    return cmocka_run_group_tests_name("hf_tokenizer", tests, NULL, NULL);
}
