// capacity_probe.h: one rate tried on a server: requests go out at their times whatever has become of those before.
//
// Times count from when a request was to be sent, so that a client that is late hides nothing. A trial ends as soon as it is known to miss
// its targets: more gaps between tokens above the limit than one in a hundred of all that could come, half of the requests too late. What is
// open then is cancelled.
#ifndef FD_FASTDECODE_LOAD_CAPACITY_PROBE_H
#define FD_FASTDECODE_LOAD_CAPACITY_PROBE_H

#include "services/fastdecode/load/capacity_search.h"
#include "services/fastdecode/load/capacity_server.h"

// A capacity_probe_fn; arg: struct capacity_server.
enum status capacity_probe_server(void *arg, const struct load_request *requests, uint32_t count, double seconds,
                                  const struct capacity_result *so_far, struct capacity_probe *out, struct error *error);

#endif
