// packed_writer.c: writes a packed file as PATH.part, locked so that one process at a time does, and renames it once it is complete and
// on the disk. A process that is killed leaves PATH.part; the next one that writes begins it anew.
//
// The blobs go past the page cache where the file system allows that: a control group would be charged for pages that nobody reads.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "kernels/backend/packed_form.h"

struct packed_writer {
    char *path, *part;
    int descriptor;        // of the part, locked
    uint32_t next;         // blob
    uint64_t at;           // where its next byte goes
    struct packed_sum sum; // of the part of it that is written
    unsigned char *head;   // header and table; aligned for a direct write
    uint64_t head_bytes;
    struct packed_header header;
    struct packed_blob *blobs; // [blob_count]
};

static enum status io_error(const struct packed_writer *writer, const char *what, struct error *error)
{
    const int number = errno;
    return error_set(error,
                     number == ENOSPC || number == EDQUOT || number == EFBIG ? STATUS_RESOURCE_EXHAUSTED : STATUS_UNAVAILABLE,
                     "%s: %s: %s", writer->part, what, strerror(number));
}

static void free_writer(struct packed_writer *writer)
{
    if (writer->descriptor >= 0)
        close(writer->descriptor); // and with it the lock
    free(writer->head);
    free(writer->blobs);
    free(writer->path);
    free(writer->part);
    free(writer);
}

void packed_writer_abort(struct packed_writer *writer)
{
    if (!writer)
        return;
    if (writer->descriptor >= 0)
        unlink(writer->part);
    free_writer(writer);
}

// Opens and locks the part. ALREADY_EXISTS: whoever had the lock has just given the part its name.
static enum status lock_part(struct packed_writer *writer, bool wait, struct error *error)
{
    struct stat mine, there;
    int descriptor = open(writer->part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);

    if (descriptor < 0)
        return io_error(writer, "cannot be written", error);
    while (flock(descriptor, LOCK_EX | (wait ? 0 : LOCK_NB)))
        if (errno != EINTR) {
            close(descriptor);
            return error_set(error, STATUS_UNAVAILABLE, "%s: another process is writing it", writer->part);
        }
    if (fstat(descriptor, &mine) || stat(writer->part, &there) || mine.st_ino != there.st_ino || mine.st_dev != there.st_dev) {
        close(descriptor);
        return error_set(error, STATUS_ALREADY_EXISTS, "%s: another process has written it", writer->path);
    }
    writer->descriptor = descriptor;
    return STATUS_OK;
}

// Takes the space from the disk, so that a disk that is too full is known before an hour of packing.
static enum status reserve(struct packed_writer *writer, struct error *error)
{
    int flags, failed;

    if (ftruncate(writer->descriptor, 0))
        return io_error(writer, "cannot be written", error);
    failed = fallocate(writer->descriptor, 0, 0, (off_t)writer->header.file_bytes) ? errno : 0;
    if (failed == EOPNOTSUPP || failed == ENOSYS) // then a full disk shows when it is
        failed = ftruncate(writer->descriptor, (off_t)writer->header.file_bytes) ? errno : 0;
    if (failed) {
        errno = failed;
        io_error(writer, "no room for it", error);
        if (error)
            error_prefix(error, "%llu MiB of packed weights", (unsigned long long)(writer->header.file_bytes >> 20));
        return error ? error->status : STATUS_RESOURCE_EXHAUSTED;
    }
    flags = fcntl(writer->descriptor, F_GETFL);
    if (flags >= 0) // without effect where the file system has no such writes
        (void)!fcntl(writer->descriptor, F_SETFL, flags | O_DIRECT);
    return STATUS_OK;
}

enum status packed_writer_open(const char *path, const struct packed_layout *layout, bool wait, struct packed_writer **out,
                               struct error *error)
{
    struct packed_writer *writer = calloc(1, sizeof *writer);
    enum status status = STATUS_RESOURCE_EXHAUSTED;

