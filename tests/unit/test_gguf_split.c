/* test_gguf_split.c: a model in several GGUF files opens as one, and parts that do not belong together are told by name. */
#include <unistd.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"

enum { PARTS = 3 };

static char directory[] = "/tmp/fd-split-XXXXXX";

static const char *path_of(uint32_t number)
{
    static char paths[PARTS + 2][128];
    snprintf(paths[number], sizeof paths[number], "%s/tiny-%05u-of-%05d.gguf", directory, number, PARTS);
    return paths[number];
}

static void write_file(const char *path, struct gguf_build *build)
{
    size_t count;
    unsigned char *bytes = gguf_build_finish(build, &count);
    FILE *file = fopen(path, "wb");
    assert_true(file && fwrite(bytes, 1, count, file) == count && fclose(file) == 0);
    free(bytes);
}

static void add_numbers(struct gguf_build *build, uint32_t index, uint32_t count, uint32_t tensors)
{
    gguf_build_number(build, "split.no", GGUF_U16, index, 2);
    gguf_build_number(build, "split.count", GGUF_U16, count, 2);
    gguf_build_number(build, "split.tensors.count", GGUF_I32, tensors, 4);
}

/* Writes the tiny model into parts as gguf-split does: the keys in the first, tensors in all, each with its own alignment. */
static void write_parts(void)
{
    struct tiny_llama tiny = TINY_LLAMA;
    struct gguf_build whole = {0};
    struct gguf *gguf;
    size_t count;
    gguf_build_llama(&whole, &tiny);
    unsigned char *bytes = gguf_build_finish(&whole, &count);
    assert_int_equal(gguf_open_memory("whole", bytes, count, &gguf, NULL), STATUS_OK);
    uint32_t all = gguf_tensor_count(gguf), next = 0;
    for (uint32_t i = 0; i < PARTS; i++) {
        struct gguf_build part = {0};
        if (i == 0) {
            gguf_build_llama(&part, &tiny);
            free(part.entries.bytes);
            free(part.data.bytes);
            part.entries = part.data = (struct gguf_bytes){0};
            part.tensor_count = 0;
        }
        add_numbers(&part, i, PARTS, all);
        for (; next < all * (i + 1) / PARTS; next++) {
            const struct gguf_tensor *tensor = gguf_tensor_at(gguf, next);
            char name[GGUF_MAX_NAME_BYTES + 1];
            snprintf(name, sizeof name, "%.*s", (int)tensor->name.length, tensor->name.data);
            gguf_build_tensor_of(&part, name, tensor->type, tensor->dims[0], tensor->dim_count == 2 ? tensor->dims[1] : 0, 1, false,
                                 tensor->data);
        }
        write_file(path_of(i + 1), &part);
    }
    gguf_close(gguf);
    free(bytes);
}

static int set_up(void **state) { return mkdtemp(directory) ? 0 : -1; }

static int tear_down(void **state)
{
    for (uint32_t i = 1; i <= PARTS; i++)
        unlink(path_of(i));
    return rmdir(directory);
}

static void parts_open_as_one(void **state)
{
    struct tiny_llama tiny = TINY_LLAMA;
    struct gguf_build build = {0};
    struct model *one, *parts;
    struct error error = {0};
    size_t count;
    write_parts();
    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    assert_int_equal(model_open_memory("one", bytes, count, &one, &error), STATUS_OK);
    if (model_open(path_of(1), &parts, &error))
        fail_msg("%s", error.text);
    assert_int_equal(gguf_tensor_count(parts->gguf), gguf_tensor_count(one->gguf));
    assert_false(gguf_has(parts->gguf, "split.count"));
    assert_int_equal(gguf_key_count(parts->gguf) + 1, gguf_key_count(one->gguf)); /* general.alignment was about the file */
    model_release_file(parts); /* gives back the files' pages, and keeps what is in none */
    for (uint32_t i = 0; i < gguf_tensor_count(one->gguf); i++) {
        const struct gguf_tensor *a = gguf_tensor_at(one->gguf, i), *b = gguf_tensor_at(parts->gguf, i);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
        assert_ptr_equal(b->data, gguf_bytes(parts->gguf) + b->data_offset);
    }
    assert_int_equal(parts->tokenizer.tokens.count, 320);
    model_close(parts);
    model_close(one);
    free(bytes);
}

