// kv_costs.c: computes the costs of attention from the times of five settings.
#include "common/kv/kv_costs.h"

#include "common/base/checked.h"

void kv_costs_of(const struct kv_timed *t, struct kv_costs *out)
{
    double n = t->rows, chunk = t->chunk, first_pairs = chunk * (chunk + 1) / 2,
           pairs = chunk * (t->far - t->chunk); // beyond those

    out->token_us = MAX(t->far_us - t->near_us, t->far_us / 100) / (n * (t->far - t->near));
    double row_us = (t->near_us - t->one_us) / MAX(n - 1, 1) - t->near * out->token_us;
    out->row_us = MAX(row_us, 0);
    out->call_us = MAX(t->one_us - out->row_us - t->near * out->token_us, 0);
    out->pair_us = MAX(t->last_us - t->first_us, t->last_us / 100) / pairs;
    double prefill_row_us = (t->first_us - out->call_us - first_pairs * out->pair_us) / chunk;
    out->prefill_row_us = MAX(prefill_row_us, 0);
}