    assert_always(layout->blob_count > 0 && layout->blob_count <= PACKED_FILE_BLOBS_MAX);
    if (!writer)
        return error_set(error, status, "no memory to write %s", path);
    writer->descriptor = -1;
    writer->head_bytes = writer->at = packed_header_bytes(layout->blob_count);
    writer->header = (struct packed_header){.version = PACKED_VERSION,
                                            .blob_count = layout->blob_count,
                                            .model = layout->model,
                                            .layout = layout->layout,
                                            .file_bytes = writer->at};
    memcpy(writer->header.magic, PACKED_MAGIC, sizeof writer->header.magic);
    for (uint32_t i = 0; i < layout->blob_count; i++) {
        assert_always(layout->blob_bytes[i] % PACKED_FILE_ALIGN == 0 && layout->blob_bytes[i] < PACKED_FILE_BYTES_MAX);
        writer->header.file_bytes += layout->blob_bytes[i];
    }
    writer->path = strdup(path);
    writer->blobs = calloc(layout->blob_count, sizeof *writer->blobs);
    writer->head = aligned_alloc(PACKED_FILE_ALIGN, writer->head_bytes);
    if (!writer->path || !writer->blobs || !writer->head || asprintf(&writer->part, "%s.part", path) < 0) {
        free_writer(writer);
        return error_set(error, status, "no memory to write %s", path);
    }
    for (uint32_t i = 0; i < layout->blob_count; i++)
        writer->blobs[i].bytes = layout->blob_bytes[i];
    if ((status = lock_part(writer, wait, error)) || (status = reserve(writer, error))) {
        packed_writer_abort(writer);
        return status;
    }
    *out = writer;
    return STATUS_OK;
}

static enum status write_all(struct packed_writer *writer, const unsigned char *bytes, uint64_t count, uint64_t at,
                             struct error *error)
{
    enum { PIECE = 8 << 20 };

    while (count) {
        ssize_t done = pwrite(writer->descriptor, bytes, MIN(count, (uint64_t)PIECE), (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && errno == EINVAL) { // a file system that takes the flag and not the write
            int flags = fcntl(writer->descriptor, F_GETFL);
            if (flags >= 0 && (flags & O_DIRECT) && !fcntl(writer->descriptor, F_SETFL, flags & ~O_DIRECT))
                continue;
            errno = EINVAL;
        }
        if (done == 0)
            errno = ENOSPC;
        if (done <= 0)
            return io_error(writer, "cannot be written", error);
        bytes += done, count -= (uint64_t)done, at += (uint64_t)done;
    }
    return STATUS_OK;
}

enum status packed_writer_add(struct packed_writer *writer, const void *bytes, uint64_t byte_count, struct error *error)
{
    assert_always(writer->next < writer->header.blob_count && byte_count % PACKED_FILE_ALIGN == 0);
    struct packed_blob *blob = &writer->blobs[writer->next];
    const uint64_t at = writer->at;

    if (!writer->sum.byte_count) {
        packed_sum_begin(&writer->sum);
        blob->offset = at;
    }
    assert_always(byte_count <= blob->bytes - writer->sum.byte_count);
    packed_sum_add(&writer->sum, bytes, byte_count);
    writer->at += byte_count;
    if (writer->sum.byte_count == blob->bytes) {
        blob->checksum = packed_sum_end(&writer->sum);
        writer->sum.byte_count = 0;
        writer->next++;
    }
    return write_all(writer, bytes, byte_count, at, error);
}

enum status packed_writer_put(struct packed_writer *writer, const void *bytes, struct error *error)
{
    assert_always(writer->next < writer->header.blob_count && !writer->sum.byte_count);
    return packed_writer_add(writer, bytes, writer->blobs[writer->next].bytes, error);
}

// Makes the name last through a power cut, where the file system can; without it the file is written again one day.
static void sync_folder(const struct packed_writer *writer)
{
    const char *slash = strrchr(writer->path, '/');
    char folder[4096];

    snprintf(folder, sizeof folder, "%.*s", slash ? (int)MAX(slash - writer->path, 1) : 1, slash ? writer->path : ".");
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return;
    (void)!fsync(descriptor);
    close(descriptor);
}

enum status packed_writer_commit(struct packed_writer *writer, struct error *error)
{
    enum status status;

    assert_always(writer->next == writer->header.blob_count && writer->at == writer->header.file_bytes);
    memset(writer->head, 0, writer->head_bytes);
    memcpy(writer->head, &writer->header, sizeof writer->header);
    memcpy(writer->head + sizeof writer->header, writer->blobs, writer->next * sizeof *writer->blobs);
    writer->header.checksum = packed_header_sum(writer->head, writer->next);
    memcpy(writer->head, &writer->header, sizeof writer->header);
    status = write_all(writer, writer->head, writer->head_bytes, 0, error);
    if (!status && fsync(writer->descriptor))
        status = io_error(writer, "cannot be written", error);
    if (!status && rename(writer->part, writer->path))
        status = io_error(writer, "cannot be renamed", error);
    if (status) {
        packed_writer_abort(writer);
        return status;
    }
    sync_folder(writer);
    free_writer(writer);
    return STATUS_OK;
}
