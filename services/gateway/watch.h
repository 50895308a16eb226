// watch.h: a second look at the connections of the HTTP server: deadlines, and clients that leave.
//
// libmicrohttpd does not poll a suspended connection, and its own timeout measures silence, so a byte every second holds a connection
// forever. The watcher has a record of every connection and a thread with an epoll of its own. It notices when the peer of a running exchange
// closes its socket, and shuts sockets whose deadline has passed.
//
// A connection's id is never used again, so a late event finds nothing instead of another connection.
#ifndef FD_GATEWAY_WATCH_H
#define FD_GATEWAY_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct watch;

struct watch_config {
    uint32_t capacity; // connections
    uint32_t tick_ms;
    // On the watcher's thread (gone: also watch_shut_all()'s caller), with no lock held.
    void (*gone)(void *arg, void *user); // the peer of a guarded connection left; `hold` was called for user
    void (*tick)(void *arg);
    // Under the watcher's lock: must only count a reference.
    void (*hold)(void *user);
    // Under the watcher's lock, at every tick: whether the connection of this guarded user must be shut. Must not block.
    bool (*is_late)(void *user, uint64_t now_us);
    void *arg;
};

enum status watch_start(const struct watch_config *config, struct watch **out, struct error *error) MUST_CHECK;
// Ends the thread and frees. Blocks. NULL is allowed. No connection may be used after.
void watch_stop(struct watch *watch);

// A connection began. Its id, or 0 when there is no room.
uint64_t watch_open(struct watch *watch, int fd);
// Before the socket is closed.
void watch_close(struct watch *watch, uint64_t id);
// Sets the time by which this must be called again (0: no limit), or the connection is shut; with `answer` it gets status 408 first. Returns
// false if it has been shut already.
bool watch_deadline(struct watch *watch, uint64_t id, uint64_t deadline_us, bool answer);
// Until watch_unguard(): calls `gone` for `user`, once, when the peer leaves.
void watch_guard(struct watch *watch, uint64_t id, void *user);
void watch_unguard(struct watch *watch, uint64_t id);
// Calls `gone` for every guarded user, on the caller's thread.
void watch_shut_all(struct watch *watch);

#endif
