// packed_file.h: weights in the layout that a backend computes with, in a file of their own: a start reads them instead of converting the
// model file, and what does not fit memory can be read while a step runs.
//
//     header and table, padded to 4 KiB │ blob 0 │ blob 1 │ …      every blob begins at a multiple of 4 KiB and is as long as one
//
// The contents of a blob are the backend's: by convention blob 0 is what always stays in memory, and blob 1 + s is what segment s reads. The
// file names the model (its fingerprint) and the layout (a number that the backend makes of everything its bytes depend on), and has a
// checksum of each blob and of its own table. It is written beside its path and takes its name once it is complete and on the disk:
// whoever sees the name sees the whole file. A file is never changed afterwards.
//
// Threads: one at a time for each object.
#ifndef FD_KERNELS_BACKEND_PACKED_FILE_H
#define FD_KERNELS_BACKEND_PACKED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { PACKED_FILE_ALIGN = 4096, PACKED_FILE_BLOBS_MAX = 2048 };
#define PACKED_FILE_BYTES_MAX (1ull << 50)

// The blobs that a backend expects of its file.
struct packed_layout {
    uint64_t model, layout;
    uint32_t blob_count;        // 1 to PACKED_FILE_BLOBS_MAX
    const uint64_t *blob_bytes; // [blob_count] multiples of PACKED_FILE_ALIGN
};

struct packed_blob {
    uint64_t offset, bytes, checksum;
};

struct packed_file;
struct packed_writer;

// Mixes one of the things that the blobs' bytes depend on into a layout's number.
static inline void packed_layout_mix(uint64_t *layout, uint64_t value)
{
    *layout = (*layout ^ value) * 0x9e3779b97f4a7c15u;
    *layout ^= *layout >> 29;
}

// Returns the bytes of all blobs.
static inline uint64_t packed_layout_bytes(const struct packed_layout *layout)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < layout->blob_count; i++)
        sum += layout->blob_bytes[i];
    return sum;
}

static inline uint64_t packed_file_align(uint64_t bytes)
{
    return (bytes + PACKED_FILE_ALIGN - 1) / PACKED_FILE_ALIGN * PACKED_FILE_ALIGN;
}

// The same of bytes that come in parts: begin, add each in order (a multiple of 32), end.
struct packed_sum {
    uint64_t sums[4], byte_count;
};
void packed_sum_begin(struct packed_sum *sum);
void packed_sum_add(struct packed_sum *sum, const void *bytes, uint64_t byte_count);

// Returns how long header and table are, padding included.
uint64_t packed_header_bytes(uint32_t blob_count);

// Checks header and table of a file of file_bytes against `expected` and copies the table. bytes: the first byte_count of the file, at
// least packed_header_bytes() unless the file is shorter. FAILED_PRECONDITION: sound, but of another model or layout. DATA_LOSS: damaged,
// or no such file at all.
enum status packed_header_parse(const void *bytes, size_t byte_count, uint64_t file_bytes, const struct packed_layout *expected,
                                struct packed_blob *blobs /* [expected->blob_count] */, struct error *error) MUST_CHECK;

// Opens a file for reading past the page cache where the file system allows that. *out is the caller's, to be closed. NOT_FOUND: there is
// none; otherwise as packed_header_parse(). Blobs are not read.
enum status packed_file_open(const char *path, const struct packed_layout *expected, struct packed_file **out,
                             struct error *error) MUST_CHECK;
void packed_file_close(struct packed_file *file); // NULL is allowed
int packed_file_descriptor(const struct packed_file *file);
const struct packed_blob *packed_file_blob(const struct packed_file *file, uint32_t blob); // blob < blob_count (asserted)
const char *packed_file_path(const struct packed_file *file);

// Checks a blob that was read. DATA_LOSS names file and blob.
enum status packed_file_check(const struct packed_file *file, uint32_t blob, const void *bytes, struct error *error) MUST_CHECK;
enum status packed_file_check_sum(const struct packed_file *file, uint32_t blob, const struct packed_sum *sum,
                                  struct error *error) MUST_CHECK;

// Begins a file; *out ends with commit or abort. Its space is taken from the disk at once. UNAVAILABLE: another process writes it just
// now; with `wait`, blocks until that one has ended and then returns ALREADY_EXISTS if the path leads to another file than before.
enum status packed_writer_open(const char *path, const struct packed_layout *layout, bool wait, struct packed_writer **out,
                               struct error *error) MUST_CHECK;
// Appends the next blob; bytes: aligned to PACKED_FILE_ALIGN.
enum status packed_writer_put(struct packed_writer *writer, const void *bytes, struct error *error) MUST_CHECK;
// Appends a part of the next blob; the last part ends it. byte_count: a multiple of PACKED_FILE_ALIGN, and no more than the blob lacks.
enum status packed_writer_add(struct packed_writer *writer, const void *bytes, uint64_t byte_count, struct error *error) MUST_CHECK;
// After the last blob. Frees the writer; on failure nothing is left of the file.
enum status packed_writer_commit(struct packed_writer *writer, struct error *error) MUST_CHECK;
void packed_writer_abort(struct packed_writer *writer); // leaves nothing; NULL is allowed

// --- the head as it lies on the disk, little-endian: for packed_file.c, and for tests that forge one ---

#define PACKED_MAGIC "FDWEIGHT" // without its terminator
enum { PACKED_VERSION = 1 };

// Then blob_count struct packed_blob, then zeros up to packed_header_bytes().
struct packed_header {
    char magic[8];
    uint32_t version, blob_count;
    uint64_t model, layout;
    uint64_t file_bytes;
    uint64_t checksum;    // packed_header_sum()
    uint64_t reserved[2]; // 0
};

_Static_assert(sizeof(struct packed_header) == 64 && sizeof(struct packed_blob) == 24, "the form on the disk");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the form on the disk");

// The checksum of header and table, with the header's own taken as 0. bytes: packed_header_bytes(blob_count).
uint64_t packed_header_sum(const unsigned char *bytes, uint32_t blob_count);

// --- what the log says of packed files while they are written and read ---

// Log how far it is, every few seconds. *said_us: when that was said last; at first, when it began.
void packed_log_writing(uint64_t *said_us, uint64_t done, uint64_t total);
void packed_log_reading(uint64_t *said_us, uint64_t done, uint64_t total);

// Log that it is done, since began_us. read: returns the time it took in microseconds, at least 1.
void packed_log_written(const char *path, uint64_t bytes, uint64_t began_us);
double packed_log_read(const char *path, uint64_t bytes, uint64_t began_us);

#endif
