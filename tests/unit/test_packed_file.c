// test_packed_file.c: a packed file is what was written, whole, or not there; whatever damages it is noticed and named.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "kernels/backend/packed_file.h"
#include "tests/cmocka.h"

enum { A = PACKED_FILE_ALIGN, BLOBS = 4, SUM = 7 * A };

static const uint64_t sizes[BLOBS] = {2 * A, A, 0, 4 * A};
static const struct packed_layout layout = {.model = 11, .layout = 22, .blob_count = BLOBS, .blob_bytes = sizes};
static char folder[] = "/var/tmp/fd-test-packed-XXXXXX", path[64], part[80];
static unsigned char *content; // [SUM] of all blobs

static int set_up(void **state)
{
    if (!mkdtemp(folder) || !(content = aligned_alloc(A, SUM)))
        return -1;
    snprintf(path, sizeof path, "%s/model.fdw", folder);
    snprintf(part, sizeof part, "%s.part", path);
    for (uint32_t i = 0; i < SUM; i++)
        content[i] = (unsigned char)(i * 2654435761u >> 24);
    return 0;
}

static int tear_down(void **state)
{
    free(content);
    unlink(path);
    return rmdir(folder); // fails if a part was left
}

static void put_all(struct packed_writer *writer)
{
    struct error error;
    for (uint64_t i = 0, at = 0; i < BLOBS; at += sizes[i++])
        assert_int_equal(packed_writer_put(writer, content + at, &error), STATUS_OK);
}

static void write_file(void)
{
    struct packed_writer *writer;
    struct error error;
    assert_int_equal(packed_writer_open(path, &layout, false, &writer, &error), STATUS_OK);
    put_all(writer);
    assert_int_equal(packed_writer_commit(writer, &error), STATUS_OK);
}

// Opens the file and checks all its blobs; the first failure.
static enum status read_file(const struct packed_layout *expected, struct error *error)
{
    struct packed_file *file;
    enum status status = packed_file_open(path, expected, &file, error);
    unsigned char *bytes = aligned_alloc(A, SUM);

    for (uint32_t i = 0; i < BLOBS && !status; i++) {
        const struct packed_blob *blob = packed_file_blob(file, i);
        assert_int_equal(pread(packed_file_descriptor(file), bytes, blob->bytes, (off_t)blob->offset), blob->bytes);
        status = packed_file_check(file, i, bytes, error);
        if (status)
            packed_file_close(file);
    }
    free(bytes);
    if (!status)
        packed_file_close(file);
    return status;
}

static void what_was_written_is_read(void **state)
{
    struct packed_file *file;
    struct error error;
    unsigned char *bytes = aligned_alloc(A, SUM);

    write_file();
    assert_int_equal(packed_file_open(path, &layout, &file, &error), STATUS_OK);
    for (uint64_t i = 0, at = 0; i < BLOBS; at += sizes[i++]) {
        const struct packed_blob *blob = packed_file_blob(file, (uint32_t)i);
        assert_int_equal(blob->bytes, sizes[i]);
        assert_int_equal(blob->offset % A, 0);
        assert_int_equal(pread(packed_file_descriptor(file), bytes, blob->bytes, (off_t)blob->offset), blob->bytes);
        assert_memory_equal(bytes, content + at, sizes[i]);
        assert_int_equal(packed_file_check(file, (uint32_t)i, bytes, &error), STATUS_OK);
    }
    packed_file_close(file);
    free(bytes);
}

// Blobs that come in parts, as of a device that has no memory for a whole one.
static void parts_give_the_same_file(void **state)
{
    struct packed_writer *writer;
    struct packed_file *file;
    struct packed_sum sum;
    struct error error;

    assert_int_equal(packed_writer_open(path, &layout, false, &writer, &error), STATUS_OK);
    for (uint64_t i = 0, at = 0; i < BLOBS; at += sizes[i++])
        for (uint64_t done = 0, part_bytes = 0; done < sizes[i] || !sizes[i]; done += part_bytes) {
            part_bytes = MIN(sizes[i] - done, (uint64_t)(1 + i % 3) * A);
            assert_int_equal(packed_writer_add(writer, content + at + done, part_bytes, &error), STATUS_OK);
            if (!sizes[i])
                break;
        }
    assert_int_equal(packed_writer_commit(writer, &error), STATUS_OK);
    assert_int_equal(read_file(&layout, &error), STATUS_OK);
    assert_int_equal(packed_file_open(path, &layout, &file, &error), STATUS_OK);
    packed_sum_begin(&sum);
    for (uint32_t at = 3 * A; at < SUM; at += A) {
        assert_int_equal(packed_file_check_sum(file, BLOBS - 1, &sum, &error), STATUS_DATA_LOSS);
        packed_sum_add(&sum, content + at, A);
    }
    assert_int_equal(packed_file_check_sum(file, BLOBS - 1, &sum, &error), STATUS_OK);
    packed_file_close(file);
}

