// alloc.h: three ways to hand out parts of one piece of memory: an arena, whose memory is freed as a whole; slices, arrays that are placed
// one after another; and buddy blocks, which are taken and given back one by one.
#ifndef FD_BASE_ALLOC_H
#define FD_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

// --- arenas: a bump allocator with a cap ---

struct arena_chunk;

// An arena of zeros with `cap` set is ready for use. For use by one thread.
struct arena {
    struct arena_chunk *chunks; // newest first
    size_t taken, cap;
    bool out_of_memory; // malloc failed; the cap was not reached
};

// Returns memory aligned for any type, not zeroed. NULL: the cap is reached, or there is no memory.
void *arena_take(struct arena *arena, size_t size);
// Frees all but the newest chunk, which is kept unless it is huge, so that the next message needs no malloc.
void arena_reset(struct arena *arena);
void arena_free(struct arena *arena);

// --- slices: the list of them gives the total size, for a memory plan, and later the pointer to each array ---

struct slice {
    void **out; // the pointer to set
    uint64_t bytes;
};

// Returns the bytes of all slices, each rounded up to a multiple of `align`.
uint64_t slices_bytes(const struct slice *slices, uint32_t count, uint32_t align);

// Sets the pointers into `memory`, which must be aligned to `align` and have slices_bytes() bytes. Does not touch that memory, so
// it may be a device's.
void slices_place(const struct slice *slices, uint32_t count, uint32_t align, void *memory);

// --- buddy blocks: blocks of powers of two ---
//
// They are offsets, and the memory is never touched, which may therefore be a device's; the tables are elsewhere. The buddy system (Knuth,
// The Art of Computer Programming, volume 1, section 2.5, algorithms R and S): a block is halved until it has the size asked for, and two
// free halves become one again. Take and give cost O(log bytes). One thread at a time.

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
