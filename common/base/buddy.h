/* buddy.h: blocks of powers of two out of one piece of memory that is named by offsets and never touched: what is known of the blocks
 * lies beside it.
 *
 * The buddy system (Knuth, The Art of Computer Programming, volume 1, section 2.5, algorithms R and S): a block is halved until it is as
 * small as is asked for, and two free halves become one again. Take and give are O(log bytes). One thread at a time.
 */
#ifndef FD_BASE_BUDDY_H
#define FD_BASE_BUDDY_H

#include <stdint.h>

#include "common/base/status.h"

enum { BUDDY_ORDER_LEAST = 12, BUDDY_ORDER_MOST = 40 }; /* 4 KiB; 1 TiB */
#define BUDDY_NONE UINT64_MAX

struct buddy;

/* Of any number of bytes; what does not make a whole 4 KiB at the end is left out. RESOURCE_EXHAUSTED: no memory. */
enum status buddy_open(uint64_t bytes, struct buddy **out) MUST_CHECK;
void buddy_close(struct buddy *buddy); /* NULL is allowed */

/* The offset of a block of 2^order bytes (at least those of BUDDY_ORDER_LEAST), a multiple of its size; BUDDY_NONE: there is none. */
uint64_t buddy_take(struct buddy *buddy, uint32_t order);
/* One that was taken (asserted). */
void buddy_give(struct buddy *buddy, uint64_t offset);
uint64_t buddy_free_bytes(const struct buddy *buddy);

#endif
