// roles.c: names of roles, and the table of who may call what.
#include "common/rpc/roles.h"

#include <stdio.h>
#include <string.h>

#include "attend.pb-c.h"
#include "cluster.pb-c.h"
#include "envelope.pb-c.h"
#include "generate.pb-c.h"
#include "step.pb-c.h"
#include "view.pb-c.h"

static const char *const names[RPC_ROLES] = {
    [RPC_ROLE_NONE] = "no role",  [RPC_ROLE_GATEWAY] = "gateway",     [RPC_ROLE_SCHEDULER] = "scheduler",
    [RPC_ROLE_S_PART] = "s-part", [RPC_ROLE_KV_WORKER] = "kv-worker",
};

// The callers of each method, where certificates say who calls. A server takes no method that is not here.
static const struct {
    const ProtobufCServiceDescriptor *service;
    const char *method;
    uint32_t callers;
} table[] = {
    // of every service
    {&fastdecode__health__descriptor, "Check", RPC_IS_ANY},
    // of the scheduler
    {&fastdecode__generator__descriptor, "Generate", RPC_IS_GATEWAY},
    {&fastdecode__generator__descriptor, "Expect", RPC_IS_GATEWAY},
    {&fastdecode__generator__descriptor, "Watch", RPC_IS_GATEWAY},
    {&fastdecode__generator__descriptor, "Metrics", RPC_IS_GATEWAY},
    {&fastdecode__viewer__descriptor, "View", RPC_IS_GATEWAY},
    {&fastdecode__cluster__descriptor, "RegisterMember", RPC_IS_S_PART | RPC_IS_KV_WORKER},
    {&fastdecode__cluster__descriptor, "Heartbeat", RPC_IS_S_PART | RPC_IS_KV_WORKER},
    {&fastdecode__cluster__descriptor, "Drain", RPC_IS_S_PART | RPC_IS_KV_WORKER},
    // of an s-part
    {&fastdecode__spart__descriptor, "Step", RPC_IS_SCHEDULER},
    {&fastdecode__spart__descriptor, "Expect", RPC_IS_SCHEDULER},
    {&fastdecode__spart__descriptor, "Release", RPC_IS_SCHEDULER},
    {&fastdecode__spart__descriptor, "Exclude", RPC_IS_SCHEDULER},
    {&fastdecode__spart__descriptor, "Reach", RPC_IS_SCHEDULER},
    {&fastdecode__spart__descriptor, "Join", RPC_IS_SCHEDULER},
    {&fastdecode__spart__descriptor, "Forward", RPC_IS_S_PART}, // the stage before it
    // of a kv-worker
    {&fastdecode__kv_worker__descriptor, "Attend", RPC_IS_S_PART},
    {&fastdecode__kv_control__descriptor, "Free", RPC_IS_SCHEDULER},
    {&fastdecode__kv_control__descriptor, "Held", RPC_IS_SCHEDULER},
    // of whoever holds pages: a kv-worker, an s-part with a local pool
    {&fastdecode__kv_control__descriptor, "Fetch", RPC_IS_SCHEDULER},
    {&fastdecode__kv_handover__descriptor, "ReadPage", RPC_IS_S_PART | RPC_IS_KV_WORKER},
};

const char *rpc_role_name(enum rpc_role role) { return names[role]; }

const char *rpc_role_text(enum rpc_role role)
{
    static const char *const texts[RPC_ROLES] = {
        [RPC_ROLE_NONE] = "no service",  [RPC_ROLE_GATEWAY] = "a gateway",     [RPC_ROLE_SCHEDULER] = "a scheduler",
        [RPC_ROLE_S_PART] = "an s-part", [RPC_ROLE_KV_WORKER] = "a kv-worker",
    };
    return texts[role];
}

enum rpc_role rpc_role_named(const char *name, size_t length)
{
    for (enum rpc_role role = RPC_ROLE_NONE + 1; role < RPC_ROLES; role++)
        if (strlen(names[role]) == length && !memcmp(names[role], name, length))
            return role;
    return RPC_ROLE_NONE;
}

enum rpc_role rpc_role_of_uri(const char *uri, size_t length)
{
    const size_t head = strlen(RPC_ROLE_URI);

    if (length < head || memcmp(uri, RPC_ROLE_URI, head) != 0)
        return RPC_ROLE_NONE;
    return rpc_role_named(uri + head, length - head);
}

const char *rpc_roles_text(uint32_t roles, char *text, size_t text_bytes)
{
    size_t at = 0;

    text[0] = '\0';
    for (enum rpc_role role = RPC_ROLE_NONE + 1; role < RPC_ROLES && at < text_bytes; role++)
        if (roles & 1u << role)
            at += (size_t)snprintf(text + at, text_bytes - at, "%s%s", at ? " or " : "", rpc_role_text(role));
    return text;
}

uint32_t rpc_roles_that_may_call(const ProtobufCServiceDescriptor *service, const char *method)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].service == service && !strcmp(table[i].method, method))
            return table[i].callers;
    return 0;
}
