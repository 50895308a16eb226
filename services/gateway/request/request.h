// request.h: one completion or chat request: its choices, their token logs, and what has been sent to the client.
//
//   work pool ──request_prepare()──▶ request ──requests_start()──▶ loop thread: one Generate call a choice
//                                                                  │ events
//                        exchange ◀── chunks or one answer ◀───────┘
//
// A choice keeps its token log: prompt ids, generated ids, parameters and seed. If the scheduler goes away, the choice is submitted
// again with this log. The index in an event says where the new stream continues, so that no token is shown twice or left out.
#ifndef FD_GATEWAY_REQUEST_REQUEST_H
#define FD_GATEWAY_REQUEST_REQUEST_H

#include "services/gateway/api/schema/schema.h"
#include "services/gateway/http/http.h"
#include "services/gateway/http/keys.h"
#include "services/gateway/mesh/mesh.h"
#include "services/gateway/mesh/metrics.h"
#include "services/gateway/text/language.h"

struct dialect_run;
struct request;
struct requests;

struct requests_config {
    struct mesh *mesh;
    const struct language *language;
    struct metrics *metrics;
    uint32_t max_request_tokens; // the most choices x tokens x (1 + alternatives) of one request
    double request_timeout_s;    // 0: none
    double ready_grace_s;        // how long a new request waits for a mesh that is not ready
    double resume_limit_s;       // how long a request that has begun waits for the mesh
    double keep_alive_s;         // a stream that has been silent for this long gets a comment
};

enum status requests_open(const struct requests_config *config, struct requests **out) MUST_CHECK;
// Frees all remaining requests. Call it after the loop has ended.
void requests_close(struct requests *requests);

// Tokenizes, checks lengths and makes the request, which holds the exchange. May block; any thread. Takes over the contents of api,
// even on failure. key: the client's key, or NULL; it outlives the request. The caller has already counted one waiting sequence in
// key->waiting, which now belongs to the request. All sequences of the request count as waiting until one of them has a token.
// run: how the answer is told, which is taken over, too.
bool request_prepare(struct requests *requests, struct exchange *exchange, struct api_request *api, struct dialect_run *run,
                     struct key *key, struct request **out, struct api_error *error);

// Takes the tokens that the request may have, its prompts and all of its answers, and the grant itself, which the request ends with what it
// has had of them. Returns false and fills *error if the key's limit does not allow them; the grant then stays the caller's.
bool request_take_grant(struct request *request, struct key_grant *grant, struct api_error *error) MUST_CHECK;

// Frees a request that was not started.
void request_discard(struct request *request);

// Takes over the request, which frees itself when it is answered or its client has left. Loop thread.
void requests_start(struct requests *requests, struct request *request);
// Cancels the request whose client has left. Loop thread.
void requests_cancel(struct requests *requests, struct exchange *exchange);
// Fails all requests of clients, and those that are started from now on: the gateway shuts down. Lines of batches are left alone. Loop thread.
void requests_end(struct requests *requests);
// Submits waiting choices, keeps silent streams alive, and refuses requests that have waited too long. Call it on the loop thread
// when the mesh's state has changed and at every tick.
void requests_tick(struct requests *requests);

// Any thread.
void requests_counts(const struct requests *requests, bool batch, uint32_t *running, uint32_t *waiting); // batch: of that class

// Returns the seconds for Retry-After, 1 to 60: the predicted wait with jitter, so that clients do not all come back at once.
uint32_t request_retry_after_s(uint32_t predicted_wait_ms);

// Returns whether the model has tokens for filling a gap.
bool prompt_edit_can_fill(const struct language *language);

#endif
