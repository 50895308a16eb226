// plan_internal.h: parts of the performance model that one s-part (plan.c) and a pipeline of them (pipeline.c) share.
#ifndef FD_PLAN_PLAN_INTERNAL_H
#define FD_PLAN_PLAN_INTERNAL_H

#include "common/plan/plan.h"

#define GIGA 1e9
#define US 1e6 // in a second

double plan_mean_context(const struct plan_request *request);                     // of a running sequence
double plan_mean_read(const struct plan_request *request);                        // what a layer reads of it, windows considered
double plan_sequence_kv_bytes(const struct plan_request *request);                // of a running sequence, all layers
double plan_activation_bytes(const struct plan_request *request, uint32_t batch); // of an S-part, logits included
double plan_step_rest_us(const struct plan_request *request, double rows);        // besides layers, attention and head
uint32_t plan_pool_sequences(const struct plan_request *request, uint32_t batch, uint32_t workers); // in the S-part's memory

// Predicts a layer of a mini-batch of `rows` decode rows, `local` of them in the S-part's memory beside workers.
void plan_predict_layer(const struct plan_request *request, double rows, double local, uint32_t workers, struct plan *out);

// Predicts a step of one s-part with M mini-batches, without memory and price.
void plan_predict_one(const struct plan_request *request, uint32_t batch, uint32_t workers, uint32_t m, struct plan *out);

#endif
