// worker.h: what the files of the kv-worker share.
//
// There are two threads. The tensor thread owns the store and the tensor socket: it appends, attends and hands pages over. The
// control thread owns the control socket and the membership. It computes nothing, and posts requests to the tensor thread's loop.
//
//     s-part ──Attend──▶ tensor thread (attend.c, pages.c) ◀──post──▶ control thread (control.c) ◀──▶ scheduler
#ifndef FD_SERVICES_KV_WORKER_WORKER_H
#define FD_SERVICES_KV_WORKER_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "attend.pb-c.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/numa.h"
#include "common/kv/kv_shape.h"
#include "common/mesh/handover.h"
#include "common/mesh/member.h"
#include "common/mesh/tensors.h"
#include "common/rpc/rpc.h"
#include "common/trace/trace.h"
#include "kernels/kv/kv_store.h"
#include "services/kv-worker/attend_spans.h"

enum {
    MEASURE_BYTES = 64 << 20, // memory read to measure speed, at start and again when the shape is known; freed afterwards
    MEASURE_KV_US = 120000,
    WORKER_BATCHES_MAX = ATTEND_BATCHES_MAX,
    WORKER_LAYERS_MAX = 1 << 12, // the scheduler takes no model with more
    WORKER_ROWS_MAX = 8192,
    WORKER_HEADS_MAX = 4096, // as kv_store_open() has it
    WORKER_SEQUENCES_MAX = 1 << 16,
    NAME_BYTES = 64,
    ADDRESS_BYTES = 200
};

struct worker_settings {
    const char *name, *scheduler, *listen, *listen_tensors, *advertise, *advertise_tensors, *isa, *trace, *otlp_endpoint,
        *numa_node;
    struct rpc_security_settings security;
    bool trace_append, calibrate, shares_cores;
    uint64_t kv_memory;
    uint32_t threads;
};

// A mini-batch and its current step.
struct attend_batch {
    struct kv_batch *kv;
    bool planned;
    uint64_t step;
    // Items are the request's rows, then its reads.
    uint32_t row_count, read_count, kept_count, lost_count, lost_read_count;
    uint32_t o_count, partial_total; // rows that get o; partials of all items
    uint32_t *partial_count;         // [WORKER_ROWS_MAX] partials of an item; 0: it gets o
    uint32_t *kept;                  // [WORKER_ROWS_MAX] item for each row of the plan
    uint32_t *lost;                  // [WORKER_ROWS_MAX] rows of the request that are not held
    uint32_t *lost_reads;            // [WORKER_ROWS_MAX] reads: the same
    struct attend_step_spans spans;
    uint64_t *sequences; // [WORKER_ROWS_MAX] the sequence of each row of the plan; 0: it has been lost since
};

// The tensor thread.
struct tensors {
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct trace_track *track;
};

// The store, and attention over it (attend.c). Of the tensor thread, but for s_part_incarnation.
struct attention {
    struct kv_shape shape;
    struct kv_store *store; // NULL until the shape is known
    struct kv_costs costs;  // what attention costs with that shape; token_us 0: not measured
    uint32_t q_width, kv_width, partial_floats;
    struct attend_batch batches[WORKER_BATCHES_MAX];
    // For each layer the incarnation of the s-part that has it, as registered with the scheduler, or of a newer one that has sent
    // Attend; older ones are refused. relaxed: the tensor thread raises it and the control thread corrects it with each answer of the
    // scheduler, in any order
    atomic_ullong s_part_incarnation[WORKER_LAYERS_MAX];
    float sinks[WORKER_HEADS_MAX]; // of the layer that is attended
    uint64_t scheduler;            // incarnation of the one that it is registered with; steps of older ones are refused
    uint64_t over_before_step;     // of its steps those before this one are over, as it said; 0: not told
    uint64_t steps_begun;          // since the start
    struct attend_spans spans;     // of traced sequences
    struct repeat not_begun, not_reserved, not_shared;
};

// Scratch of the tensor thread for one layer; arrays are [WORKER_ROWS_MAX].
struct attend_scratch {
    struct kv_row *rows;
    const float **q, **k, **v;
    float **o;
    float **out; // where the results of an item go, if some of the step get partials
};

// The control thread (control.c).
struct control {
    struct rpc_security security;
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct member *member;
    uint64_t told_incarnation;      // of the s-part, in the answer that is being read
    uint64_t scheduler_incarnation; // incarnation of the scheduler that answered our registration; older ones are refused
    bool draining, drained;
    bool listing;                // the held sequences are being listed for a registration
    struct error not_opened;     // why there are no pages though the shape is known; text "": they were not, or are open
    struct repeat open_failures; // since they were
    uint64_t open_from_us;       // they are not opened before then
};

// Numbers for heartbeats: the tensor thread writes, the control thread reads. relaxed: no other data depends on them.
struct worker_counters {
    atomic_ullong pages_total, pages_used, pages_peak, kv_bytes_read, busy_us, rows_done;
    atomic_ullong progress; // turns of the tensor loop, several a second
};

struct worker {
    struct worker_settings settings;
    uint64_t incarnation;
    double bytes_per_second;     // memory bandwidth, measured at start; 0: not measured
    struct numa_binding binding; // of threads and pages
    struct thread_pool *pool;
    struct tensors tensors;
    struct attention attend;
    struct attend_scratch scratch;
    struct control control;
    struct worker_counters counters;
    struct handover handover; // moves pages from and to others
    char control_address[ADDRESS_BYTES], tensor_address[ADDRESS_BYTES];
};

// serve.c: the worker's life. check: whether open would refuse at once. open: listens and registers, with `settings` set and the rest zero; after
// a failure the process ends. Each thread takes its turns, then the tensor thread closes its part, then the other one the rest. One thread may do all.
enum status worker_check(struct worker *worker, struct error *error) MUST_CHECK;
enum status worker_open(struct worker *worker, struct error *error) MUST_CHECK;
// A turn handles what has come, and waits up to a second if nothing has. UNAVAILABLE: the process must be started again.
void worker_turn_tensors(struct worker *worker);
enum status worker_turn_control(struct worker *worker, struct error *error) MUST_CHECK;
void worker_close_tensors(struct worker *worker);
void worker_close(struct worker *worker);

// attend.c: on the tensor thread; the first on the control thread: takes over which s-part has which layers. count 0: that of the
// incarnation has them all.
void attend_set_stages(struct worker *worker, uint64_t incarnation, Fastdecode__Stage *const *stages, size_t count);
void attend_handler(struct rpc_call *call, void *user);
// Returns the memory that the store, its tables and all mini-batches will take. *pages: the number of pages in the store.
struct memory_plan attend_memory_plan(const struct worker *worker, const struct kv_shape *shape, uint64_t *pages);
enum status attend_open(struct worker *worker, const struct kv_shape *shape, struct error *error) MUST_CHECK;
void attend_close(struct worker *worker);
void attend_publish(struct worker *worker);
// Frees a sequence's pages. Its rows in a step under way are lost, and the next layer's reply says so.
void attend_free(struct worker *worker, uint64_t sequence);

// pages.c: what the handover (common/mesh/handover.h) does with the store; on the tensor thread.
extern const struct handover_pages worker_pages;

// control.c: on the control thread.
enum status control_open(struct worker *worker, struct error *error) MUST_CHECK;
// Fills in the address at which others connect to the control socket, which listens at `listening`. As member_advertise().
enum status control_advertise(struct worker *worker, const char *listening, struct error *error) MUST_CHECK;
void control_close(struct worker *worker);
void control_drain(struct worker *worker);

#endif
