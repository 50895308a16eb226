// packed_file.c: reading: the header's form and checks, checksums. packed_writer.c writes. See packed_file.h.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "kernels/backend/packed_form.h"

struct packed_file {
    int descriptor;
    char *path;
    uint32_t blob_count;
    struct packed_blob *blobs; // [blob_count]
};

// Four sums side by side, so that the processor need not wait for one product before the next. Each step is a bijection of its sum for a
// given word, and of the word for a given sum: one word that differs makes the end differ.
enum { SUMS = 4 };
_Static_assert(sizeof((struct packed_sum){0}.sums) == SUMS * sizeof(uint64_t), "that many sums");

void packed_sum_begin(struct packed_sum *sum) { *sum = (struct packed_sum){.sums = {1, 2, 3, 4}}; }

void packed_sum_add(struct packed_sum *sum, const void *bytes, uint64_t byte_count)
{
    const unsigned char *at = bytes;
    uint64_t sums[SUMS];

    assert_always(byte_count % sizeof sums == 0);
    memcpy(sums, sum->sums, sizeof sums);
    for (const unsigned char *end = at + byte_count; at < end; at += sizeof sums) {
        uint64_t words[SUMS];
        memcpy(words, at, sizeof words);
        for (int i = 0; i < SUMS; i++) {
            sums[i] = (sums[i] ^ words[i]) * 0x9e3779b97f4a7c15u;
            sums[i] = sums[i] << 29 | sums[i] >> 35;
        }
    }
    memcpy(sum->sums, sums, sizeof sums);
    sum->byte_count += byte_count;
}

uint64_t packed_sum_end(const struct packed_sum *sum)
{
    uint64_t total = sum->byte_count;

    for (int i = 0; i < SUMS; i++) {
        total = (total ^ sum->sums[i]) * 0x9e3779b97f4a7c15u;
        total ^= total >> 32;
    }
    return total;
}

uint64_t packed_checksum(const void *bytes, uint64_t byte_count)
{
    struct packed_sum sum;

    packed_sum_begin(&sum);
    packed_sum_add(&sum, bytes, byte_count);
    return packed_sum_end(&sum);
}

uint64_t packed_header_bytes(uint32_t blob_count)
{
    return packed_file_align(sizeof(struct packed_header) + blob_count * sizeof(struct packed_blob));
}

uint64_t packed_header_sum(const unsigned char *bytes, uint32_t blob_count)
{
    struct packed_header header;
    unsigned char first[sizeof header];

    memcpy(&header, bytes, sizeof header);
    header.checksum = 0;
    memcpy(first, &header, sizeof header);
    uint64_t sum = packed_checksum(first, sizeof first);
    return sum ^ packed_checksum(bytes + sizeof header, packed_header_bytes(blob_count) - sizeof header);
}

static enum status check_table(const struct packed_blob *blobs, uint64_t file_bytes, const struct packed_layout *expected,
                               struct error *error)
{
    uint64_t at = packed_header_bytes(expected->blob_count);

    for (uint32_t i = 0; i < expected->blob_count; i++) {
        if (blobs[i].bytes != expected->blob_bytes[i] || blobs[i].offset != at)
            return error_set(error, STATUS_DATA_LOSS, "damaged: its table has another place or size for blob %u", i);
        at += blobs[i].bytes; // below PACKED_FILE_BYTES_MAX each, and there are few
    }
    return at == file_bytes ? STATUS_OK : error_set(error, STATUS_DATA_LOSS, "damaged: its table does not add up to its length");
}

enum status packed_header_parse(const void *bytes, size_t byte_count, uint64_t file_bytes, const struct packed_layout *expected,
                                struct packed_blob *blobs, struct error *error)
{
    struct packed_header header;

    if (byte_count < sizeof header)
        return error_set(error, STATUS_DATA_LOSS, "cut short: %llu bytes", (unsigned long long)file_bytes);
    memcpy(&header, bytes, sizeof header);
    if (memcmp(header.magic, PACKED_MAGIC, sizeof header.magic))
        return error_set(error, STATUS_DATA_LOSS, "no file of packed weights");
    if (header.version != PACKED_VERSION)
        return error_set(error, STATUS_FAILED_PRECONDITION, "written in version %u of the format, this is version %u",
                         header.version, PACKED_VERSION);
    if (header.blob_count == 0 || header.blob_count > PACKED_FILE_BLOBS_MAX)
        return error_set(error, STATUS_DATA_LOSS, "damaged: %u blobs", header.blob_count);
    if (byte_count < packed_header_bytes(header.blob_count))
        return error_set(error, STATUS_DATA_LOSS, "cut short: %llu bytes", (unsigned long long)file_bytes);
    if (header.checksum != packed_header_sum(bytes, header.blob_count))
        return error_set(error, STATUS_DATA_LOSS, "damaged: the checksum of its header is wrong");
    if (header.model != expected->model)
        return error_set(error, STATUS_FAILED_PRECONDITION, "of another model");
    if (header.layout != expected->layout || header.blob_count != expected->blob_count)
        return error_set(error, STATUS_FAILED_PRECONDITION, "of another layout of this model");
    if (header.file_bytes != file_bytes)
        return error_set(error, STATUS_DATA_LOSS, "%s: %llu bytes, it was written with %llu",
                         file_bytes < header.file_bytes ? "cut short" : "too long", (unsigned long long)file_bytes,
                         (unsigned long long)header.file_bytes);
    memcpy(blobs, (const unsigned char *)bytes + sizeof header, header.blob_count * sizeof *blobs);
    return check_table(blobs, file_bytes, expected, error);
}

