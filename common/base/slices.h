/* slices.h: arrays that lie in one allocation, one after the other: a list of them says both how much they take, for a plan, and, once
 * there is memory, where each is.
 */
#ifndef FD_BASE_SLICES_H
#define FD_BASE_SLICES_H

#include <stdint.h>

struct slice {
    void **out; /* the pointer to set */
    uint64_t bytes;
};

/* Of all of them, each rounded up to a multiple of `align`. */
uint64_t slices_bytes(const struct slice *slices, uint32_t count, uint32_t align);

/* Sets the pointers into `memory`, which is so aligned and has slices_bytes(); nothing there is touched, so it may be a device's. */
void slices_place(const struct slice *slices, uint32_t count, uint32_t align, void *memory);

#endif
