/* sequence_table.c: open addressing with backward-shift deletion, at most half full. */
#include "services/s-part/sequence_table.h"

#include <stdlib.h>

struct sequence_table {
    uint32_t capacity, count, mask, vocab, context_tokens;
    struct sequence *slots; /* [mask + 1] */
};

static uint32_t home(const struct sequence_table *table, uint64_t id)
{
    return (uint32_t)((id * 0x9e3779b97f4a7c15u) >> 32) & table->mask;
}

enum status sequence_table_open(uint32_t capacity, uint32_t vocab, uint32_t context_tokens, struct sequence_table **out)
{
    uint32_t slots = 16;
    struct sequence_table *table = calloc(1, sizeof *table);

    if (!table)
        return STATUS_RESOURCE_EXHAUSTED;
    while (slots < capacity * 2)
        slots *= 2;
    *table = (struct sequence_table){.capacity = capacity, .mask = slots - 1, .vocab = vocab, .context_tokens = context_tokens};
    table->slots = calloc(slots, sizeof *table->slots);
    if (!table->slots) {
        free(table);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    *out = table;
    return STATUS_OK;
}

void sequence_table_close(struct sequence_table *table)
{
    if (!table)
        return;
    for (uint32_t slot = 0; slot <= table->mask; slot++)
        sampler_close(table->slots[slot].sampler);
    free(table->slots);
    free(table);
}

struct sequence *sequence_table_find(struct sequence_table *table, uint64_t id)
{
    for (uint32_t slot = home(table, id); table->slots[slot].id; slot = (slot + 1) & table->mask)
        if (table->slots[slot].id == id)
            return &table->slots[slot];
    return NULL;
}

enum status sequence_table_put(struct sequence_table *table, uint64_t id, const struct sampler_params *params, bool prompt_logprobs,
                               const uint32_t *tokens, uint32_t token_count, uint32_t prompt_tokens, struct error *error)
{
    struct sampler *sampler;
    struct sequence *sequence;
    uint32_t slot;

    if (id == 0 || token_count == 0 || prompt_tokens == 0 || prompt_tokens > token_count || token_count > table->context_tokens)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx: %u tokens, %u of them prompt (context %u)",
                         (unsigned long long)id, token_count, prompt_tokens, table->context_tokens);
    for (uint32_t i = 0; i < token_count; i++)
        if (tokens[i] >= table->vocab)
            return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx: token %u at %u, the vocabulary has %u",
                             (unsigned long long)id, tokens[i], i, table->vocab);
    enum status status = sampler_open(params, table->vocab, table->context_tokens, &sampler, error);
    if (status)
        return status;
    sequence = sequence_table_find(table, id);
    if (!sequence && table->count == table->capacity) {
        sampler_close(sampler);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "the s-part holds %u sequences, its limit", table->capacity);
    }
    if (sequence) {
        sampler_close(sequence->sampler);
    } else {
        for (slot = home(table, id); table->slots[slot].id; slot = (slot + 1) & table->mask)
            ;
        sequence = &table->slots[slot];
        table->count++;
    }
    for (uint32_t i = 0; i < token_count; i++)
        i < prompt_tokens ? sampler_see_prompt(sampler, tokens[i]) : sampler_see_generated(sampler, tokens[i]);
    *sequence = (struct sequence){.id = id,
                                  .sampler = sampler,
                                  .prompt_tokens = prompt_tokens,
                                  .last_token = tokens[token_count - 1],
                                  .top_logprobs = params->top_logprobs,
                                  .prompt_logprobs = prompt_logprobs};
    return STATUS_OK;
}

void sequence_table_remove(struct sequence_table *table, uint64_t id)
{
    struct sequence *sequence = sequence_table_find(table, id);
    uint32_t hole;

    if (!sequence)
        return;
    sampler_close(sequence->sampler);
    hole = (uint32_t)(sequence - table->slots);
    for (uint32_t slot = (hole + 1) & table->mask; table->slots[slot].id; slot = (slot + 1) & table->mask) {
        uint32_t from_home = (slot - home(table, table->slots[slot].id)) & table->mask;
        if (from_home >= ((slot - hole) & table->mask)) { /* it may move up to the hole */
            table->slots[hole] = table->slots[slot];
            hole = slot;
        }
    }
    table->slots[hole] = (struct sequence){0};
    table->count--;
}

uint32_t sequence_table_count(const struct sequence_table *table) { return table->count; }
