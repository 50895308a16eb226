// kv_shape.c: checks shapes of KV and computes the bytes of their pages.
#include "common/kv/kv_shape.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/kv/kv_type.h"

_Static_assert(KV_EXTENT_TOKENS == KV_RANGE, "extents hold whole ranges");

#define MAX_HEADS 4096u
#define MAX_SEQUENCES (1u << 20)
#define MAX_CONTEXT (1u << 24)

enum status kv_shape_check(const struct kv_shape *shape, struct error *error)
{
    if (!shape->layers || shape->layers > KV_LAYERS_MAX || !shape->heads || shape->heads > MAX_HEADS || !shape->kv_heads)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: %u layers, %u heads, %u KV heads: out of range", shape->layers,
                         shape->heads, shape->kv_heads);
    if (shape->heads % shape->kv_heads)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: %u heads are not a multiple of %u KV heads", shape->heads,
                         shape->kv_heads);
    if (!shape->head_dim || shape->head_dim % 16 || shape->head_dim > KV_MAX_HEAD_DIM)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: head_dim %u is not a multiple of 16 up to %u", shape->head_dim,
                         KV_MAX_HEAD_DIM);
    if (shape->page_tokens != 16 && shape->page_tokens != 32)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: page_tokens is %u: must be 16 or 32", shape->page_tokens);
    if (shape->type < KV_F16 || shape->type >= KV_TYPE_END)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: element type %d is unknown", (int)shape->type);
    if (!shape->max_sequences || shape->max_sequences > MAX_SEQUENCES || !shape->max_context || shape->max_context > MAX_CONTEXT)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: max_sequences %u or max_context %u out of range",
                         shape->max_sequences, shape->max_context);
    if (shape->sparse_percent > 100)
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: sparse_percent is %u: at most 100", shape->sparse_percent);
    if (shape->all_windowed)
        for (uint32_t layer = 0; layer < shape->layers; layer++)
            if (!kv_is_windowed(shape, layer))
                return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: layer %u has no window although all have one", layer);
    if (!(shape->soft_cap >= 0 && shape->soft_cap < 1e6f))
        return error_set(error, STATUS_INVALID_ARGUMENT, "KV store: soft_cap is %g: out of range", (double)shape->soft_cap);
    return STATUS_OK;
}

bool kv_same_shape(const struct kv_shape *a, const struct kv_shape *b)
{
    return a->layers == b->layers && a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->page_tokens == b->page_tokens && a->type == b->type && a->max_sequences == b->max_sequences &&
           a->max_context == b->max_context && a->sparse_percent == b->sparse_percent && a->window == b->window &&
           memcmp(a->windowed, b->windowed, sizeof a->windowed) == 0 && a->soft_cap == b->soft_cap &&
           a->all_windowed == b->all_windowed;
}

uint64_t kv_page_bytes(const struct kv_shape *shape)
{
    if (kv_shape_check(shape, NULL))
        return 0;
    return (uint64_t)shape->layers * shape->kv_heads * (shape->page_tokens / KV_TILE) * kv_tile_bytes(shape->head_dim, shape->type);
}

// Bytes of a page's bounds.
static uint64_t page_bounds_bytes(const struct kv_shape *shape)
{
    uint64_t tiles = (uint64_t)shape->layers * shape->kv_heads * (shape->page_tokens / KV_TILE);
    return shape->sparse_percent ? tiles * kv_bounds_width(shape->head_dim) * sizeof(uint16_t) : 0;
}

uint64_t kv_page_memory_bytes(const struct kv_shape *shape)
{
    uint64_t bytes = kv_page_bytes(shape);
    return bytes ? bytes + page_bounds_bytes(shape) : 0;
}

enum status kv_sparse_parse(const char *text, uint32_t *percent, struct error *error)
{
    char *end = NULL;
    unsigned long value = text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : 0;

    *percent = 0;
    if (!strcmp(text, "off"))
        return STATUS_OK;
    if (!end || strcmp(end, *end ? "%" : "") || value < 1 || value > 100)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--" KV_SPARSE_OPTION " is '%s', want off or 1%% to 100%%", text);
    *percent = (uint32_t)value;
    return STATUS_OK;
}

// --- computes the costs of attention from the times of five settings -------------------------------------------------

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

// --- names of element types ------------------------------------------------------------------------------------------

static const char *const names[KV_TYPE_END] = {
    [KV_F16] = "f16", [KV_F32] = "f32", [KV_BF16] = "bf16", [KV_INT8] = "int8", [KV_INT4] = "int4", [KV_INT4X] = "int4x",
};

const char *kv_type_name(enum kv_type type) { return (unsigned)type < KV_TYPE_END && names[type] ? names[type] : "unknown"; }

enum status kv_type_parse(const char *name, enum kv_type *out, struct error *error)
{
    for (int type = KV_F16; type < KV_TYPE_END; type++)
        if (!strcmp(name, names[type])) {
            *out = (enum kv_type)type;
            return STATUS_OK;
        }
    return error_set(error, STATUS_INVALID_ARGUMENT, "--kv-type is '%s', want " KV_TYPE_NAMES, name);
}
