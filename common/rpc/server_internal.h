/* server_internal.h: what server.c (calls, handshake, the server) and connection.c (clients, sending to them) share. */
#ifndef FD_RPC_SERVER_INTERNAL_H
#define FD_RPC_SERVER_INTERNAL_H

#include "common/rpc/handshake.h"
#include "common/rpc/internal.h"

enum { CALL_BUCKETS = 4096, CONNECTION_BUCKETS = 256, METHODS_MAX = 32 };
enum { STRANGERS_MAX = 256 }; /* connections without a handshake: they take descriptors from those that have one */

struct connection {
    struct rpc_server *server;
    struct connection *next;                             /* of its bucket */
    struct connection *stranger_before, *stranger_after; /* until it is greeted: of the server's list, the oldest first */
    uint32_t pipe, in_flight, unacked;
    bool greeted, refused, dead;
    struct greeting greeting;
    struct handshake handshake;
    uint64_t timer;         /* the handshake's deadline */
    struct rpc_call *calls; /* not ended and not cancelled */
    struct frame **backlog; /* ring [backlog_capacity] */
    uint32_t backlog_capacity, backlog_head, backlog_count;
    uint64_t backlog_bytes;
};

struct rpc_call {
    struct rpc_server *server;
    struct rpc_call *next;                     /* of its bucket, or of the free list */
    struct connection *connection;             /* NULL: the client is gone, or has cancelled */
    struct rpc_call *sibling, **sibling_place; /* of the connection's list */
    struct rpc_message *message;
    uint64_t id;
    uint32_t pipe;
    bool dropping; /* on_cancel runs: nobody may end it */
    void (*on_cancel)(void *user);
    void *cancel_user, *user;
};

struct server_method {
    struct rpc_method method;
    uint32_t id;
};

struct rpc_server {
    struct endpoint endpoint; /* first: callbacks cast back */
    struct rpc_loop *loop;
    struct rpc_server_config config;
    char service[32];
    uint64_t max_message_bytes;
    uint32_t window;
    struct server_method methods[METHODS_MAX];
    uint32_t method_count;
    char addresses[ENDPOINT_LISTENERS_MAX][256];
    uint32_t address_count;
    struct connection *connections[CONNECTION_BUCKETS];
    struct connection *strangers, *newest_stranger;
    uint32_t stranger_count;
    struct rpc_call *calls[CALL_BUCKETS];
    struct rpc_call *free_calls;
    uint32_t call_count; /* those of clients that are gone included */
};

/* --- connection.c --- */

/* NULL: none of this pipe, or no memory. A client that does not say hello in time loses its connection, and so does the oldest of
 * STRANGERS_MAX that have not. */
struct connection *connection_open(struct rpc_server *server, uint32_t pipe);
struct connection *connection_find(struct rpc_server *server, uint32_t pipe);
/* Its calls are cancelled. */
void connection_close(struct connection *connection);
/* Ends the connection, once; the pipe's end comes as an event. */
void connection_kick(struct connection *connection, const char *why);
void connection_greeted(struct connection *connection);

/* Outside of the window: what belongs to the handshake. Takes the message (NULL: there was no memory for it: a kick). */
void connection_send_now(struct connection *connection, struct frame *frame);
/* Takes the message (NULL: there was no memory for it). RESOURCE_EXHAUSTED: the client does not read, and is kicked. */
enum status connection_send(struct connection *connection, struct frame *frame);
void connection_acknowledged(struct connection *connection, uint32_t count);

/* --- server.c --- */

/* The client has cancelled or is gone. */
void call_drop(struct rpc_call *call);

#endif
