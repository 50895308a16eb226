// buddy.h: hands out power-of-two blocks of one piece of memory. It works with offsets and never touches that memory, which may
// therefore be a device's; its tables are elsewhere.
//
// The buddy system (Knuth, The Art of Computer Programming, volume 1, section 2.5, algorithms R and S): a block is halved until it
// has the size asked for, and two free halves become one again. Take and give cost O(log bytes). One thread at a time.
#ifndef FD_BASE_BUDDY_H
#define FD_BASE_BUDDY_H

#include <stdint.h>

#include "common/base/status.h"

enum { BUDDY_ORDER_LEAST = 12, BUDDY_ORDER_MOST = 40 }; // 4 KiB; 1 TiB
#define BUDDY_NONE UINT64_MAX

struct buddy;

// Manages `bytes`, rounded down to 4 KiB. RESOURCE_EXHAUSTED: no memory for the tables.
enum status buddy_open(uint64_t bytes, struct buddy **out) MUST_CHECK;
void buddy_close(struct buddy *buddy); // NULL is allowed

// Returns the offset of a block of 2^order bytes (at least 2^BUDDY_ORDER_LEAST), which is a multiple of its size; BUDDY_NONE if there is none.
uint64_t buddy_take(struct buddy *buddy, uint32_t order);
// Gives back a block that was taken (asserted).
void buddy_give(struct buddy *buddy, uint64_t offset);
uint64_t buddy_free_bytes(const struct buddy *buddy);

#endif
