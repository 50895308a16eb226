// gguf.c: see gguf.h: the header of a GGUF file is walked and checked once; then keys, tensors and values are looked up in its tables.
#include "common/model/gguf/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/model/gguf/header.h"

static uint32_t gguf_scalar_bytes(uint32_t type);
static int gguf_compare_names(struct gguf_string a, struct gguf_string b);

// --- mapped files ---------------------------------------------------------------------------------------------------

enum status mapped_file_open(const char *path, const char *label, const char *kind, struct mapped_file *out, struct error *error)
{
    enum status status = STATUS_OK;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO must not hang us

    *out = (struct mapped_file){0};
    if (fd < 0)
        return error_set(error, status_of_path(errno), "%s: cannot be opened: %s", label, strerror(errno));
    if (fstat(fd, &info) != 0)
        status = error_set(error, STATUS_UNAVAILABLE, "%s: cannot be examined: %s", label, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = error_set(error, STATUS_INVALID_ARGUMENT, "%s: not a regular file", label);
    else if (info.st_size == 0)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "%s: an empty file, not a %s file", label, kind);
    if (!status) {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: %lld bytes cannot be mapped: %s", label,
                               (long long)info.st_size, strerror(errno));
        else
            *out = (struct mapped_file){.bytes = map, .byte_count = (uint64_t)info.st_size, .mapped = true};
    }
    close(fd);
    return status;
}

void mapped_file_close(struct mapped_file *file)
{
    if (file->mapped)
        munmap((void *)(uintptr_t)file->bytes, file->byte_count);
    *file = (struct mapped_file){0};
}

// --- the walk -------------------------------------------------------------------------------------------------------

// Walks the header of a GGUF file once, checks all of it, and keeps sorted tables of keys and tensors.
//
// Two passes, because a tensor's place in the file depends on general.alignment and on where the last entry ends:
//
//     walk   magic, version, counts ─ keys ─ tensor entries     (each length compared with what remains, then used)
//     place  alignment ─ data_begin ─ each tensor inside the file, aligned, not over another
//
// Memory: 88 bytes a key and 96 a tensor, and no more entries than bytes that remain could hold, so a small file cannot
// ask for much. Duplicates are found by sorting, which no choice of names makes slow. Worked number: 33 keys and 272
// tensors are 305 entries and 29 KB; the walk is bound by the 98,000 strings of tokens and merges.

enum {
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 1 << 16,
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,            // length, one letter, type, one byte of value
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, // length, one letter, n_dims, one dim, type, offset
    SHOWN_NAME_BYTES = 72,
};

struct walk {
    struct gguf *gguf;
    uint64_t at;
    const struct gguf_string *inside; // the key or tensor that is being read, for messages; NULL outside of them
    struct error *error;
};

// --- reading --------------------------------------------------------------------------------------------------------

static enum status cut_short(const struct walk *walk, const char *what, uint64_t wanted)
{
    char shown[SHOWN_NAME_BYTES];
    const char *name = walk->inside ? gguf_printable(shown, sizeof shown, *walk->inside) : NULL;
    return error_set(walk->error, STATUS_DATA_LOSS,
                     "%s: %s%s%s%s at offset 0x%" PRIx64 ": needs %" PRIu64 " bytes, the file has %" PRIu64 " left",
                     walk->gguf->label, name ? "'" : "", name ? name : "", name ? "': " : "", what, walk->at, wanted,
                     walk->gguf->byte_count - walk->at);
}

static enum status read_bytes(struct walk *walk, const char *what, uint64_t count, const unsigned char **out)
{
    if (count > walk->gguf->byte_count - walk->at)
        return cut_short(walk, what, count);
    *out = walk->gguf->bytes + walk->at;
    walk->at += count;
    return STATUS_OK;
}

static enum status read_number(struct walk *walk, const char *what, uint32_t byte_count, uint64_t *out)
{
    const unsigned char *bytes;
    enum status status = read_bytes(walk, what, byte_count, &bytes);
    if (!status)
        *out = gguf_read_le(bytes, byte_count);
    return status;
}

static enum status read_string(struct walk *walk, const char *what, struct gguf_string *out)
{
    uint64_t length;
    const unsigned char *bytes;
    enum status status = read_number(walk, what, 8, &length);
    if (!status)
        status = read_bytes(walk, what, length, &bytes);
    if (!status)
        *out = (struct gguf_string){(const char *)bytes, length};
    return status;
}

