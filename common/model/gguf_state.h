// gguf_state.h: what gguf_walk.c fills and gguf_values.c reads. Private to common/model.
#ifndef FD_MODEL_GGUF_STATE_H
#define FD_MODEL_GGUF_STATE_H

#include "common/model/gguf.h"

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

// Compares names by their bytes; a prefix comes first.
int gguf_compare_names(struct gguf_string a, struct gguf_string b);

const struct gguf_key *gguf_find_key(const struct gguf *gguf, const char *name);

// Returns "u32" and so on, or "?" for an unknown number.
const char *gguf_type_name(uint32_t type);

// Returns the bytes of a scalar; 0 for strings, arrays and unknown numbers.
uint32_t gguf_scalar_bytes(uint32_t type);

// Reads a little-endian, unaligned number of `count` bytes.
static inline uint64_t gguf_read_le(const unsigned char *bytes, uint32_t count)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < count; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

#endif
