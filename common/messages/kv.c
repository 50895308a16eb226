// kv.c: see kv.h.
#include "common/messages/kv.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

static const double COST_MIN_US = 1e-9, COST_MAX_US = 1e6;

void messages_from_kv_shape(const struct kv_shape *shape, Fastdecode__KvShape *out)
{
    fastdecode__kv_shape__init(out);
    out->layers = shape->layers;
    out->heads = shape->heads;
    out->kv_heads = shape->kv_heads;
    out->head_dim = shape->head_dim;
    out->page_tokens = shape->page_tokens;
    out->type = (Fastdecode__KvType)shape->type;
    out->context_tokens = shape->max_context;
    out->sparse_percent = shape->sparse_percent;
    out->window = shape->window;
    out->windowed_layers = (uint64_t *)shape->windowed;
    out->n_windowed_layers = shape->window ? (shape->layers + 63) / 64 : 0;
    out->soft_cap = shape->soft_cap;
    out->all_windowed = shape->all_windowed;
}

struct kv_shape messages_to_kv_shape(const Fastdecode__KvShape *message, uint32_t max_sequences)
{
    struct kv_shape shape = {.layers = message->layers,
                             .heads = message->heads,
                             .kv_heads = message->kv_heads,
                             .head_dim = message->head_dim,
                             .page_tokens = message->page_tokens,
                             .type = (enum kv_type)message->type,
                             .max_sequences = max_sequences,
                             .max_context = message->context_tokens,
                             .sparse_percent = message->sparse_percent,
                             .window = message->window,
                             .soft_cap = message->soft_cap,
                             .all_windowed = message->all_windowed};
    for (size_t i = 0; i < MIN(message->n_windowed_layers, (size_t)KV_LAYER_WORDS); i++)
        shape.windowed[i] = message->windowed_layers[i];
    return shape;
}

bool messages_same_kv_shape(const Fastdecode__KvShape *a, const Fastdecode__KvShape *b)
{
    const struct kv_shape x = messages_to_kv_shape(a, 1), y = messages_to_kv_shape(b, 1);
    return kv_same_shape(&x, &y);
}

void messages_from_kv_costs(const struct kv_costs *costs, Fastdecode__KvCosts *out)
{
    fastdecode__kv_costs__init(out);
    out->call_us = costs->call_us;
    out->row_us = costs->row_us;
    out->token_us = costs->token_us;
    out->pair_us = costs->pair_us;
    out->prefill_row_us = costs->prefill_row_us;
}

bool messages_to_kv_costs(const Fastdecode__KvCosts *message, struct kv_costs *out)
{
    *out = (struct kv_costs){0};
    if (!message || !(message->token_us > COST_MIN_US && message->token_us < COST_MAX_US) ||
        !(message->pair_us >= 0 && message->pair_us < COST_MAX_US))
        return false;
    *out = (struct kv_costs){.call_us = message->call_us,
                             .row_us = message->row_us,
                             .token_us = message->token_us,
                             .prefill_row_us = message->prefill_row_us,
                             .pair_us = message->pair_us};
    return true;
}

enum status messages_held_open(size_t count, struct messages_held *out)
{
    count = MIN(count, (size_t)MESSAGES_HELD_MAX);
    *out = (struct messages_held){
        .pointers = calloc(count + 1, sizeof *out->pointers), .items = calloc(count + 1, sizeof *out->items), .count = count};
    if (!out->pointers || !out->items) {
        messages_held_close(out);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    for (size_t i = 0; i < count; i++) {
        fastdecode__held_sequence__init(&out->items[i]);
        out->pointers[i] = &out->items[i];
    }
    return STATUS_OK;
}

void messages_held_set(struct messages_held *held, size_t index, uint64_t sequence, uint32_t positions, uint32_t certain,
                       uint32_t first)
{
    assert_always(index < held->count);
    held->items[index].first_position = first;
    held->items[index].sequence = sequence;
    held->items[index].positions = positions;
    held->items[index].certain = certain;
}

void messages_held_close(struct messages_held *held)
{
    free(held->pointers);
    free(held->items);
    *held = (struct messages_held){0};
}
