// mesh.h: the connection to the scheduler: one RPC loop thread, the stream of the mesh's state, and calls.
//
// The loop thread owns everything that is in flight: requests live there, and calls are made and answered there. Other threads only
// post functions to it and read the last state.
#ifndef FD_GATEWAY_MESH_MESH_H
#define FD_GATEWAY_MESH_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/rpc/security.h"
#include "generate.pb-c.h"
#include "view.pb-c.h"

struct mesh;
struct mesh_call;

// The last state that the scheduler sent, or zeros while the scheduler is away.
struct mesh_state {
    bool up;                                                          // the scheduler is connected
    bool ready;                                                       // up, and the mesh can serve requests
    char reason[320];                                                 // why not ready
    uint32_t running, waiting, max_queue, predicted_wait_ms;          // interactive sequences
    uint32_t waiting_batch, max_queue_batch, predicted_wait_batch_ms; // of latency class batch. max_queue_batch 0: not told
    uint32_t context_tokens;                                          // 0: not known
    uint32_t vocab;
    uint64_t fingerprint;
    uint64_t kv_pages_used, kv_pages_total;
    uint32_t features; // of sampling, that the mesh has (common/mesh/messages.h)
};

struct mesh_config {
    const char *scheduler; // address
    const char *listen;    // address of the health service; NULL: none
    struct rpc_security_settings security;
    uint32_t max_calls;
    uint64_t fingerprint;       // the model file's fingerprint; a mesh with another fingerprint is not ready. 0: unknown
    void (*changed)(void *arg); // loop thread: the state changed
    void *arg;
};

// No callback runs before mesh_start(), so the caller can finish setting up `arg` after mesh_open().
enum status mesh_open(const struct mesh_config *config, struct mesh **out, struct error *error) MUST_CHECK;
enum status mesh_start(struct mesh *mesh, struct error *error) MUST_CHECK;
// The parts of what mesh_start()'s thread does, for a thread that does more: it begins, takes turns, each of which handles what has come and waits up
// to a second if nothing has, and ends, even if it could not begin. mesh_close() then.
enum status mesh_begin(struct mesh *mesh, struct error *error) MUST_CHECK;
void mesh_turn(struct mesh *mesh);
void mesh_end(struct mesh *mesh);
// Reads the certificate of --tls again. Any thread, until mesh_close().
void mesh_reload(struct mesh *mesh);
// When the certificate of --tls ends. Any thread, until mesh_close().
struct rpc_tls_expiry mesh_expiry(struct mesh *mesh);
// Ends the loop and all calls, without calling their listeners. Blocks. NULL is allowed.
void mesh_close(struct mesh *mesh);

// Any thread.
void mesh_state(struct mesh *mesh, struct mesh_state *out);
// A request's headers have come: where nothing runs or waits, the mesh's idle threads are woken while the request is read and tokenized.
// Returns at once. Any thread.
void mesh_expect(struct mesh *mesh);
// Runs fn on the loop thread, in the order of posting. Any thread, until mesh_close().
void mesh_post(struct mesh *mesh, void (*fn)(void *arg), void *arg);

// Called on the loop thread. event: a message of the stream, valid for the call. end: called once, after all events; STATUS_OK
// means that the stream is complete. Neither is called inside mesh_generate() or after mesh_cancel(). event may call mesh_cancel().
struct mesh_listener {
    void (*event)(void *arg, const Fastdecode__GenerateEvent *event);
    void (*end)(void *arg, enum status status, const char *text);
    void *arg;
};
// Whose span the sequence belongs to: a traceparent and its tracestate, for the call's metadata.
struct mesh_trace {
    const char *parent, *state; // NULL: none
};

// The request is packed in the call and need not be kept. *out is valid until end or mesh_cancel().
enum status mesh_generate(struct mesh *mesh, const Fastdecode__GenerateRequest *request, uint64_t timeout_us,
                          const struct mesh_trace *trace, const struct mesh_listener *listener, struct mesh_call **out) MUST_CHECK;
void mesh_cancel(struct mesh_call *call);

// Called once, later, on the loop thread; text is valid for the call, and NULL if the scheduler did not answer in time.
typedef void mesh_text_fn(void *arg, const char *text);
// Loop thread. Ask for the scheduler's metrics, as Prometheus text, and for its view of the mesh, as JSON.
void mesh_metrics(struct mesh *mesh, uint64_t timeout_us, mesh_text_fn *done, void *arg);
void mesh_view(struct mesh *mesh, uint64_t timeout_us, mesh_text_fn *done, void *arg);

// --- the scheduler's view of the mesh (proto/view.proto) as the JSON that the page /mesh reads -----------------------

// Returns one JSON object, with the names of view.proto; the caller frees it. Ids are strings, because JSON's numbers end at 2^53. NULL: no
// memory.
char *mesh_view_json(const Fastdecode__MeshView *view);

#endif
