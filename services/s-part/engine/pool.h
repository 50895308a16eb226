// pool.h: the local pool beside steps: sequences that are over, and pages that are handed over. See pool.c.
#ifndef FD_SERVICES_S_PART_ENGINE_POOL_H
#define FD_SERVICES_S_PART_ENGINE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/id_map.h"
#include "common/mesh/handover.h"
#include "common/rpc/rpc.h"
#include "step.pb-c.h"

struct engine;
struct mini_batch;

enum { ENGINE_RELEASE_CALLS_MAX = 256 };

// The parts to free of a sequence that has ended or whose KV is elsewhere.
struct released {
    bool pages;   // its pages in the local pool; false: they stay, others may share them
    bool sampler; // false: the sequence goes on
};

// A Release call that waits for its sequences to go.
struct release_call {
    struct rpc_call *call;
    const Fastdecode__ReleaseRequest *request; // in the call's memory
    size_t gone;                               // how many of its sequences, counted from the first, are known to be gone
};

struct engine_pool {
    struct id_map deferred_ids; // sequences to release when no step uses them
    struct released *deferred;  // [deferred_ids.capacity]
    struct release_call calls[ENGINE_RELEASE_CALLS_MAX];
    uint32_t call_count;
    struct handover handover; // moves pages to and from workers
};

enum status engine_release_open(struct engine *engine) MUST_CHECK;
void engine_release_close(struct engine *engine);
// Returns whether a step of any mini-batch but `except` (NULL: of any at all) uses the sequence.
bool engine_in_use(const struct engine *engine, uint64_t sequence, const struct mini_batch *except);
// Forgets all sequences, with their pages. No step may be under way.
void engine_forget_all(struct engine *engine);
// Releases what waited for the step that has just ended.
void engine_release_deferred(struct engine *engine);
void engine_release_handler(struct rpc_call *call, void *user);
// Drops samplers opened by any scheduler but the newest, which reopens the sequences it continues. engine: as for rpc_loop_post().
void engine_forget_older(void *engine);

// Returns the size of a page in the workers' format; 0: the local pool cannot exchange pages with workers.
uint64_t engine_page_bytes(const struct engine *engine);
void engine_pages_open(struct engine *engine);

#endif
