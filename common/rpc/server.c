// server.c: the server's side: calls, the handshake, the Health service.
//
// The number of calls, including those whose clients are gone, is bounded by RPC_CALLS_MAX.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/rpc/address.h"
#include "common/rpc/connection.h"
#include "envelope.pb-c.h"

enum { METHODS_MAX = 32, ADDRESSES_MAX = 4 };

struct server_method {
    struct rpc_method method;
    uint32_t id, callers; // the roles that may call it, of peers with a certificate
};

struct rpc_server {
    struct endpoint endpoint; // first: callbacks cast back
    struct rpc_loop *loop;
    struct rpc_server_config config;
    char service[32];
    uint64_t max_message_bytes;
    uint32_t window;
    struct server_method methods[METHODS_MAX];
    uint32_t method_count;
    char addresses[ADDRESSES_MAX][256];
    uint32_t address_count;
    struct connections connections;
    struct call_table calls;
    struct repeat refusals; // of the handshake
};

static bool may_call(const struct connection *connection, const struct server_method *method)
{
    return connection->role == RPC_ROLE_NONE || method->callers & 1u << connection->role;
}

static void forbid(struct rpc_server *server, struct rpc_call *call, const struct connection *connection,
                   const struct server_method *method)
{
    char expected[64], why[200];

    snprintf(why, sizeof why, "%s/%s is for %s, and the caller's certificate is for %s", method->method.service->short_name,
             method->method.method, rpc_roles_text(method->callers, expected, sizeof expected), rpc_role_text(connection->role));
    endpoint_log_refused(&server->endpoint, connection->pipe, why);
    rpc_call_fail(call, STATUS_PERMISSION_DENIED, "%s", why);
}

// Takes the message.
static void start_call(struct rpc_server *server, struct connection *connection, struct rpc_message *message)
{
    const struct server_method *method = NULL;
    struct rpc_call *call;

    for (uint32_t i = 0; i < server->method_count; i++)
        if (server->methods[i].id == message->envelope.method)
            method = &server->methods[i];
    if (connection->calls.count >= server->window) {
        connection_kick(connection, "more calls in flight than the window allows");
        rpc_message_free(message);
        return;
    }
    if (!(call = call_new(&server->calls, &connection->calls, message))) {
        connection_kick(connection, "no memory for a call");
        rpc_message_free(message);
        return;
    }
    if (!method)
        rpc_call_fail(call, STATUS_UNIMPLEMENTED, "%s has no method %08x", server->service, message->envelope.method);
    else if (!may_call(connection, method))
        forbid(server, call, connection, method);
    else if (server->calls.count > RPC_CALLS_MAX)
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "%s has %u unanswered calls, the limit", server->service, RPC_CALLS_MAX);
    else
        method->method.handler(call, method->method.user);
}

// --- messages of clients ---

// The client closes the connection, or the handshake's deadline does. Until then its messages are ignored.
static void refuse(struct connection *connection, enum rpc_refusal reason, const char *format, ...) PRINTF_LIKE(3, 4);
static void refuse(struct connection *connection, enum rpc_refusal reason, const char *format, ...)
{
    struct envelope refused = {.kind = ENVELOPE_REFUSED};
    struct rpc_server *server = (struct rpc_server *)connection->all->endpoint;
    const struct rpc_peer *peer = &connection->greeting.peer;
    char quoted[320], version[80];
    va_list args;

    va_start(args, format);
    vsnprintf(refused.error, sizeof refused.error, format, args);
    va_end(args);
    connection->refused = true;
    connection_send_now(connection, message_pack(loop_messages(connection->all->loop), &refused, NULL));
    if (server->config.on_refused)
        server->config.on_refused(server->config.user, peer, reason, refused.error);
    if (!endpoint_log_refused(&server->endpoint, connection->pipe, refused.error) &&
        repeat_is_due(&server->refusals, clock_now_us(), refused.error))
        log_warn("RPC-REFUSED", "at=%s from=\"%s\" peer_version=%s why=%s times=%u", server->addresses[0],
                 endpoint_peer(&server->endpoint, connection->pipe), log_quote(version, sizeof version, peer->version),
                 log_quote(quoted, sizeof quoted, refused.error), server->refusals.count);
}

