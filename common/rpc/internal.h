/* internal.h: what the files of the RPC runtime share. Not included from elsewhere. */
#ifndef FD_RPC_INTERNAL_H
#define FD_RPC_INTERNAL_H

#include <nng/nng.h>
#include <pthread.h>

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

/* --- endpoints: a socket whose messages and pipes are reported to the loop ---------------------------------------- */

enum { PIPE_ADDED = 1, PIPE_GONE = 2 };
enum { HEADER_SLACK = 64 }; /* nng counts its header to a message's size */

struct endpoint {
    struct rpc_loop *loop;
    nng_socket socket;
    nng_aio *receive, *send;
    pthread_mutex_t guard; /* of `closing`, held while receiving is asked for: see endpoint_close */
    bool opened, closing;
    uint64_t max_message_bytes; /* nng does not check it on inproc */
    uint64_t epoch; /* of this opening: what an older one still had in the queue is dropped */
    void (*on_message)(struct endpoint *endpoint, uint32_t pipe, nng_msg *nng);
    void (*on_pipe)(struct endpoint *endpoint, uint32_t pipe, int event);
    nng_msg *stalled; /* what the queue had no room for; receiving goes on when it has. Under the loop's lock */
    struct endpoint *next; /* of the loop's list */
};

/* open_raw: nng_req0_open_raw or nng_rep0_open_raw. Returns an nng error. */
int endpoint_open(struct endpoint *endpoint, struct rpc_loop *loop, int (*open_raw)(nng_socket *), uint64_t max_message_bytes);
void endpoint_start(struct endpoint *endpoint);
void endpoint_close(struct endpoint *endpoint);
void endpoint_close_pipe(struct endpoint *endpoint, uint32_t pipe);
/* True: the message is nng's now. False: the socket's queue is full, and it still is the caller's. */
bool endpoint_send(struct endpoint *endpoint, nng_msg *nng) MUST_CHECK;

void loop_assert_owner(struct rpc_loop *loop);
struct rpc_message *loop_take_message(struct rpc_loop *loop);
void loop_give_message(struct rpc_loop *loop, struct rpc_message *message);
struct rpc_buffer *loop_take_buffer(struct rpc_loop *loop);
void loop_give_buffer(struct rpc_loop *loop, struct rpc_buffer *buffer);
uint32_t loop_random(struct rpc_loop *loop);

#endif
