// watch.h: what gateways ask about the mesh: its state (watch.c) and its totals (metrics.c).
#ifndef FD_SERVICES_SCHEDULER_WATCH_H
#define FD_SERVICES_SCHEDULER_WATCH_H

#include <stdint.h>

#include "cluster.pb-c.h"
#include "common/mesh/messages.h"
#include "common/rpc/rpc.h"
#include "generate.pb-c.h"

struct scheduler;

enum { WATCHERS_MAX = 256 };

struct watch {
    struct rpc_call *calls[WATCHERS_MAX]; // NULL: unused
    uint64_t published_us;
    Fastdecode__MeshState last;                         // that was published; only its numbers are valid
    char reason[320];                                   // of a state that is sent
    Fastdecode__SamplingFeature features[FEATURES_MAX]; // of a state that is sent
};

void watch_handler(struct rpc_call *call, void *user);
// Returns why the mesh is not ready, until the next call; "" if it is.
const char *watch_reason(struct scheduler *scheduler);

// Tells the watchers the mesh's state if it has changed, and once a second.
void watch_publish(struct scheduler *scheduler, uint64_t now_us);
void metrics_handler(struct rpc_call *call, void *user);

#endif
