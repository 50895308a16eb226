/* server.c: the server's side: one raw REP socket for all clients.
 *
 * Why raw REQ/REP: it is nng's only pattern in which the server can answer one particular client any number of times, in
 * any order (streams), with one socket, and in which the peer's identity (the pipe) comes with each message. The runtime
 * correlates calls by its own ids; nng's resending belongs to cooked REQ and is not there.
 *
 * Its price: a raw REP socket queues 64 messages a pipe and drops the next silently. So the server never has more
 * than RPC_UNACKED_MAX messages under way to one client: the client acknowledges every RPC_ACK_EVERY of them, and what is
 * over waits in a list here. Worked number: 48 under way + 16 acknowledged at a time is at most 64 in nng's queue.
 *
 *     rpc_call_send ─▶ unacked < 48 ? ──yes──▶ nng ─▶ client ─▶ ACK(16)
 *                            └──no──▶ backlog (at most RPC_QUEUE_MAX; then the connection is closed)
 */
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/rpc/internal.h"
#include "envelope.pb-c.h"

enum { CALL_BUCKETS = 4096, CONNECTION_BUCKETS = 64, METHODS_MAX = 32, ADDRESSES_MAX = 4, BACKLOG_START = 64 };

struct connection {
    struct rpc_server *server;
    struct connection *next; /* of its bucket */
    uint32_t pipe, in_flight, unacked;
    bool greeted, dead;
    struct rpc_peer peer;
    uint32_t nng_request_id; /* of the header: raw REP wants it back */
    nng_msg **backlog;       /* ring [backlog_capacity] */
    uint32_t backlog_capacity, backlog_head, backlog_count;
};

struct rpc_call {
    struct rpc_server *server;
    struct rpc_call *next;          /* of its bucket, or of the free list */
    struct connection *connection;  /* NULL: the client is gone, or has cancelled */
    struct rpc_message *message;
    uint64_t id;
    uint32_t pipe;
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
    char addresses[ADDRESSES_MAX][256];
    uint32_t address_count;
    struct connection *connections[CONNECTION_BUCKETS];
    struct rpc_call *calls[CALL_BUCKETS];
    struct rpc_call *free_calls;
};

/* --- connections --------------------------------------------------------------------------------------------------- */

static struct connection *find_connection(struct rpc_server *server, uint32_t pipe)
{
    struct connection *connection = server->connections[pipe % CONNECTION_BUCKETS];
    while (connection && connection->pipe != pipe)
        connection = connection->next;
    return connection;
}

static void kick(struct connection *connection, const char *why)
{
    if (connection->dead)
        return;
    log_warn("RPC-KICKED", "service=%s peer=%s pipe=%u why=\"%s\"", connection->server->service,
             connection->peer.service[0] ? connection->peer.service : "?", connection->pipe, why);
    connection->dead = true;
    endpoint_close_pipe(&connection->server->endpoint, connection->pipe); /* PIPE_GONE follows */
}

static struct rpc_call **call_bucket(struct rpc_server *server, uint32_t pipe, uint64_t id)
{
    uint64_t hash = (id ^ (uint64_t)pipe << 40) * 0x9e3779b97f4a7c15u;
    return &server->calls[hash >> 52 & (CALL_BUCKETS - 1)];
}

static void unlink_call(struct rpc_call *call)
{
    struct rpc_call **at = call_bucket(call->server, call->pipe, call->id);
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
}

static void free_call(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    unlink_call(call);
    if (call->connection)
        call->connection->in_flight--;
    rpc_message_free(call->message);
    call->next = server->free_calls;
    server->free_calls = call;
}

/* The client has cancelled or is gone. */
static void drop_call(struct rpc_call *call)
{
    call->connection->in_flight--;
    call->connection = NULL;
    if (call->on_cancel) {
        call->on_cancel(call->cancel_user);
        free_call(call);
    }
}

