// otlp_queue.h: ended spans on their way to the exporter: many writers, one reader, no lock, nothing allocated after open.
//
// A ring of slots, each with a turn (D. Vyukov's bounded queue): a slot may be written while its turn is the writer's position, and read while
// it is one more. Writers claim positions with a compare-and-swap; a full queue refuses.
#ifndef FD_OTLP_OTLP_QUEUE_H
#define FD_OTLP_OTLP_QUEUE_H

#include <stdatomic.h>

#include "common/base/status.h"
#include "common/otlp/otlp_span.h"

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

#endif
