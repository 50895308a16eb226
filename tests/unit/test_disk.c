// test_disk.c: the read queue, by both of its methods: what is read is what the file has, in the order asked; ends, errors and closing.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/disk/disk.h"
#include "tests/cmocka.h"

enum { ALIGN = 4096 };
#define FILE_BYTES (5ull * DISK_PIECE_BYTES + 3 * ALIGN)

static const enum disk_method methods[] = {DISK_URING, DISK_THREADS};

// Stands before libc's. A disk that hangs, for as long as a test wants.
static atomic_bool hangs;
static atomic_uint hanging;

ssize_t pread(int file, void *memory, size_t bytes, off_t offset)
{
    atomic_fetch_add(&hanging, 1);
    while (atomic_load(&hangs))
        usleep(1000);
    atomic_fetch_sub(&hanging, 1);
    return syscall(SYS_pread64, file, memory, bytes, offset);
}

static unsigned char byte_at(uint64_t offset) { return (unsigned char)((offset * 0x9e3779b97f4a7c15u) >> 56); }

// A file of FILE_BYTES without a name.
static int make_file(void)
{
    char path[] = "/var/tmp/fd-test-disk-XXXXXX";
    unsigned char *bytes = malloc(FILE_BYTES);
    int file = mkstemp(path);

    assert_true(file >= 0);
    for (uint64_t i = 0; i < FILE_BYTES; i++)
        bytes[i] = byte_at(i);
    assert_int_equal(pwrite(file, bytes, FILE_BYTES, 0), FILE_BYTES);
    assert_int_equal(fsync(file), 0);
    int direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    int read_only = direct >= 0 ? direct : open(path, O_RDONLY | O_CLOEXEC);
    unlink(path);
    close(file);
    free(bytes);
    return read_only;
}

static struct disk_read read_of(int file, uint64_t offset, uint64_t bytes, void *memory)
{
    return (struct disk_read){.descriptor = file, .offset = offset, .bytes = bytes, .memory = memory};
}

static void count_done(void *user) { atomic_fetch_add((atomic_uint *)user, 1); }

// False: this machine has no io_uring.
static bool open_queue(enum disk_method method, atomic_uint *done, struct disk_queue **queue)
{
    const struct disk_config config = {.method = method, .on_done = done ? count_done : NULL, .user = done};
    struct error error;
    enum status status = disk_queue_open(&config, queue, &error);

    if (method == DISK_URING && status == STATUS_UNAVAILABLE) {
        print_message("not tested here: %s\n", error.text);
        return false;
    }
    assert_int_equal(status, STATUS_OK);
    return true;
}

static void check_bytes(const struct disk_read *read)
{
    const unsigned char *bytes = read->memory;
    for (uint64_t i = 0; i < read->bytes; i++)
        if (bytes[i] != byte_at(read->offset + i))
            fail_msg("byte %llu differs", (unsigned long long)(read->offset + i));
}

static void what_is_read_is_what_the_file_has(void **state)
{
    static const struct {
        uint64_t offset, bytes;
    } cases[] = {{0, ALIGN},
                 {0, FILE_BYTES},
                 {ALIGN, DISK_PIECE_BYTES},
                 {DISK_PIECE_BYTES - ALIGN, 2 * ALIGN},
                 {3 * ALIGN, 3ull * DISK_PIECE_BYTES + ALIGN},
                 {FILE_BYTES - ALIGN, ALIGN}};
    int file = make_file();

    for (size_t m = 0; m < ARRAY_COUNT(methods); m++) {
        struct disk_read reads[ARRAY_COUNT(cases)];
        struct disk_queue *queue;
        struct error error;
        atomic_uint done = 0;
        if (!open_queue(methods[m], &done, &queue))
            continue;
        for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
            reads[i] = read_of(file, cases[i].offset, cases[i].bytes, aligned_alloc(ALIGN, cases[i].bytes));
            memset(reads[i].memory, 0, cases[i].bytes);
            disk_queue_read(queue, &reads[i]);
        }
        for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
            disk_queue_wait(queue, &reads[i]);
            assert_true(disk_queue_done(queue, &reads[i]));
            assert_int_equal(disk_read_status(&reads[i], "file", &error), STATUS_OK);
            check_bytes(&reads[i]);
            free(reads[i].memory);
        }
        disk_queue_close(queue);
        assert_int_equal(done, ARRAY_COUNT(cases));
    }
    close(file);
}

