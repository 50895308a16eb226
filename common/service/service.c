// service.c: the skeleton of a service: options, checks, signals, and its main.
#include "common/service/service.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/service/sandbox.h"

enum { REPEAT_US = 300 * 1000, OPTIONS_MAX = 128, FILES_LEAST = 64 };

struct service {
    const struct service_program *program;
    void *state;
    const char *name; // as the user typed it
    int argc;
    char **argv;
    bool check_only, probe_ready, probe_alive;
    struct sandbox sandbox;
    atomic_uint stop_count; // relaxed: whoever waits for it is woken after it has grown
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    bool serving; // under the lock: wake() may be called
    sigset_t signals;
    pthread_t signal_thread;
};

// Checks that a start could write what a setting names: a file or folder that is there, or else the folder in which it would be made.
static enum status check_written(const struct option *option, struct error *error)
{
    const char *path = *(const char *const *)option->target;
    const bool wants_folder = !strncmp(option->value_name, "DIR", 3);
    char around[PATH_MAX];
    struct stat info;
    int failed = 0;

    if (!path || options_is_word(option, path))
        return STATUS_OK;
    if (stat(path, &info)) {
        snprintf(around, sizeof around, "%s", path);
        failed = access(dirname(around), W_OK | X_OK) ? errno : 0;
    } else if (S_ISDIR(info.st_mode) != wants_folder) {
        failed = wants_folder ? ENOTDIR : EISDIR;
    } else {
        failed = access(path, W_OK) ? errno : 0;
    }
    return failed ? error_set(error, status_of_path(failed), "--%s %s: %s", option->name, path, strerror(failed)) : STATUS_OK;
}

enum status service_options(struct service *service, const struct option *options, uint32_t option_count, struct error *error)
{
    struct option table[OPTIONS_MAX];
    const struct option own[] = {
        {"sandbox", OPTION_CHOICE, &service->sandbox.mode, SANDBOX_MODES, SANDBOX_HELP, 0, 0},
        {"probe", OPTION_BOOL, &service->probe_ready, NULL,
         "ask the running service with these settings whether it is ready, and exit", 0, 0},
        {"probe-alive", OPTION_BOOL, &service->probe_alive, NULL,
         "ask the running service whether it answers at all, ready or not, and exit", 0, 0},
    };
    uint32_t count = options_append(table, 0, OPTIONS_MAX, options, option_count);
    count = options_append(table, count, OPTIONS_MAX, own, ARRAY_COUNT(own));
    struct program program = {.name = service->name,
                              .log_name = service->program->name,
                              .purpose = service->program->purpose,
                              .options = table,
                              .option_count = count};
    enum status status = options_parse(&program, service->argc, service->argv, error);

    service->check_only = program.check_only;
    if (status)
        return status;
    const struct option log = {"log-file", OPTION_WRITTEN_PATH, &program.log_file, "FILE", NULL, 0, 0};
    sandbox_name(&service->sandbox, options, option_count);
    sandbox_name(&service->sandbox, &log, 1);
    for (uint32_t i = 0; program.check_only && !status && i < option_count; i++)
        if (options[i].kind == OPTION_WRITTEN_PATH)
            status = check_written(&options[i], error);
    return status || !program.check_only ? status : check_written(&log, error);
}

void service_name_file(struct service *service, const char *path, bool writes) { sandbox_add(&service->sandbox, path, writes); }

void service_uses_gpu(struct service *service) { service->sandbox.is_gpu = true; }

uint32_t service_stop_count(const struct service *service)
{
    return atomic_load_explicit(&service->stop_count, memory_order_relaxed);
}

void service_wait_stop(struct service *service)
{
    pthread_mutex_lock(&service->lock);
    while (!service_stop_count(service))
        pthread_cond_wait(&service->stopped, &service->lock);
    pthread_mutex_unlock(&service->lock);
}

// --- signals -------------------------------------------------------------------------------------------------------------

// As if nobody had blocked the signal.
static _Noreturn void end_by(int number)
{
    sigset_t set;

    signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    raise(number); // stays pending until the next line
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    _exit(128 + number);
}

// The thread that takes the signals; set before the handler that reads it, and not changed after that. A handler has no argument.
static pthread_t taker;

// Runs only in a thread that a library began before main() (OpenBLAS does) and that therefore does not block the signal, which
// would otherwise end the process.
static void pass_on(int number)
{
    int failed = errno;

    pthread_kill(taker, number);
    errno = failed;
}

// SIGHUP: files are read again, where the service has such files.
static void reload(struct service *service)
{
    int before;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); // not while the lock is held
    pthread_mutex_lock(&service->lock);
    if (service->serving && service->program->reload)
        service->program->reload(service->state);
    pthread_mutex_unlock(&service->lock);
    pthread_setcancelstate(before, NULL);
}