// Reads the name of a key or tensor: what = "key" or "tensor entry", for messages.
static enum status read_name(struct walk *walk, const char *what, struct gguf_string *out)
{
    uint64_t begin = walk->at;
    enum status status = read_string(walk, what, out);
    if (!status && (out->length == 0 || out->length > GGUF_MAX_NAME_BYTES))
        return error_set(walk->error, STATUS_DATA_LOSS,
                         "%s: %s at offset 0x%" PRIx64 ": its name has %" PRIu64 " bytes, expected 1 to %d", walk->gguf->label,
                         what, begin, out->length, GGUF_MAX_NAME_BYTES);
    return status;
}

const char *gguf_printable(char *buffer, size_t buffer_bytes, struct gguf_string text)
{
    size_t count = text.length < buffer_bytes - 1 ? (size_t)text.length : buffer_bytes - 1;
    for (size_t i = 0; i < count; i++)
        buffer[i] = text.data[i] >= ' ' && text.data[i] <= '~' ? text.data[i] : '?';
    buffer[count] = '\0';
    return buffer;
}

// Starts the message about a key or a tensor: "FILE: KIND 'NAME' at offset 0x…: "; the caller gives the rest.
#define ABOUT "%s: %s '%s' at offset 0x%" PRIx64 ": "
#define ABOUT_KEY(walk, key, buffer) \
    (walk)->gguf->label, "key", gguf_printable((buffer), sizeof(buffer), (key)->name), (key)->entry_offset
#define ABOUT_TENSOR(walk, tensor, buffer) \
    (walk)->gguf->label, "tensor", gguf_printable((buffer), sizeof(buffer), (tensor)->name), (tensor)->entry_offset

// --- keys -----------------------------------------------------------------------------------------------------------

static enum status walk_array(struct walk *walk, struct gguf_key *key)
{
    char shown[SHOWN_NAME_BYTES];
    uint64_t type, count, total;
    const unsigned char *bytes;
    enum status status;

    if ((status = read_number(walk, "element type of an array", 4, &type)) ||
        (status = read_number(walk, "length of an array", 8, &count)))
        return status;
    uint32_t element_bytes = type > UINT32_MAX ? 0 : gguf_scalar_bytes((uint32_t)type);
    if (!element_bytes && type != GGUF_STRING)
        return error_set(walk->error, type == GGUF_ARRAY ? STATUS_UNIMPLEMENTED : STATUS_DATA_LOSS,
                         ABOUT "an array of type %" PRIu64 ", expected a number type, bool or string", ABOUT_KEY(walk, key, shown),
                         type);
    uint64_t least = element_bytes ? element_bytes : 8;
    if (!checked_mul_u64(count, least, &total) || total > walk->gguf->byte_count - walk->at)
        return error_set(walk->error, STATUS_DATA_LOSS,
                         ABOUT "an array of %" PRIu64 " elements, the file has %" PRIu64 " bytes left", ABOUT_KEY(walk, key, shown),
                         count, walk->gguf->byte_count - walk->at);
    key->array = (struct gguf_array){.type = (enum gguf_type)type, .count = count, .bytes = walk->gguf->bytes + walk->at};
    if (element_bytes)
        return read_bytes(walk, "array", total, &bytes);
    for (uint64_t i = 0; i < count && !status; i++) {
        struct gguf_string string;
        status = read_string(walk, "string of an array", &string);
    }
    return status;
}

static enum status walk_key(struct walk *walk, struct gguf_key *key)
{
    char shown[SHOWN_NAME_BYTES];
    uint64_t type;
    enum status status;

    key->entry_offset = walk->at;
    walk->inside = NULL;
    if ((status = read_name(walk, "key", &key->name)))
        return status;
    walk->inside = &key->name;
    if ((status = read_number(walk, "type of the value", 4, &type)))
        return status;
    key->type = (enum gguf_type)type;
    if (type == GGUF_ARRAY)
        return walk_array(walk, key);
    if (type == GGUF_STRING)
        status = read_string(walk, "string", &key->string);
    else if (gguf_scalar_bytes((uint32_t)type))
        status = read_bytes(walk, "value", gguf_scalar_bytes((uint32_t)type), &key->value);
    else
        return error_set(walk->error, STATUS_DATA_LOSS, ABOUT "value type %" PRIu64 ", expected 0 to 12",
                         ABOUT_KEY(walk, key, shown), type);
    if (!status && type == GGUF_BOOL && *key->value > 1)
        return error_set(walk->error, STATUS_DATA_LOSS, ABOUT "a bool of value %u, expected 0 or 1", ABOUT_KEY(walk, key, shown),
                         *key->value);
    return status;
}

