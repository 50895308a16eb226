// timers.h: the timers of a loop: a binary heap over slots. A slot knows where it is in the heap, so cancelling is O(log n). Not included
// from outside the RPC runtime.
//
// Slots are kept for those who reserved them, so that what must not fail in the middle (a call's deadline, a reconnect) does not need
// memory then.
#ifndef FD_RPC_TIMERS_H
#define FD_RPC_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct timer;

// Zeroed, it can be opened. One thread.
struct timers {
    struct timer *slots; // [capacity]
    uint32_t *heap;      // [count] slots, the earliest first
    uint32_t count, capacity, reserved, unreserved_count, first_free, generation;
};

// With room for a few. False: no memory; it can be closed all the same.
bool timers_open(struct timers *timers);
void timers_close(struct timers *timers);

// So many timers with `reserved` can be set at a time from now on. False: no memory.
bool timers_reserve(struct timers *timers, uint32_t count);
void timers_release(struct timers *timers, uint32_t count);

// Returns an id, never 0 for a reserved one. 0: no memory.
uint64_t timers_add(struct timers *timers, uint64_t at_us, bool reserved, void (*fn)(void *arg), void *arg);
// One that has been taken or was cancelled is ignored.
void timers_cancel(struct timers *timers, uint64_t timer);

// UINT64_MAX: there is none.
uint64_t timers_next_us(const struct timers *timers);
// Takes the earliest if it is due at now_us.
bool timers_take(struct timers *timers, uint64_t now_us, void (**fn)(void *arg), void **arg);

#endif
