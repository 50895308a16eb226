// log.c: formats a line on the stack and hands it over in one write, so that lines of threads never mix.
//
// A pipe or terminal is opened a second time as non-blocking: O_NONBLOCK belongs to the open file and not to the descriptor, so
// setting it on stderr itself would also change it for every other process that shares the terminal. A socket (journald) is asked
// not to block at each send. Where the second open is not allowed, poll(2) says whether a line would go in. A regular file never
// makes its writer wait for a reader.
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 2048, PATH_BYTES = 512 }; // a line is shorter than PIPE_BUF: a pipe takes all of it or nothing

enum log_level log_threshold = LOG_INFO;
static const char *log_service = "fastdecode";
static bool log_json;

static struct log_output {
    pthread_mutex_t lock;
    int fd;
    bool is_socket, must_poll;
    uint64_t dropped_lines; // since the last line that got through
    uint64_t lost_lines;    // since the start
    bool is_torn;           // the latest line got out in part
    char path[PATH_BYTES];  // "": not a file of our own
    uint64_t file_bytes, max_bytes;
    uint32_t keep_count;
} output = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = STDERR_FILENO};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

static void use_stderr(void)
{
    struct stat info;

    if (output.fd != STDERR_FILENO)
        close(output.fd);
    output.fd = STDERR_FILENO;
    output.path[0] = '\0';
    bool known = fstat(STDERR_FILENO, &info) == 0;
    output.is_socket = known && S_ISSOCK(info.st_mode);
    output.must_poll = known && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode));
    int fd = output.must_poll ? open("/proc/self/fd/2", O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        output.fd = fd;
        output.must_poll = false;
    }
}

void log_init(const char *service, enum log_level threshold, bool json)
{
    log_service = service;
    log_threshold = threshold;
    log_json = json;
    if (!output.path[0])
        use_stderr();
}

enum status log_parse_level(const char *name, enum log_level *out)
{
    for (int level = LOG_DEBUG; level <= LOG_ERROR; level++)
        if (!strcmp(name, level_names[level])) {
            *out = (enum log_level)level;
            return STATUS_OK;
        }
    return STATUS_INVALID_ARGUMENT;
}

const char *log_quote(char *buffer, size_t buffer_bytes, const char *text)
{
    size_t at = 0;
    if (buffer_bytes < 8)
        return "\"\"";
    buffer[at++] = '"';
    for (const unsigned char *c = (const unsigned char *)text; *c && at + 6 < buffer_bytes; c++) {
        if (*c == '"' || *c == '\\') {
            buffer[at++] = '\\';
            buffer[at++] = (char)*c;
        } else if (*c < 0x20 || *c == 0x7f) {
            at += (size_t)snprintf(buffer + at, 5, "\\x%02x", *c);
        } else {
            buffer[at++] = (char)*c;
        }
    }
    buffer[at++] = '"';
    buffer[at] = '\0';
    return buffer;
}

// --- files ---------------------------------------------------------------------------------------------------------------

