// test_service.c: the life of a service: settings, signals at every moment, exit codes.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/service/service.h"
#include "tests/cmocka.h"
#include "tests/integration/pace.h"

// A service that does what a test asks for. It runs in a child, whose exit code is the result.
struct fake {
    uint32_t number; // --number
    struct service *service;
    enum status start_status, serve_status;
    bool about_model, signal_in_start, signal_in_close, ignores_signals, breaks_a_pipe;
    int serving_fd; // a byte is written there by serve(); 0: none
    bool started, closed;
    int wakes, late_wakes;
};

static enum status configure(struct service *service, void *state, struct error *error)
{
    struct fake *fake = state;
    const struct option options[] = {{"number", OPTION_U32, &fake->number, "N", "a number", 1, 10}};
    fake->service = service;
    return service_options(service, options, ARRAY_COUNT(options), error);
}

static enum status check(void *state, struct error *error)
{
    return ((struct fake *)state)->number == 7 ? error_set(error, STATUS_INVALID_ARGUMENT, "--number 7 is not allowed") : STATUS_OK;
}

static enum status start(void *state, struct error *error)
{
    struct fake *fake = state;
    fake->started = true;
    if (fake->signal_in_start)
        kill(getpid(), SIGTERM);
    if (fake->start_status)
        error_set(error, fake->start_status, "what went wrong");
    error->about_model = fake->about_model;
    return fake->start_status;
}

static void write_to_nobody(void)
{
    int ends[2];
    if (pipe(ends) || close(ends[0]) || write(ends[1], "x", 1) != -1 || errno != EPIPE)
        _exit(99);
    close(ends[1]);
}

static enum status serve(struct service *service, void *state, struct error *error)
{
    struct fake *fake = state;
    if (fake->breaks_a_pipe)
        write_to_nobody();
    if (fake->serving_fd && write(fake->serving_fd, "s", 1) != 1)
        _exit(98);
    while (fake->ignores_signals)
        pause();
    service_wait_stop(service);
    return fake->serve_status ? error_set(error, fake->serve_status, "while serving") : STATUS_OK;
}

static void wake(void *state)
{
    struct fake *fake = state;
    fake->wakes++;
    fake->late_wakes += fake->closed;
}

// Signals that come while the service closes must not reach what it frees.
static void finish(void *state)
{
    struct fake *fake = state;
    fake->closed = true;
    while (fake->signal_in_close && service_stop_count(fake->service) < 2) { // one that follows the first closely does not count
        kill(getpid(), SIGTERM);
        usleep(10000);
    }
    if (fake->late_wakes)
        _exit(97);
}

static int run(struct fake *fake, uint32_t signals_handled, const char *argument)
{
    const struct service_program program = {.name = "fake",
                                            .purpose = "does what a test asks for",
                                            .signals_handled = signals_handled,
                                            .configure = configure,
                                            .check = check,
                                            .start = start,
                                            .serve = serve,
                                            .wake = wake,
                                            .close = finish};
    char *argv[] = {"fake", (char *)argument, NULL};
    alarm((unsigned)(pace_us(60000000) / 1000000));   // a child that is stuck ends by itself
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO); // the reasons
    return service_run(&program, fake, argument ? 2 : 1, argv);
}

