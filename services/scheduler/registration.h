// registration.h: the model that the mesh serves, and the members that register for it. See registration.c.
#ifndef FD_SERVICES_SCHEDULER_REGISTRATION_H
#define FD_SERVICES_SCHEDULER_REGISTRATION_H

#include <stdbool.h>
#include <stdint.h>

#include "cluster.pb-c.h"
#include "common/base/log.h"
#include "kernels/kv/kv_store.h"
#include "services/scheduler/member.h"
#include "services/scheduler/refusals.h"

enum { END_TOKENS_MAX = 16 };

// From the first s-part that registered. It binds all others, until no stage of it is left before the core was opened.
struct served_model {
    bool known;
    Fastdecode__ModelInfo info; // points to the fields below
    struct kv_shape kv_shape;   // what kv says, and borrows
    Fastdecode__KvShape kv;
    char name[NAME_BYTES];
    uint32_t end_tokens[END_TOKENS_MAX];
    uint32_t end_token_count;
    uint64_t page_bytes;
    struct repeat others; // workers that came with pages of another model
};

void registration_handler(struct rpc_call *call, void *user);
// Says in the log and the view, and where people ask why the mesh is not ready, that a member is refused.
void registration_refused(struct scheduler *scheduler, const char *name, bool s_part, enum refusal_reason reason, const char *why);
// Returns the worker that has registered under the name; NULL: none.
struct member *registration_find_worker(struct scheduler *scheduler, const char *name);

// --- the place of a KV worker whose name is new

#define NAMES_KEPT_US UINT64_C(3600000000)

#define NAMES_NO_PLACE UINT32_MAX

struct names_place {
    bool is_free;      // its worker is gone, and nothing of it is left anywhere
    uint64_t heard_us; // at most now_us
};

// Returns the index of the place: below `count` another worker's, which is forgotten, `count` a new one. NAMES_NO_PLACE: there are `most`,
// and none is free. Pure: no clock, no state.
uint32_t names_choose(const struct names_place *places, uint32_t count, uint32_t most, uint64_t now_us);

#endif
