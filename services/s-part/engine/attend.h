// attend.h: attention of a step's rows: at KV workers (attend.c), of sequences that lie at several places (extents.c), and at the local pool.
#ifndef FD_SERVICES_S_PART_ENGINE_ATTEND_H
#define FD_SERVICES_S_PART_ENGINE_ATTEND_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/log.h"
#include "common/kv/kv_shape.h"
#include "common/mesh/tensors.h"
#include "common/rpc/rpc.h"
#include "common/sched/settings.h"
#include "kernels/backend/backend.h"
#include "services/s-part/step/step_plan.h"

struct engine;
struct mini_batch;

enum { ENGINE_LINKS_MAX = SCHED_WORKERS_MAX };

// The connection to a KV worker.
struct link {
    struct engine *engine;
    uint32_t worker;
    uint64_t incarnation;
    char address[200];
    struct rpc_channel *channel; // NULL: free entry
    bool down; // refused, gone or excluded: rows are lost until it is up again or the worker returns with a new incarnation
    uint64_t opened_us;
    bool was_up;
    uint64_t expected_us;   // total time expected for the calls in flight on this link
    struct repeat failures; // of calls, since one was answered, over all of its channels to this address
};

struct links {
    struct link of[ENGINE_LINKS_MAX]; // one a worker, found by its address
    uint32_t attend_method;
    struct kv_costs costs;                 // what attention costs with this host's kernels; token_us 0: not measured
    float *zeros;                          // [q_width] o of rows that are lost
    struct repeat unreachable, not_opened; // places, by address
};

// A place in the step under way.
struct link_use {
    struct mini_batch *batch;
    struct link *link; // NULL: the local pool, or there is none
    struct step_place *place;
    bool local, dead, waiting;  // dead: its rows are lost, for the rest of the step
    bool spoiled;               // its worker has sent a malformed reply
    struct rpc_buffer *request; // for the layer being computed; q, k, v are written straight into it
    struct rpc_message *reply;  // from the previous layer; o is read straight from it
    const float *o;
    float *partials;               // of the previous layer, in `reply` or the local pool
    float *read_q;                 // where q of the place's reads goes, in `request`
    uint64_t sent_us, expected_us; // expected_us: for one layer; 0: not known
    uint32_t r_part_us, attend_us; // sums over the step so far: time from request to answer; attention time reported by the worker
};

// The step under way at its places.
struct batch_attend {
    struct link_use uses[SCHED_PLACES_MAX]; // [plan.place_count]
    uint32_t waiting;                       // replies still outstanding, and one more until all is sent and the local rows are done
    const float **o;                        // [max_rows]
    float **q, **k, **v;                    // [max_rows] NULL: of a lost row
    struct backend_links links;             // those
};

// Returns the link to a place, opening it if need be; NULL: it cannot be opened, or the worker there has a newer incarnation than the place.
struct link *link_get(struct engine *engine, const Fastdecode__Place *place);
// Closes the connection; its rows in flight are lost.
void link_drop(struct link *link);
void link_close_all(struct engine *engine);

// Sets how long answers may take. Call it once a step.
void engine_expect(struct mini_batch *batch);
// Allocates a place's message for the layer, and points q, k, v of its rows into it; NULL: no memory, or the link is down.
struct rpc_buffer *engine_prepare(struct mini_batch *batch, struct link_use *use, uint32_t layer);
// Sets q, k, v of a lost place's rows to NULL.
void engine_point_nowhere(struct mini_batch *batch, const struct step_place *place);
// Points o of the workers' rows into the previous layer's replies.
void engine_point_to_replies(struct mini_batch *batch);
void engine_free_replies(struct mini_batch *batch);
// Sends the prepared messages.
void engine_send(struct mini_batch *batch);
// Attends to the local rows meanwhile.
void engine_attend_local(struct mini_batch *batch, uint32_t layer);
// Gives up a place's rows in mid-step; the rest of the step goes on.
void engine_lose_place(struct link_use *use);
// Call it when every answer has arrived or is given up.
void engine_make_ready(struct mini_batch *batch);

// --- extents.c

// Describes the reads of a place's message, and remembers where their q goes.
void engine_put_reads(struct mini_batch *batch, struct link_use *use, const struct attend_request_parts *parts);
// Copies q there, once the segment has written it for the rows.
void engine_copy_reads(struct mini_batch *batch);
// Makes o of their rows from the partials of the layer before.
void engine_fold_extents(struct mini_batch *batch);

#endif
