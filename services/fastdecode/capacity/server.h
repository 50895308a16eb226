// server.h: the server that `fastdecode capacity` measures: what it says of itself, what it takes without a load, and with one.
#ifndef FD_FASTDECODE_CAPACITY_SERVER_H
#define FD_FASTDECODE_CAPACITY_SERVER_H

#include <signal.h>

#include "services/fastdecode/capacity/capacity.h"
#include "services/fastdecode/capacity/report.h"
#include "services/fastdecode/capacity/search.h"
#include "services/fastdecode/client/client.h"

struct capacity_server {
    struct load_client_config config; // set by the caller
    const volatile sig_atomic_t *interrupted;
    struct capacity_progress *progress;
    // found out
    struct load_client *client;
    char model[256];
    uint32_t context_tokens; // 0: it does not say
    bool counts_tokens;      // it says how many tokens a prompt has
    struct prompt_fit fit;
    double idle_s;   // how long a short question takes while nothing else is asked
    uint64_t serial; // of the next prompt; begins at the time of day, so that no other run has had the same prompts
    struct text prompt;
};

// Asks what it serves, and two short questions, by which tokens of a word are learned. UNAVAILABLE: it does not answer, or refuses.
// CANCELLED: interrupted. The caller closes it in any case.
MUST_CHECK enum status capacity_server_open(struct capacity_server *server, struct error *error);
void capacity_server_close(struct capacity_server *server);

// Streams that are alone: how long prompts of the trace's lengths take to their first token; and the time between tokens with `streams`
// open at once that are all past their prompts.
MUST_CHECK enum status capacity_server_measure_alone(struct capacity_server *server, const struct length_trace *trace,
                                                     uint32_t streams, struct capacity_undisturbed *out, struct error *error);
// Waits until nothing of an earlier load slows a lone stream, or for about 30 s; then it warns.
MUST_CHECK enum status capacity_server_settle(struct capacity_server *server, struct error *error);
// Begins a stream with a prompt that no other has had.
MUST_CHECK enum status capacity_server_ask(struct capacity_server *server, uint32_t index, uint64_t due_us, uint32_t words,
                                           uint32_t answer_tokens, struct error *error);

// --- one rate tried on a server --------------------------------------------------------------------------------------
//
// Requests go out at their times whatever has become of those before.
//
// Times count from when a request was to be sent, so that a client that is late hides nothing. A trial ends as soon as it is known to miss
// its targets: more gaps between tokens above the limit than one in a hundred of all that could come, half of the requests too late. What is
// open then is cancelled.

// A capacity_probe_fn; arg: struct capacity_server.
enum status capacity_probe_server(void *arg, const struct load_request *requests, uint32_t count, double seconds,
                                  const struct capacity_result *so_far, struct capacity_probe *out, struct error *error);

#endif