static void close_connection(struct connection *connection)
{
    struct rpc_server *server = connection->server;

    connection->dead = true;
    for (uint32_t bucket = 0; bucket < CALL_BUCKETS && connection->in_flight; bucket++)
        for (struct rpc_call *call = server->calls[bucket], *next; call; call = next) {
            next = call->next;
            if (call->connection == connection)
                drop_call(call);
        }
    for (struct connection **at = &server->connections[connection->pipe % CONNECTION_BUCKETS]; *at; at = &(*at)->next)
        if (*at == connection) {
            *at = connection->next;
            break;
        }
    for (uint32_t i = 0; i < connection->backlog_count; i++)
        nng_msg_free(connection->backlog[(connection->backlog_head + i) % connection->backlog_capacity]);
    free(connection->backlog);
    free(connection);
}

/* --- sending ------------------------------------------------------------------------------------------------------- */

static bool send_now(struct connection *connection, nng_msg *nng)
{
    nng_msg_header_clear(nng);
    if (nng_msg_header_append_u32(nng, connection->pipe) || nng_msg_header_append_u32(nng, connection->nng_request_id)) {
        nng_msg_free(nng);
        return false;
    }
    return endpoint_send(&connection->server->endpoint, nng);
}

static enum status backlog_put(struct connection *connection, nng_msg *nng)
{
    if (connection->backlog_count == connection->backlog_capacity) {
        uint32_t capacity = MAX((uint32_t)BACKLOG_START, connection->backlog_capacity * 2);
        nng_msg **grown = capacity <= RPC_QUEUE_MAX ? calloc(capacity, sizeof *grown) : NULL;
        if (!grown) {
            nng_msg_free(nng);
            kick(connection, "it does not read what it is sent");
            return STATUS_RESOURCE_EXHAUSTED;
        }
        for (uint32_t i = 0; i < connection->backlog_count; i++)
            grown[i] = connection->backlog[(connection->backlog_head + i) % connection->backlog_capacity];
        free(connection->backlog);
        connection->backlog = grown;
        connection->backlog_capacity = capacity;
        connection->backlog_head = 0;
    }
    connection->backlog[(connection->backlog_head + connection->backlog_count++) % connection->backlog_capacity] = nng;
    return STATUS_OK;
}

static enum status send_message(struct connection *connection, nng_msg *nng)
{
    if (!nng) {
        kick(connection, "no memory for a message to it");
        return STATUS_RESOURCE_EXHAUSTED;
    }
    if (connection->dead) {
        nng_msg_free(nng);
        return STATUS_UNAVAILABLE;
    }
    if (connection->unacked >= RPC_UNACKED_MAX)
        return backlog_put(connection, nng);
    connection->unacked++;
    if (!send_now(connection, nng)) {
        kick(connection, "the send queue is full");
        return STATUS_RESOURCE_EXHAUSTED;
    }
    return STATUS_OK;
}

static void on_ack(struct connection *connection, uint32_t count)
{
    if (count > connection->unacked) {
        kick(connection, "it acknowledged what it was not sent");
        return;
    }
    connection->unacked -= count;
    while (connection->backlog_count && connection->unacked < RPC_UNACKED_MAX && !connection->dead) {
        nng_msg *nng = connection->backlog[connection->backlog_head];
        connection->backlog_head = (connection->backlog_head + 1) % connection->backlog_capacity;
        connection->backlog_count--;
        send_message(connection, nng);
    }
}

/* --- calls --------------------------------------------------------------------------------------------------------- */

static void start_call(struct connection *connection, struct rpc_message *message)
{
    struct rpc_server *server = connection->server;
    const struct server_method *method = NULL;
    struct rpc_call **bucket, *call = server->free_calls;

    for (uint32_t i = 0; i < server->method_count; i++)
        if (server->methods[i].id == message->envelope.method)
            method = &server->methods[i];
    if (connection->in_flight >= server->window) {
        kick(connection, "more calls in flight than its window");
        rpc_message_free(message);
        return;
    }
    if (call)
        server->free_calls = call->next;
    else
        call = malloc(sizeof *call);
    if (!call) {
        kick(connection, "no memory for a call of it");
        rpc_message_free(message);
        return;
    }
    bucket = call_bucket(server, connection->pipe, message->envelope.call_id);
    *call = (struct rpc_call){.server = server, .connection = connection, .message = message, .next = *bucket,
                              .id = message->envelope.call_id, .pipe = connection->pipe};
    *bucket = call;
    connection->in_flight++;
    if (!method) {
        rpc_call_fail(call, STATUS_UNIMPLEMENTED, "%s has no method %08x", server->service, message->envelope.method);
        return;
    }
    method->method.handler(call, method->method.user);
}