static int open_file(uint64_t *bytes)
{
    struct stat info;
    int fd = open(output.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    *bytes = fd >= 0 && fstat(fd, &info) == 0 ? (uint64_t)info.st_size : 0;
    return fd;
}

// Everything else that the process prints goes there too. dup2() replaces a descriptor in one step, so no thread's line is lost.
static void use_file(int fd)
{
    dup2(fd, STDERR_FILENO);
    dup2(fd, STDOUT_FILENO);
    if (output.fd != STDERR_FILENO)
        close(output.fd);
    close(fd);
    output.fd = STDERR_FILENO;
    output.is_socket = output.must_poll = false;
}

enum status log_to_file(const char *path, uint64_t max_bytes, uint32_t keep_count, struct error *error)
{
    char before[PATH_BYTES];
    enum status status = STATUS_OK;
    uint64_t bytes;

    if (strlen(path) >= PATH_BYTES - 16)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--log-file: the name is longer than %d bytes", PATH_BYTES - 16);
    pthread_mutex_lock(&output.lock);
    memcpy(before, output.path, sizeof before);
    snprintf(output.path, sizeof output.path, "%s", path);
    int fd = open_file(&bytes);
    if (fd < 0) {
        status = error_set(error, status_of_path(errno), "--log-file %s: %s", path, strerror(errno));
        memcpy(output.path, before, sizeof before);
    } else {
        use_file(fd);
        output.file_bytes = bytes;
        output.max_bytes = max_bytes;
        output.keep_count = keep_count;
    }
    pthread_mutex_unlock(&output.lock);
    return status;
}

// path -> path.1 -> path.2 ... -> path.keep_count, which is replaced. If that fails the log goes on where it is.
static void rotate(void)
{
    char from[PATH_BYTES], to[PATH_BYTES];
    uint64_t bytes;

    output.file_bytes = 0; // also after a failure: the next attempt is max_bytes from here
    for (uint32_t i = output.keep_count; i > 0; i--) {
        snprintf(to, sizeof to, "%s.%u", output.path, i);
        snprintf(from, sizeof from, "%s.%u", output.path, i - 1);
        rename(i > 1 ? from : output.path, to);
    }
    if (output.keep_count == 0)
        unlink(output.path);
    int fd = open_file(&bytes);
    if (fd >= 0) {
        use_file(fd);
        output.file_bytes = bytes;
    }
}

// --- lines ---------------------------------------------------------------------------------------------------------------

// True if the whole line got out. Under the lock.
static bool put(const char *line, size_t bytes)
{
    if (output.path[0] && output.file_bytes + bytes > output.max_bytes)
        rotate();
    struct pollfd room = {.fd = output.fd, .events = POLLOUT};
    if (output.must_poll && poll(&room, 1, 0) != 1)
        return false;
    ssize_t n = output.is_socket ? send(output.fd, line, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) : write(output.fd, line, bytes);
    if (n <= 0)
        return false;
    output.file_bytes += (uint64_t)n;
    output.is_torn = n < (ssize_t)bytes;
    return !output.is_torn;
}

static size_t format_line(char line[LINE_BYTES], enum log_level level, const char *id, const char *body)
{
    char stamp[32], quoted[LINE_BYTES - 200];
    struct timespec now;
    struct tm parts;
    int length;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
    if (log_json)
        length = snprintf(line, LINE_BYTES,
                          "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"service\":\"%s\",\"id\":\"%s\",\"text\":%s}\n", stamp,
                          now.tv_nsec / 1000000, level_names[level], log_service, id, log_quote(quoted, sizeof quoted, body));
    else
        length = snprintf(line, LINE_BYTES, "%s.%03ldZ %s %s %s %s\n", stamp, now.tv_nsec / 1000000, level_names[level],
                          log_service, id, body);
    if (length >= LINE_BYTES) {
        length = LINE_BYTES;
        line[length - 1] = '\n';
    }
    return (size_t)length;
}

static bool report_dropped(void)
{
    char body[64], line[LINE_BYTES + 1] = "\n"; // which ends a line that is torn
    const char *from = line + !output.is_torn;

    snprintf(body, sizeof body, "lines=%llu", (unsigned long long)output.dropped_lines);
    const char *end = line + 1 + format_line(line + 1, LOG_WARN, "LOG-DROPPED", body);
    if (!put(from, (size_t)(end - from)))
        return false;
    output.dropped_lines = 0;
    return true;
}

void log_write(enum log_level level, const char *id, const char *format, ...)
{
    char body[LINE_BYTES - 256], line[LINE_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(body, sizeof body, format, args);
    va_end(args);
    size_t length = format_line(line, level, id, body);
    pthread_mutex_lock(&output.lock);
    if ((output.dropped_lines && !report_dropped()) || !put(line, length)) {
        output.dropped_lines++;
        output.lost_lines++;
    }
    pthread_mutex_unlock(&output.lock);
}

uint64_t log_lines_lost(void)
{
    pthread_mutex_lock(&output.lock);
    const uint64_t lines = output.lost_lines;
    pthread_mutex_unlock(&output.lock);
    return lines;
}

// --- lines that would repeat ---

static uint32_t hash_of(const char *text)
{
    uint32_t hash = 2166136261u; // FNV-1a
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

bool repeat_is_due(struct repeat *repeat, uint64_t now_us, const char *reason)
{
    const uint32_t hash = hash_of(reason);
    const uint64_t wait_us = hash == repeat->reason ? REPEAT_EVERY_US : REPEAT_OTHER_US;

    repeat->unlogged++;
    if (repeat->logged_us && now_us - repeat->logged_us < wait_us)
        return false;
    repeat->logged_us = now_us;
    repeat->reason = hash;
    repeat->count = repeat->unlogged;
    repeat->unlogged = 0;
    return true;
}
