// roles.h: which service a certificate is for, and which service may call which method: one table, in roles.c.
//
// A certificate names its role in a URI among its subject alternative names: fastdecode://role/kv-worker.
#ifndef FD_RPC_ROLES_H
#define FD_RPC_ROLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#define RPC_ROLE_URI "fastdecode://role/"

enum rpc_role { RPC_ROLE_NONE, RPC_ROLE_GATEWAY, RPC_ROLE_SCHEDULER, RPC_ROLE_S_PART, RPC_ROLE_KV_WORKER, RPC_ROLES };

// Sets of roles, for what a channel expects at its other end.
enum {
    RPC_IS_GATEWAY = 1 << RPC_ROLE_GATEWAY,
    RPC_IS_SCHEDULER = 1 << RPC_ROLE_SCHEDULER,
    RPC_IS_S_PART = 1 << RPC_ROLE_S_PART,
    RPC_IS_KV_WORKER = 1 << RPC_ROLE_KV_WORKER,
    RPC_IS_ANY = RPC_IS_GATEWAY | RPC_IS_SCHEDULER | RPC_IS_S_PART | RPC_IS_KV_WORKER,
};

// "kv-worker": the name that the service says hello with. "no role" for RPC_ROLE_NONE.
const char *rpc_role_name(enum rpc_role role);
// "a kv-worker", for people.
const char *rpc_role_text(enum rpc_role role);
// RPC_ROLE_NONE: no service has this name.
enum rpc_role rpc_role_named(const char *name, size_t length);
// RPC_ROLE_NONE: the URI names no role. Any bytes.
enum rpc_role rpc_role_of_uri(const char *uri, size_t length);

// "a gateway or a scheduler", in the order of the table. Returns text.
const char *rpc_roles_text(uint32_t roles, char *text, size_t text_bytes);

// Returns the set of roles that may call the method. 0: it is not in the table, and no server can have it.
uint32_t rpc_roles_that_may_call(const ProtobufCServiceDescriptor *service, const char *method);

#endif