static int compare_keys(const void *a, const void *b)
{
    return gguf_compare_names((*(struct gguf_key *const *)a)->name, (*(struct gguf_key *const *)b)->name);
}

static enum status walk_keys(struct walk *walk)
{
    struct gguf *gguf = walk->gguf;
    char shown[SHOWN_NAME_BYTES];

    for (uint32_t i = 0; i < gguf->key_count; i++) {
        enum status status = walk_key(walk, &gguf->keys[i]);
        if (status)
            return status;
        gguf->keys_by_name[i] = &gguf->keys[i];
    }
    qsort(gguf->keys_by_name, gguf->key_count, sizeof *gguf->keys_by_name, compare_keys);
    for (uint32_t i = 1; i < gguf->key_count; i++)
        if (compare_keys(&gguf->keys_by_name[i - 1], &gguf->keys_by_name[i]) == 0)
            return error_set(walk->error, STATUS_DATA_LOSS, ABOUT "there is another key of this name",
                             ABOUT_KEY(walk, gguf->keys_by_name[i], shown));
    return STATUS_OK;
}

// --- tensors --------------------------------------------------------------------------------------------------------

// Fills bytes from dims and type.
static enum status size_tensor(const struct walk *walk, struct gguf_tensor *tensor, uint64_t type)
{
    char shown[SHOWN_NAME_BYTES];
    const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
    uint64_t values = 1;

    if (!info)
        return error_set(walk->error, STATUS_UNIMPLEMENTED, ABOUT "tensor type %" PRIu64 " is not supported; supported are %s",
                         ABOUT_TENSOR(walk, tensor, shown), type, TENSOR_TYPES_SUPPORTED);
    tensor->type = (enum tensor_type)type;
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++) {
        if (tensor->dims[i] == 0)
            return error_set(walk->error, STATUS_DATA_LOSS, ABOUT "dimension %u is 0", ABOUT_TENSOR(walk, tensor, shown), i);
        if (!checked_mul_u64(values, tensor->dims[i], &values))
            values = UINT64_MAX;
    }
    if (values > (uint64_t)1 << 56) // times 4 bytes this cannot overflow
        return error_set(walk->error, STATUS_DATA_LOSS,
                         ABOUT "its dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 " are absurd",
                         ABOUT_TENSOR(walk, tensor, shown), tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3]);
    if (tensor->dims[0] % info->block_values != 0)
        return error_set(walk->error, STATUS_DATA_LOSS,
                         ABOUT "a row of %" PRIu64 " values is not a whole number of %s blocks of %u",
                         ABOUT_TENSOR(walk, tensor, shown), tensor->dims[0], info->name, info->block_values);
    tensor->bytes = values / info->block_values * info->block_bytes;
    return STATUS_OK;
}

static enum status walk_tensor(struct walk *walk, struct gguf_tensor *tensor)
{
    char shown[SHOWN_NAME_BYTES];
    uint64_t dim_count, type;
    enum status status;

    tensor->entry_offset = walk->at;
    walk->inside = NULL;
    if ((status = read_name(walk, "tensor entry", &tensor->name)))
        return status;
    walk->inside = &tensor->name;
    if ((status = read_number(walk, "dimensions of a tensor", 4, &dim_count)))
        return status;
    if (dim_count == 0 || dim_count > GGUF_MAX_DIMS)
        return error_set(walk->error, STATUS_DATA_LOSS, ABOUT "%" PRIu64 " dimensions, expected 1 to %d",
                         ABOUT_TENSOR(walk, tensor, shown), dim_count, GGUF_MAX_DIMS);
    tensor->dim_count = (uint32_t)dim_count;
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++) {
        tensor->dims[i] = 1;
        if (i < dim_count && (status = read_number(walk, "dimensions of a tensor", 8, &tensor->dims[i])))
            return status;
    }
    if ((status = read_number(walk, "type of a tensor", 4, &type)) ||
        (status = read_number(walk, "data offset of a tensor", 8, &tensor->data_offset)))
        return status;
    return size_tensor(walk, tensor, type);
}

static int compare_tensors(const void *a, const void *b)
{
    return gguf_compare_names((*(struct gguf_tensor *const *)a)->name, (*(struct gguf_tensor *const *)b)->name);
}

static int compare_places(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(struct gguf_tensor *const *)a, *y = *(struct gguf_tensor *const *)b;
    return (x->data_offset > y->data_offset) - (x->data_offset < y->data_offset);
}