static void welcome(struct rpc_server *server, struct connection *connection)
{
    struct transport_offer offer;

    connection_greeted(connection);
    bool offered = endpoint_make_offer(&server->endpoint, connection->pipe, &offer);
    connection_send_now(connection, handshake_server_hello(server->loop, &server->config.hello, server->max_message_bytes,
                                                           offered ? &offer : NULL, &connection->handshake));
}

// A probe may use any service's certificate: it calls Health only, and no handler takes it for a service.
static bool says_its_role(const struct greeting *greeting, enum rpc_role role)
{
    return !strcmp(greeting->peer.service, rpc_role_name(role)) || !strcmp(greeting->peer.service, RPC_PROBE_NAME);
}

static void on_hello(struct rpc_server *server, struct connection *connection, struct rpc_message *message)
{
    const struct greeting *greeting = &connection->greeting;
    uint64_t own = server->config.hello.fingerprint;

    if (connection->greeted || connection->refused || connection->handshake.challenged ||
        !handshake_parse_hello(message, &connection->greeting))
        connection_kick(connection, "malformed handshake");
    else if (greeting->protocol != RPC_PROTOCOL)
        refuse(connection, RPC_REFUSED_VERSION, "%s speaks protocol %u, %s speaks %u: use equal versions", server->service,
               RPC_PROTOCOL, greeting->peer.service, greeting->protocol);
    else if (connection->role != RPC_ROLE_NONE && !says_its_role(greeting, connection->role))
        refuse(connection, RPC_REFUSED_CERTIFICATE, "the certificate of this peer is for %s, and it says hello as %s",
               rpc_role_text(connection->role), greeting->peer.service);
    else if (loop_secret(server->loop)->is_set && !greeting->has_nonce)
        refuse(connection, RPC_REFUSED_SECRET, "%s requires the mesh secret, and %s has none: start it with --" RPC_SECRET_OPTION,
               server->service, greeting->peer.service);
    else if (own && greeting->peer.fingerprint && own != greeting->peer.fingerprint)
        refuse(connection, RPC_REFUSED_MODEL, "%s and %s do not agree on the model or its KV shape", server->service,
               greeting->peer.service);
    else if (loop_secret(server->loop)->is_set)
        connection_send_now(connection, handshake_challenge(server->loop, message, &connection->handshake));
    else
        welcome(server, connection);
}

static void on_proof(struct rpc_server *server, struct connection *connection, struct rpc_message *message)
{
    if (connection->greeted || connection->refused || !connection->handshake.challenged)
        connection_kick(connection, "malformed handshake");
    else if (handshake_client_is_proven(loop_secret(server->loop), message, &connection->handshake))
        welcome(server, connection);
    else
        refuse(connection, RPC_REFUSED_SECRET, "%s and %s have different mesh secrets (--" RPC_SECRET_OPTION ")", server->service,
               connection->greeting.peer.service);
}

// Takes the message.
static void on_envelope(struct rpc_server *server, struct connection *connection, struct rpc_message *message)
{
    const struct envelope *envelope = &message->envelope;

    if (envelope->kind == ENVELOPE_PROOF) {
        on_proof(server, connection, message);
    } else if (envelope->kind != ENVELOPE_HELLO && !connection->greeted) {
        connection_kick(connection, "a request before the end of the handshake");
    } else if (envelope->kind == ENVELOPE_REQUEST) {
        if (!call_find(&server->calls, &connection->calls, envelope->call_id)) {
            start_call(server, connection, message);
            return; // the call owns the message
        }
        connection_kick(connection, "the call id is in use");
    } else if (envelope->kind == ENVELOPE_CANCEL) {
        struct rpc_call *call = call_find(&server->calls, &connection->calls, envelope->call_id);
        if (call)
            call_drop(call); // otherwise it has ended already
    } else if (envelope->kind == ENVELOPE_ACK) {
        connection_acknowledged(connection, envelope->status);
    } else if (envelope->kind == ENVELOPE_HELLO) {
        on_hello(server, connection, message);
    } else {
        connection_kick(connection, "a message of a kind that only servers send");
    }
    rpc_message_free(message);
}

static void on_message(struct endpoint *endpoint, uint32_t pipe, struct frame *frame)
{
    struct rpc_server *server = (struct rpc_server *)endpoint;
    struct connection *connection = connection_find(&server->connections, pipe);
    struct rpc_message *message;

    if (!connection || connection->dead) {
        frame_free(frame);
        return;
    }
    connection->heard = true;
    message = message_open(loop_messages(server->loop), frame);
    if (message)
        on_envelope(server, connection, message);
    else
        connection_kick(connection, "malformed envelope");
}