static int status_of(pid_t pid)
{
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

// Whether this process has no thread but its first one, now or soon: one that was joined may be listed for a moment.
static bool is_alone(void)
{
    struct stat tasks = {.st_nlink = 0};
    struct pace_deadline deadline = pace_deadline(PACE_WAIT_US);

    while (stat("/proc/self/task", &tasks) || tasks.st_nlink != 3) { // two, and one for each thread
        if (pace_passed(&deadline))
            return false;
        usleep(10000);
    }
    return true;
}

// The exit code of a service that is asked to end as soon as it starts. It leaves no thread behind, which would use what has returned.
static int exit_code_of(struct fake fake, const char *argument)
{
    pid_t pid = fork();
    fake.signal_in_start = true;
    if (pid == 0) {
        const int code = run(&fake, 3, argument);
        _exit(is_alone() ? code : 98);
    }
    int status = status_of(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void *wait_for_ever(void *unused)
{
    for (;;)
        pause();
    return NULL;
}

// As OpenBLAS begins its threads: before main(), with no signal blocked.
static void a_signal_may_reach_a_thread_of_a_library(void **state)
{
    for (int number = SIGINT; number <= SIGTERM; number += SIGTERM - SIGINT) {
        int ends[2];
        char byte;
        pthread_t thread;
        assert_int_equal(pipe(ends), 0);
        pid_t pid = fork();
        if (pid == 0) {
            struct fake fake = {.serving_fd = ends[1]};
            if (pthread_create(&thread, NULL, wait_for_ever, NULL))
                _exit(96);
            _exit(run(&fake, 1, NULL));
        }
        assert_int_equal(read(ends[0], &byte, 1), 1);
        kill(pid, number);
        int status = status_of(pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        close(ends[0]);
        close(ends[1]);
    }
}

static void exit_codes_say_what_has_to_change(void **state)
{
    static const struct {
        enum status status;
        int code;
    } cases[] = {{STATUS_OK, 0},
                 {STATUS_INVALID_ARGUMENT, 2},
                 {STATUS_NOT_FOUND, 2},
                 {STATUS_UNAVAILABLE, 3},
                 {STATUS_RESOURCE_EXHAUSTED, 3},
                 {STATUS_ALREADY_EXISTS, 3},
                 {STATUS_PERMISSION_DENIED, 3},
                 {STATUS_DATA_LOSS, 4},
                 {STATUS_UNIMPLEMENTED, 4},
                 {STATUS_INTERNAL, 1},
                 {STATUS_UNKNOWN, 1}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        assert_int_equal(exit_code_of((struct fake){.start_status = cases[i].status}, NULL), cases[i].code);
        assert_int_equal(exit_code_of((struct fake){.serve_status = cases[i].status}, NULL), cases[i].code);
    }
    assert_int_equal(exit_code_of((struct fake){.start_status = STATUS_NOT_FOUND, .about_model = true}, NULL), 4);
    assert_int_equal(exit_code_of((struct fake){0}, "--number=11"), 2);
    assert_int_equal(exit_code_of((struct fake){0}, "--nothing"), 2);
}

static void check_validates_and_starts_nothing(void **state)
{
    struct fake good = {.number = 1, .start_status = STATUS_INTERNAL}, bad = {.number = 7, .start_status = STATUS_INTERNAL};
    assert_int_equal(exit_code_of(good, "--check"), 0);
    assert_int_equal(exit_code_of(bad, "--check"), 2);
}

static void a_signal_while_closing_touches_nothing(void **state)
{
    assert_int_equal(exit_code_of((struct fake){.signal_in_close = true}, NULL), 0);
}

static void a_reader_that_has_gone_does_not_end_the_service(void **state)
{
    assert_int_equal(exit_code_of((struct fake){.breaks_a_pipe = true}, NULL), 0);
}

static void one_signal_too_many_ends_it_at_once(void **state)
{
    int serving[2], status = 0;
    char byte;

    assert_int_equal(pipe(serving), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct fake fake = {.ignores_signals = true, .serving_fd = serving[1]};
        _exit(run(&fake, 1, NULL));
    }
    assert_int_equal(read(serving[0], &byte, 1), 1);
    while (waitpid(pid, &status, WNOHANG) == 0) { // the first is handled, which does not help here
        kill(pid, SIGINT);
        usleep(10000);
    }
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    close(serving[0]);
    close(serving[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_codes_say_what_has_to_change),
        cmocka_unit_test(a_signal_may_reach_a_thread_of_a_library),
        cmocka_unit_test(check_validates_and_starts_nothing),
        cmocka_unit_test(a_signal_while_closing_touches_nothing),
        cmocka_unit_test(a_reader_that_has_gone_does_not_end_the_service),
        cmocka_unit_test(one_signal_too_many_ends_it_at_once),
    };
    return cmocka_run_group_tests_name("service", tests, NULL, NULL);
}
