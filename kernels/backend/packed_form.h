// packed_form.h: the head of a packed file as it lies on the disk, little-endian. For packed_file.c and packed_writer.c alone, and for tests that
// forge one.
#ifndef FD_KERNELS_BACKEND_PACKED_FORM_H
#define FD_KERNELS_BACKEND_PACKED_FORM_H

#include "kernels/backend/packed_file.h"

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

#endif
