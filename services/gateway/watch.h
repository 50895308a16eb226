// watch.h: the connections of the HTTP server, seen from the side: deadlines, and clients that leave.
//
// libmicrohttpd does not poll a suspended connection, and its own timeout counts silence, so that a byte every second
// holds a connection for ever. The watcher has a record of every connection and a thread: it waits on an epoll of its
// own for the sockets of running exchanges to be shut by their peers, and shuts those whose deadline has passed.
//
// A connection's id is never used again, so that an event that comes late finds nothing instead of another connection.
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
    void (*gone)(void *arg, void *user); // the peer of a guarded connection left; user is held, see hold
    void (*tick)(void *arg);
    // Under the watcher's lock: must only count a reference.
    void (*hold)(void *user);
    // Under the watcher's lock, at every tick: whether the connection of this guarded user is to be shut. Must only look.
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
// The connection must get on before `deadline_us` (0: none) or is shut; with `answer` it is told 408 first. Returns false
// when it has been shut already.
bool watch_deadline(struct watch *watch, uint64_t id, uint64_t deadline_us, bool answer);
// Tells `gone` of `user` once when the peer leaves, until watch_unguard().
void watch_guard(struct watch *watch, uint64_t id, void *user);
void watch_unguard(struct watch *watch, uint64_t id);
// Tells `gone` of every guarded user, on the caller's thread.
void watch_shut_all(struct watch *watch);

#endif
