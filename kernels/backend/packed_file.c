// packed_file.c: reads and writes packed files (packed_file.h): the header's form and checks, checksums, progress.
//
// A file is written as PATH.part, locked so that one process at a time does, and renamed once it is complete and on the disk. A process that
// is killed leaves PATH.part; the next one that writes begins it anew.
//
// The blobs go past the page cache where the file system allows that: a control group would be charged for pages that nobody reads.
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/backend/packed_file.h"

// --- what the log says while files are written and read, which takes minutes for a large model ---

enum { PROGRESS_US = 5000000 };

static const double mib = 1048576;

static bool is_time(uint64_t *said_us)
{
    const uint64_t now_us = clock_now_us();

    if (now_us - *said_us < PROGRESS_US)
        return false;
    *said_us = now_us;
    return true;
}

void packed_log_writing(uint64_t *said_us, uint64_t done, uint64_t total)
{
    if (is_time(said_us))
        log_info("WEIGHTS-PACKING", "done_mib=%.0f of_mib=%.0f", (double)done / mib, (double)total / mib);
}

void packed_log_reading(uint64_t *said_us, uint64_t done, uint64_t total)
{
    if (is_time(said_us))
        log_info("WEIGHTS-READING", "done_mib=%.0f of_mib=%.0f", (double)done / mib, (double)total / mib);
}

void packed_log_written(const char *path, uint64_t bytes, uint64_t began_us)
{
    log_info("WEIGHTS-PACKED", "file=%s mib=%.1f ms=%llu", path, (double)bytes / mib,
             (unsigned long long)(clock_now_us() - began_us) / 1000);
}

double packed_log_read(const char *path, uint64_t bytes, uint64_t began_us)
{
    const double us = (double)MAX(clock_now_us() - began_us, 1), all_mib = (double)bytes / mib;

    log_info("WEIGHTS-READ", "file=%s mib=%.1f ms=%.0f mib_per_s=%.0f", path, all_mib, us * 1e-3, all_mib / us * 1e6);
    return us;
}

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

static uint64_t packed_sum_end(const struct packed_sum *sum)
{
    uint64_t total = sum->byte_count;

    for (int i = 0; i < SUMS; i++) {
        total = (total ^ sum->sums[i]) * 0x9e3779b97f4a7c15u;
        total ^= total >> 32;
    }
    return total;
}

// Returns a checksum in which a change of any one aligned word of 8 bytes always shows. byte_count: a multiple of 32.
static uint64_t packed_checksum(const void *bytes, uint64_t byte_count)
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

// --- writing ---

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