static enum status walk_tensors(struct walk *walk)
{
    for (uint32_t i = 0; i < walk->gguf->tensor_count; i++) {
        enum status status = walk_tensor(walk, &walk->gguf->tensors[i]);
        if (status)
            return status;
        walk->gguf->tensors_by_name[i] = &walk->gguf->tensors[i];
    }
    return STATUS_OK;
}

// A tensor in another order: its bytes are those of a safetensors file, which has checked where they lie.
static bool place_stored(const struct gguf *gguf, struct gguf_tensor *tensor)
{
    const struct stored_rows *stored = gguf->stored ? &gguf->stored[tensor - gguf->tensors] : NULL;

    if (!stored || !stored->matrix_count)
        return false;
    tensor->stored = stored;
    tensor->data = stored->values;
    tensor->data_offset = (uint64_t)(stored->values - gguf->bytes);
    return true;
}

// From an offset in the data section to one in the file.
static enum status place_tensor(const struct walk *walk, struct gguf_tensor *tensor, uint32_t alignment)
{
    struct gguf *gguf = walk->gguf;
    char shown[SHOWN_NAME_BYTES];
    uint64_t offset = tensor->data_offset, begin, end;

    if (place_stored(gguf, tensor))
        return STATUS_OK;
    if (gguf->assembled) // as the files have it, which is enough for what reads single values
        alignment = MIN(tensor_type_info((uint32_t)tensor->type)->block_bytes, 4u);
    if (offset % alignment != 0)
        return error_set(walk->error, STATUS_DATA_LOSS, ABOUT "data offset 0x%" PRIx64 " is not a multiple of the alignment %u",
                         ABOUT_TENSOR(walk, tensor, shown), offset, alignment);
    if (!checked_add_u64(gguf->data_begin, offset, &begin) || !checked_add_u64(begin, tensor->bytes, &end) ||
        end > gguf->byte_count)
        return error_set(walk->error, STATUS_DATA_LOSS,
                         ABOUT "its %" PRIu64 " bytes at 0x%" PRIx64 " of the data end outside the file of %" PRIu64
                               " bytes (cut short?)",
                         ABOUT_TENSOR(walk, tensor, shown), tensor->bytes, offset, gguf->byte_count);
    tensor->data_offset = begin;
    tensor->data = gguf->bytes + begin;
    return STATUS_OK;
}

// Overlaps, then duplicate names; leaves tensors_by_name sorted by name.
static enum status check_tensor_set(const struct walk *walk)
{
    struct gguf *gguf = walk->gguf;
    struct gguf_tensor **order = gguf->tensors_by_name;
    char shown[SHOWN_NAME_BYTES], other[SHOWN_NAME_BYTES];

    qsort(order, gguf->tensor_count, sizeof *order, compare_places);
    for (uint32_t i = 1; i < gguf->tensor_count; i++)
        if (!order[i - 1]->stored && order[i - 1]->data_offset + order[i - 1]->bytes > order[i]->data_offset)
            return error_set(walk->error, STATUS_DATA_LOSS, ABOUT "its data lies over that of '%s'",
                             ABOUT_TENSOR(walk, order[i], shown), gguf_printable(other, sizeof other, order[i - 1]->name));
    qsort(order, gguf->tensor_count, sizeof *order, compare_tensors);
    for (uint32_t i = 1; i < gguf->tensor_count; i++)
        if (compare_tensors(&order[i - 1], &order[i]) == 0)
            return error_set(walk->error, STATUS_DATA_LOSS, ABOUT "there is another tensor of this name",
                             ABOUT_TENSOR(walk, order[i], shown));
    return STATUS_OK;
}

static enum status place_tensors(const struct walk *walk)
{
    struct gguf *gguf = walk->gguf;
    uint32_t alignment = DEFAULT_ALIGNMENT;
    enum status status;

    if (gguf_has(gguf, "general.alignment") && (status = gguf_get_u32(gguf, "general.alignment", &alignment, walk->error)))
        return status;
    if (alignment < MIN_ALIGNMENT || alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0)
        return error_set(walk->error, STATUS_DATA_LOSS, "%s: key 'general.alignment' is %u, expected a power of two from %d to %d",
                         gguf->label, alignment, MIN_ALIGNMENT, MAX_ALIGNMENT);
    gguf->data_begin = (walk->at + alignment - 1) / alignment * alignment;
    for (uint32_t i = 0; i < gguf->tensor_count; i++)
        if ((status = place_tensor(walk, &gguf->tensors[i], alignment)))
            return status;
    gguf->data_begin = MIN(gguf->data_begin, gguf->byte_count);
    return check_tensor_set(walk);
}

