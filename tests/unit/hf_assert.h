/* hf_assert.h: what tests of Hugging Face directories ask of the result. */
#ifndef FD_TESTS_HF_ASSERT_H
#define FD_TESTS_HF_ASSERT_H

#include "common/model/model.h"
#include "common/model/vocabulary.h"
#include "tests/cmocka.h"
#include "tests/unit/hf_build.h"

#define CONFIG "config.json"
#define TOKENIZER "tokenizer.json"

static inline struct gguf *open_kept(const struct hf_build *build)
{
    struct gguf *gguf = NULL;
    struct error error = {0};
    if (hf_build_open(build, &gguf, &error))
        fail_msg("%s", error.text);
    return gguf;
}

/* Opens and frees the build. */
static inline struct gguf *open_built(struct hf_build *build)
{
    struct gguf *gguf = open_kept(build);
    hf_build_free(build);
    return gguf;
}

/* Returns whether the build is refused with this status (STATUS_OK: with any) and, in one line that begins with its name, with this text;
 * prints how it is not. Frees the build. */
static inline bool is_refused(struct hf_build *build, const char *label, enum status expected, const char *fragment)
{
    struct gguf *gguf = NULL;
    struct error error = {0};
    const enum status status = hf_build_open(build, &gguf, &error);
    const bool good = status != STATUS_OK && (expected == STATUS_OK || status == expected) && error.status == status &&
                      strstr(error.text, fragment) && strncmp(error.text, "tiny", 4) == 0 && !strchr(error.text, '\n');
    if (!good)
        print_error("%s: %s \"%s\", expected %s \"%s\"\n", label, status_name(status), error.text, status_name(expected), fragment);
    gguf_close(gguf);
    hf_build_free(build);
    return good;
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

/* No byte of a file, whatever its value, leads to a crash or outside of the data: about `parts` bytes of each file are tried. Frees the build. */
static inline void assert_flips_are_survived(struct hf_build *build, uint64_t seed, size_t parts)
{
    for (uint32_t f = 0; f < build->count; f++) {
        char *text = build->files[f].text;
        size_t length = strlen(text), step = length / parts + 1;
        for (size_t at = 0; at < length; at += step) {
            struct gguf *gguf = NULL;
            struct error error = {0};
            char kept = text[at];
            text[at] = (char)(random_next(&seed) % 255 + 1);
            if (hf_build_open(build, &gguf, &error) == STATUS_OK)
                gguf_close(gguf);
            else
                assert_true(strncmp(error.text, "tiny", 4) == 0);
            text[at] = kept;
        }
    }
    hf_build_free(build);
}

#endif
