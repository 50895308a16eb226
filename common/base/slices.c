// slices.c: see slices.h.
#include "common/base/slices.h"

uint64_t slices_bytes(const struct slice *slices, uint32_t count, uint32_t align)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += (slices[i].bytes + align - 1) / align * align;
    return bytes;
}

void slices_place(const struct slice *slices, uint32_t count, uint32_t align, void *memory)
{
    for (uint32_t i = 0; i < count; i++)
        *slices[i].out = (unsigned char *)memory + slices_bytes(slices, i, align);
}
