/* test_gguf.c: the container: what is written is read back, and each kind of damage gets its status and its line. */
#include <math.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"
#include "tests/unit/hf_assert.h"

/* Bytes from the end of a key's name, and of a tensor's (with two dimensions). */
enum {
    KEY_TYPE = 0,
    KEY_VALUE = 4,
    KEY_COUNT = 8,
    KEY_ELEMENTS = 16,
    TENSOR_DIMS = 0,
    TENSOR_DIM0 = 4,
    TENSOR_DIM1 = 12,
    TENSOR_TYPE = 20,
    TENSOR_OFFSET = 24
};

/* A valid file with one of each: every case below damages a copy. */
static unsigned char *build_sample(size_t *count)
{
    struct gguf_build build = {.seed = 1};

    gguf_build_string(&build, "general.name", "sample");
    gguf_build_u32(&build, "general.alignment", 32);
    gguf_build_number(&build, "a.u8", GGUF_U8, 200, 1);
    gguf_build_number(&build, "a.i8", GGUF_I8, 0xfe, 1);
    gguf_build_number(&build, "a.u16", GGUF_U16, 60000, 2);
    gguf_build_number(&build, "a.i16", GGUF_I16, 0x7fff, 2);
    gguf_build_number(&build, "a.i32", GGUF_I32, 0xffffffff, 4);
    gguf_build_number(&build, "a.u64", GGUF_U64, (uint64_t)1 << 32, 8);
    gguf_build_number(&build, "a.i64", GGUF_I64, 77, 8);
    gguf_build_number(&build, "a.f64", GGUF_F64, 0x3ff8000000000000u, 8);
    gguf_build_f32(&build, "a.f32", 0.25f);
    gguf_build_bool(&build, "a.bool", true);
    if (gguf_build_array(&build, "a.strings", GGUF_STRING, 3)) {
        gguf_append_string(&build.keys, "one");
        gguf_append_string(&build.keys, "");
        gguf_append_string(&build.keys, "three");
    }
    if (gguf_build_array(&build, "a.integers", GGUF_I16, 2))
        gguf_append_number(&build.keys, 0xffff0005u, 4);
    if (gguf_build_array(&build, "a.floats", GGUF_F32, 2)) {
        gguf_append_number(&build.keys, f32_bits(1.5f), 4);
        gguf_append_number(&build.keys, f32_bits(-2), 4);
    }
    gguf_build_u32(&build, "split.count", 1);
    gguf_build_tensor_of(&build, "first.weight", TENSOR_F32, 8, 4, 1, false, NULL);
    gguf_build_tensor_of(&build, "second.weight", TENSOR_Q4_1, 64, 3, 1, false, NULL);
    gguf_build_tensor_of(&build, "third.weight", TENSOR_Q6_K, 256, 1, 1, false, NULL);
    return gguf_build_finish(&build, count);
}

/* Returns where the name of a key or tensor ends. */
static size_t find_name(const unsigned char *bytes, size_t count, const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 8; i + length <= count; i++)
        if (memcmp(bytes + i, name, length) == 0 && bytes[i - 8] == length && bytes[i - 7] == 0)
            return i + length;
    fail_msg("no name %s", name);
    return 0;
}

struct damage {
    const char *label;
    const char *name; /* at: counted from the end of this name; NULL: from the start of the file */
    int at, width;    /* width 0: the file is cut there */
    uint64_t value;
    enum status status;
    const char *fragment;
};

