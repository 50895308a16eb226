// head_inputs.h: what the head of a step is given beside its rows: masks of grammars, and rows whose hidden states are pooled. See head_inputs.c.
#ifndef FD_S_PART_ENGINE_HEAD_INPUTS_H
#define FD_S_PART_ENGINE_HEAD_INPUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend/backend.h"
#include "services/s-part/step/masker.h"
#include "services/s-part/step/pooler.h"
#include "step.pb-c.h"

struct engine;
struct mini_batch;

struct engine_head {
    struct masker *masker;     // of the stage that samples; otherwise NULL
    uint32_t masked_sequences; // the most that were open at once; 0: no step has masks
    struct pooler *pooler;     // borrowed; NULL: nothing is pooled here
};

struct batch_head {
    uint32_t *kept_rows; // [max_rows] outputs of runs that are not lost
    struct backend_sample *kept_outputs;
    uint32_t kept_count;
    struct mask_job masks; // of sequences with grammars
    float *hidden;         // [max_rows][hidden] of rows that are pooled; NULL: none are
    uint32_t *hidden_rows; // [max_rows] which those are
    uint32_t hidden_count;
};

// Gives the sequence that was just put into the table its grammar, if it has one.
enum status engine_masks_open(struct mini_batch *batch, const Fastdecode__SequenceOpen *open, struct error *error) MUST_CHECK;
// Has the masks of a step made that has begun.
void engine_masks_begin(struct mini_batch *batch);
// Polls for them.
bool engine_masks_done(struct mini_batch *batch);
// Notes at their runs why sequences have none. Call it before the head.
void engine_masks_faults(struct mini_batch *batch);
// Waits until they are done, or not needed any more.
void engine_masks_wait(struct mini_batch *batch);

// Returns the memory of all mini-batches for prompts that are pooled.
uint64_t engine_hidden_bytes(uint32_t max_rows, uint32_t hidden, uint32_t batch_count);
enum status engine_hidden_open(struct mini_batch *batch) MUST_CHECK;
void engine_hidden_close(struct mini_batch *batch);
// Prepares the sequence that was just put into the table, if its prompt is to be pooled.
enum status engine_hidden_open_sequence(struct mini_batch *batch, const Fastdecode__SequenceOpen *open,
                                        struct error *error) MUST_CHECK;
// Asks the backend for the hidden states of a step's rows. Call it after the last segment.
void engine_hidden_start(struct mini_batch *batch);
// Takes them, once they are there.
void engine_hidden_finish(struct mini_batch *batch);

#endif
