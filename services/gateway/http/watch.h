// watch.h: watches the connections of the HTTP server for passed deadlines and clients that leave.
//
// libmicrohttpd does not poll a suspended connection, and its own timeout measures only silence, so a client that sends a byte
// every second could hold a connection forever. The watcher has a record of every connection and its own thread with an epoll. It
// notices when the peer of a running exchange closes its socket, and shuts sockets whose deadline has passed.
//
// A connection's id is never used again, so a late event for a closed connection cannot reach another one.
#ifndef FD_GATEWAY_HTTP_WATCH_H
#define FD_GATEWAY_HTTP_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct watch;

struct watch_config {
    uint32_t capacity; // connections
    uint32_t tick_ms;
    // Called on the watcher's thread with no lock held (`gone` also on the thread that calls watch_shut_all()).
    void (*gone)(void *arg, void *user); // the peer of a guarded connection left; `hold` was called for user
    void (*tick)(void *arg);
    // Called under the watcher's lock; must only count a reference.
    void (*hold)(void *user);
    // Called under the watcher's lock at every tick. Returns whether the connection of this guarded user must be shut. Must not
    // block.
    bool (*is_late)(void *user, uint64_t now_us);
    void *arg;
};

enum status watch_start(const struct watch_config *config, struct watch **out, struct error *error) MUST_CHECK;
// Ends the thread and frees the watcher. Blocks. NULL is allowed. No other function may be called afterwards.
void watch_stop(struct watch *watch);

// Registers a new connection. Returns its id, or 0 when there is no room.
uint64_t watch_open(struct watch *watch, int fd);
// Forgets a connection. Call it before the socket is closed.
void watch_close(struct watch *watch, uint64_t id);
// Sets the connection's deadline (0: none): unless this is called again before it, the connection is shut. With `answer`, it gets
// status 408 first. Returns false if it has been shut already.
bool watch_deadline(struct watch *watch, uint64_t id, uint64_t deadline_us, bool answer);
// Calls `gone` for `user`, once, if the peer leaves before watch_unguard().
void watch_guard(struct watch *watch, uint64_t id, void *user);
void watch_unguard(struct watch *watch, uint64_t id);
// Calls `gone` for every guarded user, on the caller's thread.
void watch_shut_all(struct watch *watch);

#endif
