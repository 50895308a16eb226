// kv_shape.h: the shape of the KV that a model's sequences need, and what a page of it takes.
//
// With a sparse_percent a generated token attends to a part of its context (kernels/attention/attention_sparse.h). Whether a row is sparse is
// a property of its position: generated tokens are, the prompt is not. Thus a sequence that is computed anew, elsewhere and in other chunks,
// gets the same bytes.
//
// Plain values. Any thread.
#ifndef FD_KV_KV_SHAPE_H
#define FD_KV_KV_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/checked.h"
#include "common/base/status.h"
#include "common/kv/kv_ledger.h"
#include "common/kv/kv_type.h"

enum { KV_LAYERS_MAX = 1024, KV_LAYER_WORDS = KV_LAYERS_MAX / 64 };

struct kv_shape {
    uint32_t layers, heads, kv_heads; // heads is a multiple of kv_heads
    uint32_t head_dim;                // a multiple of 16, at most 256
    uint32_t page_tokens;             // 16 or 32
    enum kv_type type;
    uint32_t max_sequences;
    uint32_t max_context;    // the most positions of a sequence
    uint32_t sparse_percent; // percent of the tiles that a sparse row attends to (attention_sparse.h), at most 100; 0: there are no
                             // sparse rows
    uint32_t window; // how many positions a row attends to in a windowed layer, up to its own; 0: there are no such layers. With
                     // windowed layers no sequence is split (extents)
    uint64_t windowed[KV_LAYER_WORDS]; // a bit for each layer that is windowed
    float soft_cap;                    // of scores (attention.h); 0: none
    bool all_windowed; // every layer of the model is: pages that all windows have passed are given back (kv_ring_pages)
};

static inline bool kv_is_windowed(const struct kv_shape *shape, uint32_t layer)
{
    return shape->window && shape->windowed[layer / 64] >> layer % 64 & 1;
}

// Returns the most pages that a sequence has: those of a window, and of the rows that may be written before the oldest of it are out of
// use. 0: it keeps all. Whoever counts pages must count them so.
static inline uint32_t kv_ring_pages(const struct kv_shape *shape)
{
    return shape->all_windowed ? kv_ring_pages_of(shape->window, shape->page_tokens, shape->max_context) : 0;
}

// Returns the first page that rows from `positions` on read, and some rows before them: pages before it need not be handed over.
static inline uint32_t kv_first_page(const struct kv_shape *shape, uint32_t positions)
{
    uint32_t reach = shape->window + kv_ring_step_rows(shape->window);
    return kv_ring_pages(shape) && positions > reach ? (positions - reach) / shape->page_tokens : 0;
}

// Whether pages of a store of one shape are right for a store of the other, which has as many sequences. Padding is not looked at.
bool kv_same_shape(const struct kv_shape *a, const struct kv_shape *b);

// INVALID_ARGUMENT: the shape is out of range; *error says what.
enum status kv_shape_check(const struct kv_shape *shape, struct error *error) MUST_CHECK;

// Returns the bytes of one page as it is handed over, or 0 if the shape is out of range (kv_shape_check() says why).
uint64_t kv_page_bytes(const struct kv_shape *shape);
// Returns the bytes that a page takes in the pool. With a sparse_percent they include the bounds of its tiles, 4 bytes per
// dimension of each KV head and layer.
uint64_t kv_page_memory_bytes(const struct kv_shape *shape);

// --- the option --sparse-attention ---

#define KV_SPARSE_OPTION "sparse-attention"
#define KV_SPARSE_NAMES "PERCENT|off"
#define KV_SPARSE_HELP \
    "a generated token attends to the most relevant PERCENT of its context (1024 tokens at least) and to both ends; f16 KV takes 6 % more memory"

// Sets *percent to 0 for "off", or to 1 to 100 for "10%", "10" and so on. INVALID_ARGUMENT: anything else; *error names the option.
enum status kv_sparse_parse(const char *text, uint32_t *percent, struct error *error) MUST_CHECK;

// The costs of attention at a place with a model's shape of KV: r and r_p of the performance model (common/plan/cost.h).
//
//     decode, a layer:    call_us + rows·row_us + Σ context·token_us
//     prefill, a layer:   call_us + rows·prefill_row_us + Σ context·pair_us

struct kv_costs {
    double call_us;        // fixed cost of a layer: waking threads, dividing the work
    double row_us;         // per decode row: storing its K and V, and other work per row
    double token_us;       // r: per context token of a decode row
    double prefill_row_us; // as row_us, for a prefill row
    double pair_us;        // r_p: per pair of a prefill row and a context token
};

// The times of a layer in the five settings.
struct kv_timed {
    uint32_t rows, near, far;       // rows: each of a different sequence; near, far: context lengths
    double one_us, near_us, far_us; // decode: one row at `near`, all rows at `near`, all rows at `far`
    uint32_t chunk;
    double first_us, last_us; // prefill: the first `chunk` rows of a sequence, and those that end at `far`
};

// Computes the costs that explain these times. No cost is negative, whatever the times are. Needs far > near, far > chunk and rows
// >= 1.
void kv_costs_of(const struct kv_timed *timed, struct kv_costs *out);

// Attention of a sequence whose KV is at several places: each gives partial results of the positions that it holds, and
// whoever has them all folds them to the bits that one place with all positions gives (kernels/attention/attention.h).
//
//     positions    0 … 4095 │ 4096 … 4607 4608 … 5119 … 8191 │ 8192 … 9000
//     extents      └─────── first place ──────┘ └──── second place ────┘
//     partials     │  span  │   span so far   │  7 ranges    │  span so far
//
// A place that holds a span from its start has folded its ranges in order, as far as it has them. Ranges of a span whose start is elsewhere
// come one by one, because they are folded behind what is before them.
//
// A partial is [heads] the largest score, [heads] the sum of weights, [heads][head_dim] weighted V, all f32. Any thread.

#define KV_RANGE 512u // positions of a partial that stands alone
#define KV_SPAN 4096u // positions of a partial of several ranges, folded in order
#define KV_SPAN_RANGES (KV_SPAN / KV_RANGE)

// Returns the number of partials of positions [first, end). first: a multiple of KV_RANGE, below end.
static inline uint32_t kv_partial_count(uint32_t first, uint32_t end)
{
    uint32_t first_range = first / KV_RANGE, ranges = (end - first + KV_RANGE - 1) / KV_RANGE;
    uint32_t single = MIN(ranges, (KV_SPAN_RANGES - first_range % KV_SPAN_RANGES) % KV_SPAN_RANGES);

    return single + (ranges - single + KV_SPAN_RANGES - 1) / KV_SPAN_RANGES;
}

// Returns the number of floats of one partial.
static inline size_t kv_partial_floats(uint32_t heads, uint32_t head_dim) { return (size_t)heads * (head_dim + 2); }

#endif
