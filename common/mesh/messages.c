// messages.c: messages of the mesh to and from structs: one function each way.
#include "common/mesh/messages.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

// --- sampling ---

static uint32_t count_of(size_t count) { return (uint32_t)MIN(count, (size_t)UINT32_MAX); } // too many are refused

enum status sampling_parse(const Fastdecode__Sampling *s, uint32_t vocab, struct sampler_bias *bias, struct sampler_params *out,
                           struct error *error)
{
    if (!s)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sampling is missing");
    if (s->n_bias > SAMPLER_BIAS_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: %zu biases, at most %d are taken", s->n_bias, SAMPLER_BIAS_MAX);
    for (size_t i = 0; i < s->n_bias; i++)
        bias[i] = (struct sampler_bias){s->bias[i]->token, s->bias[i]->bias};
    *out = (struct sampler_params){
        .temperature = s->temperature,
        .top_k = s->top_k,
        .top_p = s->top_p == 0 ? 1 : s->top_p,
        .min_p = s->min_p,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .repetition_penalty = s->repetition_penalty == 0 ? 1 : s->repetition_penalty,
        .seed = s->seed,
        .choice = s->choice,
        .logprobs = s->logprobs || s->prompt_logprobs,
        .top_logprobs = s->top_logprobs,
        .typical_p = s->typical_p,
        .xtc_probability = s->xtc_probability,
        .xtc_threshold = s->xtc_threshold,
        .dry_multiplier = s->dry_multiplier,
        .dry_base = s->dry_base,
        .dry_allowed_length = s->dry_allowed_length,
        .dry_last_tokens = s->dry_last_tokens,
        .min_tokens = s->min_tokens,
        .bias_count = (uint32_t)s->n_bias,
        .end_count = count_of(s->n_end_token),
        .stop_count = count_of(s->n_stop_token),
        .allowed_count = count_of(s->n_allowed_token),
        .bad_count = count_of(s->n_bad_length),
        .bad_token_count = count_of(s->n_bad_token),
        .bias = bias,
        .end_tokens = s->end_token,
        .stop_tokens = s->stop_token,
        .allowed_tokens = s->allowed_token,
        .bad_lengths = s->bad_length,
        .bad_tokens = s->bad_token,
        .dry_breakers = s->dry_breakers.data,
        .dry_breaker_bytes = count_of(s->dry_breakers.len),
    };
    return sampler_check(out, vocab, error);
}

bool sampling_is_pure(const Fastdecode__Sampling *s)
{
    bool pure = (s->repetition_penalty == 0 || s->repetition_penalty == 1) && s->presence_penalty == 0 &&
                s->frequency_penalty == 0 && s->dry_multiplier == 0;

    for (size_t i = 0; i < s->n_bad_length; i++)
        pure = pure && s->bad_length[i] <= 1;
    return pure;
}

// --- features ---

uint32_t features_of(const Fastdecode__Sampling *s)
{
    const bool bans = s->min_tokens || s->n_stop_token || s->n_allowed_token || s->n_bad_length || s->typical_p != 0 ||
                      s->xtc_probability != 0 || s->dry_multiplier != 0;

    return (bans ? FEATURES_BANS : 0) | (s->grammar.len ? FEATURES_GRAMMAR : 0) | (s->pooling ? FEATURES_POOLING : 0);
}

uint32_t features_read(const Fastdecode__SamplingFeature *list, size_t count)
{
    uint32_t mask = 0;

    for (size_t i = 0; i < count; i++)
        if (list[i] > 0 && list[i] < 32)
            mask |= 1u << list[i];
    return mask & FEATURES_OURS;
}

size_t features_list(uint32_t mask, Fastdecode__SamplingFeature *list)
{
    size_t count = 0;

    for (uint32_t feature = 1; feature < 32; feature++)
        if ((mask & FEATURES_OURS) >> feature & 1)
            list[count++] = (Fastdecode__SamplingFeature)feature;
    return count;
}

const char *features_name(uint32_t mask)
{
    if (mask & FEATURES_GRAMMAR)
        return "grammars (response_format, structured_outputs, guided_*, grammar, json_schema, tool_choice)";
    if (mask & FEATURES_POOLING)
        return "embeddings and reranking, or was started without --pooling";
    return "min_tokens, stop_token_ids, bad_words, allowed_token_ids, typical_p, xtc or dry";
}

// --- K and V ---

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

void messages_held_set(struct messages_held *held, size_t index, const struct kv_held *what)
{
    Fastdecode__HeldSequence *item = &held->items[index];

    assert_always(index < held->count);
    item->first_position = what->first;
    item->sequence = what->sequence;
    item->positions = what->positions;
    item->certain = what->certain;
    item->pages = what->pages;
}

void messages_held_close(struct messages_held *held)
{
    free(held->pointers);
    free(held->items);
    *held = (struct messages_held){0};
}
