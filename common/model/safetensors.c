// safetensors.c: see safetensors.h.
#include "common/model/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/gguf_state.h"
#include "common/model/hf_json.h"

enum { LENGTH_BYTES = 8, SHOWN_BYTES = 96, DATA_ALIGNMENT = 8 };

struct reader {
    const char *label;
    uint64_t data_begin, data_bytes;
    struct error *error;
    const char *name; // of the tensor that is being read
};

static const struct {
    const char *name;
    enum tensor_type type;
} types[] = {{"F32", TENSOR_F32}, {"F16", TENSOR_F16}, {"BF16", TENSOR_BF16}};

#define ABOUT "%s: tensor '%s': "
#define ABOUT_TENSOR(reader, buffer) \
    (reader)->label, gguf_printable((buffer), sizeof(buffer), (struct gguf_string){(reader)->name, strlen((reader)->name)})

static enum status read_type(const struct reader *reader, const json_t *value, struct safetensor *tensor)
{
    char shown[SHOWN_BYTES], type[32];

    for (size_t i = 0; json_is_string(value) && i < ARRAY_COUNT(types); i++)
        if (strcmp(types[i].name, json_string_value(value)) == 0) {
            tensor->type = types[i].type;
            return STATUS_OK;
        }
    tensor->is_bytes = json_is_string(value) && strcmp(json_string_value(value), "U8") == 0;
    if (tensor->is_bytes)
        return STATUS_OK;
    return error_set(reader->error, STATUS_UNIMPLEMENTED,
                     ABOUT "dtype is %s; supported are F32, F16, BF16 (for quantized weights use a GGUF file)",
                     ABOUT_TENSOR(reader, shown), hf_json_shown(type, sizeof type, value));
}

static uint32_t value_bytes_of(const struct safetensor *tensor)
{
    return tensor->is_bytes ? 1 : tensor_type_info((uint32_t)tensor->type)->block_bytes;
}

// Fills the shape and the bytes that follow from it.
static enum status read_shape(const struct reader *reader, const json_t *value, struct safetensor *tensor)
{
    char shown[SHOWN_BYTES];
    uint64_t values = 1;
    size_t count = json_array_size(value);

    if (!json_is_array(value) || count == 0 || count > SAFETENSORS_MAX_DIMS)
        return error_set(reader->error, json_is_array(value) ? STATUS_UNIMPLEMENTED : STATUS_DATA_LOSS,
                         ABOUT "shape is %s of %zu numbers, expected an array of 1 to %d", ABOUT_TENSOR(reader, shown),
                         json_is_array(value) ? "an array" : "no array", count, SAFETENSORS_MAX_DIMS);
    tensor->dim_count = (uint32_t)count;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        uint64_t dim;
        if (!hf_json_whole(json_array_get(value, i), &dim) || dim == 0)
            return error_set(reader->error, STATUS_DATA_LOSS, ABOUT "dimension %u of its shape is no whole number above 0",
                             ABOUT_TENSOR(reader, shown), i);
        if (!checked_mul_u64(values, dim, &values) || values > (uint64_t)1 << 56)
            return error_set(reader->error, STATUS_DATA_LOSS, ABOUT "its shape is absurd", ABOUT_TENSOR(reader, shown));
        tensor->shape[i] = dim;
    }
    tensor->bytes = values * value_bytes_of(tensor);
    return STATUS_OK;
}

static enum status read_offsets(const struct reader *reader, const json_t *value, struct safetensor *tensor)
{
    char shown[SHOWN_BYTES];
    uint64_t begin, end;
    uint32_t value_bytes = value_bytes_of(tensor);

