// spans.h: what the engine puts on record: tracks of --trace, and spans of traced sequences (common/trace; spans.c).
//
// All of it on the engine's thread. Without an exporter nothing is done for sequences.
#ifndef FD_SERVICES_S_PART_ENGINE_SPANS_H
#define FD_SERVICES_S_PART_ENGINE_SPANS_H

#include <stdint.h>

#include "attend.pb-c.h"
#include "common/mesh/tensors.h"
#include "common/trace/otlp.h"
#include "common/trace/trace.h"
#include "kernels/backend/backend.h"
#include "services/s-part/step/step_plan.h"

struct engine;
struct mini_batch;

struct traces {
    struct otlp *otlp;                 // NULL: requests are not traced
    struct trace_track *s_part;        // this thread's segments and similar work
    struct trace_track *local;         // its attention for local rows
    struct trace_track *idle;          // of a pipeline's stage: its bubbles
    struct backend_span *device_spans; // [device_spans_max] of one step; NULL: tracing is off, or there is no device
    uint32_t device_spans_max;
};

// The tracks of a mini-batch.
struct batch_tracks {
    struct trace_track *step;                   // the step and its waits
    struct trace_track *device[BACKEND_TRACKS]; // what a device does, by its own clock
};

// The sequence has been put into the table; whether it is traced follows from the message.
void engine_spans_open(struct engine *engine, const Fastdecode__SequenceOpen *open);
// Counts a step that is about to be answered or handed on. Its times must be known.
void engine_spans_step(const struct mini_batch *batch);
// Puts the spans of a sequence that is over, or of all, on record.
void engine_spans_end(struct engine *engine, uint64_t id);
void engine_spans_end_all(struct engine *engine);

// Returns how many traced sequences have rows or reads at the place.
uint32_t engine_spans_count(const struct mini_batch *batch, const struct step_place *place);
// Writes their part of the message to it.
void engine_spans_tell(const struct mini_batch *batch, const struct step_place *place, const struct attend_request_parts *parts);

#endif
