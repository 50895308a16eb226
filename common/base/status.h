// status.h: the one error code of the project, the text that goes with it, and the exit code of a program that it ends.
//
// The numbers are gRPC's (grpc.io/docs/guides/status-codes), so a status crosses the mesh unchanged.
// A function that can fail for reasons outside the program returns `enum status` (must be checked) and, where a
// person will read the reason, fills a `struct error`: one line that names what was wrong and where.
// A broken invariant is not a status: it is an assert_always().
#ifndef FD_BASE_STATUS_H
#define FD_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
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

// A reason for people to read. Lives on the caller's stack; text is always terminated.
struct error {
    enum status status;
    bool about_model; // the model file is to blame; set by model_open()
    char text[512];
};

// Returns the gRPC name of a status, e.g. "INVALID_ARGUMENT"; "UNKNOWN" for any other number. Never NULL.
const char *status_name(enum status status);

// Returns the status of a path that cannot be opened or made, by errno: NOT_FOUND (or of another kind), PERMISSION_DENIED, else
// UNAVAILABLE.
enum status status_of_path(int number);

// Writes status and text into *error unless that is NULL. Returns status.
enum status error_set(struct error *error, enum status status, const char *format, ...) PRINTF_LIKE(3, 4);

// Puts a context before the text, e.g. the file's name: "context: old text". Returns error->status.
enum status error_prefix(struct error *error, const char *format, ...) PRINTF_LIKE(2, 3);

// Exit codes of all programs, by what has to change before another start can succeed. docs/operations.md lists them.
enum exit_code {
    EXIT_CODE_OK = 0,          // ended as it was asked to
    EXIT_CODE_INTERNAL = 1,    // a defect of the program
    EXIT_CODE_SETTINGS = 2,    // an option, or a file that one names
    EXIT_CODE_ENVIRONMENT = 3, // a busy port, too little memory, no device, no permission: may be over at the next try
    EXIT_CODE_MODEL = 4,       // the model file is missing, damaged or of a kind that is not supported
};

// Returns the exit code for a failure.
enum exit_code error_exit_code(const struct error *error);

// An assertion that stays on in release builds: prints the expression and its place, then aborts.
#define assert_always(condition) ((condition) ? (void)0 : assert_failed(#condition, __FILE__, __LINE__))
_Noreturn void assert_failed(const char *expression, const char *file, int line);

#endif
