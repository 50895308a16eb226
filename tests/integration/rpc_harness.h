// rpc_harness.h: a server on a thread of its own, and a client, for tests of the RPC runtime.
#ifndef FD_TESTS_RPC_HARNESS_H
#define FD_TESTS_RPC_HARNESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/rpc/rpc.h"
#include "envelope.pb-c.h"
#include "tests/integration/await.h"

struct harness_server {
    struct rpc_server_config config; // addresses are set by harness_start
    struct rpc_secret secret;
    const struct rpc_security *security; // instead of the secret; NULL: none
    pthread_t thread;
    struct rpc_loop *loop;
    char address[256];
    atomic_bool ready, stop;
};

// security: NULL: the secret alone.
static inline void harness_protect(struct rpc_loop *loop, const struct rpc_security *security, const struct rpc_secret *secret)
{
    const struct rpc_security of_secret = {.secret = *secret};
    rpc_loop_set_security(loop, security ? security : &of_secret);
}

static inline void *harness_serve(void *arg)
{
    struct harness_server *server = arg;
    struct rpc_server *rpc;
    struct error error;

    assert_always(rpc_loop_open(&server->loop) == STATUS_OK);
    harness_protect(server->loop, server->security, &server->secret);
    if (rpc_server_open(server->loop, &server->config, &rpc, &error)) {
        fprintf(stderr, "%s\n", error.text);
        assert_always(!"listening");
    }
    snprintf(server->address, sizeof server->address, "%s", rpc_server_address(rpc, 0));
    atomic_store(&server->ready, true);
    while (!atomic_load(&server->stop))
        rpc_loop_run(server->loop, 10000, 0);
    rpc_server_close(rpc);
    rpc_loop_close(server->loop);
    return NULL;
}

// address: tcp://127.0.0.1:0 becomes the real one in server->address.
static inline void harness_start(struct harness_server *server, const char *address)
{
    server->config.addresses = &address;
    server->config.address_count = 1;
    if (!server->config.hello.service)
        server->config.hello.service = "test";
    atomic_store(&server->ready, false);
    atomic_store(&server->stop, false);
    pthread_create(&server->thread, NULL, harness_serve, server);
    while (!atomic_load(&server->ready))
        usleep(500);
}

static inline void harness_stop(struct harness_server *server)
{
    atomic_store(&server->stop, true);
    pthread_join(server->thread, NULL);
}

struct harness_client {
    struct rpc_channel_config config; // may be set before harness_open; on_up calls harness_up
    struct rpc_secret secret;
    const struct rpc_security *security; // instead of the secret; NULL: none
    struct rpc_loop *loop;
    struct rpc_channel *channel;
    uint32_t ups, downs;
    char why[256];
};

static inline void harness_up(void *user, const struct rpc_peer *peer)
{
    struct harness_client *client = user;
    (void)peer;
    client->ups++;
}

static inline void harness_down(void *user, const char *why)
{
    struct harness_client *client = user;
    client->downs++;
    snprintf(client->why, sizeof client->why, "%s", why);
}

static inline void harness_open(struct harness_client *client, const char *address)
{
    struct error error;
    client->config.address = address;
    if (!client->config.hello.service)
        client->config.hello.service = "client";
    if (!client->config.on_up)
        client->config.on_up = harness_up;
    client->config.on_down = harness_down;
    client->config.user = client;
    assert_always(rpc_loop_open(&client->loop) == STATUS_OK);
    harness_protect(client->loop, client->security, &client->secret);
    assert_always(rpc_channel_open(client->loop, &client->config, &client->channel, &error) == STATUS_OK);
}

static inline void harness_close(struct harness_client *client)
{
    rpc_channel_close(client->channel);
    rpc_loop_close(client->loop);
}

#define HARNESS_UNTIL(client, condition) AWAIT(rpc_loop_run((client)->loop, 10000, 0), condition)

struct harness_result {
    uint32_t messages, ends;
    enum status status;
    char error[256];
};

static inline void harness_on_message(void *user, struct rpc_message *message)
{
    struct harness_result *result = user;
    (void)message;
    result->messages++;
}

static inline void harness_on_end(void *user, enum status status, const char *error)
{
    struct harness_result *result = user;
    result->ends++;
    result->status = status;
    snprintf(result->error, sizeof result->error, "%s", error);
}

static const struct rpc_callbacks harness_callbacks = {.on_message = harness_on_message, .on_end = harness_on_end, .streams = true};

static atomic_uint harness_reached; // calls that reached harness_reach()

// A method that only says that it was reached, with ABORTED.
static inline void harness_reach(struct rpc_call *call, void *user)
{
    (void)user;
    atomic_fetch_add(&harness_reached, 1);
    rpc_call_fail(call, STATUS_ABORTED, "reached");
}

// Calls a method without a request and waits for the end.
static inline struct harness_result harness_call(struct harness_client *client, const ProtobufCServiceDescriptor *service,
                                                 const char *method)
{
    Fastdecode__HealthRequest empty = FASTDECODE__HEALTH_REQUEST__INIT;
    struct harness_result result = {0};
    struct error error;

    assert_always(!rpc_call_start(client->channel, service, method, &empty.base, NULL, &harness_callbacks, &result, NULL, &error));
    HARNESS_UNTIL(client, result.ends == 1);
    return result;
}

#endif
