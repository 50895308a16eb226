// test_sandbox.c: what a service has given up: files, programs, processes, sockets, core dumps. Each case runs in a child.
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/service/sandbox.h"
#include "tests/cmocka.h"

// A folder with model/, cache/, hidden/ and links/, which has a link to elsewhere/model.
static char root[] = "/tmp/fd-sandbox-XXXXXX";

static const char *in_root(const char *name)
{
    static char paths[4][128];
    static uint32_t at;
    char *path = paths[at++ % ARRAY_COUNT(paths)];

    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static bool can_open(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static bool has_landlock(void) { return syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) >= 1; }

static bool has_seccomp(void) { return prctl(PR_GET_SECCOMP) >= 0; }

// Runs a case in a child and returns its exit status.
static int in_child(int (*run)(void))
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (!pid)
        _exit(run());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Returns the line that is false.
#define HAS_TO(condition)          \
    do {                           \
        if (!(condition))          \
            return __LINE__ % 256; \
    } while (0)

static int (*between)(void); // begin and seal, as a service's start

// Begins and seals as a service does that has these settings.
static int enter(const char *mode, const char *model, const char *cache, const char *address)
{
    struct sandbox sandbox = {.mode = mode};
    struct error error;
    const struct option options[] = {{"model", OPTION_READ_PATH, &model, "FILE", "", 0, 0},
                                     {"cache-dir", OPTION_WRITTEN_PATH, &cache, "DIR|none", "", 0, 0},
                                     {"listen", OPTION_STRING, &address, "ADDRESS", "", 0, 0}};

    sandbox_name(&sandbox, options, ARRAY_COUNT(options));
    HAS_TO(!sandbox_begin(&sandbox, &error));
    HAS_TO(!between || !between());
    HAS_TO(!sandbox_seal(&sandbox, &error));
    return 0;
}

static int files_case(void)
{
    HAS_TO(!enter("auto", in_root("model/a.gguf"), in_root("cache"), "ipc:///nowhere/socket"));
    HAS_TO(can_open(in_root("model/a.gguf"), O_RDONLY));
    HAS_TO(can_open(in_root("model/b.gguf"), O_RDONLY)); // a part of the model, or a file that has replaced another
    HAS_TO(!can_open(in_root("model/a.gguf"), O_RDWR) && errno == EACCES);
    HAS_TO(!can_open(in_root("model/new"), O_WRONLY | O_CREAT) && errno == EACCES);
    HAS_TO(can_open(in_root("cache/new"), O_WRONLY | O_CREAT | O_EXCL));
    HAS_TO(!rename(in_root("cache/new"), in_root("cache/renamed")));
    HAS_TO(!unlink(in_root("cache/renamed")));
    HAS_TO(!can_open(in_root("hidden/secret"), O_RDONLY) && errno == EACCES);
    HAS_TO(!can_open(in_root("model/../hidden/secret"), O_RDONLY) && errno == EACCES);
    HAS_TO(can_open("/proc/self/statm", O_RDONLY));
    HAS_TO(can_open("/dev/null", O_RDWR));
    HAS_TO(!can_open("/tmp/fd-sandbox-escape", O_WRONLY | O_CREAT) && errno == EACCES);
    return 0;
}

// A path that is relative opens the folder of its file, not the one that it starts from.
static int relative_case(void)
{
    HAS_TO(!chdir(root));
    HAS_TO(!enter("auto", "model/a.gguf", "none", "tcp://127.0.0.1:0"));
    HAS_TO(can_open("model/b.gguf", O_RDONLY));
    HAS_TO(!can_open("hidden/secret", O_RDONLY) && errno == EACCES);
    return 0;
}

static int links_case(void)
{
    HAS_TO(!enter("auto", in_root("links"), "none", "tcp://127.0.0.1:0"));
    HAS_TO(can_open(in_root("links/model.safetensors"), O_RDONLY)); // leads to elsewhere/model
    HAS_TO(!can_open(in_root("hidden/secret"), O_RDONLY) && errno == EACCES);
    return 0;
}

// The service can make a folder that is not there yet, and write in it.
static int made_case(void)
{
    char batches[160];

    snprintf(batches, sizeof batches, "%s/", in_root("cache/batches"));
    HAS_TO(!enter("auto", NULL, batches, "tcp://127.0.0.1:0"));
    HAS_TO(!mkdir(batches, 0700));
    HAS_TO(can_open(in_root("cache/batches/file"), O_WRONLY | O_CREAT));
    HAS_TO(!unlink(in_root("cache/batches/file")));
    return 0;
}

static int written_link_case(void)
{
    HAS_TO(!enter("auto", NULL, in_root("links/model.safetensors"), "tcp://127.0.0.1:0"));
    HAS_TO(can_open(in_root("links/model.safetensors"), O_WRONLY));
    return 0;
}

// The second part of a model lies on another disk.
static int parts_case(void)
{
    HAS_TO(!enter("auto", in_root("model/a.gguf"), "none", "tcp://127.0.0.1:0"));
    HAS_TO(can_open(in_root("model/part.gguf"), O_RDONLY));
    HAS_TO(!can_open(in_root("hidden/secret"), O_RDONLY) && errno == EACCES);
    return 0;
}

static int link_case(void)
{
    HAS_TO(!enter("auto", in_root("links/model.safetensors"), "none", "tcp://127.0.0.1:0"));
    HAS_TO(can_open(in_root("links/model.safetensors"), O_RDONLY));
    return 0;
}

static int socket_case(void)
{
    char address[160];

    snprintf(address, sizeof address, "ipc://%s", in_root("cache/socket"));
    HAS_TO(!enter("auto", NULL, NULL, address));
    HAS_TO(mknod(in_root("cache/socket"), S_IFSOCK | 0600, 0) == 0);
    HAS_TO(!unlink(in_root("cache/socket")));
    return 0;
}

static void *thread_main(void *arg)
{
    *(bool *)arg = true;
    return NULL;
}

// As for a parser of files, and for what reads weights from disk.
static int ring_errno;
static int start_case(void)
{
    HAS_TO(fork() == -1 && errno == EPERM);
    HAS_TO(syscall(SYS_io_uring_setup, 0, NULL) == -1 && errno == ring_errno);
    return 0;
}

static int calls_case(void)
{
    char *const arguments[] = {"/bin/true", NULL};
    bool ran = false;
    pthread_t thread;

    HAS_TO(syscall(SYS_io_uring_setup, 0, NULL) == -1);
    ring_errno = errno;
    between = start_case;
    HAS_TO(!enter("auto", NULL, NULL, NULL));
    HAS_TO(syscall(SYS_io_uring_setup, 0, NULL) == -1 && errno == EPERM);
    HAS_TO(execv(arguments[0], arguments) == -1 && errno == EPERM);
    HAS_TO(fork() == -1 && errno == EPERM);
    HAS_TO(syscall(SYS_unshare, CLONE_NEWUSER) == -1 && errno == EPERM);
    HAS_TO(socket(AF_PACKET, SOCK_RAW, 0) == -1 && errno == EAFNOSUPPORT);
    HAS_TO(syscall(SYS_socket, 1l << 32 | AF_PACKET, (long)SOCK_RAW, 0l) == -1 && errno == EAFNOSUPPORT);
    HAS_TO(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP) == -1 && errno == EPERM);
    HAS_TO(syscall(SYS_socket, (long)AF_INET6, 1l << 32 | SOCK_RAW, (long)IPPROTO_ICMPV6) == -1 && errno == EPERM);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    HAS_TO(fd >= 0 && !close(fd));
    HAS_TO(!pthread_create(&thread, NULL, thread_main, &ran) && !pthread_join(thread, NULL) && ran);
    return 0;
}

