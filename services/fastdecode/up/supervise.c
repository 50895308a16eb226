// supervise.c: see supervise.h. One signalfd for SIGCHLD and the signals that end the mesh; the rest is waitpid.
#include "services/fastdecode/up/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"

enum { BACKOFF_FIRST_MS = 100, BACKOFF_MOST_MS = 5000, STEADY_US = 10 * 1000 * 1000 };
enum { REPEAT_US = 300 * 1000 }; // timeout(1) and some shells send one signal twice

static void watched_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGCHLD);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
}

// A folder that others may write to, or one that they own, would let them read prompts in logs and put sockets of their own in the
// services' place. A symbolic link could be pointed elsewhere later.
enum status supervise_check_run_dir(const char *run_dir, struct error *error)
{
    char around[SUPERVISE_RUN_DIR_BYTES];
    struct stat info;

    if (strlen(run_dir) >= SUPERVISE_RUN_DIR_BYTES - 32)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--run-dir %s: longer than %d bytes (socket paths in it would not fit)",
                         run_dir, SUPERVISE_RUN_DIR_BYTES - 32);
    int fd = open(run_dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool known = fd >= 0 && fstat(fd, &info) == 0;
    int reason = errno;

    if (fd >= 0)
        close(fd);
    snprintf(around, sizeof around, "%s", run_dir);
    if (!known && reason == ENOENT && !access(dirname(around), W_OK | X_OK))
        return STATUS_OK; // it can be made
    if (!known)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--run-dir %s: %s", run_dir, strerror(reason));
    if (info.st_uid != geteuid())
        return error_set(error, STATUS_INVALID_ARGUMENT, "--run-dir %s belongs to user %u: name a folder of your own, or none",
                         run_dir, (unsigned)info.st_uid);
    if (info.st_mode & 077)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--run-dir %s has mode %03o and would be open to other users: chmod 700 it", run_dir,
                         (unsigned)info.st_mode & 0777);
    return STATUS_OK;
}

enum status supervise_open(struct supervisor *supervisor, const char *run_dir, struct error *error)
{
    sigset_t set;
    char path[160];

    memset(supervisor, 0, sizeof *supervisor);
    supervisor->signal_fd = supervisor->lock_fd = -1;
    if (supervise_check_run_dir(run_dir, error))
        return error->status;
    if (mkdir(run_dir, 0700) && errno != EEXIST)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--run-dir %s: %s", run_dir, strerror(errno));
    if (supervise_check_run_dir(run_dir, error))
        return error->status;
    snprintf(supervisor->run_dir, sizeof supervisor->run_dir, "%s", run_dir);
    snprintf(path, sizeof path, "%s/lock", run_dir);
    supervisor->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (supervisor->lock_fd < 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--run-dir %s: cannot write there: %s", run_dir, strerror(errno));
    if (flock(supervisor->lock_fd, LOCK_EX | LOCK_NB))
        return error_set(error, STATUS_ALREADY_EXISTS, "--run-dir %s: %s", run_dir,
                         errno == EWOULDBLOCK ? "another mesh runs there" : strerror(errno));
    watched_signals(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    supervisor->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (supervisor->signal_fd < 0)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "signalfd: %s", strerror(errno));
    return STATUS_OK;
}

void supervise_close(struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->child_count; i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/%s.pid", supervisor->run_dir, supervisor->children[i].name);
        unlink(path);
        for (char **argument = supervisor->children[i].arguments; *argument; argument++)
            free(*argument);
    }
    if (supervisor->signal_fd >= 0)
        close(supervisor->signal_fd);
    if (supervisor->lock_fd >= 0)
        close(supervisor->lock_fd);
}

struct child *supervise_add(struct supervisor *supervisor, const char *name, const char *program)
{
    assert_always(supervisor->child_count < SUPERVISE_CHILDREN_MAX);
    struct child *child = &supervisor->children[supervisor->child_count++];
    snprintf(child->name, sizeof child->name, "%s", name);
    supervise_argument(child, "%s", program);
    return child;
}

