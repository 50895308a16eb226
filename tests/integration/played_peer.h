// played_peer.h: the other ends of what is tested, as far as tests play them: servers, channels and calls that must succeed, and a scheduler that
// members register with. All on the loop that is given.
#ifndef FD_TESTS_PLAYED_PEER_H
#define FD_TESTS_PLAYED_PEER_H

#include <unistd.h>

#include "cluster.pb-c.h"
#include "common/base/checked.h"
#include "common/rpc/rpc.h"
#include "tests/cmocka.h"
#include "tests/integration/await.h"

// The server is the caller's.
static inline struct rpc_server *peer_serve(struct rpc_loop *loop, const char *address, const struct rpc_method *methods,
                                            uint32_t count, const char *service, uint64_t incarnation)
{
    const struct rpc_server_config config = {.addresses = &address,
                                             .address_count = 1,
                                             .methods = methods,
                                             .method_count = count,
                                             .hello = {.service = service, .incarnation = incarnation}};
    struct rpc_server *server;
    struct error error;

    // The socket of one before it may be closed a moment later, by a thread of nng's.
    AWAIT(usleep(1000), !rpc_server_open(loop, &config, &server, &error));
    return server;
}

// The channel is the caller's. It is not up yet.
static inline struct rpc_channel *peer_dial(struct rpc_loop *loop, const char *address, const char *service, uint64_t incarnation)
{
    const struct rpc_channel_config config = {.address = address, .hello = {.service = service, .incarnation = incarnation}};
    struct rpc_channel *channel;
    struct error error;

    assert_int_equal(rpc_channel_open(loop, &config, &channel, &error), STATUS_OK);
    return channel;
}

static inline struct rpc_handle peer_call(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service,
                                          const char *method, const ProtobufCMessage *request, struct rpc_callbacks callbacks,
                                          void *user)
{
    struct rpc_handle handle;
    struct error error;

    assert_int_equal(rpc_call_start(channel, service, method, request, NULL, &callbacks, user, &handle, &error), STATUS_OK);
    return handle;
}

// Both handlers run on the loop, with no user. The server is the caller's.
static inline struct rpc_server *open_cluster(struct rpc_loop *loop, const char *address, rpc_handler *take_registration,
                                              rpc_handler *take_heartbeat)
{
    const struct rpc_method methods[] = {{&fastdecode__cluster__descriptor, "RegisterMember", take_registration, NULL},
                                         {&fastdecode__cluster__descriptor, "Heartbeat", take_heartbeat, NULL}};
    return peer_serve(loop, address, methods, ARRAY_COUNT(methods), "scheduler", 0);
}

#endif
