// capacity.h: what a load is held to, what was measured at one rate, and whether that meets it. The words of `fastdecode capacity` and of
// `fastdecode sim --capacity`.
//
// The limits follow Sarathi-Serve (arXiv 2403.02310): the 99th percentile of the time between tokens is at most 5 ("strict") or 25
// ("relaxed") undisturbed decode steps, and the median scheduling delay is at most 2 s. The scheduling delay of a request is its time to the
// first token less what that takes a prompt of its length alone. A load of seconds T that is a share x above what the server takes has a
// median delay of x T / 2, so the limit on it must be small beside T: without one given it is T / 50, at most 2 s.
//
// Pure.
#ifndef FD_CAPACITY_CAPACITY_H
#define FD_CAPACITY_CAPACITY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum { CAPACITY_LONE_MAX = 8 };

#define CAPACITY_STRICT_STEPS 5.0
#define CAPACITY_RELAXED_STEPS 25.0
#define CAPACITY_DELAY_MAX_S 2.0
#define CAPACITY_DELAY_SHARE 0.02 // of the length of a load

struct capacity_times {
    uint64_t count;
    double mean_s, p50_s, p99_s, max_s;
};

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

// What was measured at one rate.
struct capacity_probe {
    double requests_per_second; // offered
    double seconds;             // from the first request to the last token
    uint32_t requests, finished, refused, failed, streams_max;
    uint32_t shortened;                    // requests that the context made shorter than the trace has them
    uint64_t prompt_tokens, answer_tokens; // of answers that came
    double late_s;                         // the latest that the client sent a request after its time
    struct capacity_times ttft, tbt, delay;
    bool cut_short;            // ended as soon as it was known to miss
    enum capacity_bound bound; // what it exceeds first, in the order above
};

// Sums up values that are few enough to be kept; sorts them. Zeros if there are none.
struct capacity_times capacity_times_of(double *values, uint32_t count);
// The targets from the settings: tbt_p99_s, or else tbt_slo ("strict", "relaxed", "none", NULL is "strict") times the undisturbed step.
// delay_p50_s below 0: from the length of a load.
struct capacity_targets capacity_targets_of(const char *tbt_slo, double tbt_p99_s, double ttft_p99_s, double delay_p50_s,
                                            double error_share, double step_s, double load_s);
// How long a prompt alone takes to its first token: between two measured lengths on the line through them, beyond the last one on that
// line, never below the shortest one's.
double capacity_lone_ttft_s(const struct capacity_undisturbed *undisturbed, double prompt_tokens);
// The scheduling delay of a request with that time to its first token.
double capacity_delay_s(const struct capacity_undisturbed *undisturbed, double prompt_tokens, double ttft_s);
// Which target the probe exceeds.
enum capacity_bound capacity_judge(const struct capacity_targets *targets, const struct capacity_probe *probe);
const char *capacity_bound_name(enum capacity_bound bound); // as in JSON: "tbt_p99"; NULL of MET

#endif