static void a_read_that_cannot_be_fails_alone(void **state)
{
    int file = make_file();

    for (size_t m = 0; m < ARRAY_COUNT(methods); m++) {
        unsigned char *memory = aligned_alloc(ALIGN, 4 * FILE_BYTES);
        struct disk_read beyond = read_of(file, 2ull * DISK_PIECE_BYTES, FILE_BYTES, memory);
        struct disk_read none = read_of(-1, 0, FILE_BYTES, memory + FILE_BYTES);
        struct disk_read good = read_of(file, 0, FILE_BYTES, memory + 2 * FILE_BYTES);
        struct disk_queue *queue;
        struct error error;
        if (open_queue(methods[m], NULL, &queue)) {
            disk_queue_read(queue, &beyond);
            disk_queue_read(queue, &none);
            disk_queue_read(queue, &good);
            disk_queue_wait(queue, &good);
            disk_queue_wait(queue, &none);
            disk_queue_wait(queue, &beyond);
            assert_int_equal(disk_read_status(&beyond, "model.fdw", &error), STATUS_DATA_LOSS);
            assert_string_equal(error.text, "model.fdw: bytes 2097152 to 7352320 cannot be read: the file ends before");
            assert_int_equal(disk_read_status(&none, "model.fdw", &error), STATUS_UNAVAILABLE);
            assert_string_equal(error.text, "model.fdw: bytes 0 to 5255168 cannot be read: Bad file descriptor");
            assert_int_equal(disk_read_status(&good, "model.fdw", &error), STATUS_OK);
            check_bytes(&good);
            disk_queue_close(queue);
        }
        free(memory);
    }
    close(file);
}

// Whatever has begun is over once close returns, and what has not is cancelled: no memory is written to afterwards.
static void closing_ends_all_reads(void **state)
{
    enum { READS = 12 };
    int file = make_file();

    for (size_t m = 0; m < ARRAY_COUNT(methods); m++) {
        struct disk_read reads[READS];
        struct disk_queue *queue;
        struct error error;
        if (!open_queue(methods[m], NULL, &queue))
            continue;
        for (size_t i = 0; i < READS; i++) {
            reads[i] = read_of(file, 0, FILE_BYTES, aligned_alloc(ALIGN, FILE_BYTES));
            disk_queue_read(queue, &reads[i]);
        }
        disk_queue_close(queue);
        for (size_t i = 0; i < READS; i++) {
            assert_true(reads[i].done);
            enum status status = disk_read_status(&reads[i], "file", &error);
            assert_true(status == STATUS_OK || status == STATUS_CANCELLED);
            if (!status)
                check_bytes(&reads[i]);
            free(reads[i].memory);
        }
    }
    close(file);
}

// A reader that asks again for each read that is done, as a stream does, with a few out at a time.
static void reads_come_in_the_order_asked(void **state)
{
    enum { OUT = 3, ROUNDS = 40 };
    int file = make_file();

    for (size_t m = 0; m < ARRAY_COUNT(methods); m++) {
        struct disk_read reads[OUT];
        struct disk_queue *queue;
        struct error error;
        if (!open_queue(methods[m], NULL, &queue))
            continue;
        unsigned char *memory = aligned_alloc(ALIGN, OUT * 2 * ALIGN);
        for (uint32_t i = 0; i < ROUNDS + OUT; i++) { // the last OUT rounds only wait
            struct disk_read *read = &reads[i % OUT];
            if (i >= OUT) {
                disk_queue_wait(queue, read);
                assert_int_equal(disk_read_status(read, "file", &error), STATUS_OK);
                check_bytes(read);
            }
            if (i < ROUNDS) {
                *read = read_of(file, i * 7 % 100 * ALIGN, 2 * ALIGN, memory + i % OUT * 2 * ALIGN);
                memset(read->memory, 0, 2 * ALIGN);
                disk_queue_read(queue, read);
            }
        }
        disk_queue_close(queue);
        free(memory);
    }
    close(file);
}

// Pieces that arrive are counted, for whoever watches over a disk.
static void pieces_are_counted(void **state)
{
    int file = make_file();

    for (size_t m = 0; m < ARRAY_COUNT(methods); m++) {
        struct disk_read read = read_of(file, 0, FILE_BYTES, aligned_alloc(ALIGN, FILE_BYTES));
        struct disk_queue *queue;
        if (open_queue(methods[m], NULL, &queue)) {
            atomic_store(&hangs, methods[m] == DISK_THREADS);
            disk_queue_read(queue, &read);
            while (methods[m] == DISK_THREADS && !atomic_load(&hanging))
                usleep(1000);
            assert_true(methods[m] != DISK_THREADS || disk_queue_pieces(queue) == 0);
            atomic_store(&hangs, false);
            disk_queue_wait(queue, &read);
            assert_int_equal(disk_queue_pieces(queue), (FILE_BYTES + DISK_PIECE_BYTES - 1) / DISK_PIECE_BYTES);
            disk_queue_close(queue);
        }
        free(read.memory);
    }
    close(file);
}

static void methods_have_names(void **state)
{
    enum disk_method method;
    assert_int_equal(disk_method_parse("uring", &method), STATUS_OK);
    assert_int_equal(method, DISK_URING);
    assert_int_equal(disk_method_parse("threads", &method), STATUS_OK);
    assert_int_equal(method, DISK_THREADS);
    assert_int_equal(disk_method_parse("auto", &method), STATUS_OK);
    assert_int_equal(method, DISK_AUTO);
    assert_int_equal(disk_method_parse("mmap", &method), STATUS_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_read_is_what_the_file_has),
                                       cmocka_unit_test(a_read_that_cannot_be_fails_alone),
                                       cmocka_unit_test(closing_ends_all_reads),
                                       cmocka_unit_test(reads_come_in_the_order_asked),
                                       cmocka_unit_test(pieces_are_counted),
                                       cmocka_unit_test(methods_have_names)};
    return cmocka_run_group_tests_name("disk", tests, NULL, NULL);
}
