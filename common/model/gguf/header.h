// header.h: a GGUF header in memory, as gguf.c fills and reads it, and how one is made of several files. Private to common/model and what is in it.
#ifndef FD_MODEL_GGUF_HEADER_H
#define FD_MODEL_GGUF_HEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/gguf/gguf.h"

// The bytes of a file, mapped to be read.
struct mapped_file {
    const unsigned char *bytes; // page-aligned if mapped
    uint64_t byte_count;
    bool mapped;         // false: the bytes are the caller's
    uint32_t lead_bytes; // to be copied so many bytes behind the start of a page; 0: may be used where it is
};

// Maps a regular file that is not empty. label stands for it in messages, kind ("GGUF") for what it should be. Blocks on the disk.
// NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE: it cannot be opened; INVALID_ARGUMENT: it is no such file. On failure *out is empty.
MUST_CHECK enum status mapped_file_open(const char *path, const char *label, const char *kind, struct mapped_file *out,
                                        struct error *error);

// Unmaps it, if it is mapped, and empties *file.
void mapped_file_close(struct mapped_file *file);

struct gguf_key {
    struct gguf_string name;
    enum gguf_type type;
    uint64_t entry_offset;      // in the file
    const unsigned char *value; // the bytes of a scalar, unaligned
    struct gguf_string string;  // of a GGUF_STRING
    struct gguf_array array;    // of a GGUF_ARRAY
};

enum { GGUF_LABEL_BYTES = 208 };

struct gguf {
    char *name;                   // as given
    char label[GGUF_LABEL_BYTES]; // the same for messages: cut at the front if long, printable
    const unsigned char *bytes;
    uint64_t byte_count;
    uint64_t data_begin; // where tensor data begins; at most byte_count
    bool mapped;
    bool assembled;         // from several files: tensors are aligned to their values only
    bool may_be_part;       // split.count may be more than 1
    uint64_t keys_end;      // where the last key ends
    uint64_t written_bytes; // this many at the start of bytes were written to memory and are in no file; whole pages
    struct gguf_key *keys;  // [key_count] in the file's order
    struct gguf_key **keys_by_name;
    uint32_t key_count;
    struct gguf_tensor *tensors; // [tensor_count] in the file's order
    struct gguf_tensor **tensors_by_name;
    uint32_t tensor_count;
    struct stored_rows *stored; // [tensor_count] of an assembled one, matrix_count 0: the tensor lies as GGUF has it; or NULL
};

// Allocates one that has only a name; the caller frees it.
MUST_CHECK enum status gguf_new(const char *name, struct gguf **out, struct error *error);

// Walks and checks bytes[0 .. byte_count), and fills the tables. On failure the caller frees all the same.
MUST_CHECK enum status gguf_walk(struct gguf *gguf, struct error *error);

// Unmaps if mapped, and frees. NULL is allowed.
void gguf_free(struct gguf *gguf);

// Writes a path for messages: printable, cut at the front if long.
void gguf_make_label(char label[GGUF_LABEL_BYTES], const char *path);

// Reads a little-endian, unaligned number of `count` bytes.
static inline uint64_t gguf_read_le(const unsigned char *bytes, uint32_t count)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < count; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

// --- of several files -----------------------------------------------------------------------------------------------

// assemble.c makes a struct gguf of tensors that lie in several files, with keys that are written in memory.
//
// All of it lies in one range of addresses, as if it were one GGUF file: a header in memory, then tensors made in memory, then
// each file, mapped as it is:
//
//     header: keys, tensor entries │ made tensors │ file 0 │ file 1 │ …        each file at a multiple of 64 KiB
//
// Offsets, sizes, released pages and fingerprints so mean what they mean for one file, and gguf_walk() checks the whole.

struct gguf_buffer {
    unsigned char *bytes;
    size_t count, capacity;
    bool failed; // no memory; what is appended afterwards is dropped
};

enum { ASSEMBLY_MADE = UINT32_MAX }; // as piece: the tensor lies in assembly->made

struct assembly_tensor {
    char *name;
    enum tensor_type type;
    uint32_t dim_count;
    uint64_t dims[GGUF_MAX_DIMS];
    uint32_t piece;
    uint64_t offset;           // in its piece
    struct stored_rows stored; // matrix_count 0: it lies as GGUF has it
    uint32_t scales_piece;     // of stored.scales
    uint64_t scales_offset;
};

struct assembly {
    struct gguf_buffer keys, made;
    uint32_t key_count;
    struct assembly_tensor *tensors;
    uint32_t tensor_count, tensor_capacity;
    bool failed; // no memory
};

// --- bytes ----------------------------------------------------------------------------------------------------------
void buffer_append(struct gguf_buffer *buffer, const void *bytes, size_t count);
void buffer_number(struct gguf_buffer *buffer, uint64_t value, uint32_t bytes); // little-endian
void buffer_string(struct gguf_buffer *buffer, const char *bytes, size_t length);

// --- keys; a lack of memory shows in assembly_finish() --------------------------------------------------------------
void assembly_u32(struct assembly *assembly, const char *key, uint32_t value);
void assembly_f32(struct assembly *assembly, const char *key, float value);
void assembly_bool(struct assembly *assembly, const char *key, bool value);
void assembly_string(struct assembly *assembly, const char *key, const char *bytes, size_t length);
// The caller appends exactly `count` elements to assembly->keys.
void assembly_array(struct assembly *assembly, const char *key, enum gguf_type type, uint64_t count);
// Appends a key as it lies in a file.
void assembly_raw_key(struct assembly *assembly, const void *bytes, size_t count);

// --- tensors. dims[0] varies fastest --------------------------------------------------------------------------------
void assembly_tensor(struct assembly *assembly, const char *name, size_t name_length, enum tensor_type type, uint32_t dim_count,
                     const uint64_t *dims, uint32_t piece, uint64_t offset);
// One that lies in another order. form: all of it but `values` and `scales`, whose places follow; scales_bytes 0: there are none.
void assembly_stored(struct assembly *assembly, const char *name, uint32_t dim_count, const uint64_t *dims,
                     const struct stored_rows *form, uint32_t piece, uint64_t offset, uint32_t scales_piece,
                     uint64_t scales_offset);
// A vector of floats, copied.
void assembly_made_vector(struct assembly *assembly, const char *name, const float *values, uint32_t count);

// Lays everything out, takes the maps of the pieces (bytes that are not mapped are copied) and opens it. Frees the assembly.
// On failure pieces that were not taken are still the caller's, who closes all of them in any case.
MUST_CHECK enum status assembly_finish(struct assembly *assembly, const char *path, struct mapped_file *pieces,
                                       uint32_t piece_count, struct gguf **out, struct error *error);

void assembly_free(struct assembly *assembly);

#endif
