/* log.c: formats a line on the stack and hands it to stderr in one write, so that lines of threads never mix. */
#include "common/base/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 2048 };

enum log_level log_threshold = LOG_INFO;
static const char *log_service = "fastdecode";
static bool log_json;

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_init(const char *service, enum log_level threshold, bool json)
{
    log_service = service;
    log_threshold = threshold;
    log_json = json;
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

void log_write(enum log_level level, const char *id, const char *format, ...)
{
    char body[LINE_BYTES - 256], line[LINE_BYTES], quoted[LINE_BYTES - 200];
    struct timespec now;
    struct tm parts;
    char stamp[32];
    va_list args;
    int length;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
    va_start(args, format);
    vsnprintf(body, sizeof body, format, args);
    va_end(args);
    if (log_json)
        length = snprintf(line, sizeof line,
                          "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"service\":\"%s\",\"id\":\"%s\",\"text\":%s}\n", stamp,
                          now.tv_nsec / 1000000, level_names[level], log_service, id, log_quote(quoted, sizeof quoted, body));
    else
        length = snprintf(line, sizeof line, "%s.%03ldZ %s %s %s %s\n", stamp, now.tv_nsec / 1000000, level_names[level],
                          log_service, id, body);
    if (length >= (int)sizeof line) {
        length = (int)sizeof line;
        line[length - 1] = '\n';
    }
    if (write(STDERR_FILENO, line, (size_t)length) < 0) {
        /* nowhere is left to say so */
    }
}
