/* status.h: the one error code of the project, and the text that goes with it.
 *
 * The numbers are those of gRPC (grpc.io/docs/guides/status-codes), so that a status crosses the mesh unchanged.
 * Functions that can fail for reasons outside the program return `enum status` (must be checked) and, where a
 * human will read the reason, fill a `struct error`: one line that names what was wrong and where.
 * Broken invariants are not statuses: they are assert_always().
 */
#ifndef FD_BASE_STATUS_H
#define FD_BASE_STATUS_H

#include <stdarg.h>
#include <stddef.h>

enum status {
    STATUS_OK = 0,
    STATUS_CANCELLED = 1,
    STATUS_UNKNOWN = 2,
    STATUS_INVALID_ARGUMENT = 3,
    STATUS_DEADLINE_EXCEEDED = 4,
    STATUS_NOT_FOUND = 5,
    STATUS_ALREADY_EXISTS = 6,
    STATUS_PERMISSION_DENIED = 7,
    STATUS_RESOURCE_EXHAUSTED = 8,
    STATUS_FAILED_PRECONDITION = 9,
    STATUS_ABORTED = 10,
    STATUS_OUT_OF_RANGE = 11,
    STATUS_UNIMPLEMENTED = 12,
    STATUS_INTERNAL = 13,
    STATUS_UNAVAILABLE = 14,
    STATUS_DATA_LOSS = 15,
    STATUS_UNAUTHENTICATED = 16,
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))

/* A reason for a human. Lives on the caller's stack; text is always terminated. */
struct error {
    enum status status;
    char text[512];
};

/* The gRPC name of a status, e.g. "INVALID_ARGUMENT"; "UNKNOWN" for a number that is none. Never NULL. */
const char *status_name(enum status status);

/* Writes status and text into *error (which may be NULL: then only the status is returned). Returns status. */
enum status error_set(struct error *error, enum status status, const char *format, ...) PRINTF_LIKE(3, 4);

/* Prefixes the text with a context, e.g. the file's name: "ctx: old text". Returns error->status. */
enum status error_prefix(struct error *error, const char *format, ...) PRINTF_LIKE(2, 3);

/* An assertion that stays on in release builds: prints the expression and place, then aborts. */
#define assert_always(condition) ((condition) ? (void)0 : assert_failed(#condition, __FILE__, __LINE__))
_Noreturn void assert_failed(const char *expression, const char *file, int line);

#endif