static void another_model_or_layout_is_named(void **state)
{
    struct packed_layout other = layout;
    const uint64_t fewer[] = {2 * A, A, 4 * A};
    struct error error;
    char expected[100];

    write_file();
    other.model = 12;
    assert_int_equal(read_file(&other, &error), STATUS_FAILED_PRECONDITION);
    snprintf(expected, sizeof expected, "%s: of another model", path);
    assert_string_equal(error.text, expected);
    other = layout, other.layout = 23;
    assert_int_equal(read_file(&other, &error), STATUS_FAILED_PRECONDITION);
    snprintf(expected, sizeof expected, "%s: of another layout of this model", path);
    assert_string_equal(error.text, expected);
    other = layout, other.blob_count = 3, other.blob_bytes = fewer;
    assert_int_equal(read_file(&other, &error), STATUS_FAILED_PRECONDITION);
}

static void no_file_is_not_found(void **state)
{
    struct packed_file *file;
    struct error error;
    unlink(path);
    assert_int_equal(packed_file_open(path, &layout, &file, &error), STATUS_NOT_FOUND);
}

static void a_file_cut_short_is_damaged(void **state)
{
    struct stat info;
    struct error error;

    write_file();
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, packed_header_bytes(BLOBS) + SUM);
    for (off_t length = info.st_size - 1; length >= 0; length -= length > 2 * A ? A - 1 : length > 200 ? 100 : 1) {
        assert_int_equal(truncate(path, length), 0);
        assert_int_equal(read_file(&layout, &error), STATUS_DATA_LOSS);
    }
    write_file();
    assert_int_equal(truncate(path, info.st_size + A), 0);
    assert_int_equal(read_file(&layout, &error), STATUS_DATA_LOSS);
    assert_non_null(strstr(error.text, "too long"));
}

// Every bit of the header, and one of each 61 bytes of the blobs.
static void a_flipped_bit_is_noticed(void **state)
{
    struct error error;
    uint32_t noticed = 0, flipped = 0;

    write_file();
    int file = open(path, O_RDWR | O_CLOEXEC);
    for (off_t at = 0; at < (off_t)(packed_header_bytes(BLOBS) + SUM); at += at < 200 ? 1 : 61)
        for (int bit = 0; bit < 8; bit += at < 200 ? 1 : 5) {
            unsigned char byte, wrong;
            assert_int_equal(pread(file, &byte, 1, at), 1);
            wrong = byte ^ (unsigned char)(1 << bit);
            assert_int_equal(pwrite(file, &wrong, 1, at), 1);
            enum status status = read_file(&layout, &error);
            noticed += status == STATUS_DATA_LOSS || (status == STATUS_FAILED_PRECONDITION && at < 32);
            flipped++;
            assert_int_equal(pwrite(file, &byte, 1, at), 1);
        }
    assert_int_equal(noticed, flipped);
    assert_int_equal(read_file(&layout, &error), STATUS_OK);
    close(file);
}

static void what_is_given_up_leaves_nothing(void **state)
{
    struct packed_writer *writer;
    struct error error;

    unlink(path);
    assert_int_equal(packed_writer_open(path, &layout, false, &writer, &error), STATUS_OK);
    assert_int_equal(packed_writer_put(writer, content, &error), STATUS_OK);
    assert_int_equal(access(part, F_OK), 0);
    packed_writer_abort(writer);
    assert_int_not_equal(access(part, F_OK), 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

// A limit on the size of files does what a full disk does, at the same calls.
static void a_full_disk_leaves_nothing(void **state)
{
    struct packed_writer *writer;
    struct rlimit before, limit;
    struct error error;

    unlink(path);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before, limit.rlim_cur = 3 * A;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(packed_writer_open(path, &layout, false, &writer, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "no room for it"));
    assert_int_not_equal(access(part, F_OK), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);

    assert_int_equal(packed_writer_open(path, &layout, false, &writer, &error), STATUS_OK);
    limit.rlim_cur = 2 * A; // now it fills up while blobs are written
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(packed_writer_put(writer, content, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    packed_writer_abort(writer);
    assert_int_not_equal(access(part, F_OK), 0);
    assert_int_not_equal(access(path, F_OK), 0);
    signal(SIGXFSZ, SIG_DFL);
}

static void one_writes_at_a_time(void **state)
{
    struct packed_writer *first, *second;
    struct error error;

    unlink(path);
    assert_int_equal(packed_writer_open(path, &layout, false, &first, &error), STATUS_OK);
    assert_int_equal(packed_writer_open(path, &layout, false, &second, &error), STATUS_UNAVAILABLE);
    put_all(first);
    assert_int_equal(packed_writer_commit(first, &error), STATUS_OK);
    assert_int_equal(read_file(&layout, &error), STATUS_OK);
    assert_int_equal(packed_writer_open(path, &layout, false, &second, &error), STATUS_OK);
    packed_writer_abort(second);
    assert_int_equal(read_file(&layout, &error), STATUS_OK); // one that is given up leaves the file that was there
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(parts_give_the_same_file),
        cmocka_unit_test(another_model_or_layout_is_named),
        cmocka_unit_test(no_file_is_not_found),
        cmocka_unit_test(a_file_cut_short_is_damaged),
        cmocka_unit_test(a_flipped_bit_is_noticed),
        cmocka_unit_test(what_is_given_up_leaves_nothing),
        cmocka_unit_test(a_full_disk_leaves_nothing),
        cmocka_unit_test(one_writes_at_a_time),
    };
    return cmocka_run_group_tests_name("packed file", tests, set_up, tear_down);
}
