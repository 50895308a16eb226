// gateway_internal.h: what gateway.c (parts and lifecycle), routes.c, answers.c and work.c share.
#ifndef FD_GATEWAY_SERVE_GATEWAY_INTERNAL_H
#define FD_GATEWAY_SERVE_GATEWAY_INTERNAL_H

#include <stdatomic.h>

#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/api/dialects/response_store.h"
#include "services/gateway/batch/api.h"
#include "services/gateway/http/audit.h"
#include "services/gateway/http/http.h"
#include "services/gateway/http/keys.h"
#include "services/gateway/http/root_span.h"
#include "services/gateway/http/tls.h"
#include "services/gateway/http/work_pool.h"
#include "services/gateway/mesh/mesh.h"
#include "services/gateway/mesh/metrics.h"
#include "services/gateway/request/request.h"
#include "services/gateway/serve/gateway.h"
#include "services/gateway/text/language.h"

struct gateway {
    struct gateway_config config;
    struct language *language;
    struct keys *keys;       // NULL: clients need no key
    struct keys *admin_keys; // of /metrics and the view of the mesh; NULL: there are none
    struct metrics *metrics;
    struct mesh *mesh;
    struct scrape *scrape; // the scheduler's metrics
    struct scrape *view;   // its view of the mesh
    struct requests *requests;
    struct work_pool *quick, *pool;   // quick: for short bodies; pool: for long bodies, at low priority
    struct http_server *http, *admin; // admin: NULL, there is none
    struct http_tls *tls;             // NULL: plain HTTP
    struct audit *audit;              // NULL: none
    struct otlp *otlp;                // NULL: requests are not traced
    struct batch_api *batches;        // NULL: off
    struct response_store *responses; // NULL: none are kept
    struct text openapi;              // the document, rendered once
    uint64_t created_s;
    atomic_bool leaving;          // not ready, but accepts requests; relaxed: nothing else depends on it
    atomic_bool draining;         // accepts no more requests; relaxed: nothing else depends on it
    atomic_bool tick_pending;     // relaxed: an error costs at worst one tick more or less
    atomic_bool reload_asked;     // relaxed: likewise
    uint32_t ticks;               // watcher
    pthread_mutex_t ignored_lock; // of what follows
    uint64_t ignored[256];        // hashes of the ignored fields that have been logged: each is once, and no more than these
    uint32_t ignored_count;
};

// Callbacks of the HTTP server and the work pool. arg: the gateway.
void routes_check(void *arg, struct exchange *exchange);
void routes_handle(void *arg, struct exchange *exchange);
void routes_check_admin(void *arg, struct exchange *exchange);
void routes_handle_admin(void *arg, struct exchange *exchange);
// The form of a path; NULL: only its errors have one, OpenAI's.
const struct dialect *routes_dialect(const char *path, const char *method);
void work_run(void *arg, void *item);

// In the check and handle callbacks. Returns the owner of the request's key; NULL: there is none, it is not known, or none is
// needed.
struct key *client_key(struct gateway *gateway, struct exchange *exchange);
bool client_gives_key(struct exchange *exchange);
// Returns whether the client may see metrics and the mesh.
bool client_is_admin(struct gateway *gateway, struct exchange *exchange);
// Returns whose files, batches and kept answers these are; "" without keys.
const char *client_tenant(struct gateway *gateway, struct exchange *exchange);

// A request of the gateway itself: takes over the reference of a local exchange. key: its owner, or NULL; it outlives the request. Without
// room for it there is no answer. Any thread.
void work_ask(struct gateway *gateway, struct exchange *exchange, enum api_kind kind, struct key *key);
// Ends the request of an exchange that nobody waits for any more. Any thread.
void work_cancel(struct gateway *gateway, struct exchange *exchange);

// A request whose body becomes work, on the polling thread.
void work_queue(struct gateway *gateway, struct exchange *exchange, enum api_kind kind);

// Handlers of routes, on the polling thread.
typedef void route_handler_fn(struct gateway *gateway, struct exchange *exchange);
route_handler_fn answer_health, answer_ready, answer_version, answer_models, answer_model, answer_metrics, answer_openapi;
route_handler_fn answer_response, answer_response_delete, answer_response_items, answer_response_cancel;
route_handler_fn answer_ollama_tags, answer_ollama_show, answer_ollama_ps, answer_ollama_version;
route_handler_fn answer_page, answer_page_file, answer_mesh_state; // pages.c

// Returns the most tokens of prompt and answer together that both the model and the mesh allow.
uint32_t answer_context(struct gateway *gateway);
// Returns whether `model`, named by a client, is this gateway's model. If not, *error has status 404.
bool answer_check_model(struct gateway *gateway, const char *model, struct api_error *error);

// Adds the x-ratelimit headers of a key's limits. key: NULL: none. Call it once, before the answer begins.
void answer_limits(struct exchange *exchange, struct key *key);

#endif
