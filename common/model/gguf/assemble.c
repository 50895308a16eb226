// assemble.c: see header.h.
#include "common/model/gguf/header.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/checked.h"
#include "common/base/memory.h"

enum {
    DATA_ALIGNMENT = 32,       // GGUF's default
    PIECE_ALIGNMENT = 1 << 16, // the largest page in use, so that fingerprints agree between machines
    FIXED_BYTES = 4 + 4 + 8 + 8,
};

// --- bytes ----------------------------------------------------------------------------------------------------------

void buffer_append(struct gguf_buffer *buffer, const void *bytes, size_t count)
{
    size_t wanted;

    if (buffer->failed || count == 0)
        return;
    if (!checked_add_size(buffer->count, count, &wanted) || wanted > SIZE_MAX / 2) {
        buffer->failed = true;
        return;
    }
    if (wanted > buffer->capacity) {
        size_t capacity = MAX(wanted * 2, (size_t)4096);
        unsigned char *grown = realloc(buffer->bytes, capacity);
        if (!grown) {
            buffer->failed = true;
            return;
        }
        buffer->bytes = grown;
        buffer->capacity = capacity;
    }
    memcpy(buffer->bytes + buffer->count, bytes, count);
    buffer->count = wanted;
}

static void write_le(unsigned char *out, uint64_t value, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)(value >> (8 * i));
}

void buffer_number(struct gguf_buffer *buffer, uint64_t value, uint32_t bytes)
{
    unsigned char out[8];

    write_le(out, value, bytes);
    buffer_append(buffer, out, bytes);
}

void buffer_string(struct gguf_buffer *buffer, const char *bytes, size_t length)
{
    buffer_number(buffer, length, 8);
    buffer_append(buffer, bytes, length);
}

// --- keys -----------------------------------------------------------------------------------------------------------

static void begin_key(struct assembly *assembly, const char *key, enum gguf_type type)
{
    buffer_string(&assembly->keys, key, strlen(key));
    buffer_number(&assembly->keys, type, 4);
    assembly->key_count++;
}

void assembly_u32(struct assembly *assembly, const char *key, uint32_t value)
{
    begin_key(assembly, key, GGUF_U32);
    buffer_number(&assembly->keys, value, 4);
}

void assembly_f32(struct assembly *assembly, const char *key, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    begin_key(assembly, key, GGUF_F32);
    buffer_number(&assembly->keys, bits, 4);
}

void assembly_bool(struct assembly *assembly, const char *key, bool value)
{
    begin_key(assembly, key, GGUF_BOOL);
    buffer_number(&assembly->keys, value, 1);
}

void assembly_string(struct assembly *assembly, const char *key, const char *bytes, size_t length)
{
    begin_key(assembly, key, GGUF_STRING);
    buffer_string(&assembly->keys, bytes, length);
}

void assembly_array(struct assembly *assembly, const char *key, enum gguf_type type, uint64_t count)
{
    begin_key(assembly, key, GGUF_ARRAY);
    buffer_number(&assembly->keys, type, 4);
    buffer_number(&assembly->keys, count, 8);
}

void assembly_raw_key(struct assembly *assembly, const void *bytes, size_t count)
{
    buffer_append(&assembly->keys, bytes, count);
    assembly->key_count++;
}

// --- tensors --------------------------------------------------------------------------------------------------------

void assembly_tensor(struct assembly *assembly, const char *name, size_t name_length, enum tensor_type type, uint32_t dim_count,
                     const uint64_t *dims, uint32_t piece, uint64_t offset)
{
    if (assembly->tensor_count == assembly->tensor_capacity) {
        uint32_t capacity = MAX(assembly->tensor_capacity * 2, 256u);
        struct assembly_tensor *grown = realloc(assembly->tensors, capacity * sizeof *grown);
        if (!grown) {
            assembly->failed = true;
            return;
        }
        assembly->tensors = grown;
        assembly->tensor_capacity = capacity;
    }
    struct assembly_tensor *tensor = &assembly->tensors[assembly->tensor_count];
    *tensor = (struct assembly_tensor){.type = type, .dim_count = dim_count, .piece = piece, .offset = offset};
    assert_always(dim_count <= GGUF_MAX_DIMS);
    memcpy(tensor->dims, dims, dim_count * sizeof *dims);
    tensor->name = strndup(name, name_length);
    if (tensor->name)
        assembly->tensor_count++;
    else
        assembly->failed = true;
}