static void cancel_call(struct connection *connection, uint64_t id)
{
    struct rpc_call *call = *call_bucket(connection->server, connection->pipe, id);
    while (call && (call->id != id || call->connection != connection))
        call = call->next;
    if (call)
        drop_call(call); /* otherwise it had ended */
}

static bool call_exists(struct connection *connection, uint64_t id)
{
    struct rpc_call *call = *call_bucket(connection->server, connection->pipe, id);
    while (call && (call->id != id || call->pipe != connection->pipe))
        call = call->next;
    return call;
}

static void on_hello(struct connection *connection, struct rpc_message *message)
{
    struct rpc_server *server = connection->server;
    struct envelope refused = {.kind = ENVELOPE_REFUSED};
    uint64_t own = server->config.hello.fingerprint;
    uint32_t protocol = 0;

    if (connection->greeted || !parse_hello(message, &connection->peer, &protocol)) {
        kick(connection, "a bad handshake");
        return;
    }
    if (protocol != RPC_PROTOCOL)
        snprintf(refused.error, sizeof refused.error, "%s speaks protocol %u, %s speaks %u: use equal versions", server->service,
                 RPC_PROTOCOL, connection->peer.service, protocol);
    else if (own && connection->peer.fingerprint && own != connection->peer.fingerprint)
        snprintf(refused.error, sizeof refused.error, "%s and %s do not agree on the model or its KV shape", server->service,
                 connection->peer.service);
    if (refused.error[0]) {
        nng_msg *nng = pack_message(server->loop, &refused, NULL);
        if (nng)
            send_now(connection, nng);
        log_warn("RPC-REFUSED", "service=%s peer=%s why=\"%s\"", server->service, connection->peer.service, refused.error);
        return; /* the client closes; until then nothing but HELLO is taken from it */
    }
    connection->greeted = true;
    nng_msg *nng = pack_hello(server->loop, &server->config.hello, server->max_message_bytes);
    if (!nng || !send_now(connection, nng))
        kick(connection, "the handshake cannot be answered");
}

static void on_message(struct endpoint *endpoint, uint32_t pipe, nng_msg *nng)
{
    struct rpc_server *server = (struct rpc_server *)endpoint;
    struct connection *connection = find_connection(server, pipe);
    unsigned char *header = nng_msg_header(nng);
    struct rpc_message *message;

    if (!connection || connection->dead || nng_msg_header_len(nng) != 8) { /* pipe, request id: no device in between */
        nng_msg_free(nng);
        if (connection)
            kick(connection, "a bad header");
        return;
    }
    connection->nng_request_id = (uint32_t)header[4] << 24 | (uint32_t)header[5] << 16 | (uint32_t)header[6] << 8 | header[7];
    message = message_open(server->loop, nng);
    if (!message) {
        kick(connection, "what it sent is no envelope");
        return;
    }
    const struct envelope *envelope = &message->envelope;
    if (envelope->kind != ENVELOPE_HELLO && !connection->greeted) {
        kick(connection, "a message before the handshake");
    } else if (envelope->kind == ENVELOPE_REQUEST) {
        if (!call_exists(connection, envelope->call_id)) {
            start_call(connection, message);
            return; /* the call owns the message */
        }
        kick(connection, "a call id in use");
    } else if (envelope->kind == ENVELOPE_CANCEL) {
        cancel_call(connection, envelope->call_id);
    } else if (envelope->kind == ENVELOPE_ACK) {
        on_ack(connection, envelope->status);
    } else if (envelope->kind == ENVELOPE_HELLO) {
        on_hello(connection, message);
    } else {
        kick(connection, "a message of a kind that only servers send");
    }
    rpc_message_free(message);
}

