/* internal.h: what the files of the RPC runtime share. Not included from elsewhere. */
#ifndef FD_RPC_INTERNAL_H
#define FD_RPC_INTERNAL_H

#include <nng/nng.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/rpc/envelope.h"
#include "common/rpc/frame.h"
#include "common/rpc/lane.h"
#include "common/rpc/rpc.h"

/* --- memory of unpacked messages: a bump arena with a cap --------------------------------------------------------- */

struct arena_chunk {
    struct arena_chunk *next;
    size_t size, used;
    _Alignas(16) unsigned char bytes[];
};

struct arena {
    struct arena_chunk *chunks; /* newest first; the oldest is kept from message to message */
    size_t taken, cap;
};

void *arena_take(struct arena *arena, size_t size); /* NULL: over the cap or no memory */
void arena_reset(struct arena *arena);
void arena_free(struct arena *arena);

/* --- messages ------------------------------------------------------------------------------------------------------ */

struct rpc_message {
    struct rpc_loop *loop;
    struct rpc_message *next; /* of the loop's free list */
    struct frame *frame;
    struct envelope envelope;
    struct arena arena;
    bool kept, borrowed; /* borrowed: a callback has it now */
};

struct rpc_buffer {
    struct rpc_loop *loop;
    struct rpc_buffer *next;
    struct frame *frame;
    uint32_t timeout_ms;
};

struct rpc_message *message_open(struct rpc_loop *loop, struct frame *frame); /* NULL: not an envelope; it is freed then */
/* A buffer whose envelope has been written; NULL: no memory. */
struct rpc_buffer *buffer_open(struct rpc_loop *loop, const struct envelope *head, size_t payload_bytes, bool lent,
                               unsigned char **payload);
/* Takes the frame out and gives the buffer back. */
struct frame *buffer_take(struct rpc_buffer *buffer);
struct frame *pack_message(struct rpc_loop *loop, const struct envelope *head, const ProtobufCMessage *payload);
/* --- endpoint.c: what listens or dials, with its connections ("pipes") ---------------------------------------------- */

enum { PIPE_ADDED = 1, PIPE_GONE = 2, ENDPOINT_LISTENERS_MAX = 4 };
enum { HELLO_BYTES_MAX = 64 << 10 }; /* the envelope of who has not been greeted */

struct link; /* a connection, in endpoint.c */

struct listener {
    struct endpoint *endpoint;
    bool local;   /* who connects is on this host */
    bool pausing; /* its aio waits for time to pass; touched in its callback only */
    nng_stream_listener *stream;
    nng_aio *aio;
};

struct endpoint {
    struct rpc_loop *loop;
    bool opened;
    bool lent;          /* what it receives lies in memory that was lent; set before endpoint_open() */
    bool *closed;       /* set by endpoint_close(), after which nothing of the endpoint may be there any more; NULL: nobody asks */
    uint32_t next_pipe; /* ids are not used twice, over openings too */
    uint64_t max_message_bytes;
    struct link *links;
    struct listener listeners[ENDPOINT_LISTENERS_MAX];
    uint32_t listener_count;
    nng_stream_dialer *dialer;
    nng_aio *dial;
    bool dials_local;
    struct lane_port *port;                                                            /* NULL: no lane has been offered yet */
    void (*on_message)(struct endpoint *endpoint, uint32_t pipe, struct frame *frame); /* takes it */
    void (*on_pipe)(struct endpoint *endpoint, uint32_t pipe, int event);              /* GONE of pipe 0: dialing failed */
    void (*on_settled)(struct endpoint *endpoint);                                     /* see endpoint_take_lane */
    struct endpoint *next;                                                             /* of the loop's list */
};

/* All on the owner's thread; none blocks for longer than a callback of nng takes. The callbacks set before are kept. */
void endpoint_open(struct endpoint *endpoint, struct rpc_loop *loop, uint64_t max_message_bytes);
/* Return nng errors. *port: the bound one of tcp, else 0. One dial an opening. */
int endpoint_listen(struct endpoint *endpoint, const char *address, int *port) MUST_CHECK;
int endpoint_dial(struct endpoint *endpoint, const char *address) MUST_CHECK;
/* No callback comes any more; what was queued is dropped. */
void endpoint_close(struct endpoint *endpoint);
/* GONE follows. */
void endpoint_close_pipe(struct endpoint *endpoint, uint32_t pipe);
/* Its hello was good: what it sends from here on may be as long as max_message_bytes. */
void endpoint_greeted(struct endpoint *endpoint, uint32_t pipe);
/* What this pipe may be offered: false: nothing. It is good once. */
bool endpoint_offer_lane(struct endpoint *endpoint, uint32_t pipe, struct lane_offer *out);
/* Tries to take the offer. True: on_settled follows, and nothing may be sent before; then, or if this is false, messages go where they
 * can: the lane, or the connection as it is. */
bool endpoint_take_lane(struct endpoint *endpoint, uint32_t pipe, const struct lane_offer *offer);
/* Takes the message. A pipe that is gone, or that does not take what it is sent: GONE is on its way. */
void endpoint_send(struct endpoint *endpoint, uint32_t pipe, struct frame *frame);

/* --- loop.c ---------------------------------------------------------------------------------------------------------- */

enum entry_kind { ENTRY_MESSAGE, ENTRY_PIPE, ENTRY_POST };

struct loop_entry {
    enum entry_kind kind;
    int pipe_event;
    uint32_t pipe;
    struct endpoint *endpoint; /* NULL: it has been closed */
    struct link *link;         /* of PIPE_ADDED */
    struct frame *frame;
    void (*fn)(void *arg);
    void *arg;
};

/* Any thread. */
void loop_put(struct rpc_loop *loop, const struct loop_entry *entry);
/* Any thread: true if the queue is full; *stalled is set then. */
bool loop_stalls(struct rpc_loop *loop, bool *stalled);
/* The owner: true if *stalled was set and there is room; it is cleared then. */
bool loop_restarts(struct rpc_loop *loop, bool *stalled);
void loop_add_endpoint(struct rpc_loop *loop, struct endpoint *endpoint);
void loop_forget_endpoint(struct rpc_loop *loop, struct endpoint *endpoint);

/* The owner's: a descriptor that rpc_loop_run() waits for, part of what owns it. `events` may be changed at any time. */
struct pollee {
    int fd;
    short events, ready;
    void (*on_ready)(struct pollee *pollee, short events); /* may end it */
    struct pollee *next, **place;
};

void loop_watch(struct rpc_loop *loop, struct pollee *pollee);
void loop_unwatch(struct rpc_loop *loop, struct pollee *pollee);
struct lane **loop_waiting_lanes(struct rpc_loop *loop);

/* endpoint.c, for loop.c */
void endpoint_on_entry(struct endpoint *endpoint, const struct loop_entry *entry);
void endpoint_restart(struct endpoint *endpoint);
void link_free(struct link *link);

void loop_assert_owner(struct rpc_loop *loop);
const struct rpc_secret *loop_secret(const struct rpc_loop *loop);
struct rpc_message *loop_take_message(struct rpc_loop *loop);
void loop_give_message(struct rpc_loop *loop, struct rpc_message *message);
struct rpc_buffer *loop_take_buffer(struct rpc_loop *loop);
void loop_give_buffer(struct rpc_loop *loop, struct rpc_buffer *buffer);
uint32_t loop_random(struct rpc_loop *loop);

#endif