// --- the file -------------------------------------------------------------------------------------------------------

static enum status check_magic(struct walk *walk)
{
    struct gguf *gguf = walk->gguf;
    const unsigned char *magic;
    uint64_t version;
    enum status status;

    if ((status = read_bytes(walk, "magic", 4, &magic)))
        return status;
    if (memcmp(magic, "FUGG", 4) == 0)
        return error_set(walk->error, STATUS_UNIMPLEMENTED,
                         "%s: magic at offset 0x0: a big-endian GGUF file; only little-endian ones are read", gguf->label);
    if (memcmp(magic, "GGUF", 4) != 0)
        return error_set(walk->error, STATUS_INVALID_ARGUMENT,
                         "%s: magic at offset 0x0: begins with bytes %02x %02x %02x %02x, not with \"GGUF\": not a GGUF file",
                         gguf->label, magic[0], magic[1], magic[2], magic[3]);
    if ((status = read_number(walk, "version", 4, &version)))
        return status;
    if (version != 0 && (version & 0xffffff) == 0)
        return error_set(walk->error, STATUS_UNIMPLEMENTED,
                         "%s: version at offset 0x4: a big-endian GGUF file; only little-endian ones are read", gguf->label);
    if (version != 3)
        return error_set(walk->error, STATUS_UNIMPLEMENTED,
                         "%s: version at offset 0x4: GGUF version %" PRIu64 ", only version 3 is read", gguf->label, version);
    return STATUS_OK;
}

// Reads one of the two counts of the header; caps it before anything is allocated.
static enum status read_count(struct walk *walk, const char *what, uint32_t limit, uint32_t entry_bytes, uint32_t *out)
{
    uint64_t count, begin = walk->at;
    enum status status = read_number(walk, what, 8, &count);
    if (status)
        return status;
    if (count > limit || count > (walk->gguf->byte_count - walk->at) / entry_bytes)
        return error_set(walk->error, STATUS_DATA_LOSS, "%s: %s at offset 0x%" PRIx64 ": %" PRIu64 " are more than %s",
                         walk->gguf->label, what, begin, count, count > limit ? "the limit of 65536" : "the file has room for");
    *out = (uint32_t)count;
    return STATUS_OK;
}

// A part of a model that was split into several files holds some of its tensors only.
static enum status check_split(const struct walk *walk)
{
    uint32_t count = 0;
    enum status status;

    if (walk->gguf->may_be_part || !gguf_has(walk->gguf, "split.count"))
        return STATUS_OK;
    if ((status = gguf_get_u32(walk->gguf, "split.count", &count, walk->error)))
        return status;
    if (count > 1)
        return error_set(walk->error, STATUS_UNIMPLEMENTED,
                         "%s: key 'split.count' is %u: one of several parts, which are read from files only", walk->gguf->label,
                         count);
    return STATUS_OK;
}

enum status gguf_walk(struct gguf *gguf, struct error *error)
{
    struct walk walk = {.gguf = gguf, .error = error};
    enum status status;

    if ((status = check_magic(&walk)) ||
        (status = read_count(&walk, "tensor count", GGUF_MAX_TENSORS, MIN_TENSOR_BYTES, &gguf->tensor_count)) ||
        (status = read_count(&walk, "key count", GGUF_MAX_KEYS, MIN_KEY_BYTES, &gguf->key_count)))
        return status;
    gguf->keys = calloc(gguf->key_count + 1u, sizeof *gguf->keys);
    gguf->keys_by_name = calloc(gguf->key_count + 1u, sizeof *gguf->keys_by_name);
    gguf->tensors = calloc(gguf->tensor_count + 1u, sizeof *gguf->tensors);
    gguf->tensors_by_name = calloc(gguf->tensor_count + 1u, sizeof *gguf->tensors_by_name);
    if (!gguf->keys || !gguf->keys_by_name || !gguf->tensors || !gguf->tensors_by_name)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %u keys and %u tensors", gguf->label, gguf->key_count,
                         gguf->tensor_count);
    if ((status = walk_keys(&walk)))
        return status;
    gguf->keys_end = walk.at;
    if ((status = check_split(&walk)) || (status = walk_tensors(&walk)))
        return status;
    return place_tensors(&walk);
}