static const struct damage damages[] = {
    {"empty", NULL, 0, 0, 0, STATUS_DATA_LOSS, "magic at offset 0x0: needs 4 bytes, the file has 0 left"},
    {"not a GGUF file", NULL, 0, 4, 0x04034b50, STATUS_INVALID_ARGUMENT, "begins with bytes 50 4b 03 04, not with \"GGUF\""},
    {"big-endian magic", NULL, 0, 4, 0x47475546, STATUS_UNIMPLEMENTED, "a big-endian GGUF file"},
    {"big-endian version", NULL, 4, 4, 0x03000000, STATUS_UNIMPLEMENTED, "version at offset 0x4: a big-endian GGUF file"},
    {"version 1", NULL, 4, 4, 1, STATUS_UNIMPLEMENTED, "GGUF version 1, only version 3"},
    {"version 2", NULL, 4, 4, 2, STATUS_UNIMPLEMENTED, "GGUF version 2, only version 3"},
    {"version 4", NULL, 4, 4, 4, STATUS_UNIMPLEMENTED, "GGUF version 4"},
    {"ends in the version", NULL, 6, 0, 0, STATUS_DATA_LOSS, "version at offset 0x4: needs 4 bytes, the file has 2 left"},
    {"ends before the counts", NULL, 8, 0, 0, STATUS_DATA_LOSS, "tensor count at offset 0x8"},
    {"ends in the key count", NULL, 20, 0, 0, STATUS_DATA_LOSS,
     "tensor count at offset 0x8: 3 are more than the file has room for"},
    {"too many tensors", NULL, 8, 8, 65537, STATUS_DATA_LOSS, "tensor count at offset 0x8: 65537 are more than the limit"},
    {"2^64 - 1 tensors", NULL, 8, 8, UINT64_MAX, STATUS_DATA_LOSS, "18446744073709551615 are more than the limit"},
    {"more tensors than bytes", NULL, 8, 8, 60000, STATUS_DATA_LOSS, "60000 are more than the file has room for"},
    {"too many keys", NULL, 16, 8, (uint64_t)1 << 40, STATUS_DATA_LOSS,
     "key count at offset 0x10: 1099511627776 are more than the limit"},
    {"more keys than bytes", NULL, 16, 8, 50000, STATUS_DATA_LOSS, "50000 are more than the file has room for"},
    {"one key too many", NULL, 16, 8, 17, STATUS_DATA_LOSS, "tensor entry at offset 0x1fb: needs 1125899906842624 bytes"},
    {"no keys: the first is taken for a tensor", NULL, 16, 8, 0, STATUS_DATA_LOSS,
     "tensor 'general.name' at offset 0x18: 8 dimensions"},
    {"huge key length", NULL, 24, 8, UINT64_MAX, STATUS_DATA_LOSS, "key at offset 0x20: needs 18446744073709551615 bytes"},
    {"empty key", NULL, 24, 8, 0, STATUS_DATA_LOSS, "its name has 0 bytes, expected 1 to 255"},
    {"key of 300 bytes", NULL, 24, 8, 300, STATUS_DATA_LOSS, "its name has 300 bytes, expected 1 to 255"},
    {"unknown value type", "a.u8", KEY_TYPE, 4, 13, STATUS_DATA_LOSS, "key 'a.u8' at offset 0x5f: value type 13, expected 0 to 12"},
    {"wild value type", "a.u8", KEY_TYPE, 4, UINT32_MAX, STATUS_DATA_LOSS, "value type 4294967295"},
    {"bool of 2", "a.bool", KEY_VALUE, 1, 2, STATUS_DATA_LOSS, "key 'a.bool' at offset"},
    {"string past the end", "general.name", KEY_VALUE, 8, 1 << 20, STATUS_DATA_LOSS, "'general.name': string at offset"},
    {"string of 2^63", "general.name", KEY_VALUE, 8, (uint64_t)1 << 63, STATUS_DATA_LOSS, "needs 9223372036854775808 bytes"},
    {"array of arrays", "a.integers", KEY_VALUE, 4, GGUF_ARRAY, STATUS_UNIMPLEMENTED, "an array of type 9, expected a number type"},
    {"array of unknown type", "a.integers", KEY_VALUE, 4, 99, STATUS_DATA_LOSS, "an array of type 99"},
    {"array past the end", "a.integers", KEY_COUNT, 8, 1 << 20, STATUS_DATA_LOSS, "key 'a.integers' at offset"},
    {"array whose size overflows", "a.integers", KEY_COUNT, 8, (uint64_t)1 << 63, STATUS_DATA_LOSS,
     "an array of 9223372036854775808 elements"},
    {"array of too many strings", "a.strings", KEY_COUNT, 8, (uint64_t)1 << 61, STATUS_DATA_LOSS,
     "an array of 2305843009213693952 elements"},
    {"string of an array past the end", "a.strings", KEY_ELEMENTS, 8, 1 << 24, STATUS_DATA_LOSS,
     "'a.strings': string of an array at offset"},
    {"duplicate key", "a.u8", -2, 2, 0x3869, STATUS_DATA_LOSS, "key 'a.i8' at offset"},
    {"ends in a key", "a.f64", 6, 0, 0, STATUS_DATA_LOSS, "'a.f64': value at offset"},
    {"split file", "split.count", KEY_VALUE, 4, 3, STATUS_UNIMPLEMENTED, "key 'split.count' is 3: one of several parts"},
    {"split count is no number", "split.count", KEY_TYPE, 4, GGUF_F32, STATUS_INVALID_ARGUMENT,
     "has type f32, expected an unsigned integer"},
    {"alignment 0", "general.alignment", KEY_VALUE, 4, 0, STATUS_DATA_LOSS, "'general.alignment' is 0, expected a power of two"},
    {"alignment 48", "general.alignment", KEY_VALUE, 4, 48, STATUS_DATA_LOSS, "'general.alignment' is 48"},
    {"alignment 2^31", "general.alignment", KEY_VALUE, 4, 1u << 31, STATUS_DATA_LOSS, "'general.alignment' is 2147483648"},
    {"alignment of another type", "general.alignment", KEY_TYPE, 4, GGUF_F32, STATUS_INVALID_ARGUMENT, "has type f32"},
    {"no dimensions", "first.weight", TENSOR_DIMS, 4, 0, STATUS_DATA_LOSS, "tensor 'first.weight' at offset"},
    {"five dimensions", "first.weight", TENSOR_DIMS, 4, 5, STATUS_DATA_LOSS, "5 dimensions, expected 1 to 4"},
    {"dimension 0", "first.weight", TENSOR_DIM1, 8, 0, STATUS_DATA_LOSS, "dimension 1 is 0"},
    {"dimensions that overflow", "first.weight", TENSOR_DIM0, 8, (uint64_t)1 << 62, STATUS_DATA_LOSS, "are absurd"},
    {"dimensions whose product is 0 in 64 bits", "first.weight", TENSOR_DIM1, 8, (uint64_t)1 << 61, STATUS_DATA_LOSS, "are absurd"},
    {"half a block", "second.weight", TENSOR_DIM0, 8, 48, STATUS_DATA_LOSS,
     "a row of 48 values is not a whole number of Q4_1 blocks of 32"},
    {"type without support", "second.weight", TENSOR_TYPE, 4, 16, STATUS_UNIMPLEMENTED,
     "tensor type 16 is not supported; supported are F32, F16"},
    {"wild type", "second.weight", TENSOR_TYPE, 4, UINT32_MAX, STATUS_UNIMPLEMENTED, "tensor type 4294967295 is not supported"},
    {"data off the alignment", "second.weight", TENSOR_OFFSET, 8, 132, STATUS_DATA_LOSS,
     "data offset 0x84 is not a multiple of the alignment 32"},
    {"data outside", "second.weight", TENSOR_OFFSET, 8, 1 << 20, STATUS_DATA_LOSS, "end outside the file of"},
    {"data offset that overflows", "second.weight", TENSOR_OFFSET, 8, UINT64_MAX - 31, STATUS_DATA_LOSS, "end outside the file of"},
    {"more rows than data", "third.weight", TENSOR_DIM1, 8, 2, STATUS_DATA_LOSS, "(cut short?)"},
    {"data over another's", "second.weight", TENSOR_OFFSET, 8, 96, STATUS_DATA_LOSS, "its data lies over that of 'first.weight'"},
    {"tensor name of 300 bytes", "first.weight", -20, 8, 300, STATUS_DATA_LOSS, "its name has 300 bytes"},
};

