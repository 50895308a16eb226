// connection.c: the clients of a server, with their calls and what is sent to them.
//
// The server never has more than RPC_UNACKED_MAX messages under way to one client, whatever the transport could buffer. The client
// acknowledges every RPC_ACK_EVERY messages that it has handled; further messages wait in the backlog here. So a client that stops
// reading is noticed here, and not in a kernel buffer. Worked number: a client that has read everything has at most 15
// unacknowledged, so 33 more can always be sent.
//
//     connection_send ─▶ unacked < 48 ? ──yes──▶ endpoint ─▶ client ─▶ ACK(16)
//                               └──no──▶ backlog (at most RPC_QUEUE_MAX messages or RPC_QUEUE_BYTES; then it is kicked)
//
// Nobody ends the connection of a client whose host is gone: one that owes acknowledgements and says nothing at all is kicked after a while. Time
// in which this process does not run counts as one look at most.
#include "common/rpc/connection.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"

// --- calls ---

static struct rpc_call **call_bucket(struct call_table *table, uint32_t pipe, uint64_t id)
{
    uint64_t hash = (id ^ (uint64_t)pipe << 40) * 0x9e3779b97f4a7c15u;
    return &table->buckets[hash >> 52 & (CALL_BUCKETS - 1)];
}

struct rpc_call *call_find(struct call_table *table, const struct call_list *client, uint64_t id)
{
    struct rpc_call *call = *call_bucket(table, client->pipe, id);
    while (call && (call->id != id || call->client != client))
        call = call->next;
    return call;
}

static void leave_client(struct rpc_call *call)
{
    if (!call->client)
        return;
    call->client->count--;
    *call->sibling_place = call->sibling;
    if (call->sibling)
        call->sibling->sibling_place = call->sibling_place;
    call->client = NULL;
}

void call_free(struct rpc_call *call)
{
    struct call_table *table = call->table;
    struct rpc_call **at = call_bucket(table, call->pipe, call->id);

    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    leave_client(call);
    if (!call->message->kept)
        rpc_message_free(call->message);
    call->next = table->free_calls;
    table->free_calls = call;
    table->count--;
}

void call_drop(struct rpc_call *call)
{
    leave_client(call);
    if (call->on_cancel) {
        call->dropping = true;
        call->on_cancel(call->cancel_user);
        call_free(call);
    }
}

struct rpc_call *call_new(struct call_table *table, struct call_list *client, struct rpc_message *message)
{
    struct rpc_call *call = table->free_calls, **bucket = call_bucket(table, client->pipe, message->envelope.call_id);

    if (call)
        table->free_calls = call->next;
    else if (!(call = malloc(sizeof *call)))
        return NULL;
    *call = (struct rpc_call){.server = table->server,
                              .table = table,
                              .client = client,
                              .message = message,
                              .next = *bucket,
                              .id = message->envelope.call_id,
                              .pipe = client->pipe,
                              .sibling = client->first,
                              .sibling_place = &client->first};
    *bucket = call;
    if (call->sibling)
        call->sibling->sibling_place = &call->sibling;
    client->first = call;
    client->count++;
    table->count++;
    return call;
}

void call_table_close(struct call_table *table)
{
    for (uint32_t bucket = 0; bucket < CALL_BUCKETS; bucket++)
        while (table->buckets[bucket])
            call_free(table->buckets[bucket]);
    while (table->free_calls) {
        struct rpc_call *call = table->free_calls;
        table->free_calls = call->next;
        free(call);
    }
}

// --- connections ---

enum { HELLO_US = 5000000, LOOKS_MAX = 4 };

static struct connection **bucket_of(struct connections *all, uint32_t pipe) { return &all->buckets[pipe % CONNECTION_BUCKETS]; }

struct connection *connection_find(struct connections *all, uint32_t pipe)
{
    struct connection *connection = *bucket_of(all, pipe);
    while (connection && connection->pipe != pipe)
        connection = connection->next;
    return connection;
}

static void on_silence(void *arg)
{
    struct connection *connection = arg;
    connection->timer = 0;
    connection_kick(connection, "no handshake in time");
}

static void join_strangers(struct connections *all, struct connection *connection)
{
    if (all->stranger_count == STRANGERS_MAX)
        connection_kick(all->strangers, "the oldest of too many connections without a handshake"); // leaves the list
    connection->stranger_before = all->newest_stranger;
    *(all->newest_stranger ? &all->newest_stranger->stranger_after : &all->strangers) = connection;
    all->newest_stranger = connection;
    all->stranger_count++;
}

// Does nothing for one that is not among them.
static void leave_strangers(struct connections *all, struct connection *connection)
{
    struct connection *before = connection->stranger_before, *after = connection->stranger_after;

    if (!before && all->strangers != connection)
        return;
    *(before ? &before->stranger_after : &all->strangers) = after;
    *(after ? &after->stranger_before : &all->newest_stranger) = before;
    connection->stranger_before = connection->stranger_after = NULL;
    all->stranger_count--;
}

