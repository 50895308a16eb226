// loop.h: what the RPC runtime itself asks of a loop: entries from other threads, descriptors, timers, work put off to the end of a turn.
// Not included from outside the RPC runtime; rpc.h has the rest.
#ifndef FD_RPC_LOOP_H
#define FD_RPC_LOOP_H

#include <poll.h>

#include "common/rpc/message.h"
#include "common/rpc/rpc.h"

void loop_assert_owner(struct rpc_loop *loop);
const struct rpc_secret *loop_secret(const struct rpc_loop *loop);
const struct rpc_security *loop_security(const struct rpc_loop *loop);
struct message_pool *loop_messages(struct rpc_loop *loop);
uint32_t loop_random(struct rpc_loop *loop);

// --- entries from other threads ---

struct loop_source;

struct loop_entry {
    struct loop_source *source; // NULL: a post, or its source has gone
    uint32_t kind, id;          // the source's own
    void *object;
    struct frame *frame;
    void (*fn)(void *arg); // of a post
    void *arg;
};

// A source puts entries into the loop's queue; it is part of its owner. Its functions run on the loop's thread.
struct loop_source {
    void (*on_entry)(struct loop_source *source, const struct loop_entry *entry); // takes frame and object; may end the source
    void (*on_room)(struct loop_source *source);                                  // there is room again after loop_is_full()
    void (*drop)(struct loop_source *source, void *object);                       // of an entry that comes too late
    struct loop_source *next;
};

void loop_add_source(struct rpc_loop *loop, struct loop_source *source);
// Nothing may be putting entries any more. What waits in the queue is dropped.
void loop_remove_source(struct rpc_loop *loop, struct loop_source *source);

// Any thread. Room for one entry that must not fail (an end to be told) is kept until loop_put_reserved() or loop_release(). False: no memory.
bool loop_reserve(struct rpc_loop *loop);
void loop_release(struct rpc_loop *loop);
void loop_put_reserved(struct rpc_loop *loop, const struct loop_entry *entry);
// Any thread. False: no memory; nothing was taken.
bool loop_put(struct rpc_loop *loop, const struct loop_entry *entry) MUST_CHECK;

// Any thread: true if so much waits in the queue that no more should be asked for; *stalled is set then.
bool loop_is_full(struct rpc_loop *loop, bool *stalled);
// The owner, in on_room: true if *stalled was set; it is cleared.
bool loop_was_stalled(struct rpc_loop *loop, bool *stalled);

// --- descriptors that the owner reads itself ---

// Part of what owns it. `events` may be changed at any time.
struct pollee {
    int fd;
    short events, ready;
    void (*on_ready)(struct pollee *pollee, short events); // may end it
    struct pollee *next, **place;
};

// False: no memory.
bool loop_watch(struct rpc_loop *loop, struct pollee *pollee) MUST_CHECK;
void loop_unwatch(struct rpc_loop *loop, struct pollee *pollee);

// --- work put off until rpc_loop_run() begins or ends ---

struct deferred {
    void (*run)(struct deferred *deferred);
    struct deferred *next;
    bool waiting;
};

// Once, however often it is asked for.
void loop_defer(struct rpc_loop *loop, struct deferred *deferred);
void loop_forget_deferred(struct rpc_loop *loop, struct deferred *deferred);

// --- timers that need no memory when they are set ---

bool loop_reserve_timers(struct rpc_loop *loop, uint32_t count) MUST_CHECK;
void loop_release_timers(struct rpc_loop *loop, uint32_t count);
// As rpc_loop_timer(), of those that were reserved.
uint64_t loop_reserved_timer(struct rpc_loop *loop, uint64_t delay_us, void (*fn)(void *arg), void *arg);

#endif
