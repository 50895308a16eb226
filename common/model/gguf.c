// gguf.c: opens model files as one set of keys and tensors, whatever they are on disk: a GGUF file, the parts of one, or a directory
// that is translated.
//
//     a file        map ─ gguf_walk
//     part 1 of N   map ─ gguf_walk ─ gguf_split: the other parts, gguf_assemble: all of them in one range of addresses
//     a directory   hf: JSON and safetensors files, gguf_assemble
#include "common/model/gguf.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/gguf_split.h"
#include "common/model/gguf_state.h"
#include "common/model/hf.h"
#include "common/model/mapped_file.h"

static enum status open_file(const char *path, struct gguf **out, struct error *error)
{
    struct gguf *gguf;
    struct mapped_file file;
    uint32_t parts = 1;
    enum status status = gguf_new(path, &gguf, error);

    if (status)
        return status;
    status = mapped_file_open(path, gguf->label, "GGUF", &file, error);
    if (!status) {
        gguf->bytes = file.bytes;
        gguf->byte_count = file.byte_count;
        gguf->mapped = gguf->may_be_part = true;
        status = gguf_walk(gguf, error);
    }
    if (!status && gguf_has(gguf, "split.count"))
        status = gguf_get_u32(gguf, "split.count", &parts, error);
    if (!status && parts > 1)
        return gguf_split_open(gguf, out, error);
    if (status)
        gguf_free(gguf);
    else
        *out = gguf;
    return status;
}

enum status gguf_open(const char *path, struct gguf **out, struct error *error)
{
    struct stat info;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return hf_open(path, out, error);
    return open_file(path, out, error);
}

enum status gguf_open_memory(const char *name, const void *bytes, uint64_t byte_count, struct gguf **out, struct error *error)
{
    struct gguf *gguf;
    enum status status = gguf_new(name, &gguf, error);

    if (status)
        return status;
    gguf->bytes = bytes;
    gguf->byte_count = byte_count;
    status = gguf_walk(gguf, error);
    if (status)
        gguf_free(gguf);
    else
        *out = gguf;
    return status;
}

void gguf_close(struct gguf *gguf) { gguf_free(gguf); }

void gguf_release_pages(const struct gguf *gguf, const unsigned char *data, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = (uint64_t)(data - gguf->bytes), end = begin + bytes;

    begin = begin / page * page;
    if (begin < gguf->written_bytes) // they are in no file
        begin = gguf->written_bytes;
    if (gguf->mapped && begin < end) // a hint: may fail
        madvise((void *)(uintptr_t)(gguf->bytes + begin), end - begin, MADV_DONTNEED);
}

void gguf_release_stored(const struct gguf *gguf, const struct stored_rows *stored)
{
    gguf_release_pages(gguf, stored->values, stored->values_bytes);
    if (stored->scales)
        gguf_release_pages(gguf, stored->scales, stored->scales_bytes);
}
