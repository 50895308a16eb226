// played_cluster.h: the scheduler of a member that is tested, as far as members talk to it; the test takes what they say. Include after
// cmocka.h.
#ifndef FD_TESTS_PLAYED_CLUSTER_H
#define FD_TESTS_PLAYED_CLUSTER_H

#include "cluster.pb-c.h"
#include "common/base/checked.h"
#include "common/rpc/rpc.h"

// Both handlers run on the loop, with no user. The server is the caller's.
static inline struct rpc_server *open_cluster(struct rpc_loop *loop, const char *address, rpc_handler *take_registration,
                                              rpc_handler *take_heartbeat)
{
    const struct rpc_method methods[] = {{&fastdecode__cluster__descriptor, "RegisterMember", take_registration, NULL},
                                         {&fastdecode__cluster__descriptor, "Heartbeat", take_heartbeat, NULL}};
    const struct rpc_server_config config = {.addresses = &address,
                                             .address_count = 1,
                                             .methods = methods,
                                             .method_count = ARRAY_COUNT(methods),
                                             .hello = {.service = "scheduler"}};
    struct rpc_server *server;
    struct error error;

    assert_int_equal(rpc_server_open(loop, &config, &server, &error), STATUS_OK);
    return server;
}

#endif
