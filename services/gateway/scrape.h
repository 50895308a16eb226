// scrape.h: the scheduler's metrics, fetched at most once a second however many clients ask for /metrics. The limit is needed
// because the scheduler renders them on its only thread, and /metrics needs no key.
#ifndef FD_GATEWAY_SCRAPE_H
#define FD_GATEWAY_SCRAPE_H

#include "services/gateway/mesh.h"

struct scrape;

// text: the scheduler's answer, at most a second old, or NULL if there was none. Valid for the call.
typedef void scrape_done_fn(void *arg, const char *text);

// mesh is borrowed. Returns NULL when out of memory. The caller closes it, after the mesh.
struct scrape *scrape_open(struct mesh *mesh);
void scrape_close(struct scrape *scrape); // NULL is allowed

// Loop thread. Calls done once, now or later. Returns false when out of memory; done is not called then.
bool scrape_get(struct scrape *scrape, scrape_done_fn *done, void *arg);

#endif
