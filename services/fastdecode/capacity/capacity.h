// capacity.h: the highest rate that a server takes: what a load is held to, whether what was measured at one rate meets that, how the highest
// rate that does is searched, and how long the requests of a load are. The words of `fastdecode capacity` and of `fastdecode sim --capacity`.
//
// The limits follow Sarathi-Serve (arXiv 2403.02310): the 99th percentile of the time between tokens is at most 5 ("strict") or 25
// ("relaxed") undisturbed decode steps, and the median scheduling delay is at most 2 s. The scheduling delay of a request is its time to the
// first token less what that takes a prompt of its length alone. A load of seconds T that is a share x above what the server takes has a
// median delay of x T / 2, so the limit on it must be small beside T: without one given it is T / 50, at most 2 s.
//
// Plain values, on any thread. Only length_trace_read() blocks, on the disk.
#ifndef FD_FASTDECODE_CAPACITY_CAPACITY_H
#define FD_FASTDECODE_CAPACITY_CAPACITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/sim/sim.h"

enum { CAPACITY_LONE_MAX = 8 };

#define CAPACITY_STRICT_STEPS 5.0
#define CAPACITY_RELAXED_STEPS 25.0
#define CAPACITY_DELAY_MAX_S 2.0
#define CAPACITY_DELAY_SHARE 0.02 // of the length of a load

// A server without a load.
struct capacity_undisturbed {
    double step_s; // between tokens
    uint32_t count;
    double prompt_tokens[CAPACITY_LONE_MAX], ttft_s[CAPACITY_LONE_MAX]; // [count], by prompt_tokens
};

struct capacity_targets {
    double tbt_p99_s, ttft_p99_s, delay_p50_s, error_share; // 0: no limit; error_share 0: no error is allowed
};

enum capacity_bound {
    CAPACITY_MET,     // nothing is exceeded
    CAPACITY_ERRORS,  // requests that were refused or failed
    CAPACITY_STREAMS, // more open streams than the client takes
    CAPACITY_TBT,
    CAPACITY_DELAY,
    CAPACITY_TTFT,
    CAPACITY_BOUNDS,
};

// Measurements at one rate.
struct capacity_probe {
    double requests_per_second; // offered
    double seconds;             // from the first request to the last token
    uint32_t requests, finished, refused, failed, streams_max;
    uint32_t shortened;                    // requests that the context made shorter than the trace has them
    uint64_t prompt_tokens, answer_tokens; // of answers that came
    double late_s;                         // the latest that the client sent a request after its time
    struct sim_times ttft, tbt, delay;
    bool cut_short;            // ended as soon as it was known to miss
    enum capacity_bound bound; // what it exceeds first, in the order above
};

// Sums up values that are few enough to be kept; sorts them. Zeros if there are none.
struct sim_times capacity_times_of(double *values, uint32_t count);
// Returns the targets from the settings: tbt_p99_s, or else tbt_slo ("strict", "relaxed", "none", NULL is "strict") times the undisturbed step.
// delay_p50_s below 0: from the length of a load.
struct capacity_targets capacity_targets_of(const char *tbt_slo, double tbt_p99_s, double ttft_p99_s, double delay_p50_s,
                                            double error_share, double step_s, double load_s);
// Returns how long a prompt alone takes to its first token: between two measured lengths on the line through them, beyond the last one on that
// line, never below the shortest one's.
double capacity_lone_ttft_s(const struct capacity_undisturbed *undisturbed, double prompt_tokens);
// Returns the scheduling delay of a request with that time to its first token.
double capacity_delay_s(const struct capacity_undisturbed *undisturbed, double prompt_tokens, double ttft_s);
// Returns which target the probe exceeds.
enum capacity_bound capacity_judge(const struct capacity_targets *targets, const struct capacity_probe *probe);
const char *capacity_bound_name(enum capacity_bound bound); // as in JSON: "tbt_p99"; NULL of MET

// --- the search: finds the highest rate that meets a target, by trying rates one after the other ---------------------
//
//   begin at a guess ─▶ double while it is met, halve while it is missed ─▶ bisect ─▶ confirm both ends ─▶ rate_search_found()
//
// A trial near the limit may go either way, and any trial may be hit by something else on the machine. So once the two ends are within the
// precision of each other, both are tried again: an end that does not hold moves, and the search goes on from there in small strides that
// grow, three times at most. Without chance the limit is found within the precision, by |log2(limit / guess)| + log2(1 / precision) + 5
// trials at most.
//
// The caller tries rates.

enum { RATE_TRIALS_MAX = 64, RATE_REVERSALS_MAX = 3 };

struct rate_search {
    double least, most; // rates that are tried, at least and at most
    double precision;   // 0.05: the ends are within 5 %
    bool confirm;       // try both ends twice
    double met, missed; // highest rate that was met, lowest above it that was missed; 0: none
    bool met_twice, missed_twice;
    double stride;      // factor to the next rate while one of the ends is not known
    double rate;        // on trial
    uint32_t trials;    // ended
    uint32_t reversals; // ends that did not hold
};

// guess is within least and most; 0 < least <= most, 0 < precision < 1.
void rate_search_begin(struct rate_search *search, double guess, double least, double most, double precision, bool confirm);
// Returns the rate to try next; 0: the search is over.
double rate_search_next(struct rate_search *search);
// How the trial of the rate that rate_search_next() has named went.
void rate_search_take(struct rate_search *search, bool met);
// Returns the highest rate known to meet the target; 0: none did.
static inline double rate_search_found(const struct rate_search *search) { return search->met; }

// --- the load: how long its prompts and answers are, and when its requests arrive ------------------------------------
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
// Two draws of a trace at one rate so carry the same work, and differ only in its order.

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

// Finds a shape by its name. False: there is none of that name.
bool length_trace_named(const char *name, struct length_trace *out);
// Parses text, [bytes], not terminated. INVALID_ARGUMENT: "NAME:LINE: what is wrong". RESOURCE_EXHAUSTED: too many lines, or no memory.
MUST_CHECK enum status length_trace_parse(const char *text, size_t bytes, const char *name, struct length_trace *out,
                                          struct error *error);
// Finds a shape, or else reads a file of at most 1 GiB.
MUST_CHECK enum status length_trace_read(const char *name_or_path, struct length_trace *out, struct error *error);
void length_trace_free(struct length_trace *trace); // an empty one is fine

// Return the lengths that a share (0 to 1, both excluded) of all do not exceed, scaled and limited: a prompt leaves room for a usual answer.
uint32_t length_trace_prompt_at(const struct length_trace *trace, double share);
uint32_t length_trace_answer_at(const struct length_trace *trace, double share);

// Draws `count` requests that arrive within `seconds`, by due_us. count is 1 to TRACE_REQUESTS_MAX. RESOURCE_EXHAUSTED: no memory. The
// caller frees *out. *limited: how many the context has shortened.
MUST_CHECK enum status length_trace_draw(const struct length_trace *trace, uint32_t count, double seconds, uint64_t seed,
                                         struct load_request **out, uint32_t *limited, struct error *error);

// `fastdecode capacity`. argv[0] is the command's name; returns the exit status.
int capacity_main(int argc, char **argv);

#endif
