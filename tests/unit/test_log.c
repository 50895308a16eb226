// test_log.c: a log that nobody reads stops nobody; a log file does not grow without limit.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "tests/cmocka.h"
#include "tests/integration/pace.h"

enum { LINES = 3000, LINE_PAYLOAD = 200 }; // far more than a pipe or a socket buffers

static void write_lines(void)
{
    char text[LINE_PAYLOAD + 1];
    memset(text, 'x', LINE_PAYLOAD);
    text[LINE_PAYLOAD] = '\0';
    for (int i = 0; i < LINES; i++)
        log_info("TEST", "index=%d text=%s", i, text);
}

// The child's stderr is `fd`. Once it has written all lines it says so on `done_fd`, waits for a byte there and writes the last one.
static _Noreturn void log_into(int fd, int done_fd)
{
    char byte = 0;

    alarm((unsigned)(pace_us(60000000) / 1000000)); // a child that is stuck ends by itself
    signal(SIGPIPE, SIG_IGN);
    dup2(fd, STDERR_FILENO);
    log_init("test", LOG_INFO, false);
    write_lines();
    if (write(done_fd, &byte, 1) != 1 || read(done_fd, &byte, 1) != 1)
        _exit(1);
    log_info("LAST", "it_is=here");
    _exit(0);
}

static size_t read_all(int fd, char *text, size_t text_bytes)
{
    size_t at = 0;
    for (ssize_t n; at + 1 < text_bytes && (n = read(fd, text + at, text_bytes - 1 - at)) > 0;)
        at += (size_t)n;
    text[at] = '\0';
    return at;
}

// Nothing reads ends[0] until all lines are written; then all is read and the last line is asked for.
static void nobody_reads(int ends[2], char *text, size_t text_bytes)
{
    int done[2], status;
    char byte = 0;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, done), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        close(done[0]);
        log_into(ends[1], done[1]);
    }
    close(ends[1]);
    close(done[1]);
    assert_int_equal(read(done[0], &byte, 1), 1); // 0 if alarm() ended it: it waited for a reader
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    size_t at = read_all(ends[0], text, text_bytes);
    assert_int_equal(fcntl(ends[0], F_SETFL, 0), 0);
    assert_int_equal(write(done[0], &byte, 1), 1);
    read_all(ends[0], text + at, text_bytes - at);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(done[0]);
    close(ends[0]);
}

static void check_dropped(const char *text)
{
    int whole = 0;
    for (const char *line = text; (line = strstr(line, " TEST index=")); line++)
        whole++;
    const char *dropped = strstr(text, " warn test LOG-DROPPED lines=");
    assert_non_null(dropped);
    assert_int_equal(atoi(strchr(dropped, '=') + 1), LINES - whole);
    assert_true(whole > 10 && whole < LINES);
    assert_non_null(strstr(dropped, " LAST it_is=here\n"));
}

static void a_stalled_reader_costs_lines_and_no_time(void **state)
{
    static char text[LINES * (LINE_PAYLOAD + 100)];
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    nobody_reads(ends, text, sizeof text);
    check_dropped(text);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    nobody_reads(ends, text, sizeof text);
    assert_non_null(strstr(text, " warn test LOG-DROPPED lines="));
    assert_non_null(strstr(text, " LAST it_is=here\n"));
}

// Whoever shares the pipe is not made non-blocking.
static void the_flags_of_stderr_are_left_alone(void **state)
{
    int ends[2], saved = dup(STDERR_FILENO);

    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    log_init("test", LOG_INFO, false);
    log_info("TEST", "some=thing");
    assert_false(fcntl(ends[1], F_GETFL) & O_NONBLOCK);
    dup2(saved, STDERR_FILENO);
    log_init("test", LOG_INFO, false);
    close(saved);
    close(ends[0]);
    close(ends[1]);
}

static long size_of(const char *folder, const char *name)
{
    char path[300];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &info) ? -1 : (long)info.st_size;
}