static void on_pipe(struct endpoint *endpoint, uint32_t pipe, int event)
{
    struct rpc_server *server = (struct rpc_server *)endpoint;
    struct connection *connection = find_connection(server, pipe);

    if (event == PIPE_GONE && connection) {
        close_connection(connection);
    } else if (event == PIPE_ADDED && !connection) {
        connection = calloc(1, sizeof *connection);
        if (!connection) {
            endpoint_close_pipe(endpoint, pipe);
            return;
        }
        connection->server = server;
        connection->pipe = pipe;
        connection->next = server->connections[pipe % CONNECTION_BUCKETS];
        server->connections[pipe % CONNECTION_BUCKETS] = connection;
    }
}

/* --- a call's answers ---------------------------------------------------------------------------------------------- */

struct rpc_message *rpc_call_message(struct rpc_call *call) { return call->message; }
const char *rpc_call_request_id(const struct rpc_call *call) { return call->message->envelope.request_id; }
const char *rpc_call_trace_id(const struct rpc_call *call) { return call->message->envelope.trace_id; }
uint32_t rpc_call_timeout_ms(const struct rpc_call *call) { return call->message->envelope.timeout_ms; }

const struct rpc_peer *rpc_call_peer(const struct rpc_call *call)
{
    static const struct rpc_peer gone;
    return call->connection ? &call->connection->peer : &gone;
}

void *rpc_call_unpack(struct rpc_call *call, const ProtobufCMessageDescriptor *descriptor)
{
    void *request = rpc_message_unpack(call->message, descriptor);
    if (!request)
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "the payload is no %s", descriptor->short_name);
    return request;
}

void rpc_call_on_cancel(struct rpc_call *call, void (*fn)(void *user), void *user)
{
    call->on_cancel = fn;
    call->cancel_user = user;
}

void rpc_call_set_user(struct rpc_call *call, void *user) { call->user = user; }
void *rpc_call_user(const struct rpc_call *call) { return call->user; }

static void end_with(struct rpc_call *call, const struct envelope *head, const ProtobufCMessage *payload)
{
    loop_assert_owner(call->server->loop);
    if (call->connection)
        send_message(call->connection, pack_message(call->server->loop, head, payload));
    free_call(call);
}

void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply)
{
    const struct envelope head = {.kind = ENVELOPE_REPLY, .call_id = call->id, .method = call->message->envelope.method};
    end_with(call, &head, reply);
}

void rpc_call_end(struct rpc_call *call)
{
    const struct envelope head = {.kind = ENVELOPE_REPLY, .call_id = call->id};
    end_with(call, &head, NULL);
}

void rpc_call_fail(struct rpc_call *call, enum status status, const char *format, ...)
{
    struct envelope head = {.kind = ENVELOPE_REPLY, .call_id = call->id, .status = (uint32_t)status};
    va_list args;

    va_start(args, format);
    vsnprintf(head.error, sizeof head.error, format, args);
    va_end(args);
    end_with(call, &head, NULL);
}

enum status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    const struct envelope head = {.kind = ENVELOPE_STREAM, .call_id = call->id, .method = call->message->envelope.method};
    loop_assert_owner(call->server->loop);
    if (!call->connection)
        return STATUS_UNAVAILABLE;
    return send_message(call->connection, pack_message(call->server->loop, &head, message));
}

struct rpc_buffer *rpc_reply_buffer(struct rpc_call *call, size_t payload_bytes, unsigned char **payload)
{
    const struct envelope head = {.kind = ENVELOPE_REPLY, .call_id = call->id, .method = call->message->envelope.method};
    return buffer_open(call->server->loop, &head, payload_bytes, payload);
}

void rpc_call_reply_buffer(struct rpc_call *call, struct rpc_buffer *buffer)
{
    loop_assert_owner(call->server->loop);
    nng_msg *nng = buffer_take(buffer);
    if (call->connection)
        send_message(call->connection, nng);
    else
        nng_msg_free(nng);
    free_call(call);
}

/* --- the server ---------------------------------------------------------------------------------------------------- */

