// plan.h: from a model's shape and descriptions of hardware to batch, workers, tokens a second, memory and cost.
//
// It predicts the steady state under the load-stabilizing schedule (He & Zhai, arXiv 2403.11421, section 4): B sequences of p
// prompt and S generated tokens run, a fraction of them starts every F steps, and their contexts add up to
//
//     W = B·(p + (S + F)/2)          (also what the workers' memory must hold, plus half a page a sequence)
//
// A sequence that decodes has one row in each step; for each of these, prompts take p/S prefill rows, which attend where their KV lies. One in
// prefill has no other row: of the B/M sequences of a mini-batch b decode, as many as the prompts' rows feed (find_prompt_steps()). With b decode
// rows and c prefill rows of one prompt in one of M mini-batches, in one layer
//
//     T   = max(layer_bytes / bandwidth, 2·values·(b + c) / operations) + layer_us                        S-part, or what was measured
//     R   = KV bytes of ceil(b/N) sequences / bandwidth + c·(p + 1)/2 pairs / operations of a worker      R-part, the busiest worker
//     X   = round trip + q, k, v and o of b + c rows / the S-part's link                                  link
//
// Most steps have no prefill rows, and some a chunk of them: c = 512 or as many as keep a step within twice its time, as the scheduling core
// has it; within up to four times that while more sequences are in prefill than decode. A round without prompts is made longer by each of its
// M·b·p/S/c chunks (add_prompts()), and no part does more than it can in the mean round. On a CPU with one mini-batch prompts have steps of
// their own between those of the decode rows, up to 1.8 times their time apart (4 times that, as above): T(b) + c / n·T(n) with n rows in each, at
// most 512 and as many as let a layer of them take a quarter of the decode rows' step. If a model was measured (hardware.h), prompts
// take steps of their own, whose time is the S-part's. R includes what an exchange occupies the worker for, besides bytes
// (link_exchange_us). The step is a round of M mini-batches, by the formula of the scheduling core (step_time.h):
//
//     S = layers·T + head + step_us
//     step = max(M·S, S + layers·(R + X), M·layers·max(R, X without its round trip))
//
// Chunks of several mini-batches attend at different workers: in M·R each worker has its part of a round's. The fastest M of those that
// the mesh may choose (sched_mini_batches_most()) is taken. More of them hide latency, not work: a third gives little where a worker is occupied for as long as the S-part, as in the paper's mesh (test_plan_paper.c).
// Workers that share the S-part's cores (hardware.h) have R of all b sequences, one after the other, and one mini-batch.
// N = 0 is a GPU-only server: one mini-batch, KV in what its memory has left. A step's time is the time between two tokens of a
// sequence that decodes: steps count by their decode rows. tokens_per_second = M·b / the mean step, and M·b = B where a model was measured.
//
// With pool_bytes and workers both hold KV: as many sequences as fit live in the S-part's memory, the others on the workers. The S-part
// attends for its own, A = their KV bytes / its bandwidth, while the workers attend for theirs: T + max(A, R + X) with one mini-batch.
// With two in flight the S-part does T + A instead of T. The most that this can gain over the same memory without workers follows from
// what the workers read while the S-part reads its weights and M bytes of KV:
//
//     hybrid_gain_bound = 1 + BW_workers·(t_w + M / BW_gpu) / M        t_w = layers·T(1) + head(1); both bandwidths as measured
//
// Workers, where they are chosen: at a batch the fewest that reach the rate and time that are asked for; else as many as give most for
// their price or, where that is not known, so many that twice of them would give less than PLAN_WORTH more. Never fewer than hold the KV, and
// none where the S-part's own memory does about as well. The batch, where it is chosen, is that of the least cost (workers, where prices are
// not known) that reaches the rate or, if none is asked for, PLAN_KNEE_SHARE of the most. The bound is the longest term of the round, or
// capacity where that decided N.
//
// Worked number: llama-7b in f16 on an A10 (600 GB/s, 125 TFLOP/s), b = 64: T = max(404.8 MB / 600 GB/s, 25.9 GFLOP / 125 TFLOP/s)
// = max(675, 207) = 675 us. S = 1,024, F = 32: a load of 64·528 = 33,792 tokens, 16 KiB each: 554 MB a layer and mini-batch.
//
// It leaves out sequences of different lengths (the schedule's margin), rebalancing and the ramp. Rates are ceilings unless a file's
// shares say otherwise, so predictions from data sheets alone are an upper bound.
//
// Plain values, on any thread; nothing blocks or allocates.
#ifndef FD_PLAN_PLAN_H
#define FD_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/plan/cost.h"
#include "common/plan/hardware.h"
#include "common/plan/shape.h"
#include "common/plan/split.h"

