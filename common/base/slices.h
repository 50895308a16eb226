// slices.h: arrays that are placed one after another in one allocation. The list of slices gives the total size, for a memory plan,
// and later the pointer to each array.
#ifndef FD_BASE_SLICES_H
#define FD_BASE_SLICES_H

#include <stdint.h>

struct slice {
    void **out; // the pointer to set
    uint64_t bytes;
};

// Returns the bytes of all slices, each rounded up to a multiple of `align`.
uint64_t slices_bytes(const struct slice *slices, uint32_t count, uint32_t align);

// Sets the pointers into `memory`, which must be aligned to `align` and have slices_bytes() bytes. Does not touch that memory, so
// it may be a device's.
void slices_place(const struct slice *slices, uint32_t count, uint32_t align, void *memory);

#endif
