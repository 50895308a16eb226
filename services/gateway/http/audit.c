// audit.c: see audit.h.
#include "services/gateway/http/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"

enum { PATH_SHOWN = 200 };
#define COMPLAIN_EVERY_US 60000000ull

struct audit {
    char *path;
    pthread_mutex_t lock; // of what follows
    int fd;
    uint64_t complained_us, failures;
    bool torn; // the last line was written in part
};

static int open_file(const char *path) { return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600); }

// Returns whether a file's last line has no end.
static bool is_torn(const char *path)
{
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    char last = '\n';

    if (fd >= 0 && lseek(fd, -1, SEEK_END) >= 0)
        (void)!read(fd, &last, 1);
    if (fd >= 0)
        close(fd);
    return last != '\n';
}

enum status audit_open(const char *path, struct audit **out, struct error *error)
{
    struct audit *audit = calloc(1, sizeof *audit);

    *out = NULL;
    if (!audit || !(audit->path = strdup(path))) {
        free(audit);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    audit->fd = open_file(path);
    if (audit->fd < 0) {
        enum status status = error_set(error, status_of_path(errno), "--audit %s: %s", path, strerror(errno));
        free(audit->path);
        free(audit);
        return status;
    }
    audit->torn = is_torn(path);
    pthread_mutex_init(&audit->lock, NULL);
    *out = audit;
    return STATUS_OK;
}

void audit_close(struct audit *audit)
{
    if (!audit)
        return;
    close(audit->fd);
    pthread_mutex_destroy(&audit->lock);
    free(audit->path);
    free(audit);
}

// With the lock held.
static void complain(struct audit *audit, const char *why)
{
    uint64_t now_us = clock_now_us();

    audit->failures++;
    if (audit->complained_us && now_us - audit->complained_us < COMPLAIN_EVERY_US)
        return;
    audit->complained_us = now_us;
    log_error("AUDIT-NOT-WRITTEN",
              "file=%s why=\"%s\" times=%llu what=\"free space on that disk, or mend it: these lines are lost\"", audit->path, why,
              (unsigned long long)audit->failures);
}

uint64_t audit_failures(struct audit *audit)
{
    pthread_mutex_lock(&audit->lock);
    const uint64_t failures = audit->failures;
    pthread_mutex_unlock(&audit->lock);
    return failures;
}

void audit_reopen(struct audit *audit)
{
    pthread_mutex_lock(&audit->lock);
    int fd = open_file(audit->path);
    if (fd < 0) {
        complain(audit, strerror(errno));
    } else {
        close(audit->fd);
        audit->fd = fd;
        audit->torn = is_torn(audit->path);
    }
    pthread_mutex_unlock(&audit->lock);
}

static void append_time(struct text *out)
{
    uint64_t now_us = clock_wall_us();
    time_t seconds = (time_t)(now_us / 1000000);
    struct tm utc;
    char stamp[32];

    gmtime_r(&seconds, &utc);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    text_format(out, "{\"time\":\"%s.%03uZ\",\"request\":", stamp, (unsigned)(now_us / 1000 % 1000));
}

// A line that the disk took a part of is ended before the next one, so that only that one is lost. With the lock held.
static bool write_line(struct audit *audit, const struct text *line)
{
    if (audit->torn && write(audit->fd, "\n", 1) != 1)
        return false;
    const ssize_t written = write(audit->fd, line->data, line->bytes);
    audit->torn = written > 0 && written < (ssize_t)line->bytes;
    return written == (ssize_t)line->bytes;
}

void audit_add(struct audit *audit, struct exchange *exchange, int status, const char *model)
{
    const char *path = exchange_path(exchange);
    struct exchange_note note;
    struct text line = {0};

    exchange_note(exchange, &note);
    append_time(&line);
    text_json_string(&line, exchange_request_id(exchange));
    text_json_after(&line, ",\"key\":", note.owner[0] ? note.owner : NULL);
    text_json_after(&line, ",\"client\":", note.client);
    text_json_after(&line, ",\"method\":", exchange_method(exchange));
    text_json_bytes_after(&line, ",\"path\":", path, MIN(strlen(path), (size_t)PATH_SHOWN));
    text_json_after(&line, ",\"model\":", note.uses_model ? model : NULL);
    text_format(&line, ",\"status\":%d,\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"seconds\":%.3f}\n", status,
                (unsigned long long)note.prompt_tokens, (unsigned long long)note.completion_tokens,
                (double)(clock_now_us() - exchange_start_us(exchange)) * 1e-6);
    pthread_mutex_lock(&audit->lock);
    errno = ENOSPC; // write() may be cut short without saying why
    if (line.failed)
        complain(audit, "no memory");
    else if (!write_line(audit, &line))
        complain(audit, strerror(errno));
    pthread_mutex_unlock(&audit->lock);
    text_free(&line);
}
