// sandbox.h: what a service gives up before it meets a file or a peer, so that a fault in a parser reaches less: memory in core dumps, files
// that none of its settings names, and calls that no service makes.
//
//     options ──▶ sandbox_name() ──▶ sandbox_begin(): no dumps, files, calls ──▶ start() ──▶ sandbox_seal(): calls ──▶ serve()
//
// Files: what lies under /etc, /usr, /lib, /proc, /sys and beside the program is read; /dev is read and written; a folder that a setting names, or the
// folder of a file that one names, is read, and written where the program writes there. Threads that a library began before main() (OpenBLAS
// does) keep what they had. Calls: no program, no process, no tracing, no mount, no namespace, no module, no other user, no clock set, no raw
// socket, and no ring for I/O after start(). The mesh's network is there all the time, also while a model is parsed. Landlock (Linux 5.13, rename
// between folders 5.19) and seccomp are the kernel's; a container may withhold them.
#ifndef FD_SERVICE_SANDBOX_H
#define FD_SERVICE_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/options.h"
#include "common/base/status.h"

#define SANDBOX_MODES "auto|on|off"
#define SANDBOX_HELP                                                                                                            \
    "give up access to files that no setting names, core dumps, and system calls that the service does not need; auto: as far " \
    "as the kernel supports it; on: fail if it does not; off: for debuggers"

enum { SANDBOX_PATHS_MAX = 24 };

struct sandbox {
    const char *mode; // one of SANDBOX_MODES
    uint32_t count;
    struct sandbox_path {
        const char *path; // the caller's, until sandbox_begin()
        bool writes;
    } paths[SANDBOX_PATHS_MAX];
    // A GPU's library looks for files that nobody has named, and may start programs: files stay, and calls until start() has ended.
    bool is_gpu;
    bool limits_calls;
    int landlock; // the version of the kernel's; 0: none
};

// Returns what --sandbox is by default: off in builds with sanitizers, which trace themselves.
const char *sandbox_default(void);

// Adds a file or folder.
void sandbox_add(struct sandbox *sandbox, const char *path, bool writes);
// Adds the files and folders that a program's settings name. Addresses of ipc:// are files.
void sandbox_name(struct sandbox *sandbox, const struct option *options, uint32_t count);

// To be called before the process has threads of its own; calls are limited for those of its libraries, too. UNAVAILABLE: --sandbox on, and
// the kernel does not have it.
enum status sandbox_begin(struct sandbox *sandbox, struct error *error) MUST_CHECK;

// Once nothing is started any more. As sandbox_begin(). Logs SANDBOX.
enum status sandbox_seal(struct sandbox *sandbox, struct error *error) MUST_CHECK;

#endif
