// otlp_internal.h: the parts of otlp.c that tests look at: the queue of ended spans and their encoding.
#ifndef FD_TRACE_OTLP_INTERNAL_H
#define FD_TRACE_OTLP_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/trace/otlp_span.h"

struct otlp_encoder;

// Ended spans on their way to the exporter: many writers, one reader, no lock, nothing allocated after open.
//
// A ring of slots, each with a turn (D. Vyukov's bounded queue): a slot may be written while its turn is the writer's position, and read while
// it is one more. Writers claim positions with a compare-and-swap; a full queue refuses.
struct otlp_slot {
    _Atomic uint64_t turn; // release by who is done with the slot, acquire by who takes it: what lies in it is complete
    struct otlp_span span;
};

struct otlp_queue {
    struct otlp_slot *slots; // [mask + 1]
    uint64_t mask;
    _Atomic uint64_t head; // next to be written; relaxed: the slots' turns order everything
    uint64_t tail;         // next to be read; the reader's own
};

// capacity: a power of two. RESOURCE_EXHAUSTED: no memory. A queue of zeros may be closed.
enum status otlp_queue_open(struct otlp_queue *queue, uint32_t capacity) MUST_CHECK;
void otlp_queue_close(struct otlp_queue *queue);

// Copies a span in. Any thread; false: the queue is full.
bool otlp_queue_put(struct otlp_queue *queue, const struct otlp_span *span) MUST_CHECK;
// Copies up to `most` spans out, in order. The reader's thread.
uint32_t otlp_queue_take(struct otlp_queue *queue, struct otlp_span *out, uint32_t most);

// A batch of spans as an ExportRequest. All messages are allocated once.
enum { OTLP_BATCH_SPANS = 128 };

// Opens an encoder with what the spans of this process have in common. Strings are copied. RESOURCE_EXHAUSTED: no memory.
enum status otlp_encoder_open(const char *service, const char *instance, struct otlp_encoder **out) MUST_CHECK;
void otlp_encoder_close(struct otlp_encoder *encoder); // NULL is allowed

// Writes the request into `out`, which is emptied first; out->failed: no memory. count: at most OTLP_BATCH_SPANS. wall_offset_ns: what
// is added to the spans' times to make them nanoseconds since 1970.
void otlp_encode(struct otlp_encoder *encoder, const struct otlp_span *spans, uint32_t count, int64_t wall_offset_ns,
                 struct text *out);

// Returns how many spans an ExportResponse says were rejected; 0 too if it is malformed.
uint64_t otlp_decode_rejected(const unsigned char *bytes, size_t length);

#endif