static void on_pipe(struct endpoint *endpoint, uint32_t pipe, int event)
{
    struct rpc_server *server = (struct rpc_server *)endpoint;
    struct connection *connection = connection_find(&server->connections, pipe);

    if (event == PIPE_GONE && connection)
        connection_close(connection);
    else if (event == PIPE_ADDED && !connection && !connection_open(&server->connections, pipe))
        endpoint_close_pipe(endpoint, pipe);
}

// --- a call's answers ---

struct rpc_message *rpc_call_message(struct rpc_call *call) { return call->message; }
const char *rpc_call_request_id(const struct rpc_call *call) { return call->message->envelope.request_id; }
const char *rpc_call_trace_id(const struct rpc_call *call) { return call->message->envelope.trace_id; }
const char *rpc_call_trace_state(const struct rpc_call *call, size_t *length)
{
    *length = call->message->envelope.trace_state_length;
    return call->message->envelope.trace_state;
}
uint32_t rpc_call_timeout_ms(const struct rpc_call *call) { return call->message->envelope.timeout_ms; }
bool rpc_call_is_cancelled(const struct rpc_call *call) { return !call->client; }

const struct rpc_peer *rpc_call_peer(const struct rpc_call *call)
{
    static const struct rpc_peer gone;
    return call->client ? &call->client->connection->greeting.peer : &gone;
}

void *rpc_call_unpack(struct rpc_call *call, const ProtobufCMessageDescriptor *descriptor)
{
    void *request = rpc_message_unpack(call->message, descriptor);
    if (!request)
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "malformed %s", descriptor->short_name);
    return request;
}

void rpc_call_on_cancel(struct rpc_call *call, void (*fn)(void *user), void *user)
{
    call->on_cancel = fn;
    call->cancel_user = user;
}

void rpc_call_set_user(struct rpc_call *call, void *user) { call->user = user; }
void *rpc_call_user(const struct rpc_call *call) { return call->user; }
void rpc_call_set_strict(struct rpc_call *call) { call->strict = true; }

// Takes the frame (NULL: there was no memory for it). A reply larger than the client accepts becomes a status, since the client would
// close the connection.
static void end_with(struct rpc_call *call, struct frame *frame)
{
    loop_assert_owner(call->server->loop);
    assert_always(!call->dropping);
    if (!call->client) {
        frame_free(frame);
    } else if (frame && frame->length > call->client->connection->greeting.max_message_bytes) {
        size_t bytes = frame->length;
        frame_free(frame);
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "the reply has %zu bytes, the caller accepts at most %llu", bytes,
                      (unsigned long long)call->client->connection->greeting.max_message_bytes);
        return;
    } else {
        connection_send(call->client->connection, frame);
    }
    call_free(call);
}

void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply)
{
    const struct envelope head = {.kind = ENVELOPE_REPLY, .call_id = call->id, .method = call->message->envelope.method};
    end_with(call, call->client ? message_pack(loop_messages(call->server->loop), &head, reply) : NULL);
}

void rpc_call_end(struct rpc_call *call)
{
    const struct envelope head = {.kind = ENVELOPE_REPLY, .call_id = call->id};
    end_with(call, call->client ? message_pack(loop_messages(call->server->loop), &head, NULL) : NULL);
}

void rpc_call_fail(struct rpc_call *call, enum status status, const char *format, ...)
{
    struct envelope head = {.kind = ENVELOPE_REPLY, .call_id = call->id, .status = (uint32_t)status};
    va_list args;

    va_start(args, format);
    vsnprintf(head.error, sizeof head.error, format, args);
    va_end(args);
    if (status == STATUS_INVALID_ARGUMENT && call->strict && call->client)
        connection_kick(call->client->connection, head.error);
    end_with(call, call->client ? message_pack(loop_messages(call->server->loop), &head, NULL) : NULL);
}

