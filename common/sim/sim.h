// sim.h: the scheduling core run against a cost model, with a virtual clock.
//
// The same object code as in the scheduler service decides. The mesh is replaced by this:
//
//     requests ─▶ core ─▶ steps ─▶ mini-batch 0: segment, attend, segment, attend … head ─┐
//                  ▲               mini-batch 1:          segment, attend, segment …     ─┤
//                  └──────────────────────────── answers, reply_us later ◀────────────────┘
//
// One S-part runs one segment at a time, of the mini-batch that has been ready longest. Attention of the local pool and of workers on
// the S-part's own cores follows the segment there. Workers elsewhere serve mini-batches in order of arrival, each on its own: a
// mini-batch's layer is back when its slowest worker has done it and the rows have crossed the S-part's link, which carries one mini-batch's
// after the other's, both ways at its one rate. A layer is simulated in O(places), a step in O(rows + layers x places).
//
// With several stages (sched.stages) each is an S-part of its own with a range of the layers, and a mini-batch goes through them one after
// the other. Each stage's gaps are counted by their cause (stage.h).
//
// Everything is a function of the configuration, the seed included: the same run gives the same numbers.
// sim_run() allocates and frees its memory: 24 bytes a request, and what the core takes. Not thread-safe, no clock, no I/O.
#ifndef FD_SIM_SIM_H
#define FD_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/plan/cost.h"
#include "common/sched/sched.h"
#include "common/sched/stage.h"

// A client's request. It gets generated_tokens; the core knows only the cutoff, max_new_tokens.
struct sim_request {
    uint64_t arrival_us; // requests are in order of arrival
    uint32_t prompt_tokens, generated_tokens;
    uint32_t max_new_tokens; // at least generated_tokens
    enum sched_class class;
};

struct sim_place {
    struct cost_r_part cost;
    uint32_t pages_total;
    bool local, shares_cores;
};

// A change of a place's speed: 1 is what its cost says, 0.5 takes twice as long. It acts on steps that begin later.
struct sim_speed {
    double at_us;
    uint32_t place;
    double speed; // above 0
};

// A mini-batch's step that has just ended.
struct sim_step {
    uint64_t step;
    uint32_t mini_batch, rows, decode_rows;
    uint64_t load;                // context tokens that its decode rows read
    uint64_t largest_load;        // of one place
    uint64_t load_limit;          // the core's for a mini-batch at the step's end; UINT64_MAX: none
    double begin_us, end_us;      // its first segment, its last row
    const double *r_part_us;      // [place_count] attention time of each place, all layers, without the link
    const struct cost_work *work; // [place_count] its work for one layer. Both are valid during the call
};

struct sim_config {
    struct sched_config sched;        // the core's
    struct cost_s_part s_part;        // of a single stage
    const struct cost_s_part *stages; // [sched.stages] if there are several: each one's layers, the last one's head
    double hop_us, hop_row_us;        // from a stage to the next: latency, and a row's activations
    const struct sim_place *places;   // [place_count]; place i of the core is places[i]
    uint32_t place_count;
    const struct sim_request *requests; // [request_count], by arrival
    uint64_t request_count;
    const struct sim_speed *speeds; // [speed_count], by time; before the first of a place its speed is 1
    uint32_t speed_count;
    bool calibrated;          // the core is told at the start how long the S-part's steps take
    double move_bytes_per_us; // rate at which pages move between places; 0: no place accepts moves
    bool backlog;       // a request that does not fit its class's queue waits outside, with all behind it; false: it is rejected
    double link_row_us; // the S-part's own link, which all workers share: one row of a layer, both ways
    double noise_sigma; // each place's time in each step is multiplied by a lognormal factor of mean 1 and this sigma
    double reply_us;    // from the S-part to the core and back: added to each answer
    uint64_t seed;
    uint64_t steps_max;                                       // the run ends after so many; 0: no limit
    void (*on_step)(void *user, const struct sim_step *step); // called for each step, in order of time; or NULL
    void *user;
    double *ttft_s; // [request_count] filled in: each request's time to the first token, 0 if it got none; or NULL
};

// A set of durations, in seconds. Percentiles are good to 1 %.
struct sim_times {
    uint64_t count;
    double mean_s, p50_s, p99_s, max_s;
};

struct sim_result {
    double seconds;                    // virtual, from the first arrival to the last token
    uint64_t finished, rejected, lost; // lost: neither of both when the run came to its end
    uint64_t steps, decode_rows, prefill_rows, wasted_rows, tokens;
    double tokens_per_second;
    double mean_batch;              // sequences that decode, mean over time
    uint32_t mini_batches;          // the most that were in use
    uint64_t peak_load;             // of all mini-batches at once, context tokens
    double s_part_busy;             // share of the time, mean over stages, attention in the local pool not counted
    double bubble_s[SCHED_BUBBLES]; // time that stages were idle while a micro-batch was in the pipeline, sum over stages, by cause
    double idle_s;                  // time that stages were idle in all, from their first segment to their last, sum over stages
    double r_part_busy;             // of the workers, mean over them and time; 0 without any
    struct sim_times ttft, tbt, step; // to the first token, between tokens, of a step
    struct sim_class {                // of the requests of a class
        uint64_t tokens;
        struct sim_times ttft, tbt;
    } of[SCHED_CLASSES];
    uint64_t frozen;                       // parts of sequences that were larger than any place
    uint64_t preempted, moved, relabelled; // sequences paused for want of pages; handed over; sent to the other mini-batch
    uint64_t pages_leaked;                 // pages that the core counts as used when all is over
    double predicted;                      // time that the core predicted for steps, over the time that they took; 0: no prediction
};

// Runs a simulation to its end. INVALID_ARGUMENT: a request or the core's configuration breaks a rule; RESOURCE_EXHAUSTED: no memory.
MUST_CHECK enum status sim_run(const struct sim_config *config, struct sim_result *out, struct error *error);

#endif
