// sandbox.c: gives up what a service does not need: system calls and the file system.
#include "common/service/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/landlock.h>
#include <sched.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"

static const uint64_t READS = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
static const uint64_t WRITES = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_WRITE_FILE |
                               LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_DIR |
                               LANDLOCK_ACCESS_FS_MAKE_SOCK;
// All that version 1 knows but executing: a fault may not start programs anyway, and a library is executed where it is mapped.
static const uint64_t HANDLED = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR |
                                LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                                LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |
                                LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;

const char *sandbox_default(void)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    return "off";
#else
    return "auto";
#endif
}

static bool is_off(const struct sandbox *sandbox) { return !strcmp(sandbox->mode, "off"); }

// A service ends for what the kernel lacks with --sandbox on alone.
static enum status lacks(const struct sandbox *sandbox, const char *what, struct error *error)
{
    if (strcmp(sandbox->mode, "on") != 0)
        return STATUS_OK;
    return error_set(error, STATUS_UNAVAILABLE, "--sandbox on: %s: %s; --sandbox auto goes without", what, strerror(errno));
}

void sandbox_add(struct sandbox *sandbox, const char *path, bool writes)
{
    assert_always(sandbox->count < SANDBOX_PATHS_MAX);
    sandbox->paths[sandbox->count++] = (struct sandbox_path){path, writes};
}

void sandbox_name(struct sandbox *sandbox, const struct option *options, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const bool is_path = options[i].kind == OPTION_READ_PATH || options[i].kind == OPTION_WRITTEN_PATH;
        const char *value = is_path || options[i].kind == OPTION_STRING ? *(const char *const *)options[i].target : NULL;
        const bool is_socket = value && !is_path && !strncmp(value, "ipc://", 6);
        if (value && (is_path || is_socket) && !options_is_word(&options[i], value))
            sandbox_add(sandbox, value + (is_socket ? 6 : 0), is_socket || options[i].kind == OPTION_WRITTEN_PATH);
    }
}

// --- files ---------------------------------------------------------------------------------------------------------------

static void allow(int rules, const char *path, uint64_t access)
{
    struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = open(path, O_PATH | O_CLOEXEC)};
    struct stat info;

    if (rule.parent_fd < 0)
        return; // what is not there cannot be opened either
    if (!fstat(rule.parent_fd, &info) && !S_ISDIR(info.st_mode))
        rule.allowed_access &= LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE;
    syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    close(rule.parent_fd);
}

// Allows the folder of a file, or the nearest one above it that is there: a file that replaces it is read as well, and what is not there yet
// can be made. A file in / is allowed alone.
static void allow_around(int rules, const char *path, uint64_t access)
{
    char folder[PATH_MAX];
    struct stat info;

    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash; (slash = strrchr(folder, '/')) && slash != folder;) {
        *slash = '\0';
        if (slash[1] && !stat(folder, &info) && S_ISDIR(info.st_mode)) {
            allow(rules, folder, access);
            return;
        }
    }
    allow(rules, *path == '/' ? path : ".", access);
}

// Allows what a path leads to that is, or has on its way, a symbolic link.
static void allow_target(int rules, const char *path, uint64_t access)
{
    char target[PATH_MAX];

    if (realpath(path, target))
        allow_around(rules, target, access);
}

// Caches of models are folders of links to files elsewhere. ending: of the links that count.
static void allow_links(int rules, const char *folder, const char *ending)
{
    const size_t bytes = strlen(ending);
    DIR *entries = opendir(folder);
    char path[PATH_MAX];

    if (!entries)
        return;
    for (struct dirent *entry; (entry = readdir(entries));) {
        const size_t length = strlen(entry->d_name);
        const bool may_be_link = entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN; // some file systems do not say
        if (may_be_link && length >= bytes && !strcmp(entry->d_name + length - bytes, ending) &&
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < (int)sizeof path)
            allow_target(rules, path, READS);
    }
    closedir(entries);
}

// A model in parts is found by its first one.
static void allow_parts(int rules, const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');

    if (slash && snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path) < (int)sizeof folder && *folder)
        allow_links(rules, folder, ".gguf");
    else if (!slash)
        allow_links(rules, ".", ".gguf");
}

static void allow_named(int rules, const struct sandbox_path *named)
{
    const uint64_t access = named->writes ? WRITES : READS;
    struct stat info;

    if (!stat(named->path, &info) && S_ISDIR(info.st_mode)) {
        allow(rules, named->path, access);
        allow_links(rules, named->path, "");
        return;
    }
    allow_around(rules, named->path, access);
    allow_target(rules, named->path, access);
    allow_parts(rules, named->path);
}

// Whether a file has to be made in /: what is allowed there is allowed everywhere.
static bool writes_in_root(const struct sandbox *sandbox)
{
    struct stat info;

    for (uint32_t i = 0; i < sandbox->count; i++)
        if (sandbox->paths[i].writes && strrchr(sandbox->paths[i].path, '/') == sandbox->paths[i].path &&
            (stat(sandbox->paths[i].path, &info) || !S_ISDIR(info.st_mode)))
            return true;
    return false;
}

static enum status limit_files(struct sandbox *sandbox, struct error *error)
{
    static const char *const read[] = {"/etc", "/usr", "/lib", "/lib64", "/proc", "/sys"};
    const struct landlock_ruleset_attr attributes = {.handled_access_fs = HANDLED};
    char program[PATH_MAX];

