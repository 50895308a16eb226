// connection.h: a server's clients: the calls that it serves for them, their handshake's time limit, their window, what is under way to them
// and what waits. Not included from outside the RPC runtime.
#ifndef FD_RPC_CONNECTION_H
#define FD_RPC_CONNECTION_H

#include "common/rpc/endpoint.h"
#include "common/rpc/handshake.h"
#include "common/rpc/message.h"
#include "common/rpc/rpc.h"

// --- calls ---
//
// A call lives from its request to its answer. It is in a table (by pipe and id, for CANCEL) and in its client's list (for the client's
// end). A cancelled call whose handler set no on_cancel stays in the table, without a client, until the handler ends it.

enum { CALL_BUCKETS = 4096 };

struct connection;

// One client's calls that have not ended and were not cancelled.
struct call_list {
    struct connection *connection;
    uint32_t pipe, count;
    struct rpc_call *first;
};

struct rpc_call {
    struct rpc_server *server;
    struct call_table *table;
    struct rpc_call *next;                     // of its bucket, or of the free list
    struct call_list *client;                  // NULL: it is gone, or has cancelled
    struct rpc_call *sibling, **sibling_place; // of the client's list
    struct rpc_message *message;
    uint64_t id;
    uint32_t pipe;
    bool dropping; // on_cancel runs: nobody may end it
    bool strict;   // rpc_call_set_strict
    void (*on_cancel)(void *user);
    void *cancel_user, *user;
};

// Zeroed, with its server, it is ready.
struct call_table {
    struct rpc_server *server;
    struct rpc_call *buckets[CALL_BUCKETS];
    struct rpc_call *free_calls;
    uint32_t count; // those of clients that are gone included
};

// NULL: none.
struct rpc_call *call_find(struct call_table *table, const struct call_list *client, uint64_t id);
// Takes the message, if there is memory; NULL otherwise.
struct rpc_call *call_new(struct call_table *table, struct call_list *client, struct rpc_message *message);
// The client has cancelled or is gone.
void call_drop(struct rpc_call *call);
void call_free(struct rpc_call *call);
// Without on_cancel.
void call_table_close(struct call_table *table);

// --- connections ---

enum { CONNECTION_BUCKETS = 256 };
enum { STRANGERS_MAX = 256 }; // connections without a handshake: they take descriptors from those that have one

struct connection {
    struct connections *all;
    struct connection *next;                             // of its bucket
    struct connection *stranger_before, *stranger_after; // until it is greeted: of the strangers, the oldest first
    uint32_t pipe, unacked;
    enum rpc_role role; // that its certificate names; RPC_ROLE_NONE: it has none
    bool greeted, refused, dead;
    struct greeting greeting;
    struct handshake handshake;
    uint64_t timer; // the handshake's deadline; later, while many messages are not acknowledged: to look for silence; 0: none
    bool heard;     // something came since the latest look
    uint32_t looks; // in a row at which nothing had come
    struct call_list calls;
    struct frame_queue backlog;
};

// Those of one server. Zeroed, with the first four, it is ready.
struct connections {
    struct endpoint *endpoint;
    struct rpc_loop *loop;
    const char *service; // of the server, for the log
    uint32_t silence_ms; // that a client may owe acknowledgements and say nothing
    struct connection *buckets[CONNECTION_BUCKETS];
    struct connection *strangers, *newest_stranger;
    uint32_t stranger_count;
};

// NULL: no memory. A client that does not say hello in time loses its connection, and so does the oldest of STRANGERS_MAX that have not.
struct connection *connection_open(struct connections *all, uint32_t pipe);
// NULL: none of this pipe.
struct connection *connection_find(struct connections *all, uint32_t pipe);
// Its calls are cancelled.
void connection_close(struct connection *connection);
void connection_close_all(struct connections *all);
// Ends the connection, once; the pipe's end comes as an event.
void connection_kick(struct connection *connection, const char *why);
void connection_greeted(struct connection *connection);

// Outside of the window: what belongs to the handshake. Takes the message (NULL: there was no memory for it: a kick).
void connection_send_now(struct connection *connection, struct frame *frame);
// Takes the message (NULL: there was no memory for it). RESOURCE_EXHAUSTED: the client does not read, and is kicked.
enum status connection_send(struct connection *connection, struct frame *frame);
void connection_acknowledged(struct connection *connection, uint32_t count);

#endif