// A thread that was there before is sealed, too.
static pthread_barrier_t barrier;

static void *early_main(void *arg)
{
    pthread_barrier_wait(&barrier);
    *(bool *)arg = fork() == -1 && errno == EPERM;
    return NULL;
}

static int early_thread_case(void)
{
    pthread_t thread;
    bool refused = false;

    pthread_barrier_init(&barrier, NULL, 2);
    HAS_TO(!pthread_create(&thread, NULL, early_main, &refused));
    HAS_TO(!enter("auto", NULL, NULL, NULL));
    pthread_barrier_wait(&barrier);
    HAS_TO(!pthread_join(thread, NULL) && refused);
    return 0;
}

static int no_dump_case(void)
{
    HAS_TO(prctl(PR_GET_DUMPABLE) == 1);
    HAS_TO(!enter("auto", NULL, NULL, NULL));
    HAS_TO(prctl(PR_GET_DUMPABLE) == 0);
    return 0;
}

static int off_case(void)
{
    HAS_TO(!enter("off", in_root("model/a.gguf"), NULL, NULL));
    HAS_TO(prctl(PR_GET_DUMPABLE) == 1 && prctl(PR_GET_SECCOMP) == 0);
    HAS_TO(can_open(in_root("hidden/secret"), O_RDONLY));
    return 0;
}

