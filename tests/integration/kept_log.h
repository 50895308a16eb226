// kept_log.h: keeps the lines that a test program logs, so that a test can say which were written, and how often. One a program.
#ifndef FD_TESTS_KEPT_LOG_H
#define FD_TESTS_KEPT_LOG_H

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/status.h"

enum { LOG_TEXT_BYTES = 1 << 20 };

static int log_fd = -1, log_before_fd = -1; // what stderr is now, and was before
static off_t log_from;                      // lines before it are of an earlier test

// From here on all lines are kept, in the file that FD_TEST_LOG names if it is set. Before log_init().
static inline void kept_log_open(void)
{
    const char *path = getenv("FD_TEST_LOG");

    log_before_fd = dup(STDERR_FILENO);
    log_fd = path ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600) : memfd_create("log", MFD_CLOEXEC);
    assert_always(log_fd >= 0 && dup2(log_fd, STDERR_FILENO) == STDERR_FILENO);
}

static inline void kept_log_forget(void) { log_from = lseek(log_fd, 0, SEEK_END); }

// Says at the end what there was, if a test has failed.
static inline int kept_log_show(int failed)
{
    char text[4096];
    ssize_t count;

    for (off_t at = 0; failed && (count = pread(log_fd, text, sizeof text, at)) > 0; at += count)
        if (write(log_before_fd, text, (size_t)count) < 0)
            break;
    return failed;
}

// Returns how many lines have all three texts (NULL: any).
static inline uint32_t kept_log_count(const char *first, const char *second, const char *third)
{
    static char text[LOG_TEXT_BYTES];
    ssize_t length = pread(log_fd, text, sizeof text - 1, log_from);
    uint32_t count = 0;
    char *rest = text;

    text[length > 0 ? length : 0] = '\0';
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n"))
        count += (!first || strstr(line, first)) && (!second || strstr(line, second)) && (!third || strstr(line, third));
    return count;
}

#endif