    const long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    int rules = version < 0 ? -1 : (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0);
    if (rules < 0)
        return lacks(sandbox, "this kernel has no Landlock", error);
    for (uint32_t i = 0; i < ARRAY_COUNT(read); i++)
        allow(rules, read[i], READS);
    allow_target(rules, "/etc/resolv.conf", READS);
    allow(rules, "/dev", READS | LANDLOCK_ACCESS_FS_WRITE_FILE);
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length > 0) {
        program[length] = '\0';
        allow_around(rules, program, READS);
    }
    for (uint32_t i = 0; i < sandbox->count; i++)
        allow_named(rules, &sandbox->paths[i]);
    const long failed = syscall(SYS_landlock_restrict_self, rules, 0);
    close(rules);
    if (failed)
        return lacks(sandbox, "Landlock", error);
    sandbox->landlock = (int)version;
    return STATUS_OK;
}

// --- calls ---------------------------------------------------------------------------------------------------------------

#define CALL(name) SCMP_SYS(name)

static const int refused_calls[] = {
    // programs, and what others do
    CALL(execve), CALL(execveat), CALL(fork), CALL(vfork), CALL(ptrace), CALL(process_vm_readv), CALL(process_vm_writev),
    CALL(kcmp), CALL(pidfd_getfd),
    // views of the file system and namespaces
    CALL(mount), CALL(umount2), CALL(pivot_root), CALL(chroot), CALL(move_mount), CALL(open_tree), CALL(fsopen), CALL(fsmount),
    CALL(fsconfig), CALL(fspick), CALL(mount_setattr), CALL(setns), CALL(unshare), CALL(name_to_handle_at), CALL(open_by_handle_at),
    // the kernel and the machine
    CALL(init_module), CALL(finit_module), CALL(delete_module), CALL(kexec_load), CALL(kexec_file_load), CALL(reboot), CALL(swapon),
    CALL(swapoff), CALL(acct), CALL(quotactl), CALL(syslog), CALL(settimeofday), CALL(clock_settime), CALL(clock_adjtime),
    CALL(adjtimex), CALL(sethostname), CALL(setdomainname), CALL(iopl), CALL(ioperm), CALL(vhangup),
    // what many faults of kernels were reached by
    CALL(bpf), CALL(perf_event_open), CALL(userfaultfd), CALL(add_key), CALL(request_key), CALL(keyctl), CALL(personality),
    CALL(modify_ldt),
    // other users
    CALL(setuid), CALL(setgid), CALL(setreuid), CALL(setregid), CALL(setresuid), CALL(setresgid), CALL(setfsuid), CALL(setfsgid),
    CALL(setgroups)};

// Sockets are the mesh's, clients' and the resolver's.
static const int socket_families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};

enum { SOCKET_TYPE_BITS = 0xf }; // above them are flags (Linux, include/linux/net.h)

static int refuse_calls(scmp_filter_ctx filter)
{
    int failed = 0;

    for (uint32_t i = 0; i < ARRAY_COUNT(refused_calls) && !failed; i++)
        failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), refused_calls[i], 0);
    if (!failed) // a process; threads go on
        failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), CALL(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
    if (!failed) // its flags lie in memory, where a filter does not see them: C libraries then take clone
        failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), CALL(clone3), 0);
    for (int family = 0; family < AF_MAX && !failed; family++) {
        bool is_taken = false;
        // the kernel looks at 32 bits
        const struct scmp_arg_cmp is_family = SCMP_A0(SCMP_CMP_MASKED_EQ, UINT32_MAX, (scmp_datum_t)family);
        for (uint32_t i = 0; i < ARRAY_COUNT(socket_families); i++)
            is_taken = is_taken || family == socket_families[i];
        if (!is_taken)
            failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EAFNOSUPPORT), CALL(socket), 1, is_family);
        else if (family == AF_INET || family == AF_INET6)
            failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), CALL(socket), 2, is_family,
                                      SCMP_A1(SCMP_CMP_MASKED_EQ, SOCKET_TYPE_BITS, SOCK_RAW));
    }
    return failed;
}

// Filters add up: a call is refused by any of them.
static enum status limit_calls(struct sandbox *sandbox, bool begins, struct error *error)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    int failed = filter ? 0 : -ENOMEM;
    if (!failed)
        failed = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    if (!failed) // older kernels slow all of a process with a filter down, for the sake of code that runs others' programs
        failed = seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
    if (!failed && begins != sandbox->is_gpu)
        failed = refuse_calls(filter);
    if (!failed && !begins) // rings are made at the start
        failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), CALL(io_uring_setup), 0);
    if (!failed)
        failed = seccomp_load(filter);
    seccomp_release(filter);
    sandbox->limits_calls = !failed && (begins != sandbox->is_gpu || sandbox->limits_calls);
    errno = -failed;
    return failed ? lacks(sandbox, "seccomp", error) : STATUS_OK;
}

// --- both ----------------------------------------------------------------------------------------------------------------

enum status sandbox_begin(struct sandbox *sandbox, struct error *error)
{
    enum status status = STATUS_OK;

    if (is_off(sandbox))
        return STATUS_OK;
    prctl(PR_SET_DUMPABLE, 0); // no core dumps, with keys and texts in them, and nobody of the same user reads its memory
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return lacks(sandbox, "no_new_privs", error);
    if (sandbox->is_gpu)
        return STATUS_OK;
    if (!writes_in_root(sandbox))
        status = limit_files(sandbox, error);
    return status ? status : limit_calls(sandbox, true, error);
}

enum status sandbox_seal(struct sandbox *sandbox, struct error *error)
{
    if (is_off(sandbox))
        return STATUS_OK;
    enum status status = limit_calls(sandbox, false, error);
    log_info("SANDBOX", "files=%s calls=%s", sandbox->landlock ? "limited" : "not limited",
             sandbox->limits_calls ? "limited" : "not limited");
    return status;
}
