// test_quantize.c: a GGUF file written anew in another type: what is converted, what stays byte for byte, and what is refused.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "kernels/quant/dequant.h"
#include "services/fastdecode/model/quantize.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"

static char folder[64], in[96], out[96], part[112];
static struct thread_pool *pool;

static int open_folder(void **state)
{
    strcpy(folder, "/tmp/test_quantize.XXXXXX");
    if (!mkdtemp(folder) || thread_pool_open(2, &pool))
        return -1;
    snprintf(in, sizeof in, "%s/in.gguf", folder);
    snprintf(out, sizeof out, "%s/out.gguf", folder);
    snprintf(part, sizeof part, "%s.part", out);
    return 0;
}

static int close_folder(void **state)
{
    unlink(in);
    unlink(out);
    thread_pool_close(pool);
    return rmdir(folder); // fails if anything else was left there
}

static void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fwrite(bytes, 1, count, file) == count);
    fclose(file);
}

static bool exists(const char *path) { return !access(path, F_OK); }

static void write_llama(enum tensor_type type, enum tensor_type embedding, bool told)
{
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    size_t count;

    tiny.type = type;
    tiny.embedding_type = embedding;
    tiny.biases = true;
    if (told) {
        gguf_build_u32(&build, "general.file_type", 1);
        gguf_build_string(&build, "general.note", "general.file_type");
    }
    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    write_file(in, bytes, count);
    free(bytes);
}

static enum status quantize(enum tensor_type type, bool again, struct quantize_result *result, struct error *error)
{
    const struct quantize_request r = {.in = in, .out = out, .type = type, .requantize = again, .pool = pool};
    return quantize_file(&r, result, error);
}

static void assert_same_tensor(const struct gguf_tensor *a, const struct gguf_tensor *b)
{
    assert_true(a->name.length == b->name.length && !memcmp(a->name.data, b->name.data, a->name.length));
    assert_true(a->dim_count == b->dim_count && !memcmp(a->dims, b->dims, sizeof a->dims));
}

// The largest difference of a converted tensor, beside half a step of 4 bits over the tensor's whole range.
static void assert_near(const struct gguf_tensor *a, const struct gguf_tensor *b)
{
    uint64_t count = a->dims[0] * a->dims[1];
    float *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y), least = 0, most = 0, worst = 0;

    dequantize(a->type, a->data, count, x);
    dequantize(b->type, b->data, count, y);
    for (uint64_t i = 0; i < count; i++) {
        least = fminf(least, x[i]);
        most = fmaxf(most, x[i]);
        worst = fmaxf(worst, fabsf(x[i] - y[i]));
    }
    assert_true(worst > 0 && worst <= (most - least) / 30 * 1.01f);
    free(x);
    free(y);
}

// All types of sources; the result is a model, all that is no matrix has the same bytes, and so have the keys.
static void matrices_change_and_nothing_else(void **state)
{
    static const enum tensor_type sources[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};

    for (size_t s = 0; s < ARRAY_COUNT(sources); s++) {
        struct quantize_result result;
        struct gguf *before, *after;
        struct model *model;
        struct error error;
        uint32_t converted = 0, type;

        write_llama(sources[s], sources[s], s > 0);
        assert_int_equal(quantize(TENSOR_Q4_1, false, &result, &error), STATUS_OK);
        assert_int_equal(gguf_open(in, &before, &error), STATUS_OK);
        assert_int_equal(gguf_open(out, &after, &error), STATUS_OK);
        assert_int_equal(gguf_tensor_count(before), gguf_tensor_count(after));
        uint64_t keys = gguf_tensor_at(before, 0)->entry_offset;
        assert_true(keys == gguf_tensor_at(after, 0)->entry_offset);
        if (s > 0) {
            assert_int_equal(gguf_get_u32(after, "general.file_type", &type, &error), STATUS_OK);
            assert_int_equal(type, 3);
            const unsigned char *told = gguf_find_u32(before, "general.file_type");
            size_t at = (size_t)(told - gguf_bytes(before));
            assert_memory_equal(gguf_bytes(before), gguf_bytes(after), at);
            assert_memory_equal(told + 4, gguf_bytes(after) + at + 4, keys - at - 4);
        } else {
            assert_memory_equal(gguf_bytes(before), gguf_bytes(after), keys);
        }
        for (uint32_t i = 0; i < gguf_tensor_count(before); i++) {
            const struct gguf_tensor *a = gguf_tensor_at(before, i), *b = gguf_tensor_at(after, i);
            assert_same_tensor(a, b);
            if (a->dims[1] > 1) {
                converted++;
                assert_int_equal(b->type, TENSOR_Q4_1);
                assert_near(a, b);
            } else {
                assert_int_equal(b->type, a->type);
                assert_memory_equal(b->data, a->data, a->bytes);
            }
        }
        assert_int_equal(converted, result.converted);
        assert_int_equal(gguf_tensor_count(before), result.converted + result.kept);
        assert_true(result.bytes_after == gguf_file_bytes(after) && result.values_after * 8 == 5 * result.values);
        gguf_close(before);
        gguf_close(after);
        assert_int_equal(model_open(out, &model, &error), STATUS_OK);
        model_close(model);
        assert_false(exists(part));
    }
}

