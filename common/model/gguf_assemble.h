// gguf_assemble.h: makes a struct gguf of tensors that lie in several files, with keys that are written in memory. Private to
// common/model.
//
// All of it lies in one range of addresses, as if it were one GGUF file: a header in memory, then tensors made in memory, then
// each file, mapped as it is:
//
//     header: keys, tensor entries │ made tensors │ file 0 │ file 1 │ …        each file at a multiple of 64 KiB
//
// So offsets, sizes, released pages and fingerprints mean what they mean for one file, and gguf_walk() checks the whole.
#ifndef FD_MODEL_GGUF_ASSEMBLE_H
#define FD_MODEL_GGUF_ASSEMBLE_H

#include "common/model/gguf_state.h"
#include "common/model/mapped_file.h"

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

// --- bytes ---
void buffer_append(struct gguf_buffer *buffer, const void *bytes, size_t count);
void buffer_number(struct gguf_buffer *buffer, uint64_t value, uint32_t bytes); // little-endian
void buffer_string(struct gguf_buffer *buffer, const char *bytes, size_t length);

// --- keys; a lack of memory shows in assembly_finish() ---
void assembly_u32(struct assembly *assembly, const char *key, uint32_t value);
void assembly_f32(struct assembly *assembly, const char *key, float value);
void assembly_bool(struct assembly *assembly, const char *key, bool value);
void assembly_string(struct assembly *assembly, const char *key, const char *bytes, size_t length);
// The caller appends exactly `count` elements to assembly->keys.
void assembly_array(struct assembly *assembly, const char *key, enum gguf_type type, uint64_t count);
// Appends a key as it lies in a file.
void assembly_raw_key(struct assembly *assembly, const void *bytes, size_t count);

// --- tensors. dims[0] varies fastest ---
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