enum { PLAN_BATCH_MAX = 16384, PLAN_WORKERS_MAX = 4096, PLAN_PAGE_TOKENS = 16 };
#define PLAN_WORTH 1.1              // twice as many workers are worth it if they give at least so many times as much
#define PLAN_POOL_CHOOSE UINT64_MAX // for pool_bytes beside workers: what is left or none, whichever is faster
#define PLAN_CHOOSE UINT32_MAX      // for workers and stages: as many as are needed

enum plan_bound { PLAN_S_PART, PLAN_R_PART, PLAN_NETWORK, PLAN_CAPACITY };

// A request: pointers are borrowed.
struct plan_request {
    const struct plan_shape *shape;
    const struct hardware *s_part, *worker, *link;
    enum kv_type kv_type;
    uint32_t prompt_tokens, generated_tokens; // p >= 0, S >= 1
    uint32_t spacing;                         // F, in steps; 0: S/32, at least 1
    uint32_t batch;                           // B; 0: chosen
    uint32_t workers;                         // N, or PLAN_CHOOSE
    uint32_t mini_batches;                    // M, 1 to 3; 0: the fastest. With several stages: for each of them
    uint32_t stages;                          // P, S-parts in a pipeline (below), or PLAN_CHOOSE; 0: 1
    uint32_t chunk_tokens;                    // prefill rows of a step; 0: by the step's target. For measured models
    uint64_t pool_bytes;      // M, for KV in the S-part's memory, or PLAN_POOL_CHOOSE; 0: what is left without workers,
                              // none with them
    double tokens_per_second; // to be reached; 0: none
    double latency_ms;        // between two tokens, at most; 0: none
    bool ignore_capacity;
    bool without_prompts; // what the step would be if prompts' rows cost nothing
};

// Times are of one mini-batch.
struct plan {
    uint32_t batch, mini_batches, workers;
    uint32_t stages; // P; mini_batches is a multiple of it
    struct plan_stage {
        struct plan_range layers;
        double turn_us, bytes; // of a mini-batch; weights, activations and its layers' part of the KV in the S-part's memory
    } stage[PLAN_STAGES_MAX];  // if there are several
    double hop_us;             // from one to the next
    enum plan_bound bound_by;
    double tokens_per_second, step_ms;
    double s_part_layer_us, r_part_layer_us, link_layer_us, head_us;
    double pool_layer_us;     // A: attention in the S-part's memory beside workers; with N = 0 that is the R-part
    uint32_t pool_sequences;  // of the batch, in the S-part's memory
    double pool_bytes;        // and what they take there
    double hybrid_gain_bound; // 0: nothing is left for KV
    double hybrid_pool_bytes; // its M: pool_bytes, or what weights and activations leave
    double s_part_busy,
        r_part_busy;                // shares of the step: mean over stages, and of the workers. N = 0: both of the stages' own time
    double kv_tokens;               // W
    double kv_bytes_per_worker;     // of the fullest; of the S-part's pool with N = 0
    double s_part_bytes;            // weights, activations, and KV in its memory; of several stages the fullest one's
    double network_gbit_per_second; // mean over a step, both ways, at the S-part
    double price_per_hour;          // 0: a price is not known
    double cost_per_million;        // generated tokens, at that rate
    double watts;                   // 0: not known of all
};

// The least that is needed so that the S-part never waits at a batch, whatever the workers are.
struct plan_need {
    uint32_t batch;
    double tokens_per_second;       // with the S-part always busy
    double worker_gb_per_second;    // over all workers: KV read within T
    double network_gbit_per_second; // rows there and back within T
    double kv_bytes;                // over all workers
    bool knee;                      // the least batch that reaches PLAN_KNEE_SHARE of the S-part's maximum
};
#define PLAN_KNEE_SHARE 0.9

// Tokens a second of the same mesh with one more of each; 0: that does not fit, or there is none.
struct plan_more {
    double worker, s_part;
    double link, batch; // a link twice as fast; twice the batch
};