static void *signal_main(void *arg)
{
    struct service *service = arg;
    const uint32_t handled = service->program->signals_handled ? service->program->signals_handled : 1;
    uint64_t last_us = 0;

    for (;;) {
        int number = 0, before;
        if (sigwait(&service->signals, &number))
            continue;
        if (number == SIGHUP) {
            reload(service);
            continue;
        }
        uint64_t now_us = clock_now_us();
        if (last_us && now_us - last_us < REPEAT_US)
            continue;
        last_us = now_us;
        if (service_stop_count(service) >= handled)
            end_by(number);
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); // not while the lock is held
        pthread_mutex_lock(&service->lock);
        atomic_fetch_add_explicit(&service->stop_count, 1, memory_order_relaxed);
        pthread_cond_broadcast(&service->stopped);
        if (service->serving && service->program->wake)
            service->program->wake(service->state);
        pthread_mutex_unlock(&service->lock);
        pthread_setcancelstate(before, NULL);
    }
    return NULL;
}

static enum status take_signals(struct service *service, struct error *error)
{
    const struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};

    signal(SIGPIPE, SIG_IGN); // a peer or a reader of the log that has gone is an error of that write
    signal(SIGXFSZ, SIG_IGN); // and so is a file that may not become larger
    sigemptyset(&service->signals);
    sigaddset(&service->signals, SIGTERM);
    sigaddset(&service->signals, SIGINT);
    if (service->program->reload) // otherwise a terminal that closes ends the service, as any program
        sigaddset(&service->signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &service->signals, NULL); // threads inherit it
    pthread_mutex_init(&service->lock, NULL);
    pthread_cond_init(&service->stopped, NULL);
    if (pthread_create(&service->signal_thread, NULL, signal_main, service))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot create a thread for signals");
    taker = service->signal_thread;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (service->program->reload)
        sigaction(SIGHUP, &action, NULL);
    return STATUS_OK;
}

static void set_serving(struct service *service, bool serving)
{
    pthread_mutex_lock(&service->lock);
    service->serving = serving;
    pthread_mutex_unlock(&service->lock);
}

// --- the run -------------------------------------------------------------------------------------------------------------

static enum status run(struct service *service, struct error *error)
{
    const struct service_program *program = service->program;
    enum status status = sandbox_begin(&service->sandbox, error);

    if (status || (status = take_signals(service, error)))
        return status;
    if (!(status = program->start(service->state, error))) {
        if (!(status = sandbox_seal(&service->sandbox, error))) {
            set_serving(service, true);
            status = program->serve(service, service->state, error);
            set_serving(service, false);
        }
        program->close(service->state);
    }
    signal(SIGTERM, SIG_IGN); // the process ends by itself, and there is nobody left to pass a signal on to
    signal(SIGINT, SIG_IGN);
    if (program->reload)
        signal(SIGHUP, SIG_IGN);
    pthread_cancel(service->signal_thread);
    pthread_join(service->signal_thread, NULL);
    return status;
}

// Returns the end of a program's path if that is its name, whatever is before it: it is installed as fastdecode-NAME.
static const char *typed_name(const char *name, const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *typed = slash ? slash + 1 : path ? path : "";
    const size_t length = strlen(typed), name_length = strlen(name);

    return length > name_length && !strcmp(typed + length - name_length, name) ? typed : name;
}

// Checks the limits of a process before there are threads: libraries that cannot open a file or start a thread crash.
static enum status check_limits(struct error *error)
{
    struct rlimit files;

    if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < FILES_LEAST)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED,
                         "this process may open %llu files (ulimit -n), and a service needs %d at least: raise the limit (systemd: "
                         "LimitNOFILE)",
                         (unsigned long long)files.rlim_cur, FILES_LEAST);
    return memory_check_address_space(error);
}

int service_run(const struct service_program *program, void *state, int argc, char **argv)
{
    struct service service = {.program = program,
                              .state = state,
                              .name = typed_name(program->name, argv[0]),
                              .argc = argc,
                              .argv = argv,
                              .sandbox.mode = sandbox_default()};
    struct error error = {.text = ""};
    enum status status = program->configure(&service, state, &error);

    if (!status && (service.probe_ready || service.probe_alive))
        status = program->probe(state, !service.probe_ready, &error);
    else if (!status && !(status = check_limits(&error)) && service.check_only)
        status = program->check ? program->check(state, &error) : STATUS_OK;
    else if (!status)
        status = run(&service, &error);
    if (!status)
        return EXIT_CODE_OK;
    memory_note_address_space(&error);
    if (error.text[0]) // a probe that was answered has printed the answer
        fprintf(stderr, "%s: %s\n", service.name, error.text);
    return error_exit_code(&error);
}
