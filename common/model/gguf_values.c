// gguf_values.c: looks up keys and tensors of an opened GGUF file and reads typed values.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/gguf_state.h"

static const struct {
    const char *name;
    uint32_t bytes;
} types[] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2}, [GGUF_I16] = {"i16", 2},
    [GGUF_U32] = {"u32", 4},       [GGUF_I32] = {"i32", 4},     [GGUF_F32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0}, [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(uint32_t type) { return type < ARRAY_COUNT(types) ? types[type].name : "?"; }

uint32_t gguf_scalar_bytes(uint32_t type) { return type < ARRAY_COUNT(types) ? types[type].bytes : 0; }

int gguf_compare_names(struct gguf_string a, struct gguf_string b)
{
    int order = memcmp(a.data, b.data, (size_t)MIN(a.length, b.length));
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

static int compare_with_key(const void *name, const void *key)
{
    return gguf_compare_names(*(const struct gguf_string *)name, (*(struct gguf_key *const *)key)->name);
}

static int compare_with_tensor(const void *name, const void *tensor)
{
    return gguf_compare_names(*(const struct gguf_string *)name, (*(struct gguf_tensor *const *)tensor)->name);
}

const struct gguf_key *gguf_find_key(const struct gguf *gguf, const char *name)
{
    struct gguf_string wanted = {name, strlen(name)};
    struct gguf_key *const *found =
        bsearch(&wanted, gguf->keys_by_name, gguf->key_count, sizeof *gguf->keys_by_name, compare_with_key);
    return found ? *found : NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name)
{
    struct gguf_string wanted = {name, strlen(name)};
    struct gguf_tensor *const *found =
        bsearch(&wanted, gguf->tensors_by_name, gguf->tensor_count, sizeof *gguf->tensors_by_name, compare_with_tensor);
    return found ? *found : NULL;
}

bool gguf_has(const struct gguf *gguf, const char *key) { return gguf_find_key(gguf, key) != NULL; }

// --- scalars ---

static enum status find(const struct gguf *gguf, const char *name, const char *expected, const struct gguf_key **out,
                        struct error *error)
{
    *out = gguf_find_key(gguf, name);
    if (!*out)
        return error_set(error, STATUS_NOT_FOUND, "%s: key '%s' is missing: expected %s", gguf->label, name, expected);
    return STATUS_OK;
}

static enum status wrong_type(const struct gguf *gguf, const struct gguf_key *key, const char *name, const char *expected,
                              struct error *error)
{
    bool array = key->type == GGUF_ARRAY;
    return error_set(error, STATUS_INVALID_ARGUMENT, "%s: key '%s' at offset 0x%" PRIx64 ": has type %s%s, expected %s",
                     gguf->label, name, key->entry_offset, array ? "array of " : "",
                     gguf_type_name(array ? key->array.type : key->type), expected);
}

static bool is_signed(enum gguf_type type) { return type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64; }

static bool is_integer(enum gguf_type type)
{
    return is_signed(type) || type == GGUF_U8 || type == GGUF_U16 || type == GGUF_U32 || type == GGUF_U64;
}

static bool is_float(enum gguf_type type) { return type == GGUF_F32 || type == GGUF_F64; }

// Sign-extended if the type is signed.
static uint64_t integer_bits(enum gguf_type type, const unsigned char *bytes)
{
    uint32_t count = gguf_scalar_bytes(type);
    uint64_t value = gguf_read_le(bytes, count);
    if (is_signed(type) && count < 8 && value >> (8 * count - 1))
        value |= UINT64_MAX << (8 * count);
    return value;
}

static double float_value(enum gguf_type type, const unsigned char *bytes)
{
    uint32_t low = (uint32_t)gguf_read_le(bytes, 4);
    float single;
    double wide;
    if (type == GGUF_F32) {
        memcpy(&single, &low, sizeof single);
        return (double)single;
    }
    uint64_t bits = gguf_read_le(bytes, 8);
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

enum status gguf_get_u32(const struct gguf *gguf, const char *name, uint32_t *out, struct error *error)
{
    const struct gguf_key *key;
    enum status status = find(gguf, name, "an unsigned integer", &key, error);
    if (status)
        return status;
    if (!is_integer(key->type))
        return wrong_type(gguf, key, name, "an unsigned integer", error);
    uint64_t value = integer_bits(key->type, key->value);
    if (value > UINT32_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         is_signed(key->type) ? "%s: key '%s' at offset 0x%" PRIx64 ": %" PRId64 " is not in 0 to 4294967295"
                                              : "%s: key '%s' at offset 0x%" PRIx64 ": %" PRIu64 " is not in 0 to 4294967295",
                         gguf->label, name, key->entry_offset, value);
    *out = (uint32_t)value;
    return STATUS_OK;
}

const unsigned char *gguf_find_u32(const struct gguf *gguf, const char *name)
{
    const struct gguf_key *key = gguf_find_key(gguf, name);
    return key && key->type == GGUF_U32 ? key->value : NULL;
}

enum status gguf_get_f32(const struct gguf *gguf, const char *name, float *out, struct error *error)
{
    const struct gguf_key *key;
    enum status status = find(gguf, name, "a float", &key, error);
    if (status)
        return status;
    if (!is_float(key->type))
        return wrong_type(gguf, key, name, "a float", error);
    *out = (float)float_value(key->type, key->value);
    return STATUS_OK;
}

enum status gguf_get_bool(const struct gguf *gguf, const char *name, bool *out, struct error *error)
{
    const struct gguf_key *key;
    enum status status = find(gguf, name, "a bool", &key, error);
    if (status)
        return status;
    if (key->type != GGUF_BOOL)
        return wrong_type(gguf, key, name, "a bool", error);
    *out = *key->value != 0;
    return STATUS_OK;
}

enum status gguf_get_string(const struct gguf *gguf, const char *name, struct gguf_string *out, struct error *error)
{
    const struct gguf_key *key;
    enum status status = find(gguf, name, "a string", &key, error);
    if (status)
        return status;
    if (key->type != GGUF_STRING)
        return wrong_type(gguf, key, name, "a string", error);
    *out = key->string;
    return STATUS_OK;
}

// --- arrays ---

static enum status get_array(const struct gguf *gguf, const char *name, const char *expected, bool (*accepts)(enum gguf_type type),
                             struct gguf_array *out, struct error *error)
{
    const struct gguf_key *key;
    enum status status = find(gguf, name, expected, &key, error);
    if (status)
        return status;
    if (key->type != GGUF_ARRAY || !accepts(key->array.type))
        return wrong_type(gguf, key, name, expected, error);
    *out = key->array;
    return STATUS_OK;
}

static bool is_string(enum gguf_type type) { return type == GGUF_STRING; }

enum status gguf_get_strings(const struct gguf *gguf, const char *name, struct gguf_array *out, struct error *error)
{
    return get_array(gguf, name, "an array of strings", is_string, out, error);
}

enum status gguf_get_integers(const struct gguf *gguf, const char *name, struct gguf_array *out, struct error *error)
{
    return get_array(gguf, name, "an array of integers", is_integer, out, error);
}

enum status gguf_get_floats(const struct gguf *gguf, const char *name, struct gguf_array *out, struct error *error)
{
    return get_array(gguf, name, "an array of floats", is_float, out, error);
}

bool gguf_next_string(struct gguf_strings *strings, struct gguf_string *out)
{
    if (strings->left == 0)
        return false;
    out->length = gguf_read_le(strings->next, 8);
    out->data = (const char *)strings->next + 8;
    strings->next += 8 + out->length;
    strings->left--;
    return true;
}

struct gguf_strings gguf_strings_of(const struct gguf_array *array)
{
    assert_always(array->type == GGUF_STRING || array->count == 0);
    return (struct gguf_strings){array->bytes, array->count};
}

int64_t gguf_array_integer(const struct gguf_array *array, uint64_t index)
{
    assert_always(is_integer(array->type) && index < array->count);
    return (int64_t)integer_bits(array->type, array->bytes + index * gguf_scalar_bytes(array->type));
}

double gguf_array_float(const struct gguf_array *array, uint64_t index)
{
    assert_always(is_float(array->type) && index < array->count);
    return float_value(array->type, array->bytes + index * gguf_scalar_bytes(array->type));
}

// --- tables and the file ---

uint32_t gguf_key_count(const struct gguf *gguf) { return gguf->key_count; }

struct gguf_string gguf_key_name(const struct gguf *gguf, uint32_t index)
{
    assert_always(index < gguf->key_count);
    return gguf->keys[index].name;
}

uint32_t gguf_tensor_count(const struct gguf *gguf) { return gguf->tensor_count; }

const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint32_t index)
{
    assert_always(index < gguf->tensor_count);
    return &gguf->tensors[index];
}

const char *gguf_file_name(const struct gguf *gguf) { return gguf->name; }

const char *gguf_label(const struct gguf *gguf) { return gguf->label; }

uint64_t gguf_file_bytes(const struct gguf *gguf) { return gguf->byte_count; }

uint64_t gguf_header_bytes(const struct gguf *gguf) { return gguf->data_begin; }

const unsigned char *gguf_bytes(const struct gguf *gguf) { return gguf->bytes; }
