// kv_sparse.h: the option --sparse-attention, which tells how much of its context the row of a generated token attends to
// (kernels/attention/attention_sparse.h).
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
    "a generated token attends to the best PERCENT of its context (1024 tokens at least) and both ends; f16 KV takes 6 % more memory"

// Sets *percent to 0 for "off", or to 1 to 100 for "10%", "10" and so on. INVALID_ARGUMENT: anything else; *error names the option.
enum status kv_sparse_parse(const char *text, uint32_t *percent, struct error *error) MUST_CHECK;

#endif