// "S-part", "R-part", "network", "capacity".
const char *plan_bound_name(enum plan_bound bound);

// Returns the weights of a shape as an S-part has them in memory.
const struct plan_weights *plan_weights_of(const struct plan_shape *shape, const struct hardware *s_part);

// Returns how many operations a microsecond products of many rows reach, and attention of prompts. A host multiplies quantized weights in 8
// bits, a GPU in 16; floats without a fast product in their type are multiplied in f32, as kernels/gemm does.
double plan_products_per_us(const struct hardware *hardware, bool quantized);
double plan_attention_per_us(const struct hardware *hardware);

// Fill in the performance model: T(b) and head as curves, and one of `workers` workers that share the S-part's link. workers 0: the
// S-part's own pool.
void plan_s_part(const struct plan_request *request, struct cost_s_part *out);
void plan_r_part(const struct plan_request *request, uint32_t workers, struct cost_r_part *out);

double plan_mean_context(const struct plan_request *request);      // of a running sequence
double plan_mean_read(const struct plan_request *request);         // what a layer reads of it, windows considered
double plan_sequence_kv_bytes(const struct plan_request *request); // of a running sequence, all layers

// Predicts one setting; batch >= 1. Memory and targets are ignored. mini_batches: 1 to 3, or 0 for the fastest.
void plan_predict(const struct plan_request *request, uint32_t batch, uint32_t workers, uint32_t mini_batches, struct plan *out);

// Chooses what the request leaves open, and checks memory. RESOURCE_EXHAUSTED: it does not fit. FAILED_PRECONDITION: the
// targets cannot be met. *error says by how much, and what would do.
enum status plan_make(const struct plan_request *request, struct plan *out, struct error *error) MUST_CHECK;

// Returns the rate as a share of that without prompts, from 0 to 1; the rest of the time is for prompts.
double plan_answers_share(const struct plan_request *request, const struct plan *plan);

// Returns whether the S-part can attend to KV of the request's type: a GPU has f16 alone.
bool plan_pool_computes(const struct plan_request *request);

// Says what more of each would give to a plan: at its batch or, where the batch was the plan's choice, at one that suits the larger mesh.
void plan_one_more(const struct plan_request *request, const struct plan *plan, struct plan_more *out);

// Finds the batch of most tokens a second within memory and latency_ms, whatever the request's batch. false: there is none.
bool plan_fastest(const struct plan_request *request, struct plan *out);

// Fills in needs, [capacity], for batches that are powers of two from 2. Returns how many were written.
uint32_t plan_sweep(const struct plan_request *request, struct plan_need *needs, uint32_t capacity);

// --- sequences that lie at several workers --------------------------------------------------------------------------

// The cost of a sequence whose KV no worker can hold whole, so that it lies at several (docs/scheduling.md).
//
// Every row of it goes to all of its workers in each layer: q there, and back from each one partial result for each span of 4,096 tokens that
// it holds from the start, and one for each 512 tokens before its first span. A partial result has (2 + head_dim) floats a head.
//
// Worked number: 9 heads of 64, 16,384 tokens on 4 workers that begin at multiples of 4,096: 4 partial results of 9·66·4 = 2,376 bytes
// come back where one worker sends 9·64·4 = 2,304.

enum { PLAN_EXTENT_PLACES_MAX = 9 };

struct plan_extents {
    uint32_t tokens;                 // of the sequence at its end
    uint32_t workers;                // among which it is dealt out evenly
    uint32_t spans;                  // of 4,096 tokens
    uint32_t partials;               // that a row gets in a layer
    double layer_bytes, whole_bytes; // that a row sends and gets in a layer; if one worker had all of it
};

// Fills in what such a sequence costs on so many workers. False: none is too large, or all that it may use have too little memory.
bool plan_extents(const struct plan_request *r, uint32_t workers, struct plan_extents *out);

// --- several S-parts in a pipeline ----------------------------------------------------------------------------------

