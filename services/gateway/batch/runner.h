// runner.h: the thread that works off batches: it reads lines, has them asked, and writes what was answered.
//
// A line is asked through an exchange without a connection (exchange_open_local()), which takes the way of any client's request: parsing on
// the work pool, limits, the mesh. A loopback connection would cost a socket and libmicrohttpd's memory a request, and would need a key that
// may be gone from the key file by now. What differs is the latency class, and that nobody waits: no time limit, and a request that is
// refused because the mesh is full or away is asked again.
//
// Worked number: 256 requests at a time x (two copies of a body of 2 KB, an exchange, a request and its ids) are 2 MB, however many lines
// the files have.
#ifndef FD_GATEWAY_BATCH_RUNNER_H
#define FD_GATEWAY_BATCH_RUNNER_H

#include "services/gateway/api/schema/schema.h"
#include "services/gateway/batch/store.h"
#include "services/gateway/http/http.h"

struct batch_runner;

struct batch_runner_config {
    struct batch_store *store;
    uint32_t concurrency; // requests at a time
    uint64_t max_lines;   // of a file
    uint64_t max_line_bytes;
    // Any thread. Starts the request of the exchange, whose reference it takes over; without room for it, it only releases it.
    void (*ask)(void *arg, struct exchange *exchange, enum api_kind kind, struct key *key);
    // Ends the request of an exchange that was left.
    void (*cancel)(void *arg, struct exchange *exchange);
    // Whether requests would be taken now.
    bool (*is_ready)(void *arg);
    void *arg;
};

enum status batch_runner_start(const struct batch_runner_config *config, struct batch_runner **out) MUST_CHECK;
// Ends the thread; requests in flight go on and are not written. Blocks. NULL is allowed.
void batch_runner_stop(struct batch_runner *runner);
// After all exchanges are freed. NULL is allowed.
void batch_runner_free(struct batch_runner *runner);

// The store has a new batch, or one to cancel. Any thread.
void batch_runner_wake(struct batch_runner *runner);

struct batch_runner_stats {
    uint32_t jobs, in_flight;
    uint64_t completed, failed;              // lines with a result since the start
    uint64_t not_written[BATCH_WRITE_COUNT]; // since the start
};
void batch_runner_stats(struct batch_runner *runner, struct batch_runner_stats *out);

#endif