void gguf_make_label(char label[GGUF_LABEL_BYTES], const char *path)
{
    enum { KEEP = 200 };
    size_t length = strlen(path), skip = length > KEEP ? length - KEEP : 0, dots = skip ? 3 : 0;

    memcpy(label, "...", dots);
    gguf_printable(label + dots, GGUF_LABEL_BYTES - dots, (struct gguf_string){path + skip, length - skip});
}

enum status gguf_new(const char *name, struct gguf **out, struct error *error)
{
    struct gguf *gguf = calloc(1, sizeof *gguf);

    if (!gguf || !(gguf->name = strdup(name))) {
        free(gguf);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to open a model file");
    }
    gguf_make_label(gguf->label, name);
    *out = gguf;
    return STATUS_OK;
}

void gguf_free(struct gguf *gguf)
{
    if (!gguf)
        return;
    if (gguf->mapped)
        munmap((void *)(uintptr_t)gguf->bytes, gguf->byte_count);
    free(gguf->tensors_by_name);
    free(gguf->tensors);
    free(gguf->keys_by_name);
    free(gguf->keys);
    free(gguf->stored);
    free(gguf->name);
    free(gguf);
}

// --- keys, tensors and values ---------------------------------------------------------------------------------------

static const struct {
    const char *name;
    uint32_t bytes;
} types[] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2}, [GGUF_I16] = {"i16", 2},
    [GGUF_U32] = {"u32", 4},       [GGUF_I32] = {"i32", 4},     [GGUF_F32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0}, [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

// Returns "u32" and so on, or "?" for an unknown number.
static const char *gguf_type_name(uint32_t type) { return type < ARRAY_COUNT(types) ? types[type].name : "?"; }

// Returns the bytes of a scalar; 0 for strings, arrays and unknown numbers.
static uint32_t gguf_scalar_bytes(uint32_t type) { return type < ARRAY_COUNT(types) ? types[type].bytes : 0; }

// Compares names by their bytes; a prefix comes first.
static int gguf_compare_names(struct gguf_string a, struct gguf_string b)
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

static const struct gguf_key *gguf_find_key(const struct gguf *gguf, const char *name)
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

// --- scalars --------------------------------------------------------------------------------------------------------

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
static bool is_bool(enum gguf_type type) { return type == GGUF_BOOL; }
static bool is_string(enum gguf_type type) { return type == GGUF_STRING; }

// Finds a key whose value, or whose array's elements, are of an accepted type. expected: what that is, for errors.
static enum status find_typed(const struct gguf *gguf, const char *name, bool array, const char *expected,
                              bool (*accepts)(enum gguf_type type), const struct gguf_key **out, struct error *error)
{
    const struct gguf_key *key = *out = gguf_find_key(gguf, name);

    if (!key)
        return error_set(error, STATUS_NOT_FOUND, "%s: key '%s' is missing: expected %s", gguf->label, name, expected);
    if (array ? key->type != GGUF_ARRAY || !accepts(key->array.type) : !accepts(key->type))
        return wrong_type(gguf, key, name, expected, error);
    return STATUS_OK;
}

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
    enum status status = find_typed(gguf, name, false, "an unsigned integer", is_integer, &key, error);
    if (status)
        return status;
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
    enum status status = find_typed(gguf, name, false, "a float", is_float, &key, error);
    if (!status)
        *out = (float)float_value(key->type, key->value);
    return status;
}

enum status gguf_get_bool(const struct gguf *gguf, const char *name, bool *out, struct error *error)
{
    const struct gguf_key *key;
    enum status status = find_typed(gguf, name, false, "a bool", is_bool, &key, error);
    if (!status)
        *out = *key->value != 0;
    return status;
}

enum status gguf_get_string(const struct gguf *gguf, const char *name, struct gguf_string *out, struct error *error)
{
    const struct gguf_key *key;
    enum status status = find_typed(gguf, name, false, "a string", is_string, &key, error);
    if (!status)
        *out = key->string;
    return status;
}

// --- arrays ---------------------------------------------------------------------------------------------------------

static enum status get_array(const struct gguf *gguf, const char *name, const char *expected, bool (*accepts)(enum gguf_type type),
                             struct gguf_array *out, struct error *error)
{
    const struct gguf_key *key;
    enum status status = find_typed(gguf, name, true, expected, accepts, &key, error);
    if (!status)
        *out = key->array;
    return status;
}

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

// --- tables and the file --------------------------------------------------------------------------------------------

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
