// gguf.h: a reader of GGUF version 3 files over one read-only map. It knows the container format but nothing of models.
//
// The parts of a split file, and a directory of Hugging Face files (hf.h), are laid out in one range of addresses as if they were one
// such file (header.h). Everything below holds for that range: "the file" is all of it.
//
//     "GGUF" u32 version  u64 tensor_count  u64 key_count
//     key_count    × { string key, u32 type, value }
//     tensor_count × { string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset }
//     padding to general.alignment (default 32)
//     tensor data, each at its offset from here
//
// The file is untrusted. Opening walks all of the header once, compares every count and length with the bytes that
// remain before it is used, and keeps two sorted tables (keys, tensors); nothing is read from the header unchecked later.
// Everything handed out points into the map and lives until gguf_close(). No value is copied.
//
// The file must not shrink while it is open: its size is checked once, and touching a page that is gone afterwards raises SIGBUS,
// which ends the process. Replace a model file by rename(2), never by writing over it.
//
// Threads: after gguf_open() everything but gguf_close() is read-only and may be called from any thread.
#ifndef FD_MODEL_GGUF_GGUF_H
#define FD_MODEL_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kernels/quant/stored_rows.h"
#include "kernels/quant/tensor_type.h"

enum {
    GGUF_MAX_KEYS = 1 << 16,
    GGUF_MAX_TENSORS = 1 << 16,
    GGUF_MAX_NAME_BYTES = 255, // the longest name of a key or a tensor
    GGUF_MAX_DIMS = 4,
};

// Types of metadata values; the numbers are GGUF's.
enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
};

struct gguf;

// Bytes of the file, of any content and not terminated.
struct gguf_string {
    const char *data;
    uint64_t length;
};

// An array in the file, checked to be completely inside it.
struct gguf_array {
    enum gguf_type type; // of the elements; never GGUF_ARRAY
    uint64_t count;
    const unsigned char *bytes; // packed, little-endian, unaligned
};

// A tensor's entry. dims[0], which varies fastest, is the length of a row. Dimensions that the file leaves out are 1.
struct gguf_tensor {
    struct gguf_string name;
    enum tensor_type type;
    uint32_t dim_count;
    uint64_t dims[GGUF_MAX_DIMS];
    uint64_t entry_offset; // offset of the entry in the file, for messages
    uint64_t data_offset;  // offset of the data in the file
    uint64_t bytes;        // of its blocks
    const void *data;
    const struct stored_rows *stored; // NULL: the blocks lie at `data`. Else, in a directory: how to read them from what lies there
};

// Maps and checks a file, or the first of several (NAME-00001-of-0000N.gguf). Blocks on the disk. The caller closes *out. On failure nothing is left behind, and *error has one line
// "FILE: what at offset 0x…: why". NOT_FOUND, PERMISSION_DENIED: the file cannot be opened; INVALID_ARGUMENT: it is not a GGUF
// file, or (model_open) its numbers and tensors do not fit together; DATA_LOSS: it is broken or cut short; UNIMPLEMENTED: sound,
// perhaps, but of a kind that is not read (the line says which are).
MUST_CHECK enum status gguf_open(const char *path, struct gguf **out, struct error *error);

// The same for bytes in memory, which the caller keeps until gguf_close(). `name` is copied and stands for the file in messages.
// bytes must be aligned to 8.
MUST_CHECK enum status gguf_open_memory(const char *name, const void *bytes, uint64_t byte_count, struct gguf **out,
                                        struct error *error);

// Unmaps and frees. NULL is allowed.
void gguf_close(struct gguf *gguf);

// --- metadata ---------------------------------------------------------------------------------------------------------
// Getters leave *out unset unless they return OK. NOT_FOUND: no such key. INVALID_ARGUMENT: the value has another type, or is a
// number that does not fit. Both fill *error (which may be NULL) with "FILE: key 'K' …". An integer getter takes any integer type
// of the file, gguf_get_f32 any float type.
MUST_CHECK bool gguf_has(const struct gguf *gguf, const char *key);
MUST_CHECK enum status gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *out, struct error *error);
MUST_CHECK enum status gguf_get_f32(const struct gguf *gguf, const char *key, float *out, struct error *error);
MUST_CHECK enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *out, struct error *error);
MUST_CHECK enum status gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_string *out, struct error *error);

// Returns the value's place in the file, for a program that writes the file with another value; NULL: no such key of that type.
MUST_CHECK const unsigned char *gguf_find_u32(const struct gguf *gguf, const char *key);

// These get an array whose elements must be strings, integers (of any type) or floats.
MUST_CHECK enum status gguf_get_strings(const struct gguf *gguf, const char *key, struct gguf_array *out, struct error *error);
MUST_CHECK enum status gguf_get_integers(const struct gguf *gguf, const char *key, struct gguf_array *out, struct error *error);
MUST_CHECK enum status gguf_get_floats(const struct gguf *gguf, const char *key, struct gguf_array *out, struct error *error);

// Iterates in order over an array, which must be of strings (asserted). Getters check an array completely, so gguf_next_string()
// returns false only at the end.
struct gguf_strings {
    const unsigned char *next;
    uint64_t left;
};
struct gguf_strings gguf_strings_of(const struct gguf_array *array);
bool gguf_next_string(struct gguf_strings *strings, struct gguf_string *out);

// Return element `index` (asserted < count) of an array of integers or of floats. An unsigned 64-bit value may wrap to a negative
// one.
int64_t gguf_array_integer(const struct gguf_array *array, uint64_t index);
double gguf_array_float(const struct gguf_array *array, uint64_t index);

// --- keys and tensors, in the file's order --------------------------------------------------------------------------
uint32_t gguf_key_count(const struct gguf *gguf);
struct gguf_string gguf_key_name(const struct gguf *gguf, uint32_t index); // index < gguf_key_count() (asserted)

uint32_t gguf_tensor_count(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint32_t index); // index < count (asserted)

// NULL if there is none.
const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name);

// --- the file itself ------------------------------------------------------------------------------------------------
const char *gguf_file_name(const struct gguf *gguf); // as given to open
const char *gguf_label(const struct gguf *gguf);     // the same for messages: printable, cut at the front if long
uint64_t gguf_file_bytes(const struct gguf *gguf);
uint64_t gguf_header_bytes(const struct gguf *gguf);      // bytes before tensor data begins
const unsigned char *gguf_bytes(const struct gguf *gguf); // the whole file

// Gives the resident pages that hold [data, data + bytes) back to the kernel, including pages shared with neighbours; they are read
// again when touched. Does nothing for what is in memory only.
void gguf_release_pages(const struct gguf *gguf, const unsigned char *data, uint64_t bytes);
void gguf_release_stored(const struct gguf *gguf, const struct stored_rows *stored); // all that it reads from

// Copies a name from the file for a message, cut to fit; bytes that are not printable ASCII become '?'. Returns buffer.
const char *gguf_printable(char *buffer, size_t buffer_bytes, struct gguf_string text);

#endif