static void check(const char *path, enum status expected, const char *file, const char *fragment)
{
    struct gguf *gguf;
    struct error error = {0};
    enum status status = gguf_open(path, &gguf, &error);
    if (status != expected || !strstr(error.text, fragment) || strncmp(error.text, file, strlen(file)) != 0)
        fail_msg("%s \"%s\", expected %s \"%s: … %s\"", status_name(status), error.text, status_name(expected), file, fragment);
}

/* A part with these numbers and a tensor of its own. */
static void replace(uint32_t number, uint32_t index, uint32_t count, const char *tensor)
{
    struct gguf_build build = {0};
    add_numbers(&build, index, count, 20);
    gguf_build_tensor_of(&build, tensor, TENSOR_F32, 8, 0, 1, true, NULL);
    write_file(path_of(number), &build);
}

static void parts_that_do_not_fit_are_told(void **state)
{
    struct gguf_build build = {0};
    char fragment[256], moved[160];
    write_parts();
    snprintf(fragment, sizeof fragment, "part 2 of 3; open the first, %s, which stands for all", path_of(1));
    check(path_of(2), STATUS_INVALID_ARGUMENT, path_of(2), fragment);
    snprintf(moved, sizeof moved, "%s/model.gguf", directory);
    assert_int_equal(rename(path_of(1), moved), 0);
    check(moved, STATUS_INVALID_ARGUMENT, moved, "the first in -00001-of-00003.gguf");
    assert_int_equal(rename(moved, path_of(1)), 0);

    unlink(path_of(2));
    check(path_of(1), STATUS_NOT_FOUND, path_of(2), "cannot be opened: No such file");
    replace(2, 2, 3, "a.weight");
    check(path_of(1), STATUS_INVALID_ARGUMENT, path_of(2), "says that it is part 3 of 3, expected part 2 of 3");
    replace(2, 1, 4, "a.weight");
    check(path_of(1), STATUS_INVALID_ARGUMENT, path_of(2), "says that it is part 2 of 4, expected part 2 of 3");
    replace(2, 1, 3, "token_embd.weight");
    check(path_of(1), STATUS_DATA_LOSS, path_of(2), "tensor 'token_embd.weight' is in part 1 too");
    replace(2, 1, 3, "a.weight");
    check(path_of(1), STATUS_DATA_LOSS, path_of(1), "the 3 parts have 14 tensors, key 'split.tensors.count' is 20");
    gguf_build_u32(&build, "x", 1);
    write_file(path_of(2), &build);
    check(path_of(1), STATUS_INVALID_ARGUMENT, path_of(2), "not a part of a model");
    FILE *file = fopen(path_of(2), "wb");
    assert_true(file && fputs("PK34", file) >= 0 && fclose(file) == 0);
    check(path_of(1), STATUS_INVALID_ARGUMENT, path_of(2), "not with \"GGUF\"");

    replace(1, 7, 3, "a.weight");
    check(path_of(1), STATUS_INVALID_ARGUMENT, path_of(1), "key 'split.no' is 7, expected less than split.count, 3");
    replace(1, 0, 2000, "a.weight");
    check(path_of(1), STATUS_INVALID_ARGUMENT, path_of(1), "key 'split.count' is 2000, expected up to 1024");
    replace(1, 1, 3, "a.weight");
    check(path_of(1), STATUS_INVALID_ARGUMENT, path_of(1), "part 2 of 3 by its keys: the parts' names must end in their numbers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_open_as_one),
        cmocka_unit_test(parts_that_do_not_fit_are_told),
    };
    return cmocka_run_group_tests_name("gguf_split", tests, set_up, tear_down);
}