/* Opens an exact copy, so that a sanitizer sees a read one byte too far. */
static enum status open_copy(const unsigned char *bytes, size_t count, struct gguf **out, unsigned char **copy, struct error *error)
{
    *copy = malloc(count ? count : 1);
    if (count)
        memcpy(*copy, bytes, count);
    return gguf_open_memory("sample.gguf", *copy, count, out, error);
}

static void damage_is_told(void **state)
{
    uint32_t failed = 0;
    for (size_t i = 0; i < ARRAY_COUNT(damages); i++) {
        const struct damage *d = &damages[i];
        struct gguf *gguf = NULL;
        struct error error = {0};
        size_t count;
        unsigned char *bytes = build_sample(&count), *copy;
        size_t at = (size_t)((d->name ? (int)find_name(bytes, count, d->name) : 0) + d->at);

        for (int byte = 0; byte < d->width; byte++)
            bytes[at + (size_t)byte] = (unsigned char)(d->value >> (8 * byte));
        enum status status = open_copy(bytes, d->width ? count : at, &gguf, &copy, &error);
        if (status != d->status || !strstr(error.text, d->fragment) || strncmp(error.text, "sample.gguf: ", 13) != 0 ||
            strchr(error.text, '\n'))
            failed++, print_error("%s: %s \"%s\", expected %s \"%s\"\n", d->label, status_name(status), error.text,
                                  status_name(d->status), d->fragment);
        gguf_close(status ? NULL : gguf);
        free(copy);
        free(bytes);
    }
    assert_int_equal(failed, 0);
}

