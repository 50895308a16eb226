// sequence_table.h: what the s-part remembers of a sequence between steps: its sampler, and the token it sampled last.
//
// All of it can be rebuilt from the token log, which the scheduler sends (`open`) if it may be missing here. Fixed capacity; owned
// by the engine's thread.
#ifndef FD_S_PART_STEP_SEQUENCE_TABLE_H
#define FD_S_PART_STEP_SEQUENCE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/sampler/sampler.h"
#include "common/trace/otlp_span.h"
#include "services/s-part/step/masker.h"
#include "services/s-part/step/pooler.h"

// --- what is counted of a traced sequence between steps; its two spans are made of it when it is over (engine/spans.c)

enum { SEQUENCE_PREFILL, SEQUENCE_DECODE, SEQUENCE_PHASES };

// Sums over its steps, which it shares with other sequences.
struct sequence_phase {
    unsigned char parent_id[OTLP_SPAN_ID_BYTES]; // the scheduler's span
    uint64_t began_ns, ended_ns, s_part_us, r_part_us;
    uint32_t steps, rows; // steps 0: there was none
};

struct sequence_trace {
    bool on;
    bool sampled; // its first token has been sampled: what follows is decoding
    unsigned char trace_id[OTLP_TRACE_ID_BYTES], request_id[OTLP_SPAN_ID_BYTES]; // request_id: the gateway's span
    struct sequence_phase phases[SEQUENCE_PHASES];
};

struct sequence {
    uint64_t id;        // 0: free
    uint64_t opened_by; // incarnation of the scheduler that sent the log
    struct sampler *sampler;
    struct masked_sequence *masked; // owned; NULL: it has no grammar
    struct pooled_sequence *pooled; // owned; NULL: it is not pooled
    uint32_t prompt_tokens;
    uint32_t last_token; // the last token of the log
    uint32_t top_logprobs;
    bool prompt_logprobs;
    bool in_step;                // a step is being planned and already has a run of this sequence
    struct sequence_trace trace; // kept when the sequence is replaced
};

struct sequence_table;

enum status sequence_table_open(uint32_t capacity, uint32_t vocab, uint32_t context_tokens, struct sequence_table **out) MUST_CHECK;
void sequence_table_close(struct sequence_table *table);

// Adds or replaces a sequence (without a grammar: its `masked` is NULL then) whose log is `tokens`; the first prompt_tokens of them are the prompt. INVALID_ARGUMENT: the error
// says what is wrong. RESOURCE_EXHAUSTED: the table is full.
enum status sequence_table_put(struct sequence_table *table, uint64_t id, const struct sampler_params *params, bool prompt_logprobs,
                               const uint32_t *tokens, uint32_t token_count, uint32_t prompt_tokens,
                               struct error *error) MUST_CHECK;

// Returns NULL if there is no such sequence. The pointer is valid until the sequence is removed.
struct sequence *sequence_table_find(struct sequence_table *table, uint64_t id);
// Iterates over the sequences; *cursor starts at 0. NULL: there are no more. They may be removed meanwhile.
struct sequence *sequence_table_next(struct sequence_table *table, uint32_t *cursor);
void sequence_table_remove(struct sequence_table *table, uint64_t id);
// Returns how many have a grammar.
uint32_t sequence_table_masked(const struct sequence_table *table);
uint32_t sequence_table_count(const struct sequence_table *table);

#endif
