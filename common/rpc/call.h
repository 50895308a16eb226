// call.h: the calls that a server is serving. Not included from outside the RPC runtime.
//
// A call lives from its request to its answer. It is in a table (by pipe and id, for CANCEL) and in its client's list (for the client's
// end). A cancelled call whose handler set no on_cancel stays in the table, without a client, until the handler ends it.
#ifndef FD_RPC_CALL_H
#define FD_RPC_CALL_H

#include "common/rpc/message.h"
#include "common/rpc/rpc.h"

enum { CALL_BUCKETS = 4096 };

struct connection;

// Of one client: those that have not ended and were not cancelled.
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

#endif
