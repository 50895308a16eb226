// engine_spans.h: traced sequences (common/trace). On the engine's thread; without an exporter nothing is done.
#ifndef FD_SERVICES_S_PART_ENGINE_SPANS_H
#define FD_SERVICES_S_PART_ENGINE_SPANS_H

#include "services/s-part/engine_state.h"

// The sequence has been put into the table; whether it is traced follows from the message.
void engine_spans_open(struct engine *engine, const Fastdecode__SequenceOpen *open);
// Counts a step that is about to be answered or handed on. Its times must be known.
void engine_spans_step(const struct mini_batch *batch);
// Puts the spans of a sequence that is over, or of all, on record.
void engine_spans_end(struct engine *engine, uint64_t id);
void engine_spans_end_all(struct engine *engine);

// How many traced sequences have rows or reads at the place, and their part of the message to it.
uint32_t engine_spans_count(const struct mini_batch *batch, const struct step_place *place);
void engine_spans_tell(const struct mini_batch *batch, const struct step_place *place, const struct attend_request_parts *parts);

#endif
