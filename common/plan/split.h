// split.h: which layers each of several s-parts in a pipeline holds.
//
// A pipeline is as fast as its slowest stage, so the layers are cut where the slowest stage's measured time is least: the first stage
// embeds as well, the last one has the head, and no stage takes more memory than it has. Among all such cuts the one with the most even
// times is taken (the least sum of their squares), so that the result does not depend on chance.
//
// Worked number: 30 layers of 1 ms, a head of 8 ms, two stages: 19 layers before, 11 and the head behind, 19 ms each.
//
// Plain values, on any thread. Nothing blocks or allocates; O(stages x layers²), with some 50 KiB of stack.
#ifndef FD_PLAN_SPLIT_H
#define FD_PLAN_SPLIT_H

#include <stdint.h>

#include "common/base/status.h"

struct model;

enum { PLAN_STAGES_MAX = 8, PLAN_SPLIT_LAYERS_MAX = 1024 };

// The layers to be split. Arrays are borrowed. Times are of a step with as many rows as are expected; their unit does not matter.
struct plan_split {
    const double *layer_us;      // [layer_count]
    const uint64_t *layer_bytes; // [layer_count] weights, and what a stage holds of KV and activations for that layer; NULL: 0
    uint32_t layer_count;
    double embed_us, head_us;         // of the first stage, and of the last one
    uint64_t embed_bytes, head_bytes; // likewise
    uint64_t stage_bytes;             // of every stage, whatever its layers
    uint32_t stages;                  // P
    const uint64_t *memory_bytes;     // [stages] what each may use; NULL, or 0 for one of them: no limit
};

// The layers of a stage: first, first + 1 … end - 1; never none.
struct plan_range {
    uint32_t first, end;
};

// Fills in ranges [stages] and the time of the slowest stage. INVALID_ARGUMENT: fewer layers than stages, or too many of them.
// RESOURCE_EXHAUSTED: it does not fit, and *error says what is missing.
enum status plan_split_layers(const struct plan_split *split, struct plan_range *ranges, double *slowest_us,
                              struct error *error) MUST_CHECK;

// Splits a model by the bytes of its weights, which is what the time of a decode step follows: those of a layer, and with the last stage
// those of the output matrix. Fills in ranges [stages]. INVALID_ARGUMENT: as above.
enum status plan_split_model(const struct model *model, uint32_t stages, struct plan_range *ranges, struct error *error) MUST_CHECK;

#define PLAN_SPLIT_HELP "layers of each stage, such as 19,11"

// Reads --split "19,11": how many of the model's layers each stage has. Fills in ranges [PLAN_STAGES_MAX] and *stages. *stages: how many
// there must be; 0: as many as the list has. INVALID_ARGUMENT: the text is no such list, of another number of stages, or of other layers
// than the model's; *stages is as before.
enum status plan_split_read(const char *text, uint32_t layers, uint32_t *stages, struct plan_range *ranges,
                            struct error *error) MUST_CHECK;

// Returns the time, or the memory, that a stage takes with the layers of a range.
double plan_split_us(const struct plan_split *split, uint32_t stage, struct plan_range range);
uint64_t plan_split_bytes(const struct plan_split *split, uint32_t stage, struct plan_range range);

#endif
