// kv_sparse.h: --sparse-attention: how much of its context a generated token's row attends to (kernels/attention/attention_sparse.h).
//
// Whether a row is sparse is a property of its position: generated tokens are, the prompt is not. So a sequence that is computed anew,
// elsewhere and in other chunks, gets the same bytes. Any thread.
#ifndef FD_KV_KV_SPARSE_H
#define FD_KV_KV_SPARSE_H

#include <stdint.h>

#include "common/base/status.h"

#define KV_SPARSE_OPTION "sparse-attention"
#define KV_SPARSE_NAMES "PERCENT|off"
#define KV_SPARSE_HELP \
    "a generated token attends to the best PERCENT of a long context and to both its ends; f16 KV takes 6 % more memory"

// "off": *percent is 0. "10%" or "10": 1 to 100. INVALID_ARGUMENT for others; *error then names the option.
enum status kv_sparse_parse(const char *text, uint32_t *percent, struct error *error) MUST_CHECK;

#endif
