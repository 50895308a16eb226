// length_trace.h: how long the prompts and answers of a load are, and when its requests arrive.
//
// A trace is a shape (two lognormal distributions) or a list of pairs from a CSV file:
//
//     prompt_tokens,answer_tokens
//     512,130
//     48,7
//
// A first line that begins with a letter is a heading. Empty lines and lines that begin with '#' are skipped.
//
// Requests drawn from a trace are stratified: N of them have the quantiles 1/2N, 3/2N, ... of each length, in random order and in random
// pairs (those of a list stay pairs). Arrivals are a Poisson process of which the number of arrivals is known: N independent times, sorted.
// So two draws of a trace at one rate carry the same work, and differ only in its order.
//
// Plain values, on any thread. Only length_trace_read() blocks, on the disk.
#ifndef FD_CAPACITY_LENGTH_TRACE_H
#define FD_CAPACITY_LENGTH_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { TRACE_PAIRS_MAX = 4000000, TRACE_TOKENS_MAX = 1 << 24, TRACE_REQUESTS_MAX = 4000000 };

#define TRACE_SHAPE_NAMES "sharegpt, arxiv"

struct length_pair {
    uint32_t prompt_tokens, answer_tokens; // each at least 1
};

// Lengths whose logarithm is normal, by two percentiles.
struct length_fit {
    double p50, p90;
};

struct length_trace {
    struct length_fit prompt, answer; // of a shape
    struct length_pair *pairs;        // [count] of a list, by prompt; NULL: a shape. Freed by length_trace_free()
    uint32_t count;
    double scale;            // lengths are multiplied by it; 0 counts as 1
    uint32_t context_tokens; // prompt + answer, at most: the answer may take half of it, the prompt the rest; 0: no limit
};

struct load_request {
    uint64_t due_us; // after the begin
    struct length_pair length;
};

// A shape by its name. False: there is none of that name.
bool length_trace_named(const char *name, struct length_trace *out);
// Parses text, [bytes], not terminated. INVALID_ARGUMENT: "NAME:LINE: what is wrong". RESOURCE_EXHAUSTED: too many lines, or no memory.
MUST_CHECK enum status length_trace_parse(const char *text, size_t bytes, const char *name, struct length_trace *out,
                                          struct error *error);
// A shape, or else a file of at most 1 GiB.
MUST_CHECK enum status length_trace_read(const char *name_or_path, struct length_trace *out, struct error *error);
void length_trace_free(struct length_trace *trace); // an empty one is fine

// The lengths that a share (0 to 1, both excluded) of all do not exceed, scaled and limited: a prompt leaves room for a usual answer.
uint32_t length_trace_prompt_at(const struct length_trace *trace, double share);
uint32_t length_trace_answer_at(const struct length_trace *trace, double share);

// Draws `count` requests that arrive within `seconds`, by due_us. count is 1 to TRACE_REQUESTS_MAX. RESOURCE_EXHAUSTED: no memory. The
// caller frees *out. *limited: how many the context has shortened.
MUST_CHECK enum status length_trace_draw(const struct length_trace *trace, uint32_t count, double seconds, uint64_t seed,
                                         struct load_request **out, uint32_t *limited, struct error *error);

#endif