void assembly_stored(struct assembly *assembly, const char *name, uint32_t dim_count, const uint64_t *dims,
                     const struct stored_rows *form, uint32_t piece, uint64_t offset, uint32_t scales_piece, uint64_t scales_offset)
{
    const uint32_t before = assembly->tensor_count;

    assembly_tensor(assembly, name, strlen(name), form->type, dim_count, dims, piece, offset);
    if (assembly->tensor_count == before)
        return;
    struct assembly_tensor *tensor = &assembly->tensors[before];
    tensor->stored = *form;
    tensor->scales_piece = scales_piece;
    tensor->scales_offset = scales_offset;
}

void assembly_made_vector(struct assembly *assembly, const char *name, const float *values, uint32_t count)
{
    static const unsigned char zeros[DATA_ALIGNMENT];
    const uint64_t dims[] = {count};

    buffer_append(&assembly->made, zeros, (DATA_ALIGNMENT - assembly->made.count % DATA_ALIGNMENT) % DATA_ALIGNMENT);
    assembly_tensor(assembly, name, strlen(name), TENSOR_F32, 1, dims, ASSEMBLY_MADE, assembly->made.count);
    buffer_append(&assembly->made, values, count * sizeof *values);
}

// --- all of it ------------------------------------------------------------------------------------------------------

struct layout {
    uint64_t data_begin; // where the made tensors lie
    uint64_t map_begin;  // where the first piece lies
    uint64_t *piece_at;  // [piece_count]
    uint64_t end;
};

static uint64_t round_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

static enum status lay_out(const struct assembly *assembly, uint64_t entry_bytes, const struct mapped_file *pieces,
                           uint32_t piece_count, const char *label, struct layout *layout, struct error *error)
{
    layout->data_begin = round_up(FIXED_BYTES + assembly->keys.count + entry_bytes, DATA_ALIGNMENT);
    layout->map_begin = round_up(layout->data_begin + assembly->made.count, PIECE_ALIGNMENT);
    layout->piece_at = calloc(piece_count + 1u, sizeof *layout->piece_at);
    if (!layout->piece_at)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %u files", label, piece_count);
    layout->end = layout->map_begin;
    for (uint32_t i = 0; i < piece_count; i++) {
        layout->piece_at[i] = round_up(layout->end, PIECE_ALIGNMENT) + pieces[i].lead_bytes;
        if (pieces[i].byte_count > (uint64_t)1 << 56 || !checked_add_u64(layout->piece_at[i], pieces[i].byte_count, &layout->end) ||
            layout->end > (uint64_t)1 << 56)
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: its files are too large to be mapped", label);
    }
    return STATUS_OK;
}

// Offsets of tensors are counted from data_begin.
static void write_entries(const struct assembly *assembly, const struct layout *layout, struct gguf_buffer *out)
{
    for (uint32_t i = 0; i < assembly->tensor_count; i++) {
        const struct assembly_tensor *tensor = &assembly->tensors[i];
        uint64_t begin = tensor->piece == ASSEMBLY_MADE ? layout->data_begin : layout->piece_at[tensor->piece];
        buffer_string(out, tensor->name, strlen(tensor->name));
        buffer_number(out, tensor->dim_count, 4);
        for (uint32_t d = 0; d < tensor->dim_count; d++)
            buffer_number(out, tensor->dims[d], 8);
        buffer_number(out, (uint64_t)tensor->type, 4);
        buffer_number(out, begin + tensor->offset - layout->data_begin, 8);
    }
}

// Returns the tensors that lie in another order, with the addresses that they have in the range. NULL: no memory.
static struct stored_rows *place_stored(const struct assembly *assembly, const struct layout *layout, const unsigned char *range)
{
    struct stored_rows *all = calloc(assembly->tensor_count + 1u, sizeof *all);

    for (uint32_t i = 0; all && i < assembly->tensor_count; i++) {
        const struct assembly_tensor *tensor = &assembly->tensors[i];
        if (!tensor->stored.matrix_count)
            continue;
        all[i] = tensor->stored;
        all[i].values = range + layout->piece_at[tensor->piece] + tensor->offset;
        if (all[i].scales_bytes)
            all[i].scales = range + layout->piece_at[tensor->scales_piece] + tensor->scales_offset;
    }
    return all;
}

static uint64_t count_entry_bytes(const struct assembly *assembly)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < assembly->tensor_count; i++)
        total += 8 + strlen(assembly->tensors[i].name) + 4 + 8 * (uint64_t)assembly->tensors[i].dim_count + 4 + 8;
    return total;
}

static bool is_copied(const struct mapped_file *piece) { return !piece->mapped || piece->lead_bytes; }