static void a_file_is_rotated_by_size_and_count(void **state)
{
    char folder[] = "/tmp/fd-log-XXXXXX", path[300];
    static const char *const names[] = {"test.log", "test.log.1", "test.log.2", "test.log.3"};
    int status;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/test.log", folder);
    pid_t pid = fork();
    if (pid == 0) {
        struct error error;
        log_init("test", LOG_INFO, false);
        if (log_to_file(path, 65536, 2, &error))
            _exit(1);
        write_lines();
        printf("what else is printed\n");
        fflush(stdout);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    for (int i = 0; i < 3; i++) {
        assert_in_range(size_of(folder, names[i]), 1, 65536 + 100);
        if (i) // the old ones are full
            assert_true(size_of(folder, names[i]) > 60000);
    }
    assert_int_equal(size_of(folder, names[3]), -1);
    char text[65536 + 200] = "";
    int fd = open(path, O_RDONLY);
    read_all(fd, text, sizeof text);
    close(fd);
    assert_non_null(strstr(text, "index=2999 "));
    assert_non_null(strstr(text, "\nwhat else is printed\n"));
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

// The disk is full in the middle of a line, and has room again later: a limit of the file's size is such a disk.
static void a_full_disk_costs_lines_that_are_counted(void **state)
{
    char path[] = "/tmp/fd-log-XXXXXX", text[4096] = "", wanted[80];
    int fd = mkstemp(path), status;

    assert_true(fd >= 0);
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit full = {1000, RLIM_INFINITY}, room = {RLIM_INFINITY, RLIM_INFINITY};
        struct error error;
        signal(SIGXFSZ, SIG_IGN);
        log_init("test", LOG_INFO, false);
        if (log_to_file(path, 1 << 20, 0, &error) || setrlimit(RLIMIT_FSIZE, &full))
            _exit(1);
        write_lines();
        if (setrlimit(RLIMIT_FSIZE, &room))
            _exit(2);
        log_info("LAST", "lost=%llu", (unsigned long long)log_lines_lost());
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    read_all(fd, text, sizeof text);
    close(fd);
    unlink(path);
    const char *torn = text + 999, *dropped = strstr(text, " warn test LOG-DROPPED lines=");
    assert_non_null(dropped);
    assert_int_equal(torn[0], 'x');
    assert_int_equal(torn[1], '\n'); // and no line follows in the same one
    snprintf(wanted, sizeof wanted, " LAST lost=%s", strchr(dropped, '=') + 1);
    wanted[strcspn(wanted, "\n")] = '\0';
    assert_non_null(strstr(dropped, wanted));
    assert_in_range(atoi(strchr(dropped, '=') + 1), LINES - 4, LINES - 3);
}

static void a_file_that_cannot_be_opened_is_an_error(void **state)
{
    struct error error;
    assert_int_equal(log_to_file("/proc/nothing/here", 65536, 2, &error), STATUS_NOT_FOUND);
    assert_non_null(strstr(error.text, "--log-file /proc/nothing/here: No such file"));
}

static void what_is_repeated_is_logged_seldom(void **state)
{
    enum { TRIES_A_SECOND = 5, SECONDS = 61 };
    struct repeat repeat = {0};
    uint64_t now_us = 1000000000;
    uint32_t due = 0, counted = 0;
    for (uint32_t i = 0; i < TRIES_A_SECOND * SECONDS; i++, now_us += 1000000 / TRIES_A_SECOND)
        if (repeat_is_due(&repeat, now_us, "refused")) {
            due++;
            counted += repeat.count;
        }
    assert_int_equal(due, 3); // at 0, 30 and 60 s
    assert_int_equal(counted, 60 * TRIES_A_SECOND + 1);
    assert_true(repeat_is_due(&repeat, now_us, "for another reason"));
    assert_int_equal(repeat.count, TRIES_A_SECOND); // those of the last second, and this one
    for (uint32_t i = 0; i < 2; i++)                // two that take turns fill no log either
        assert_false(repeat_is_due(&repeat, now_us + i, i ? "for another reason" : "refused"));
    repeat = (struct repeat){0};
    assert_true(repeat_is_due(&repeat, now_us, "refused") && repeat.count == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stalled_reader_costs_lines_and_no_time), cmocka_unit_test(the_flags_of_stderr_are_left_alone),
        cmocka_unit_test(a_file_is_rotated_by_size_and_count),      cmocka_unit_test(a_file_that_cannot_be_opened_is_an_error),
        cmocka_unit_test(what_is_repeated_is_logged_seldom),        cmocka_unit_test(a_full_disk_costs_lines_that_are_counted),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
