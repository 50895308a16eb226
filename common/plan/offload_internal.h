// offload_internal.h: the linear program of one block, as tests look at it: offload.c writes it, solves it, and tries blocks.
#ifndef FD_PLAN_OFFLOAD_INTERNAL_H
#define FD_PLAN_OFFLOAD_INTERNAL_H

#include "common/plan/offload.h"

// Fractions of weights, activations and KV.
enum offload_split_index {
    OFFLOAD_WG,
    OFFLOAD_WC,
    OFFLOAD_WD,
    OFFLOAD_HG,
    OFFLOAD_HC,
    OFFLOAD_HD,
    OFFLOAD_CG,
    OFFLOAD_CC,
    OFFLOAD_CD,
    OFFLOAD_SPLITS
};

enum offload_tier { OFFLOAD_DEVICE, OFFLOAD_HOST, OFFLOAD_DISK, OFFLOAD_TIERS };
enum { OFFLOAD_PROMPTS, OFFLOAD_DECODE, OFFLOAD_PHASES };

// constant + sum of by[i]·fraction i
struct offload_linear {
    double constant, by[OFFLOAD_SPLITS];
};

struct offload_model {
    uint32_t gpu_batch, gpu_batches;
    double layers, decode_steps;
    bool tiers[OFFLOAD_TIERS]; // that exist
    bool delegated;            // attention is the workers': KV has no fractions
    bool copies_wait;
    bool weights_only;                                           // activations and KV stay on the device
    struct offload_linear lanes[OFFLOAD_PHASES][OFFLOAD_LANES];  // seconds of a layer
    double products[OFFLOAD_PHASES];                             // of the compute lane: what is not attention
    struct offload_linear memory[OFFLOAD_TIERS][OFFLOAD_PHASES]; // bytes
    double limits[OFFLOAD_TIERS];
    double worker_bytes, worker_limit;
};

// Fills in the program of one block.
void offload_model_make(const struct offload_request *request, uint32_t gpu_batch, uint32_t gpu_batches, struct offload_model *out);

// Solves it with nothing on tiers beyond `last`. false: it does not fit. thrifty: of all optima the one with least on disk, then
// on the host.
bool offload_solve(const struct offload_model *model, enum offload_tier last, bool thrifty, struct offload_plan *out);

// Returns its value at fractions x, [OFFLOAD_SPLITS].
double offload_linear_at(const struct offload_linear *linear, const double *x);

#endif
