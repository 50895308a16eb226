/* internal.h: what the files of the RPC runtime share. Not included from elsewhere. */
#ifndef FD_RPC_INTERNAL_H
#define FD_RPC_INTERNAL_H

#include <nng/nng.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/rpc/envelope.h"
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
    nng_msg *nng;
    struct envelope envelope;
    struct arena arena;
    bool kept, borrowed; /* borrowed: a callback has it now */
};

struct rpc_buffer {
    struct rpc_loop *loop;
    struct rpc_buffer *next;
    nng_msg *nng;
    uint32_t timeout_ms;
};

struct rpc_message *message_open(struct rpc_loop *loop, nng_msg *nng); /* NULL: not an envelope; nng is freed then */
/* A buffer whose envelope has been written; NULL: no memory. */
struct rpc_buffer *buffer_open(struct rpc_loop *loop, const struct envelope *head, size_t payload_bytes, unsigned char **payload);
/* Takes the nng message out and gives the buffer back. */
nng_msg *buffer_take(struct rpc_buffer *buffer);
nng_msg *pack_message(struct rpc_loop *loop, const struct envelope *head, const ProtobufCMessage *payload);
nng_msg *pack_hello(struct rpc_loop *loop, const struct rpc_hello *hello, uint64_t max_message_bytes);
/* What the other side said first. */
struct greeting {
    struct rpc_peer peer;
    uint32_t protocol;
    uint64_t max_message_bytes;
};

bool parse_hello(struct rpc_message *message, struct greeting *out);

/* --- endpoint.c: what listens or dials, with its connections ("pipes") ---------------------------------------------- */

enum { PIPE_ADDED = 1, PIPE_GONE = 2, ENDPOINT_LISTENERS_MAX = 4 };

struct link; /* a connection, in endpoint.c */

struct listener {
    struct endpoint *endpoint;
    nng_stream_listener *stream;
    nng_aio *aio;
};

struct endpoint {
    struct rpc_loop *loop;
    bool opened;
    uint32_t next_pipe; /* ids are not used twice, over openings too */
    uint64_t max_message_bytes;
    struct link *links;
    struct listener listeners[ENDPOINT_LISTENERS_MAX];
    uint32_t listener_count;
    nng_stream_dialer *dialer;
    nng_aio *dial;
    void (*on_message)(struct endpoint *endpoint, uint32_t pipe, nng_msg *nng); /* takes nng */
    void (*on_pipe)(struct endpoint *endpoint, uint32_t pipe, int event);       /* GONE of pipe 0: dialing failed */
    struct endpoint *next;                                                      /* of the loop's list */
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
/* Takes the message. A pipe that is gone, or that does not take what it is sent: GONE is on its way. */
void endpoint_send(struct endpoint *endpoint, uint32_t pipe, nng_msg *nng);

/* --- loop.c ---------------------------------------------------------------------------------------------------------- */

enum entry_kind { ENTRY_MESSAGE, ENTRY_PIPE, ENTRY_POST };

struct loop_entry {
    enum entry_kind kind;
    int pipe_event;
    uint32_t pipe;
    struct endpoint *endpoint; /* NULL: it has been closed */
    struct link *link;         /* of PIPE_ADDED */
    nng_msg *nng;
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

/* endpoint.c, for loop.c */
void endpoint_on_entry(struct endpoint *endpoint, const struct loop_entry *entry);
void endpoint_restart(struct endpoint *endpoint);
void link_free(struct link *link);

void loop_assert_owner(struct rpc_loop *loop);
struct rpc_message *loop_take_message(struct rpc_loop *loop);
void loop_give_message(struct rpc_loop *loop, struct rpc_message *message);
struct rpc_buffer *loop_take_buffer(struct rpc_loop *loop);
void loop_give_buffer(struct rpc_loop *loop, struct rpc_buffer *buffer);
uint32_t loop_random(struct rpc_loop *loop);

#endif