static void health_handler(struct rpc_call *call, void *user)
{
    struct rpc_server *server = user;
    Fastdecode__HealthReply reply = FASTDECODE__HEALTH_REPLY__INIT;
    char reason[256] = "";

    reply.ready = !server->config.ready || server->config.ready(server->config.user, reason, sizeof reason);
    reply.reason = reason;
    reply.service = server->service;
    reply.version = (char *)FASTDECODE_VERSION;
    reply.incarnation = server->config.hello.incarnation;
    rpc_call_reply(call, &reply.base);
}

static void add_method(struct rpc_server *server, const struct rpc_method *method)
{
    uint32_t id = rpc_method_id(method->service, method->method);
    assert_always(server->method_count < METHODS_MAX);
    for (uint32_t i = 0; i < server->method_count; i++)
        assert_always(server->methods[i].id != id);
    server->methods[server->method_count++] = (struct server_method){*method, id};
}

static enum status listen_on(struct rpc_server *server, const char *address, struct error *error)
{
    nng_listener listener;
    int port, rv;
    char *bound = server->addresses[server->address_count];
    const char *colon = strrchr(address, ':');

    if (server->address_count == ADDRESSES_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "more than %d addresses to listen on", ADDRESSES_MAX);
    if ((rv = nng_listener_create(&listener, server->endpoint.socket, address)) || (rv = nng_listener_start(listener, 0)))
        return error_set(error, STATUS_UNAVAILABLE, "cannot listen on '%s': %s", address, nng_strerror(rv));
    snprintf(bound, sizeof server->addresses[0], "%s", address);
    if (!strncmp(address, "tcp", 3) && colon && !nng_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port))
        snprintf(bound, sizeof server->addresses[0], "%.*s:%d", (int)(colon - address), address, port);
    server->address_count++;
    return STATUS_OK;
}

enum status rpc_server_open(struct rpc_loop *loop, const struct rpc_server_config *config, struct rpc_server **out,
                            struct error *error)
{
    struct rpc_server *server = calloc(1, sizeof *server);
    enum status status = STATUS_OK;

    loop_assert_owner(loop);
    if (!server)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a server");
    server->loop = loop;
    server->config = *config;
    snprintf(server->service, sizeof server->service, "%s", config->hello.service);
    server->config.hello.service = server->service;
    server->max_message_bytes = config->max_message_bytes ? config->max_message_bytes : RPC_MESSAGE_BYTES_DEFAULT;
    server->window = config->window ? config->window : RPC_WINDOW_MAX;
    server->endpoint.on_message = on_message;
    server->endpoint.on_pipe = on_pipe;
    for (uint32_t i = 0; i < config->method_count; i++)
        add_method(server, &config->methods[i]);
    const struct rpc_method health = {&fastdecode__health__descriptor, "Check", health_handler, server};
    add_method(server, &health);
    int rv = endpoint_open(&server->endpoint, loop, nng_rep0_open_raw, server->max_message_bytes);
    if (rv) {
        free(server);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot open a socket: %s", nng_strerror(rv));
    }
    for (uint32_t i = 0; !status && i < config->address_count; i++)
        status = listen_on(server, config->addresses[i], error);
    if (status) {
        rpc_server_close(server);
        return status;
    }
    endpoint_start(&server->endpoint);
    *out = server;
    return STATUS_OK;
}

void rpc_server_close(struct rpc_server *server)
{
    if (!server)
        return;
    endpoint_close(&server->endpoint);
    for (uint32_t bucket = 0; bucket < CALL_BUCKETS; bucket++)
        while (server->calls[bucket])
            free_call(server->calls[bucket]);
    for (uint32_t bucket = 0; bucket < CONNECTION_BUCKETS; bucket++)
        while (server->connections[bucket])
            close_connection(server->connections[bucket]);
    while (server->free_calls) {
        struct rpc_call *call = server->free_calls;
        server->free_calls = call->next;
        free(call);
    }
    free(server);
}

const char *rpc_server_address(const struct rpc_server *server, uint32_t index)
{
    assert_always(index < server->address_count);
    return server->addresses[index];
}
