// service.h: what every service's main() does: settings, --check, signals, serve, exit code.
//
//     configure ──▶ check ──▶ start ──▶ serve ──▶ close
//                     │                   ▲
//                  --check                │ wake()
//                                  signal thread (sigwait): SIGTERM, SIGINT; SIGHUP: reload()
//
// Signals are blocked in every thread and taken by one thread of this module; a handler only passes on what reaches a thread that a
// library began before main(). wake() is called
// only between the end of start() and the end of serve(): close() may free what wake() uses. SIGPIPE is ignored.
//
// A service has no state at file scope: its main() owns a struct and hands it over as `state`.
#ifndef FD_SERVICE_SERVICE_H
#define FD_SERVICE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/options.h"
#include "common/base/status.h"

struct service;

struct service_program {
    const char *name;    // "s-part"
    const char *purpose; // one line of --help
    // How many signals in a row the service handles itself; the next one ends the process at once. 0 means 1.
    uint32_t signals_handled;
    // Reads the settings with service_options() and checks them; must leave nothing behind that needs an end.
    enum status (*configure)(struct service *service, void *state, struct error *error);
    // Does --probe, after configure(), instead of the service: asks the one that runs with these settings whether it is ready; with `alive`
    // whether it answers (rpc_probe_self()).
    enum status (*probe)(void *state, bool alive, struct error *error);
    // Does what --check checks beyond configure(). NULL: nothing.
    enum status (*check)(void *state, struct error *error);
    // After a failure the process ends; nothing needs to be undone.
    enum status (*start)(void *state, struct error *error);
    // Returns soon after service_stop_count() has left 0, or with an error.
    enum status (*serve)(struct service *service, void *state, struct error *error);
    // Called on the signal thread each time service_stop_count() has grown. NULL if serve() uses service_wait_stop().
    void (*wake)(void *state);
    // Called on the signal thread at each SIGHUP, only when wake() may be: read files again. May not block. NULL: SIGHUP ends the process.
    void (*reload)(void *state);
    void (*close)(void *state);
};

// Runs the program to its end and returns the exit code; a reason for another one than 0 goes to stderr.
int service_run(const struct service_program *program, void *state, int argc, char **argv);

// Parses the command line, the environment and --config into the targets of the table. For configure().
enum status service_options(struct service *service, const struct option *options, uint32_t option_count,
                            struct error *error) MUST_CHECK;

// For configure(): start() may load a GPU's library (sandbox.h).
void service_uses_gpu(struct service *service);

// For configure(): a file that it writes, or reads, and no setting names. path lives until start().
void service_name_file(struct service *service, const char *path, bool writes);

// How often the process has been asked to end. Any thread. A signal repeated within 300 ms counts once: timeout(1) and some shells
// send one request twice.
uint32_t service_stop_count(const struct service *service);

// Blocks until service_stop_count() is not 0.
void service_wait_stop(struct service *service);

#endif