enum status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    const struct envelope head = {.kind = ENVELOPE_STREAM, .call_id = call->id, .method = call->message->envelope.method};
    size_t payload_at;

    loop_assert_owner(call->server->loop);
    if (!call->client || call->client->connection->dead)
        return STATUS_UNAVAILABLE;
    if (envelope_size(&head, protobuf_c_message_get_packed_size(message), &payload_at) >
        call->client->connection->greeting.max_message_bytes)
        return STATUS_OUT_OF_RANGE;
    return connection_send(call->client->connection, message_pack(loop_messages(call->server->loop), &head, message));
}

struct rpc_buffer *rpc_reply_buffer(struct rpc_call *call, size_t payload_bytes, unsigned char **payload)
{
    const struct envelope head = {.kind = ENVELOPE_REPLY, .call_id = call->id, .method = call->message->envelope.method};
    return message_buffer_open(loop_messages(call->server->loop), &head, payload_bytes, false, payload);
}

void rpc_call_reply_buffer(struct rpc_call *call, struct rpc_buffer *buffer)
{
    buffer->frame->at_once = true;
    end_with(call, message_buffer_take(buffer));
}

// --- the server ---

static void health_handler(struct rpc_call *call, void *user)
{
    struct rpc_server *server = user;
    Fastdecode__HealthReply reply = FASTDECODE__HEALTH_REPLY__INIT;
    char reason[320] = "";

    if (!rpc_call_unpack(call, &fastdecode__health_request__descriptor))
        return;
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
    const uint32_t callers = rpc_roles_that_may_call(method->service, method->method);
    assert_always(callers); // else it would work everywhere but over TLS: roles.c lacks it
    server->methods[server->method_count++] = (struct server_method){.method = *method, .id = id, .callers = callers};
}

static enum status listen_on(struct rpc_server *server, const char *address, struct error *error)
{
    int port;
    char *bound = server->addresses[server->address_count];
    const char *colon = strrchr(address, ':');

    if (server->address_count == ADDRESSES_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "more than %d addresses to listen on", ADDRESSES_MAX);
    if (rpc_security_allows_listening(loop_security(server->loop), server->service, address, error))
        return error->status;
    const char *wrong = endpoint_listen(&server->endpoint, address, &port);
    if (wrong)
        return error_set(error, STATUS_UNAVAILABLE, "cannot listen on '%s': %s", address, wrong);
    snprintf(bound, sizeof server->addresses[0], "%s", address);
    if (port)
        snprintf(bound, sizeof server->addresses[0], "%.*s:%d", (int)(colon - address), address, port);
    server->address_count++;
    return STATUS_OK;
}

enum status rpc_server_open(struct rpc_loop *loop, const struct rpc_server_config *config, struct rpc_server **out,
                            struct error *error)
{
    struct rpc_server *server;
    enum status status = STATUS_OK;

    loop_assert_owner(loop);
    for (uint32_t i = 0; i < config->address_count; i++)
        if (strlen(config->addresses[i]) >= sizeof server->addresses[0])
            return error_set(error, STATUS_INVALID_ARGUMENT, "an address has %zu bytes, the limit is %zu",
                             strlen(config->addresses[i]), sizeof server->addresses[0] - 1);
    if (!(server = calloc(1, sizeof *server)))
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
    const struct rpc_method health = {
        .service = &fastdecode__health__descriptor, .method = "Check", .handler = health_handler, .user = server};
    add_method(server, &health);
    server->connections = (struct connections){.endpoint = &server->endpoint,
                                               .loop = loop,
                                               .service = server->service,
                                               .silence_ms = config->silence_ms ? config->silence_ms : RPC_SILENCE_MS_DEFAULT};
    server->calls.server = server;
    endpoint_open(&server->endpoint, loop, server->max_message_bytes);
    for (uint32_t i = 0; !status && i < config->address_count; i++)
        status = listen_on(server, config->addresses[i], error);
    if (status) {
        rpc_server_close(server);
        return status;
    }
    *out = server;
    return STATUS_OK;
}

void rpc_server_close(struct rpc_server *server)
{
    if (!server)
        return;
    endpoint_close(&server->endpoint);
    call_table_close(&server->calls); // without on_cancel: the caller knows that it closes the server
    connection_close_all(&server->connections);
    free(server);
}

void rpc_server_set_incarnation(struct rpc_server *server, uint64_t incarnation)
{
    loop_assert_owner(server->loop);
    server->config.hello.incarnation = incarnation;
}

const char *rpc_server_address(const struct rpc_server *server, uint32_t index)
{
    assert_always(index < server->address_count);
    return server->addresses[index];
}