void supervise_argument(struct child *child, const char *format, ...)
{
    uint32_t at = 0;
    va_list args;

    while (child->arguments[at])
        at++;
    assert_always(at + 1 < SUPERVISE_ARGUMENTS_MAX);
    va_start(args, format);
    if (vasprintf(&child->arguments[at], format, args) < 0) {
        child->arguments[at] = NULL;
        child->incomplete = true;
    }
    va_end(args);
}

static void write_pid(const struct supervisor *supervisor, const struct child *child)
{
    char path[160], temporary[168];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s.pid", supervisor->run_dir, child->name);
    snprintf(temporary, sizeof temporary, "%s.new", path); // renamed into place, so a reader never sees half of it
    file = fopen(temporary, "w");
    if (!file)
        return;
    fprintf(file, "%d\n", (int)child->pid);
    if (!fclose(file))
        rename(temporary, path);
}

static _Noreturn void become(const struct child *child, int log_fd, pid_t parent)
{
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);  // the parent died before PR_SET_PDEATHSIG took effect
    setpgid(0, 0); // Ctrl-C in a terminal reaches the supervisor alone, which ends the mesh in order
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    execv(child->arguments[0], child->arguments);
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", child->arguments[0], strerror(errno));
    _exit(EXIT_CODE_SETTINGS);
}

enum status supervise_start(struct supervisor *supervisor, struct child *child, struct error *error)
{
    char path[160];
    pid_t parent = getpid();
    int log_fd;

    if (child->incomplete)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the arguments of %s", child->name);
    snprintf(path, sizeof path, "%s/%s.log", supervisor->run_dir, child->name);
    log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: %s", path, strerror(errno));
    snprintf(path, sizeof path, "%s/%s" SUPERVISE_PORT_FILE, supervisor->run_dir, child->name);
    unlink(path);
    child->pid = fork();
    if (child->pid == 0)
        become(child, log_fd, parent);
    close(log_fd);
    if (child->pid < 0) {
        child->pid = 0;
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "fork: %s", strerror(errno));
    }
    child->started_us = clock_now_us();
    write_pid(supervisor, child);
    log_info("CHILD-START", "name=%s pid=%d", child->name, (int)child->pid);
    return STATUS_OK;
}

// Notes the unexpected end of a child. Returns true if starting it again cannot help.
static bool died(const struct supervisor *supervisor, struct child *child, bool exited)
{
    uint64_t now_us = clock_now_us();
    bool soon = now_us - child->started_us < STEADY_US;
    bool failed = child->exit_status != 0;
    char line[512] = "", quoted[600];

    if (failed && exited) // a killed child printed no reason
        supervise_last_line(supervisor, child, line, sizeof line);
    child->failed_starts = failed && soon ? child->failed_starts + 1 : 0;
    if (!soon || !child->backoff_ms)
        child->backoff_ms = BACKOFF_FIRST_MS;
    else
        child->backoff_ms = MIN(child->backoff_ms * 2, BACKOFF_MOST_MS);
    child->restart_at_us = now_us + child->backoff_ms * 1000u;
    log_warn("CHILD-DIED", "name=%s pid=%d status=%d restart_in_ms=%u last_line=%s", child->name, (int)child->pid,
             child->exit_status, child->backoff_ms, log_quote(quoted, sizeof quoted, line));
    return failed && soon && !supervisor->has_started &&
           (child->exit_status == EXIT_CODE_SETTINGS || child->exit_status == EXIT_CODE_MODEL ||
            child->failed_starts >= SUPERVISE_FAILED_STARTS_MAX);
}

