// search.h: the search that `fastdecode capacity` and `fastdecode sim --capacity` share: their options, and the loop that tries rates.
#ifndef FD_FASTDECODE_CAPACITY_SEARCH_H
#define FD_FASTDECODE_CAPACITY_SEARCH_H

#include "common/base/options.h"
#include "services/fastdecode/capacity/capacity.h"

struct capacity_settings {
    const char *trace_name, *tbt_slo;
    double scale, tbt_p99_s, ttft_p99_s, delay_p50_s, error_share;
    double seconds_per_rate, guess, precision;
    uint32_t requests_per_rate, context_tokens;
    bool confirm;
    uint64_t seed; // under the name that the command has for it
};

#define CAPACITY_DEFAULTS                                                                                                         \
    {                                                                                                                             \
        .trace_name = "sharegpt", .scale = 1, .delay_p50_s = -1, .error_share = 0.01, .seconds_per_rate = 100, .precision = 0.05, \
        .requests_per_rate = 30, .confirm = true, .seed = 1                                                                       \
    }

// Rows of an option table that fill a struct capacity_settings.
#define CAPACITY_OPTIONS(c)                                                                                                     \
    {"trace",                                                                                                                   \
     OPTION_STRING,                                                                                                             \
     &(c)->trace_name,                                                                                                          \
     "NAME|FILE.csv",                                                                                                           \
     "lengths of prompts and answers: " TRACE_SHAPE_NAMES ", or lines of prompt_tokens,answer_tokens",                          \
     0,                                                                                                                         \
     0},                                                                                                                        \
        {"scale", OPTION_F64, &(c)->scale, "X", "lengths of the trace are multiplied by it", 1e-4, 1e4},                        \
        {"context",                                                                                                             \
         OPTION_U32,                                                                                                            \
         &(c)->context_tokens,                                                                                                  \
         "TOKENS",                                                                                                              \
         "longest prompt and answer together; longer ones are cut; 0: the model's",                                             \
         0,                                                                                                                     \
         TRACE_TOKENS_MAX},                                                                                                     \
        {"tbt-slo",                                                                                                             \
         OPTION_CHOICE,                                                                                                         \
         &(c)->tbt_slo,                                                                                                         \
         "strict|relaxed|none",                                                                                                 \
         "limit of the 99th percentile of the time between tokens: strict is 5, relaxed 25 undisturbed steps; strict if "       \
         "neither this nor --tbt-p99 is given",                                                                                 \
         0,                                                                                                                     \
         0},                                                                                                                    \
        {"tbt-p99", OPTION_F64, &(c)->tbt_p99_s, "S", "that limit in seconds", 0, 1e6},                                         \
        {"ttft-p99", OPTION_F64, &(c)->ttft_p99_s, "S", "limit of the 99th percentile of the time to the first token; 0: none", \
         0,          1e6},                                                                                                      \
        {"delay-p50",                                                                                                           \
         OPTION_F64,                                                                                                            \
         &(c)->delay_p50_s,                                                                                                     \
         "S",                                                                                                                   \
         "limit of the median scheduling delay, which is the time to the first token minus that of a lone request; 0: none; "   \
         "-1: a fiftieth of --seconds-per-rate, at most 2",                                                                     \
         -1,                                                                                                                    \
         1e6},                                                                                                                  \
        {"errors", OPTION_F64, &(c)->error_share, "SHARE", "share of the requests that may be refused or fail", 0, 1},          \
        {"seconds-per-rate",                                                                                                    \
         OPTION_F64,                                                                                                            \
         &(c)->seconds_per_rate,                                                                                                \
         "S",                                                                                                                   \
         "how long requests arrive at each rate that is tried",                                                                 \
         0.1,                                                                                                                   \
         1e6},                                                                                                                  \
        {"requests-per-rate",                                                                                                   \
         OPTION_U32,                                                                                                            \
         &(c)->requests_per_rate,                                                                                               \
         "N",                                                                                                                   \
         "fewest requests at each rate; a low rate then takes longer",                                                          \
         1,                                                                                                                     \
         TRACE_REQUESTS_MAX},                                                                                                   \
        {"guess",                                                                                                               \
         OPTION_F64,                                                                                                            \
         &(c)->guess,                                                                                                           \
         "R",                                                                                                                   \
         "first rate to try, in requests a second; 0: the rate at which a server answers one by one",                           \
         0,                                                                                                                     \
         1e6},                                                                                                                  \
        {"precision",                                                                                                           \
         OPTION_F64,                                                                                                            \
         &(c)->precision,                                                                                                       \
         "SHARE",                                                                                                               \
         "relative distance between the rate that is found and the lowest one that misses",                                     \
         0.005,                                                                                                                 \
         0.5},                                                                                                                  \
    {                                                                                                                           \
        "confirm", OPTION_BOOL, &(c)->confirm, NULL, "try the rate that is found and the one that misses a second time", 0, 0   \
    }

// The result, and all that it was found by.
struct capacity_result {
    struct capacity_undisturbed undisturbed;
    struct capacity_targets targets;
    struct rate_search search;
    struct capacity_probe probes[RATE_TRIALS_MAX]; // in the order of their trials
    uint32_t probe_count;
    bool complete; // the search came to its end
};

// Tries `count` requests that arrive within `seconds`, in the way that the command has. CANCELLED ends the search without an error.
typedef enum status capacity_probe_fn(void *arg, const struct load_request *requests, uint32_t count, double seconds,
                                      const struct capacity_result *so_far, struct capacity_probe *out, struct error *error);

// Reads the trace, within the context if that is known already, and checks what belongs together. The caller frees *trace.
MUST_CHECK enum status capacity_settings_resolve(const struct capacity_settings *settings, struct length_trace *trace,
                                                 struct error *error);
// Searches. result->undisturbed is set before. *result is good whatever is returned: as far as the search came.
MUST_CHECK enum status capacity_search_run(const struct capacity_settings *settings, const struct length_trace *trace,
                                           capacity_probe_fn *probe, void *arg, struct capacity_result *result,
                                           struct error *error);
// The probe of the rate that was found; NULL: none was. Of two the later one.
const struct capacity_probe *capacity_result_best(const struct capacity_result *result);
// The target that the lowest rate exceeded which missed any; MET: no rate missed.
enum capacity_bound capacity_result_bound(const struct capacity_result *result);

#endif