    if (json_array_size(value) != 2 || !hf_json_whole(json_array_get(value, 0), &begin) ||
        !hf_json_whole(json_array_get(value, 1), &end))
        return error_set(reader->error, STATUS_DATA_LOSS, ABOUT "data_offsets is not [begin, end]", ABOUT_TENSOR(reader, shown));
    if (begin > end || end > reader->data_bytes)
        return error_set(reader->error, STATUS_DATA_LOSS,
                         ABOUT "data_offsets [%" PRIu64 ", %" PRIu64 "] lie outside the %" PRIu64 " bytes of data (cut short?)",
                         ABOUT_TENSOR(reader, shown), begin, end, reader->data_bytes);
    if (end - begin != tensor->bytes)
        return error_set(reader->error, STATUS_DATA_LOSS,
                         ABOUT "has %" PRIu64 " bytes by data_offsets, %" PRIu64 " by shape and dtype", ABOUT_TENSOR(reader, shown),
                         end - begin, tensor->bytes);
    tensor->offset = reader->data_begin + begin;
    if (begin % value_bytes != 0)
        return error_set(reader->error, STATUS_UNIMPLEMENTED,
                         ABOUT "lies at byte %" PRIu64
                               " of the data, which is no multiple of %u: write the file again with a current "
                               "version of safetensors",
                         ABOUT_TENSOR(reader, shown), begin, value_bytes);
    return STATUS_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct safetensor *x = *(const struct safetensor *const *)a, *y = *(const struct safetensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

// The tensors must cover the data: what overlaps, or is left over at the end, is another file than the header says.
static enum status check_cover(const struct reader *reader, const struct safetensors *file)
{
    char shown[SHOWN_BYTES], other[SHOWN_BYTES];
    struct safetensor **order = calloc(file->tensor_count + 1u, sizeof *order);
    uint64_t end = reader->data_begin;
    enum status status = STATUS_OK;

    if (!order)
        return error_set(reader->error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %u tensors", reader->label,
                         file->tensor_count);
    for (uint32_t i = 0; i < file->tensor_count; i++)
        order[i] = &file->tensors[i];
    qsort(order, file->tensor_count, sizeof *order, compare_offsets);
    for (uint32_t i = 0; !status && i < file->tensor_count; i++) {
        if (order[i]->offset < end)
            status = error_set(
                reader->error, STATUS_DATA_LOSS, "%s: tensor '%s': its data lies over that of '%s'", reader->label,
                gguf_printable(shown, sizeof shown, (struct gguf_string){order[i]->name, strlen(order[i]->name)}),
                gguf_printable(other, sizeof other, (struct gguf_string){order[i - 1]->name, strlen(order[i - 1]->name)}));
        end = order[i]->offset + order[i]->bytes;
    }
    if (!status && end != reader->data_begin + reader->data_bytes)
        status = error_set(reader->error, STATUS_DATA_LOSS, "%s: its tensors end at byte %" PRIu64 ", the file at %" PRIu64,
                           reader->label, end, reader->data_begin + reader->data_bytes);
    free(order);
    return status;
}

static enum status read_tensors(struct reader *reader, struct safetensors *file)
{
    size_t count = json_object_size(file->header);
    const char *name;
    json_t *value;
    enum status status = STATUS_OK;

    if (count > SAFETENSORS_MAX_TENSORS)
        return error_set(reader->error, STATUS_RESOURCE_EXHAUSTED, "%s: %zu tensors, supported: up to %d", reader->label, count,
                         SAFETENSORS_MAX_TENSORS);
    file->tensors = calloc(count + 1, sizeof *file->tensors);
    if (!file->tensors)
        return error_set(reader->error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %zu tensors", reader->label, count);
    json_object_foreach (file->header, name, value) {
        char shown[SHOWN_BYTES];
        if (strcmp(name, "__metadata__") == 0)
            continue;
        struct safetensor *tensor = &file->tensors[file->tensor_count++];
        tensor->name = reader->name = name;
        if (!json_is_object(value))
            return error_set(reader->error, STATUS_DATA_LOSS, ABOUT "its entry is no object", ABOUT_TENSOR(reader, shown));
        if ((status = read_type(reader, json_object_get(value, "dtype"), tensor)) ||
            (status = read_shape(reader, json_object_get(value, "shape"), tensor)) ||
            (status = read_offsets(reader, json_object_get(value, "data_offsets"), tensor)))
            return status;
        if (tensor->offset % value_bytes_of(tensor) != 0) // the header is not padded
            file->lead_bytes = (uint32_t)(DATA_ALIGNMENT - reader->data_begin % DATA_ALIGNMENT);
    }
    return check_cover(reader, file);
}

enum status safetensors_open(const char *label, const unsigned char *bytes, uint64_t byte_count, struct safetensors *out,
                             struct error *error)
{
    struct reader reader = {.label = label, .error = error};
    uint64_t header_bytes;
    enum status status;

    *out = (struct safetensors){0};
    if (byte_count < LENGTH_BYTES)
        return error_set(error, STATUS_DATA_LOSS, "%s: %" PRIu64 " bytes, too few for a safetensors file", label, byte_count);
    header_bytes = gguf_read_le(bytes, LENGTH_BYTES);
    if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "%s: a header of %" PRIu64 " bytes, supported: up to %d; not a safetensors file?", label, header_bytes,
                         SAFETENSORS_MAX_HEADER_BYTES);
    if (header_bytes > byte_count - LENGTH_BYTES)
        return error_set(error, STATUS_DATA_LOSS, "%s: a header of %" PRIu64 " bytes, the file has %" PRIu64 " left (cut short?)",
                         label, header_bytes, byte_count - LENGTH_BYTES);
    if (header_bytes == 0 || bytes[LENGTH_BYTES] != '{')
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: not a safetensors file: its header does not begin with '{'", label);
    reader.data_begin = LENGTH_BYTES + header_bytes;
    reader.data_bytes = byte_count - reader.data_begin;
    status = hf_json_parse(label, bytes + LENGTH_BYTES, header_bytes, &out->header, error);
    if (!status)
        status = read_tensors(&reader, out);
    if (status)
        safetensors_close(out);
    return status;
}

void safetensors_close(struct safetensors *file)
{
    free(file->tensors);
    json_decref(file->header);
    *file = (struct safetensors){0};
}