static void needs(bool there)
{
    if (!there || !strcmp(sandbox_default(), "off"))
        skip();
}

static void test_files_that_no_setting_names(void **state)
{
    needs(has_landlock());
    assert_int_equal(in_child(files_case), 0);
    assert_int_equal(in_child(relative_case), 0);
}

static void test_links_to_elsewhere(void **state)
{
    needs(has_landlock());
    assert_int_equal(in_child(links_case), 0);
    assert_int_equal(in_child(link_case), 0);
    assert_int_equal(in_child(written_link_case), 0);
    assert_int_equal(in_child(parts_case), 0);
}

static void test_what_is_not_there_yet(void **state)
{
    needs(has_landlock());
    assert_int_equal(in_child(made_case), 0);
}

static void test_sockets_in_folders(void **state)
{
    needs(has_landlock());
    assert_int_equal(in_child(socket_case), 0);
}

static void test_calls(void **state)
{
    needs(has_seccomp());
    assert_int_equal(in_child(calls_case), 0);
    assert_int_equal(in_child(early_thread_case), 0);
}

static void test_core_dumps(void **state)
{
    needs(true);
    assert_int_equal(in_child(no_dump_case), 0);
}

static void test_off(void **state)
{
    needs(true);
    assert_int_equal(in_child(off_case), 0);
}

static void make_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static int make_folders(void **state)
{
    static const char *const folders[] = {"model", "cache", "hidden", "links", "elsewhere"};
    static const char *const files[] = {"model/a.gguf", "model/b.gguf", "hidden/secret", "elsewhere/model"};

    assert_non_null(mkdtemp(root));
    for (uint32_t i = 0; i < ARRAY_COUNT(folders); i++)
        assert_int_equal(mkdir(in_root(folders[i]), 0700), 0);
    for (uint32_t i = 0; i < ARRAY_COUNT(files); i++)
        make_file(in_root(files[i]));
    return symlink(in_root("elsewhere/model"), in_root("links/model.safetensors")) ||
           symlink(in_root("elsewhere/model"), in_root("model/part.gguf"));
}

static int remove_folders(void **state)
{
    static const char *const names[] = {
        "model/a.gguf",  "model/b.gguf", "model/part.gguf", "hidden/secret", "elsewhere/model", "links/model.safetensors",
        "cache/batches", "model",        "cache",           "hidden",        "links",           "elsewhere"};

    for (uint32_t i = 0; i < ARRAY_COUNT(names); i++)
        remove(in_root(names[i]));
    return rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_that_no_setting_names),
        cmocka_unit_test(test_links_to_elsewhere),
        cmocka_unit_test(test_sockets_in_folders),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_what_is_not_there_yet),
        cmocka_unit_test(test_core_dumps),
        cmocka_unit_test(test_off),
    };
    return cmocka_run_group_tests(tests, make_folders, remove_folders);
}