static void duplicate_tensors_are_told(void **state)
{
    struct gguf_build build = {.seed = 1};
    struct gguf *gguf;
    struct error error;
    size_t count;

    gguf_build_tensor_of(&build, "w\n", TENSOR_F32, 8, 4, 1, false, NULL);
    gguf_build_tensor_of(&build, "v", TENSOR_F32, 8, 4, 1, false, NULL);
    gguf_build_tensor_of(&build, "w\n", TENSOR_F32, 8, 4, 1, false, NULL);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    assert_int_equal(gguf_open_memory("x", bytes, count, &gguf, &error), STATUS_DATA_LOSS);
    assert_non_null(strstr(error.text, "x: tensor 'w?' at offset"));
    assert_non_null(strstr(error.text, "another tensor of this name"));
    assert_null(strchr(error.text, '\n'));
    free(bytes);
}

static void every_cut_is_told(void **state)
{
    size_t count;
    unsigned char *bytes = build_sample(&count), *copy;
    for (size_t cut = 0; cut < count; cut++) {
        struct gguf *gguf = NULL;
        struct error error = {0};
        assert_int_not_equal(open_copy(bytes, cut, &gguf, &copy, &error), STATUS_OK);
        assert_true(strlen(error.text) > 20);
        free(copy);
    }
    free(bytes);
}

/* No value of any byte may be read past the end; whatever opens can be walked. */
static void every_flip_is_survived(void **state)
{
    size_t count;
    unsigned char *bytes = build_sample(&count), *copy;
    uint32_t opened = 0;
    for (size_t at = 0; at < count; at++) {
        static const unsigned char masks[] = {0x01, 0x80, 0xff};
        for (size_t m = 0; m < sizeof masks; m++) {
            struct gguf *gguf = NULL;
            struct error error = {0};
            bytes[at] ^= masks[m];
            if (open_copy(bytes, count, &gguf, &copy, &error) == STATUS_OK) {
                opened++;
                for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
                    const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
                    assert_true((const unsigned char *)tensor->data + tensor->bytes <= copy + count);
                }
                gguf_close(gguf);
            } else {
                assert_non_null(strstr(error.text, "sample.gguf: "));
            }
            free(copy);
            bytes[at] ^= masks[m];
        }
    }
    assert_true(opened > 100); /* flips in the data and in names */
    free(bytes);
}

static void values_are_read_back(void **state)
{
    struct gguf *gguf;
    struct error error;
    struct gguf_string string;
    struct gguf_array array;
    size_t count;
    unsigned char *bytes = build_sample(&count);

    assert_int_equal(gguf_open_memory("sample.gguf", bytes, count, &gguf, &error), STATUS_OK);
    assert_text(gguf, "general.name", "sample");
    assert_int_equal(u32_of(gguf, "a.u8"), 200);
    assert_int_equal(u32_of(gguf, "a.u16"), 60000);
    assert_int_equal(u32_of(gguf, "a.i16"), 32767);
    assert_int_equal(u32_of(gguf, "a.i64"), 77);
    assert_true(f32_of(gguf, "a.f32") == 0.25f);
    assert_true(f32_of(gguf, "a.f64") == 1.5f);
    assert_true(is_set(gguf, "a.bool"));

    assert_int_equal(gguf_get_strings(gguf, "a.strings", &array, &error), STATUS_OK);
    assert_int_equal(array.count, 3);
    struct gguf_strings walk = gguf_strings_of(&array);
    static const char *const expected[] = {"one", "", "three"};
    for (size_t i = 0; i < 3; i++) {
        assert_true(gguf_next_string(&walk, &string));
        assert_int_equal(string.length, strlen(expected[i]));
        assert_memory_equal(string.data, expected[i], string.length);
    }
    assert_false(gguf_next_string(&walk, &string));
    assert_int_equal(gguf_get_integers(gguf, "a.integers", &array, &error), STATUS_OK);
    assert_int_equal(gguf_array_integer(&array, 0), 5);
    assert_int_equal(gguf_array_integer(&array, 1), -1);
    assert_int_equal(gguf_get_floats(gguf, "a.floats", &array, &error), STATUS_OK);
    assert_true(gguf_array_float(&array, 0) == 1.5 && gguf_array_float(&array, 1) == -2);
    gguf_close(gguf);
    free(bytes);
}