// Encoding in pieces by two threads gives what encoding a tensor at once does, for a tensor of more pieces than a buffer holds.
static void pieces_are_one_tensor(void **state)
{
    enum { COLUMNS = 96, ROWS = 90001 };
    struct gguf_build build = {0};
    struct quantize_result result;
    struct gguf *after;
    struct error error;
    float *x = malloc(sizeof *x * COLUMNS * ROWS);
    unsigned char *wanted = malloc(COLUMNS * ROWS / 32 * 34);
    size_t count;

    for (int i = 0; i < COLUMNS * ROWS; i++)
        x[i] = (float)(i % 777 - 388) * 0.01f;
    gguf_build_string(&build, "general.architecture", "none");
    gguf_build_tensor_of(&build, "odd", TENSOR_F32, 33, 3, 1, false, NULL); // rows of no whole blocks: stays
    gguf_build_tensor_of(&build, "wide", TENSOR_F32, COLUMNS, ROWS, 1, false, x);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    write_file(in, bytes, count);
    assert_int_equal(quantize(TENSOR_Q8_0, false, &result, &error), STATUS_OK);
    assert_true(result.converted == 1 && result.kept == 1);
    assert_int_equal(gguf_open(out, &after, &error), STATUS_OK);
    assert_true(encode_values(TENSOR_Q8_0, x, COLUMNS * ROWS, wanted));
    const struct gguf_tensor *t = gguf_find_tensor(after, "wide");
    assert_true(t->bytes == COLUMNS * ROWS / 32 * 34);
    assert_memory_equal(t->data, wanted, t->bytes);
    assert_int_equal(gguf_find_tensor(after, "odd")->type, TENSOR_F32);
    gguf_close(after);
    free(bytes);
    free(wanted);
    free(x);
}

// Nothing is left of a run that fails, and what was at OUT stays.
static void refusals(void **state)
{
    static const char kept[] = "of an earlier run";
    volatile sig_atomic_t stop = 1;
    struct quantize_result result;
    struct quantize_request r = {.in = in, .out = in, .type = TENSOR_Q4_1, .pool = pool};
    struct error error;
    struct stat info;

    write_file(out, kept, sizeof kept);
    write_llama(TENSOR_Q8_0, TENSOR_Q8_0, true);
    assert_int_equal(quantize(TENSOR_Q4_1, false, &result, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "--requantize"));
    assert_int_equal(quantize(TENSOR_Q8_0, true, &result, &error), STATUS_INVALID_ARGUMENT); // is in that type
    assert_int_equal(quantize_file(&r, &result, &error), STATUS_INVALID_ARGUMENT);
    write_llama(TENSOR_F16, TENSOR_F16, true);
    assert_int_equal(quantize_file(&r, &result, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "is the file that is read"));
    r.out = folder;
    assert_int_equal(quantize_file(&r, &result, &error), STATUS_INVALID_ARGUMENT);
    r.out = "/nowhere/at/all";
    assert_int_not_equal(quantize_file(&r, &result, &error), STATUS_OK);
    r.out = out;
    r.stop = &stop;
    assert_int_equal(quantize_file(&r, &result, &error), STATUS_CANCELLED);
    assert_true(!stat(out, &info) && info.st_size == sizeof kept && !exists(part));
    write_llama(TENSOR_Q8_0, TENSOR_Q8_0, true);
    assert_int_equal(quantize(TENSOR_Q4_1, true, &result, &error), STATUS_OK);
    assert_true(!stat(out, &info) && (uint64_t)info.st_size == result.bytes_after && !exists(part));
}

static void a_value_that_is_not_finite(void **state)
{
    struct gguf_build build = {0};
    struct quantize_result result;
    struct error error;
    float x[64] = {1};
    size_t count;

    unlink(out);
    x[63] = NAN;
    gguf_build_tensor_of(&build, "broken", TENSOR_F32, 32, 2, 1, false, x);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    write_file(in, bytes, count);
    free(bytes);
    assert_int_equal(quantize(TENSOR_Q4_1, false, &result, &error), STATUS_DATA_LOSS);
    assert_non_null(strstr(error.text, "tensor 'broken' has a value that is not finite"));
    assert_true(!exists(out) && !exists(part));
}

static void names_of_types(void **state)
{
    enum tensor_type type;
    struct error error;

    assert_true(!quantize_type_parse("Q4_1", &type, &error) && type == TENSOR_Q4_1);
    assert_true(!quantize_type_parse("bf16", &type, &error) && type == TENSOR_BF16);
    assert_int_equal(quantize_type_parse("q4_k", &type, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, ENCODE_TYPES));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_change_and_nothing_else), cmocka_unit_test(pieces_are_one_tensor), cmocka_unit_test(refusals),
        cmocka_unit_test(a_value_that_is_not_finite),       cmocka_unit_test(names_of_types),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
