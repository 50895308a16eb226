// pipeline.h: several S-parts in a pipeline, each with a range of the layers.
//
// A mini-batch goes through the stages one after the other, and each stage has another one under way: with M mini-batches of b = B/M
// sequences and uniform steps (b decode rows and b·p/S prefill rows in each), with T(b) and R as in plan.h
//
//     stage s:  T_s  = layers_s·(T + A) + (first: step_us) + (last: head)         A: its own pool's attention
//     step           = max( M·max T_s,  M·layers·R,  sum T_s + layers·(R + X) + (P - 1)·hop )
//
// M is P where the stages attend themselves, and 2·P with workers: while one mini-batch of a stage is away it works on the other. All
// stages ask the workers at once, so they keep up while R·layers <= max T_s, which is r·W·P/N = T for stages of equal length.
//
// Layers are cut so that the slowest stage's time is least (split.h). Worked number: 30 layers of 1 ms and a head of 8 ms, P = 2, four
// mini-batches of 8 with workers that keep up: 4·19 = 76 ms for 32 tokens, where one S-part takes 2·38 = 76 ms for 16.
//
// Plain values, on any thread; nothing blocks or allocates.
#ifndef FD_PLAN_PIPELINE_H
#define FD_PLAN_PIPELINE_H

#include "common/plan/plan.h"

// Returns how long a step's activations take from a stage to the next.
double plan_hop_us(const struct plan_request *request, double rows);

// Fills in the cost and the layers of each stage: out, ranges [request->stages], for a batch on so many workers. Statuses as of
// plan_split_layers(); memory counts unless request->ignore_capacity.
enum status plan_stages(const struct plan_request *request, uint32_t batch, uint32_t workers, struct cost_s_part *out,
                        struct plan_range *ranges, struct error *error) MUST_CHECK;

// Does for a pipeline what plan_predict() does; each: mini-batches for each stage. Without price and KV. If no cut of the layers
// fits into memory, it predicts without that limit.
void plan_predict_pipeline(const struct plan_request *request, uint32_t batch, uint32_t workers, uint32_t each, struct plan *out);

#endif