static void wrong_types_and_ranges_are_told(void **state)
{
    struct gguf *gguf;
    struct error error;
    struct gguf_string string;
    struct gguf_array array;
    size_t count;
    unsigned char *bytes = build_sample(&count);
    uint32_t u32 = 5;
    float f32;
    bool truth;

    assert_int_equal(gguf_open_memory("sample.gguf", bytes, count, &gguf, &error), STATUS_OK);
    assert_int_equal(gguf_get_u32(gguf, "absent", &u32, &error), STATUS_NOT_FOUND);
    assert_string_equal(error.text, "sample.gguf: key 'absent' is missing: expected an unsigned integer");
    assert_int_equal(gguf_get_u32(gguf, "a.i8", &u32, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "-2 is not in 0 to 4294967295"));
    assert_int_equal(gguf_get_u32(gguf, "a.i32", &u32, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(gguf_get_u32(gguf, "a.u64", &u32, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(gguf_get_u32(gguf, "a.strings", &u32, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "has type array of string, expected an unsigned integer"));
    assert_int_equal(u32, 5);
    assert_int_equal(gguf_get_f32(gguf, "a.u8", &f32, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(gguf_get_bool(gguf, "a.u8", &truth, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(gguf_get_string(gguf, "a.bool", &string, NULL), STATUS_INVALID_ARGUMENT);
    assert_int_equal(gguf_get_strings(gguf, "a.floats", &array, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(gguf_get_integers(gguf, "a.floats", &array, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(gguf_get_floats(gguf, "a.integers", &array, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(gguf_get_floats(gguf, "general.name", &array, &error), STATUS_INVALID_ARGUMENT);
    gguf_close(gguf);
    free(bytes);
}

static void tensors_are_found(void **state)
{
    struct gguf *gguf;
    struct error error;
    size_t count;
    unsigned char *bytes = build_sample(&count);

    assert_int_equal(gguf_open_memory("sample.gguf", bytes, count, &gguf, &error), STATUS_OK);
    assert_int_equal(gguf_tensor_count(gguf), 3);
    assert_null(gguf_find_tensor(gguf, "first"));
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, "second.weight");
    assert_non_null(tensor);
    assert_ptr_equal(tensor, gguf_tensor_at(gguf, 1));
    assert_int_equal(tensor->type, TENSOR_Q4_1);
    assert_int_equal(tensor->dims[0], 64);
    assert_int_equal(tensor->dims[1], 3);
    assert_int_equal(tensor->dims[2], 1);
    assert_int_equal(tensor->bytes, 3 * 2 * 20);
    assert_int_equal(tensor->data_offset, gguf_header_bytes(gguf) + 128);
    assert_ptr_equal(tensor->data, bytes + tensor->data_offset);
    assert_int_equal(gguf_key_count(gguf), 16);
    assert_memory_equal(gguf_key_name(gguf, 2).data, "a.u8", 4);
    gguf_close(gguf);
    free(bytes);
}

static void files_that_are_none_are_told(void **state)
{
    struct gguf *gguf;
    struct error error;
    char path[] = "/tmp/fd-gguf-XXXXXX", long_path[1024];
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(gguf_open(path, &gguf, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "an empty file"));
    close(fd);
    unlink(path);
    assert_int_equal(gguf_open(path, &gguf, &error), STATUS_NOT_FOUND);
    assert_non_null(strstr(error.text, "cannot be opened: No such file"));
    assert_int_equal(model_file_open("/tmp", &gguf, &error), STATUS_INVALID_ARGUMENT);
    assert_string_equal(error.text, "/tmp: not a model's directory: it has no config.json");
    memset(long_path, 'x', sizeof long_path);
    strcpy(long_path + sizeof long_path - 12, "/model.gguf");
    assert_int_not_equal(gguf_open(long_path, &gguf, &error), STATUS_OK);
    assert_true(strncmp(error.text, "...xxx", 6) == 0);
    assert_non_null(strstr(error.text, "/model.gguf: cannot be opened"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_back),       cmocka_unit_test(wrong_types_and_ranges_are_told),
        cmocka_unit_test(tensors_are_found),          cmocka_unit_test(damage_is_told),
        cmocka_unit_test(duplicate_tensors_are_told), cmocka_unit_test(every_cut_is_told),
        cmocka_unit_test(every_flip_is_survived),     cmocka_unit_test(files_that_are_none_are_told),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