struct connection *connection_open(struct connections *all, uint32_t pipe)
{
    struct connection *connection = calloc(1, sizeof *connection), **bucket = bucket_of(all, pipe);

    if (!connection)
        return NULL;
    connection->all = all;
    connection->pipe = pipe;
    connection->role = endpoint_role(all->endpoint, pipe);
    connection->calls = (struct call_list){.connection = connection, .pipe = pipe};
    if (!(connection->timer = rpc_loop_timer(all->loop, HELLO_US, on_silence, connection))) {
        free(connection);
        return NULL;
    }
    connection->next = *bucket;
    *bucket = connection;
    join_strangers(all, connection);
    return connection;
}

void connection_greeted(struct connection *connection)
{
    connection->greeted = true;
    leave_strangers(connection->all, connection);
    endpoint_greeted(connection->all->endpoint, connection->pipe);
    rpc_loop_cancel_timer(connection->all->loop, connection->timer);
    connection->timer = 0;
}

void connection_kick(struct connection *connection, const char *why)
{
    char quoted[80], quoted_why[sizeof(struct error)];

    if (connection->dead)
        return;
    log_warn("RPC-KICKED", "service=%s peer=%s from=\"%s\" pipe=%u why=%s", connection->all->service,
             log_quote(quoted, sizeof quoted, connection->greeting.peer.service),
             endpoint_peer(connection->all->endpoint, connection->pipe), connection->pipe,
             log_quote(quoted_why, sizeof quoted_why, why));
    connection->dead = true;
    leave_strangers(connection->all, connection);
    frame_queue_clear(&connection->backlog);
    endpoint_close_pipe(connection->all->endpoint, connection->pipe); // PIPE_GONE follows
}

void connection_close(struct connection *connection)
{
    struct connection **at = bucket_of(connection->all, connection->pipe);

    connection->dead = true;
    leave_strangers(connection->all, connection);
    while (connection->calls.first) // a cancelled call's owner may end others, so always take the first
        call_drop(connection->calls.first);
    while (*at != connection)
        at = &(*at)->next;
    *at = connection->next;
    rpc_loop_cancel_timer(connection->all->loop, connection->timer);
    frame_queue_clear(&connection->backlog);
    free(connection);
}

void connection_close_all(struct connections *all)
{
    for (uint32_t bucket = 0; bucket < CONNECTION_BUCKETS; bucket++)
        while (all->buckets[bucket])
            connection_close(all->buckets[bucket]);
}

// --- sending ---

void connection_send_now(struct connection *connection, struct frame *frame)
{
    if (frame)
        endpoint_send(connection->all->endpoint, connection->pipe, frame);
    else
        connection_kick(connection, "no memory for a message to this client");
}

static void look_for_silence(void *arg)
{
    struct connection *connection = arg;

    connection->timer = 0;
    if (connection->dead || connection->unacked < RPC_ACK_EVERY)
        return;
    connection->looks = connection->heard ? 0 : connection->looks + 1;
    connection->heard = false;
    if (connection->looks == LOOKS_MAX)
        connection_kick(connection, "the client has acknowledged nothing and said nothing for long: its host may be gone");
    else
        connection->timer =
            rpc_loop_timer(connection->all->loop, connection->all->silence_ms * 1000ull / LOOKS_MAX, look_for_silence, connection);
}

static void count_unacknowledged(struct connection *connection)
{
    if (++connection->unacked < RPC_UNACKED_MAX || connection->timer)
        return;
    connection->heard = true;
    look_for_silence(connection);
}

static void flush_backlog(struct connection *connection)
{
    while (connection->backlog.count && connection->unacked < RPC_UNACKED_MAX && !connection->dead) {
        struct frame *frame = frame_queue_take(&connection->backlog);
        count_unacknowledged(connection);
        connection_send_now(connection, frame);
    }
}

static enum status backlog_put(struct connection *connection, struct frame *frame)
{
    if (frame_queue_put(&connection->backlog, frame, RPC_QUEUE_BYTES))
        return STATUS_OK;
    frame_free(frame);
    connection_kick(connection, "the client does not read its messages");
    return STATUS_RESOURCE_EXHAUSTED;
}

enum status connection_send(struct connection *connection, struct frame *frame)
{
    if (connection->dead) {
        frame_free(frame);
        return STATUS_UNAVAILABLE;
    }
    if (!frame) {
        connection_kick(connection, "no memory for a message to this client");
        return STATUS_RESOURCE_EXHAUSTED;
    }
    if (connection->unacked >= RPC_UNACKED_MAX) // otherwise the backlog is empty, so order is kept
        return backlog_put(connection, frame);
    count_unacknowledged(connection);
    connection_send_now(connection, frame);
    return STATUS_OK;
}

void connection_acknowledged(struct connection *connection, uint32_t count)
{
    if (count > connection->unacked) {
        connection_kick(connection, "the client acknowledged messages that were not sent");
        return;
    }
    connection->unacked -= count;
    flush_backlog(connection);
}
