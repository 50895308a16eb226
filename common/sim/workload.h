// workload.h: the requests of a simulation, read from a file or generated.
//
//     arrival_s,prompt_tokens,generated_tokens[,max_tokens]
//     0.00,512,130,1024
//     0.35,48,7,1024
//
// A first line that begins with a letter is a heading. Empty lines and lines that begin with '#' are skipped. Without max_tokens a
// request's cutoff is the number of tokens it generates. Lines may be in any order of arrival.
//
// Plain values, on any thread. Only workload_read() blocks, on the disk.
#ifndef FD_SIM_WORKLOAD_H
#define FD_SIM_WORKLOAD_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/sim/sim.h"

enum { WORKLOAD_REQUESTS_MAX = 20000000, WORKLOAD_TOKENS_MAX = 1 << 24 };
#define WORKLOAD_SECONDS_MAX 1e9

struct workload {
    struct sim_request *requests; // by arrival; freed by workload_free()
    uint64_t count;
    uint32_t context_tokens; // the longest prompt + max_tokens
};

// Parses text, [length] bytes, not terminated. INVALID_ARGUMENT: "NAME:LINE: what is wrong". RESOURCE_EXHAUSTED: too many requests, or
// no memory.
MUST_CHECK enum status workload_parse(const char *text, size_t length, const char *name, struct workload *out, struct error *error);

// Does the same with a file of at most 2 GiB.
MUST_CHECK enum status workload_read(const char *path, struct workload *out, struct error *error);

// Generates `count` equal requests: `rate` arrivals a second at random (Poisson, by the seed), or all at once if rate is 0.
MUST_CHECK enum status workload_make(uint64_t count, double rate, uint32_t prompt, uint32_t generated, uint32_t max_tokens,
                                     uint64_t seed, struct workload *out, struct error *error);

// Makes a share of the requests class batch, by the seed: 0 none, 1 all.
void workload_set_batch(struct workload *workload, double share, uint64_t seed);

void workload_free(struct workload *workload); // an empty one is fine

#endif
