// mapped_file.h: the bytes of a file, mapped to be read.
#ifndef FD_MODEL_MAPPED_FILE_H
#define FD_MODEL_MAPPED_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

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

#endif
