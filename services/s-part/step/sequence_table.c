// sequence_table.c: sequences in the slots that an id_map gives them.
#include "services/s-part/step/sequence_table.h"

#include <stdlib.h>

#include "common/base/id_map.h"

struct sequence_table {
    uint32_t vocab, context_tokens;
    struct id_map slots;
    struct sequence *sequences; // [slots.capacity]
};

enum status sequence_table_open(uint32_t capacity, uint32_t vocab, uint32_t context_tokens, struct sequence_table **out)
{
    struct sequence_table *table = calloc(1, sizeof *table);

    if (!table)
        return STATUS_RESOURCE_EXHAUSTED;
    *table = (struct sequence_table){.vocab = vocab, .context_tokens = context_tokens};
    table->sequences = calloc(capacity, sizeof *table->sequences);
    if (!table->sequences || id_map_open(capacity, &table->slots)) {
        free(table->sequences);
        free(table);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    *out = table;
    return STATUS_OK;
}

static void forget(struct sequence *sequence)
{
    sampler_close(sequence->sampler);
    masker_sequence_close(sequence->masked);
    pooled_close(sequence->pooled);
}

void sequence_table_close(struct sequence_table *table)
{
    if (!table)
        return;
    for (uint32_t slot = 0; slot < table->slots.used; slot++)
        forget(&table->sequences[slot]);
    id_map_close(&table->slots);
    free(table->sequences);
    free(table);
}

struct sequence *sequence_table_find(struct sequence_table *table, uint64_t id)
{
    uint32_t slot = id_map_find(&table->slots, id);
    return slot == ID_MAP_NONE ? NULL : &table->sequences[slot];
}

static enum status check_tokens(const struct sequence_table *table, uint64_t id, const uint32_t *tokens, uint32_t token_count,
                                uint32_t prompt_tokens, struct error *error)
{
    if (id == 0 || token_count == 0 || prompt_tokens == 0 || prompt_tokens > token_count || token_count > table->context_tokens)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx: %u tokens, %u of them prompt (context %u)",
                         (unsigned long long)id, token_count, prompt_tokens, table->context_tokens);
    for (uint32_t i = 0; i < token_count; i++)
        if (tokens[i] >= table->vocab)
            return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx: token %u at %u, the vocabulary has %u",
                             (unsigned long long)id, tokens[i], i, table->vocab);
    return STATUS_OK;
}

enum status sequence_table_put(struct sequence_table *table, uint64_t id, const struct sampler_params *params, bool prompt_logprobs,
                               const uint32_t *tokens, uint32_t token_count, uint32_t prompt_tokens, struct error *error)
{
    struct sampler *sampler;
    enum status status = check_tokens(table, id, tokens, token_count, prompt_tokens, error);

    if (!status)
        status = sampler_open(params, table->vocab, table->context_tokens, &sampler, error);
    if (status)
        return status;
    uint32_t slot = id_map_find(&table->slots, id);
    if (slot == ID_MAP_NONE && (slot = id_map_add(&table->slots, id)) == ID_MAP_NONE) {
        sampler_close(sampler);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "the s-part holds %u sequences, its limit", table->slots.capacity);
    }
    for (uint32_t i = 0; i < token_count; i++)
        i < prompt_tokens ? sampler_see_prompt(sampler, tokens[i]) : sampler_see_generated(sampler, tokens[i]);
    forget(&table->sequences[slot]); // the one that is replaced
    table->sequences[slot] = (struct sequence){.id = id,
                                               .sampler = sampler,
                                               .prompt_tokens = prompt_tokens,
                                               .last_token = tokens[token_count - 1],
                                               .top_logprobs = params->top_logprobs,
                                               .prompt_logprobs = prompt_logprobs,
                                               .trace = table->sequences[slot].trace};
    return STATUS_OK;
}

struct sequence *sequence_table_next(struct sequence_table *table, uint32_t *cursor)
{
    uint32_t slot = id_map_next(&table->slots, cursor);
    return slot == ID_MAP_NONE ? NULL : &table->sequences[slot];
}

void sequence_table_remove(struct sequence_table *table, uint64_t id)
{
    struct sequence *sequence = sequence_table_find(table, id);

    if (!sequence)
        return;
    forget(sequence);
    *sequence = (struct sequence){0};
    id_map_remove(&table->slots, id);
}

uint32_t sequence_table_count(const struct sequence_table *table) { return table->slots.count; }

uint32_t sequence_table_masked(const struct sequence_table *table)
{
    uint32_t cursor = 0, slot, count = 0;
    while ((slot = id_map_next(&table->slots, &cursor)) != ID_MAP_NONE)
        count += table->sequences[slot].masked != NULL;
    return count;
}