// Reads what there is of the header, through the page cache.
static enum status read_header(struct packed_file *file, const struct packed_layout *expected, struct error *error)
{
    uint64_t wanted = packed_header_bytes(expected->blob_count), have = 0;
    unsigned char *bytes = malloc(wanted);
    struct stat info;
    int plain = open(file->path, O_RDONLY | O_CLOEXEC);
    enum status status = STATUS_OK;

    if (!bytes || plain < 0 || fstat(plain, &info))
        status = error_set(error, bytes ? STATUS_UNAVAILABLE : STATUS_RESOURCE_EXHAUSTED, "%s", strerror(errno));
    while (!status && have < wanted) {
        ssize_t got = pread(plain, bytes + have, wanted - have, (off_t)have);
        if (got < 0 && errno != EINTR)
            status = error_set(error, STATUS_UNAVAILABLE, "%s", strerror(errno));
        if (got == 0)
            break;
        have += got > 0 ? (uint64_t)got : 0;
    }
    if (!status)
        status = packed_header_parse(bytes, have, (uint64_t)info.st_size, expected, file->blobs, error);
    if (plain >= 0)
        close(plain);
    free(bytes);
    return status;
}

enum status packed_file_open(const char *path, const struct packed_layout *expected, struct packed_file **out, struct error *error)
{
    struct packed_file *file;
    enum status status;

    assert_always(expected->blob_count > 0 && expected->blob_count <= PACKED_FILE_BLOBS_MAX);
    if (access(path, F_OK))
        return error_set(error, status_of_path(errno), "%s: %s", path, strerror(errno));
    file = calloc(1, sizeof *file);
    if (!file)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to open %s", path);
    file->descriptor = -1;
    file->path = strdup(path);
    file->blob_count = expected->blob_count;
    file->blobs = calloc(file->blob_count, sizeof *file->blobs);
    if (!file->path || !file->blobs)
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to open it");
    else
        status = read_header(file, expected, error);
    if (!status) {
        file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
        if (file->descriptor < 0) // a file system without it
            file->descriptor = open(path, O_RDONLY | O_CLOEXEC);
        if (file->descriptor < 0)
            status = error_set(error, STATUS_UNAVAILABLE, "%s", strerror(errno));
    }
    if (status) {
        packed_file_close(file);
        return error_prefix(error, "%s", path);
    }
    *out = file;
    return STATUS_OK;
}

void packed_file_close(struct packed_file *file)
{
    if (!file)
        return;
    if (file->descriptor >= 0)
        close(file->descriptor);
    free(file->blobs);
    free(file->path);
    free(file);
}

int packed_file_descriptor(const struct packed_file *file) { return file->descriptor; }
const char *packed_file_path(const struct packed_file *file) { return file->path; }

const struct packed_blob *packed_file_blob(const struct packed_file *file, uint32_t blob)
{
    assert_always(blob < file->blob_count);
    return &file->blobs[blob];
}

enum status packed_file_check_sum(const struct packed_file *file, uint32_t blob, const struct packed_sum *sum, struct error *error)
{
    const struct packed_blob *expected = packed_file_blob(file, blob);

    if (sum->byte_count == expected->bytes && packed_sum_end(sum) == expected->checksum)
        return STATUS_OK;
    return error_set(error, STATUS_DATA_LOSS, "%s: damaged: the checksum of blob %u, bytes %llu to %llu, is wrong", file->path,
                     blob, (unsigned long long)expected->offset, (unsigned long long)(expected->offset + expected->bytes));
}

enum status packed_file_check(const struct packed_file *file, uint32_t blob, const void *bytes, struct error *error)
{
    struct packed_sum sum;

    packed_sum_begin(&sum);
    packed_sum_add(&sum, bytes, packed_file_blob(file, blob)->bytes);
    return packed_file_check_sum(file, blob, &sum, error);
}
