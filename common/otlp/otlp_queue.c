// otlp_queue.c: see otlp_queue.h.
#include "common/otlp/otlp_queue.h"

#include <stdlib.h>

enum status otlp_queue_open(struct otlp_queue *queue, uint32_t capacity)
{
    assert_always(capacity > 1 && (capacity & (capacity - 1)) == 0);
    *queue = (struct otlp_queue){.slots = calloc(capacity, sizeof *queue->slots), .mask = capacity - 1};
    if (!queue->slots)
        return STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t i = 0; i < capacity; i++)
        atomic_init(&queue->slots[i].turn, i);
    return STATUS_OK;
}

void otlp_queue_close(struct otlp_queue *queue)
{
    free(queue->slots);
    queue->slots = NULL;
}

bool otlp_queue_put(struct otlp_queue *queue, const struct otlp_span *span)
{
    uint64_t at = atomic_load_explicit(&queue->head, memory_order_relaxed);
    struct otlp_slot *slot;

    for (;;) {
        slot = &queue->slots[at & queue->mask];
        const uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);
        if (turn == at &&
            atomic_compare_exchange_weak_explicit(&queue->head, &at, at + 1, memory_order_relaxed, memory_order_relaxed))
            break;
        if (turn < at) // what was written a round ago has not been read
            return false;
        if (turn > at)
            at = atomic_load_explicit(&queue->head, memory_order_relaxed);
    }
    slot->span = *span;
    atomic_store_explicit(&slot->turn, at + 1, memory_order_release);
    return true;
}

uint32_t otlp_queue_take(struct otlp_queue *queue, struct otlp_span *out, uint32_t most)
{
    uint32_t count = 0;

    for (; count < most; count++, queue->tail++) {
        struct otlp_slot *slot = &queue->slots[queue->tail & queue->mask];
        if (atomic_load_explicit(&slot->turn, memory_order_acquire) != queue->tail + 1)
            break;
        out[count] = slot->span;
        atomic_store_explicit(&slot->turn, queue->tail + queue->mask + 1, memory_order_release);
    }
    return count;
}
