// scrape.h: a text of the scheduler's, fetched at most once in a while however many clients ask for it: its metrics, its view of the mesh.
// The limit is needed because the scheduler answers on its only thread, and such paths need no key.
#ifndef FD_GATEWAY_MESH_SCRAPE_H
#define FD_GATEWAY_MESH_SCRAPE_H

#include "services/gateway/mesh/mesh.h"

struct scrape;

// text: the scheduler's answer, at most kept_us old, or NULL if there was none. Valid for the call.
typedef void scrape_done_fn(void *arg, const char *text);

// Asks the scheduler: mesh_metrics(), mesh_view().
typedef void scrape_ask_fn(struct mesh *mesh, uint64_t timeout_us, mesh_text_fn *done, void *arg);

// mesh is borrowed. Returns NULL when out of memory. The caller closes it, after the mesh.
struct scrape *scrape_open(struct mesh *mesh, scrape_ask_fn *ask, uint64_t kept_us);
void scrape_close(struct scrape *scrape); // NULL is allowed

// Loop thread. Calls done once, now or later. Returns false when out of memory; done is not called then.
bool scrape_get(struct scrape *scrape, scrape_done_fn *done, void *arg);

#endif