// Puts the pieces where the layout says. Maps are moved, not made anew: the files are those that were checked.
static enum status place_pieces(unsigned char *range, const struct layout *layout, struct mapped_file *pieces, uint32_t piece_count,
                                const char *label, struct error *error)
{
    for (uint32_t i = 0; i < piece_count; i++) {
        unsigned char *at = range + layout->piece_at[i];
        if (is_copied(&pieces[i])) {
            bool too_large = pieces[i].lead_bytes && pieces[i].byte_count > memory_available_bytes();
            if (too_large ||
                mprotect(at - pieces[i].lead_bytes, pieces[i].lead_bytes + pieces[i].byte_count, PROT_READ | PROT_WRITE) != 0)
                return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory to copy %llu bytes of weights", label,
                                 (unsigned long long)pieces[i].byte_count);
            if (pieces[i].byte_count)
                memcpy(at, pieces[i].bytes, pieces[i].byte_count);
            continue;
        }
        void *moved = mremap((void *)(uintptr_t)pieces[i].bytes, pieces[i].byte_count, pieces[i].byte_count,
                             MREMAP_MAYMOVE | MREMAP_FIXED, at);
        if (moved == MAP_FAILED)
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: %llu bytes cannot be mapped: %s", label,
                             (unsigned long long)pieces[i].byte_count, strerror(errno));
        pieces[i] = (struct mapped_file){0};
    }
    return STATUS_OK;
}

static enum status fill_range(struct gguf *gguf, const struct assembly *assembly, const struct layout *layout,
                              struct mapped_file *pieces, uint32_t piece_count, struct error *error)
{
    struct gguf_buffer header = {0};

    buffer_append(&header, "GGUF", 4);
    buffer_number(&header, 3, 4);
    buffer_number(&header, assembly->tensor_count, 8);
    buffer_number(&header, assembly->key_count, 8);
    buffer_append(&header, assembly->keys.bytes, assembly->keys.count);
    write_entries(assembly, layout, &header);
    // Not accessible at first, so that it counts as no memory, however large the files are.
    void *range = header.failed ? MAP_FAILED
                                : mmap(NULL, layout->end, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range != MAP_FAILED && mprotect(range, layout->map_begin, PROT_READ | PROT_WRITE) != 0) {
        munmap(range, layout->end);
        range = MAP_FAILED;
    }
    if (range == MAP_FAILED) {
        free(header.bytes);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for its keys and %llu bytes of addresses", gguf->label,
                         (unsigned long long)layout->end);
    }
    gguf->bytes = range;
    gguf->byte_count = layout->end;
    gguf->mapped = gguf->assembled = true;
    gguf->written_bytes = layout->map_begin;
    for (uint32_t i = 0; i < piece_count; i++)
        if (is_copied(&pieces[i])) // no page of it can be read again
            gguf->written_bytes = layout->end;
    memcpy(range, header.bytes, header.count);
    if (assembly->made.count)
        memcpy((unsigned char *)range + layout->data_begin, assembly->made.bytes, assembly->made.count);
    free(header.bytes);
    enum status status = place_pieces(range, layout, pieces, piece_count, gguf->label, error);
    if (!status)
        mprotect(range, layout->map_begin, PROT_READ); // as files are: a write to it is a fault
    return status;
}

enum status assembly_finish(struct assembly *assembly, const char *path, struct mapped_file *pieces, uint32_t piece_count,
                            struct gguf **out, struct error *error)
{
    struct gguf *gguf = NULL;
    struct layout layout = {0};
    enum status status = gguf_new(path, &gguf, error);

    if (!status && (assembly->failed || assembly->keys.failed || assembly->made.failed))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for its keys", gguf->label);
    if (!status)
        status = lay_out(assembly, count_entry_bytes(assembly), pieces, piece_count, gguf->label, &layout, error);
    if (!status)
        status = fill_range(gguf, assembly, &layout, pieces, piece_count, error);
    if (!status && !(gguf->stored = place_stored(assembly, &layout, gguf->bytes)))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for its tensors", gguf->label);
    if (!status)
        status = gguf_walk(gguf, error);
    free(layout.piece_at);
    assembly_free(assembly);
    if (status)
        gguf_free(gguf);
    else
        *out = gguf;
    return status;
}

void assembly_free(struct assembly *assembly)
{
    for (uint32_t i = 0; i < assembly->tensor_count; i++)
        free(assembly->tensors[i].name);
    free(assembly->tensors);
    free(assembly->keys.bytes);
    free(assembly->made.bytes);
    *assembly = (struct assembly){0};
}
