// supervise.h: starts, watches, restarts and ends the child processes of one machine's mesh. None is left behind.
//
// Single-threaded: the caller's loop polls supervise_wait(). Children get SIGKILL when this process dies.
#ifndef FD_FASTDECODE_UP_SUPERVISE_H
#define FD_FASTDECODE_UP_SUPERVISE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"

enum {
    SUPERVISE_CHILDREN_MAX = 80,
    SUPERVISE_ARGUMENTS_MAX = 64,
    SUPERVISE_RUN_DIR_BYTES = 96,
    // Failed starts in a row, before the mesh serves, after which a child is given up. After EXIT_CODE_SETTINGS or
    // EXIT_CODE_MODEL the first is enough.
    SUPERVISE_FAILED_STARTS_MAX = 3,
};

// Ends the name of a file in which a child writes a port: RUN_DIR/NAME.port is removed before NAME is started.
#define SUPERVISE_PORT_FILE ".port"

struct child {
    char name[32];                            // "kv-worker-0": names DIR/kv-worker-0.pid and .log
    char *arguments[SUPERVISE_ARGUMENTS_MAX]; // NULL-terminated, owned; [0] is the program's path
    pid_t pid;                                // 0: not running
    uint64_t started_us, restart_at_us;
    uint32_t backoff_ms;
    uint32_t failed_starts; // in a row: ends soon after a start, with an error or by a signal
    bool incomplete;        // out of memory for an argument: it cannot be started
    bool stopping, done;    // done: ended after stopping
    int exit_status;        // as a shell shows it: code, or 128 + signal
};

struct supervisor {
    char run_dir[SUPERVISE_RUN_DIR_BYTES];
    struct child children[SUPERVISE_CHILDREN_MAX];
    uint32_t child_count;
    int signal_fd; // SIGCHLD, SIGTERM, SIGINT, SIGHUP
    int lock_fd;   // DIR/lock: one mesh a folder
    bool stop_asked;
    bool end_now;     // a second signal came: supervise_stop() does not wait
    bool has_started; // set by the caller once the mesh serves; no child is given up after that
    bool no_restarts; // set by the caller: children that end are not started again
    uint64_t stop_asked_us;
};

// Checks a folder that is there, or that it can be made, as supervise_open() does.
enum status supervise_check_run_dir(const char *run_dir, struct error *error) MUST_CHECK;

// Makes the folder (mode 0700) if it is missing; an existing one must belong to this user and be closed to others. Blocks the signals
// that supervise_wait() reads.
enum status supervise_open(struct supervisor *supervisor, const char *run_dir, struct error *error) MUST_CHECK;
void supervise_close(struct supervisor *supervisor);

// Adds a child, not started yet; supervise_argument() adds its arguments. Never NULL: too many children are an assertion.
struct child *supervise_add(struct supervisor *supervisor, const char *name, const char *program);
void supervise_argument(struct child *child, const char *format, ...) PRINTF_LIKE(2, 3);

// Forks and executes a child. Its output is appended to DIR/name.log, its id written to DIR/name.pid, an old DIR/name.port is removed.
enum status supervise_start(struct supervisor *supervisor, struct child *child, struct error *error) MUST_CHECK;

// Waits up to timeout_ms for an event: reaps children that ended, starts those again whose time has come.
// Returns the first child that was given up before has_started (the last line of its log says why), or NULL.
struct child *supervise_wait(struct supervisor *supervisor, int timeout_ms);

// Sends SIGTERM to a child and waits until it has ended; SIGKILL after limit_ms. It is not started again.
void supervise_stop(struct supervisor *supervisor, struct child *child, int limit_ms);

// Copies the last line of a child's log into text.
void supervise_last_line(const struct supervisor *supervisor, const struct child *child, char *text, size_t text_bytes);

#endif