// Each has a range of the layers.
//
// A mini-batch goes through the stages one after the other, and each stage has another one under way: with M mini-batches of b = B/M
// sequences and uniform steps (b decode rows and b·p/S prefill rows in each; up to one of the b is in prefill), with T(b) and R as above
//
//     stage s:  T_s  = layers_s·(T + A) + (first: step_us) + (last: head)         A: its own pool's attention
//     step           = max( M·max T_s,  M·layers·R,  sum T_s + layers·(R + X) + (P - 1)·hop )
//
// M is P where the stages attend themselves, and 2·P with workers: while one mini-batch of a stage is away it works on the other. All
// stages ask the workers at once, so they keep up while R·layers <= max T_s, which is r·W·P/N = T for stages of equal length.
//
// Layers are cut so that the slowest stage's time is least (split.h). Worked number: 30 layers of 1 ms and a head of 8 ms, P = 2, four
// mini-batches of 8 with workers that keep up: 4·19 = 76 ms for 32 tokens, where one S-part takes 2·38 = 76 ms for 16.

// Returns how long a step's activations take from a stage to the next.
double plan_hop_us(const struct plan_request *request, double rows);

// Fills in the cost and the layers of each stage: out, ranges [request->stages], for a batch on so many workers. Statuses as of
// plan_split_layers(); memory counts unless request->ignore_capacity.
enum status plan_stages(const struct plan_request *request, uint32_t batch, uint32_t workers, struct cost_s_part *out,
                        struct plan_range *ranges, struct error *error) MUST_CHECK;

// Returns the bytes of a stage's weights and activations, of request->stages at a batch.
double plan_stage_bytes(const struct plan_request *request, uint32_t batch, uint32_t stage, struct plan_range range);

// Does for a pipeline what plan_predict() does; each: mini-batches for each stage. Without price and KV. If no cut of the layers
// fits into memory, it predicts without that limit.
void plan_predict_pipeline(const struct plan_request *request, uint32_t batch, uint32_t workers, uint32_t each, struct plan *out);

// --- more for a mesh that is there -----------------------------------------------------------------------------------

// A way to reach a rate: machines to add, and what the mesh is then.
struct plan_addition {
    uint32_t workers, s_parts;
    struct plan plan;
};

// Finds what a mesh of request->workers workers and request->stages S-parts must get to reach tokens_per_second within latency_ms: for each
// number of S-parts the fewest workers, the cheapest first (the fewest machines, where prices are not known). now: what it reaches as it
// is. additions: [PLAN_STAGES_MAX], filled in; the first is empty if nothing need be added. FAILED_PRECONDITION: nothing that can be added is
// enough; the error says what binds.
enum status plan_add(const struct plan_request *request, struct plan *now, struct plan_addition *additions, uint32_t *count,
                     struct error *error) MUST_CHECK;

// --- the cheapest mix of meshes -------------------------------------------------------------------------------------

// The cheapest meshes that together reach a rate, out of several kinds of S-parts and workers with prices.
//
// A mesh is one S-part with N workers of one kind, or none. For each pair of kinds and each N the batch is taken that gives most
// tokens a second within the allowed time between tokens. Meshes that cost more and reach less than another are left out. From
// the rest all counts of one or two kinds of mesh are tried. (More kinds are rarely cheaper: the second kind only fills what whole
// numbers of the best leave over.)
//
// Worked number: 3,000 tokens/s are wanted; a mesh of 1,000 costs 1.00, one of 300 costs 0.35. The answer is 3 of the first. For
// 3,200 it is 3 of the first and 1 of the second: 3.35 instead of 4.00.
//
// The tables of a call take some 100 KiB of stack.

enum { PLAN_MIX_KINDS = 8, PLAN_MIX_WORKERS = 64, PLAN_MIX_COUNT = 1000 };

struct plan_mix_part {
    uint32_t count; // of this mesh
    const struct hardware *s_part, *worker;
    struct plan plan; // of one
};

struct plan_mix {
    struct plan_mix_part parts[2];
    uint32_t part_count; // 1 or 2
    double tokens_per_second, price_per_hour, cost_per_million;
};

// Finds the cheapest mix that reaches the request's tokens_per_second within its latency_ms; its s_part, worker, batch and workers are
// ignored. At most PLAN_MIX_KINDS of each kind. INVALID_ARGUMENT: a price or the rate is missing. FAILED_PRECONDITION: no mesh fits in
// memory and time, or more than PLAN_MIX_COUNT are needed.
enum status plan_cheapest(const struct plan_request *request, const struct hardware *s_parts, uint32_t s_part_count,
                          const struct hardware *workers, uint32_t worker_count, struct plan_mix *out,
                          struct error *error) MUST_CHECK;

#endif