static struct child *reap(struct supervisor *supervisor)
{
    struct child *hopeless = NULL;
    int status;

    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        for (uint32_t i = 0; i < supervisor->child_count; i++) {
            struct child *child = &supervisor->children[i];
            if (child->pid != pid)
                continue;
            child->exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            if (child->stopping)
                child->done = true;
            else if (died(supervisor, child, WIFEXITED(status)) && !hopeless)
                hopeless = child;
            child->pid = 0;
            break;
        }
    }
    return hopeless;
}

static int next_timeout_ms(const struct supervisor *supervisor, int timeout_ms)
{
    uint64_t now_us = clock_now_us();
    for (uint32_t i = 0; i < supervisor->child_count; i++) {
        const struct child *child = &supervisor->children[i];
        if (child->pid || child->stopping || supervisor->no_restarts || !child->restart_at_us)
            continue;
        int left_ms = child->restart_at_us > now_us ? (int)((child->restart_at_us - now_us + 999) / 1000) : 0;
        timeout_ms = MIN(timeout_ms, left_ms);
    }
    return timeout_ms;
}

// A second signal means: do not wait. A terminal that closes may send SIGHUP twice.
static void ask_to_stop(struct supervisor *supervisor, int number)
{
    uint64_t now_us = clock_now_us();

    if (!supervisor->stop_asked)
        supervisor->stop_asked_us = now_us;
    else if (number != SIGHUP && now_us - supervisor->stop_asked_us > REPEAT_US)
        supervisor->end_now = true;
    supervisor->stop_asked = true;
}

struct child *supervise_wait(struct supervisor *supervisor, int timeout_ms)
{
    struct pollfd ready = {.fd = supervisor->signal_fd, .events = POLLIN};
    struct signalfd_siginfo info;
    struct error error;
    struct child *hopeless;

    poll(&ready, 1, next_timeout_ms(supervisor, timeout_ms));
    while (read(supervisor->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            ask_to_stop(supervisor, (int)info.ssi_signo);
    hopeless = reap(supervisor);
    for (uint32_t i = 0; !hopeless && !supervisor->no_restarts && i < supervisor->child_count; i++) {
        struct child *child = &supervisor->children[i];
        if (child->pid || child->stopping || !child->restart_at_us || child->restart_at_us > clock_now_us())
            continue;
        child->restart_at_us = 0;
        if (supervise_start(supervisor, child, &error)) {
            log_warn("CHILD-NOT-STARTED", "name=%s error=%s", child->name, error.text);
            child->restart_at_us = clock_now_us() + BACKOFF_MOST_MS * 1000u;
        }
    }
    return hopeless;
}

void supervise_stop(struct supervisor *supervisor, struct child *child, int limit_ms)
{
    uint64_t began_us = clock_now_us(), deadline_us = began_us + (uint64_t)limit_ms * 1000;

    child->stopping = true;
    child->restart_at_us = 0;
    if (!child->pid)
        return;
    kill(child->pid, SIGTERM);
    kill(child->pid, SIGCONT); // a stopped child could not react
    while (child->pid) {
        uint64_t now_us = clock_now_us();
        if (now_us >= deadline_us || supervisor->end_now) {
            log_warn("CHILD-KILLED", "name=%s pid=%d after_ms=%llu", child->name, (int)child->pid,
                     (unsigned long long)(now_us - began_us) / 1000);
            kill(child->pid, SIGKILL);
            waitpid(child->pid, NULL, 0);
            child->pid = 0;
            child->done = true;
            return;
        }
        supervise_wait(supervisor, (int)((deadline_us - now_us) / 1000) + 1);
    }
    log_info("CHILD-ENDED", "name=%s status=%d", child->name, child->exit_status);
}

void supervise_last_line(const struct supervisor *supervisor, const struct child *child, char *text, size_t text_bytes)
{
    char path[160], line[1024];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s.log", supervisor->run_dir, child->name);
    snprintf(text, text_bytes, "nothing is in %s: is that disk full?", path);
    file = fopen(path, "r");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0])
            snprintf(text, text_bytes, "%s", line);
    }
    fclose(file);
}
