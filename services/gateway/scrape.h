// scrape.h: the scheduler's metrics, asked for at most once a second, however many clients want them.
//
// They are made on the scheduler's one thread, and /metrics needs no key.
#ifndef FD_GATEWAY_SCRAPE_H
#define FD_GATEWAY_SCRAPE_H

#include "services/gateway/mesh.h"

struct scrape;

// text: what the scheduler said within the last second, or NULL if it did not answer. Valid for the call.
typedef void scrape_done_fn(void *arg, const char *text);

// mesh is borrowed. NULL when out of memory. To be closed after the mesh.
struct scrape *scrape_open(struct mesh *mesh);
void scrape_close(struct scrape *scrape); // NULL is allowed

// Loop thread. Calls done once, now or later. False when out of memory: then it is not called.
bool scrape_get(struct scrape *scrape, scrape_done_fn *done, void *arg);

#endif
