/* hf_assert.h: what tests of Hugging Face directories ask of the result. cmocka.h comes first. */
#ifndef FD_TESTS_HF_ASSERT_H
#define FD_TESTS_HF_ASSERT_H

#include "common/model/model.h"
#include "common/model/vocabulary.h"
#include "tests/unit/hf_build.h"

#define CONFIG "config.json"
#define TOKENIZER "tokenizer.json"

/* Opens and frees the build. */
static inline struct gguf *open_built(struct hf_build *build)
{
    struct gguf *gguf = NULL;
    struct error error = {0};
    if (hf_build_open(build, &gguf, &error))
        fail_msg("%s", error.text);
    hf_build_free(build);
    return gguf;
}

static inline uint32_t u32_of(const struct gguf *gguf, const char *key)
{
    uint32_t value = 0;
    struct error error = {0};
    if (gguf_get_u32(gguf, key, &value, &error))
        fail_msg("%s", error.text);
    return value;
}

static inline float f32_of(const struct gguf *gguf, const char *key)
{
    float value = 0;
    struct error error = {0};
    if (gguf_get_f32(gguf, key, &value, &error))
        fail_msg("%s", error.text);
    return value;
}

static inline bool is_set(const struct gguf *gguf, const char *key)
{
    bool value = false;
    return gguf_get_bool(gguf, key, &value, NULL) == STATUS_OK && value;
}

static inline void assert_text(const struct gguf *gguf, const char *key, const char *expected)
{
    struct gguf_string value = {"", 0};
    struct error error = {0};
    if (gguf_get_string(gguf, key, &value, &error))
        fail_msg("%s", error.text);
    assert_int_equal(value.length, strlen(expected));
    assert_memory_equal(value.data, expected, value.length);
}

static inline struct gguf_string token_of(const struct gguf *gguf, const char *key, uint64_t index)
{
    struct gguf_array array;
    struct gguf_string string = {"", 0};
    assert_int_equal(gguf_get_strings(gguf, key, &array, NULL), STATUS_OK);
    struct gguf_strings strings = gguf_strings_of(&array);
    for (uint64_t i = 0; i <= index; i++)
        assert_true(gguf_next_string(&strings, &string));
    return string;
}

static inline int64_t type_of(const struct gguf *gguf, uint64_t id)
{
    struct gguf_array array;
    assert_int_equal(gguf_get_integers(gguf, "tokenizer.ggml.token_type", &array, NULL), STATUS_OK);
    return gguf_array_integer(&array, id);
}

static inline void remove_directory(const struct hf_build *build, const char *directory)
{
    for (uint32_t i = 0; i < build->count; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", directory, build->files[i].name);
        unlink(path);
    }
    rmdir(directory);
}

/* Writes the directory, opens its tokenizer, and frees the build. */
static inline struct tokenizer *open_tokenizer(struct hf_build *build)
{
    char directory[] = "/tmp/fd-hf-XXXXXX";
    struct model *model;
    struct tokenizer *tokenizer;
    struct error error = {0};
    assert_non_null(mkdtemp(directory));
    hf_build_write(build, directory);
    if (model_open(directory, &model, &error) || vocabulary_open(model, &tokenizer, &error))
        fail_msg("%s", error.text);
    remove_directory(build, directory);
    model_close(model);
    hf_build_free(build);
    return tokenizer;
}

static inline void assert_ids(const struct tokenizer *tokenizer, const char *text, const uint32_t *expected,
                              uint32_t expected_count)
{
    struct text_segment segment = {text, strlen(text), true};
    struct error error = {0};
    uint32_t *ids, count;
    if (tokenizer_encode(tokenizer, &segment, 1, true, 100, &ids, &count, &error))
        fail_msg("%s", error.text);
    if (count != expected_count || memcmp(ids, expected, count * sizeof *ids) != 0)
        fail_msg("\"%s\": %u tokens, expected %u; the first are %u, %u", text, count, expected_count, ids[0], ids[count > 1]);
    free(ids);
}

#endif
