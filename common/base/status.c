// status.c: names of statuses, texts of errors, and the assertion that stays on.
#include "common/base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
};

const char *status_name(enum status status)
{
    size_t index = (size_t)status;
    return index < sizeof names / sizeof names[0] ? names[index] : "UNKNOWN";
}

enum status status_of_path(int number)
{
    if (number == ENOENT || number == ENOTDIR || number == EISDIR)
        return STATUS_NOT_FOUND;
    return number == EACCES || number == EPERM ? STATUS_PERMISSION_DENIED : STATUS_UNAVAILABLE;
}

enum status error_set(struct error *error, enum status status, const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        error->status = status;
        error->about_model = false;
        vsnprintf(error->text, sizeof error->text, format, args);
        va_end(args);
    }
    return status;
}

enum status error_prefix(struct error *error, const char *format, ...)
{
    char prefix[256];
    char old[sizeof error->text];
    va_list args;

    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    memcpy(old, error->text, sizeof old);
    old[sizeof old - sizeof prefix - 3] = '\0'; // so that both always fit
    snprintf(error->text, sizeof error->text, "%s: %s", prefix, old);
    return error->status;
}

enum exit_code error_exit_code(const struct error *error)
{
    if (error->about_model)
        return EXIT_CODE_MODEL;
    switch (error->status) {
    case STATUS_OK: return EXIT_CODE_OK;
    case STATUS_INVALID_ARGUMENT:
    case STATUS_NOT_FOUND:
    case STATUS_FAILED_PRECONDITION:
    case STATUS_OUT_OF_RANGE: return EXIT_CODE_SETTINGS;
    case STATUS_RESOURCE_EXHAUSTED:
    case STATUS_UNAVAILABLE:
    case STATUS_ALREADY_EXISTS:
    case STATUS_PERMISSION_DENIED:
    case STATUS_DEADLINE_EXCEEDED: return EXIT_CODE_ENVIRONMENT;
    case STATUS_DATA_LOSS:
    case STATUS_UNIMPLEMENTED: return EXIT_CODE_MODEL;
    default: return EXIT_CODE_INTERNAL;
    }
}

void assert_failed(const char *expression, const char *file, int line)
{
    fprintf(stderr, "ASSERT-FAILED expression=\"%s\" at=%s:%d\n", expression, file, line);
    fflush(stderr);
    abort();
}
