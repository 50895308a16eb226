// pooler.h: what a prompt's hidden states become: a mean, one of them, or the outputs of a classification head.
//
// A prompt comes in chunks, and parts of it may come again, since a sequence that was lost is computed anew. Therefore each sequence counts the positions
// that it has: rows before are passed over, and a row behind the next one is a gap, which only the sequence's beginning can fill.
//
//     mean    sum of rows in double, in the order of positions, divided by their number: the same bytes whatever the chunks
//     cls     the row of position 0
//     last    the row of the prompt's last token, which needs none of the others
//     rank    the head's outputs for that row
//
// Memory is allocated when a sequence is opened, none in a step. Owned by the engine's thread.
#ifndef FD_S_PART_STEP_POOLER_H
#define FD_S_PART_STEP_POOLER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/model/pooling.h"

struct pooler;
struct pooled_sequence;

// Returns the memory that it takes: the head, and for each of `sequences` what is kept of it.
uint64_t pooler_planned_bytes(const struct model *model, const struct model_pooling *pooling, uint32_t sequences);

// Reads the head, if pooling has one. The model is not needed afterwards.
enum status pooler_open(const struct model *model, const struct model_pooling *pooling, struct pooler **out,
                        struct error *error) MUST_CHECK;
void pooler_close(struct pooler *pooler);

// A sequence whose prompt has prompt_tokens. UNIMPLEMENTED: there is no head to rank with.
enum status pooled_open(struct pooler *pooler, enum model_pool kind, uint32_t prompt_tokens, struct pooled_sequence **out,
                        struct error *error) MUST_CHECK;
void pooled_close(struct pooled_sequence *pooled);

// Whether a run that begins at `position` leaves a gap.
bool pooled_lacks(const struct pooled_sequence *pooled, uint32_t position);
// Whether the row of a position is wanted.
bool pooled_wants(const struct pooled_sequence *pooled, uint32_t position);
// Takes the row ([hidden] f32) of a position that was wanted. Positions come in order.
void pooled_take(struct pooled_sequence *pooled, uint32_t position, const float *row);
// Returns the result, f32, once the last row was taken; NULL: it was not. Valid until the sequence is closed.
const float *pooled_result(const struct pooled_sequence *pooled, uint32_t *count);

#endif
