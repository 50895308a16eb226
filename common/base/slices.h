// slices.h: arrays that lie one after the other in one allocation. A list of them tells how much they take, for a plan, and later sets
// the pointer to each.
#ifndef FD_BASE_SLICES_H
#define FD_BASE_SLICES_H

#include <stdint.h>

struct slice {
    void **out; // the pointer to set
    uint64_t bytes;
};

// Returns the bytes of all, each rounded up to a multiple of `align`.
uint64_t slices_bytes(const struct slice *slices, uint32_t count, uint32_t align);

// Sets the pointers into `memory`, which has that alignment and slices_bytes(). Does not touch it, so it may be a device's.
void slices_place(const struct slice *slices, uint32_t count, uint32_t align, void *memory);

#endif
