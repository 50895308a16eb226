// pack_source.h: the layouts of packed weights (pack.h describes them), and the block formats of GGUF that are packed, read one group of 32
// at a time: for kernels/quant, and for kernels/cuda, which packs for the device.
#ifndef FD_KERNELS_QUANT_PACK_SOURCE_H
#define FD_KERNELS_QUANT_PACK_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/quant/tensor_type.h"

#define PACK_TILE_OUTPUTS 16u
#define PACK_GROUP 32u
#define PACK_SUPER 256u
#define PACK_ALIGN 64u

// A packed file's identity has these numbers: add at the end.
enum pack_layout { PACK_U4, PACK_S8, PACK_S8_HALVES, PACK_F32, PACK_F16, PACK_BF16, PACK_U4_HALVES, PACK_S8_F32 };

static inline bool pack_layout_is_u4(enum pack_layout layout) { return layout == PACK_U4 || layout == PACK_U4_HALVES; }

// A group's halves have scales (and minima) of their own.
static inline bool pack_layout_has_halves(enum pack_layout layout) { return layout == PACK_S8_HALVES || layout == PACK_U4_HALVES; }

// One group of one source row.
struct pack_group {
    uint8_t q[PACK_GROUP];   // U4: 0..15, without a minimum value + 8; S8: value + 128
    uint16_t scale, minimum; // f16 bits; K types: those of the super-block
    float scale_f32;         // instead of `scale` in PACK_S8_F32
    int8_t small_scale[2];   // K types: of each half of the group; equal but in layouts with halves
    uint8_t small_minimum[2];
};

// How a source type is packed.
struct pack_source {
    enum tensor_type type;
    enum pack_layout layout;
    bool super, minimum;
    // Group number `group` (0 .. block_values / 32 - 1) of a block. NULL for float types.
    void (*read)(const uint8_t *block, uint32_t group, struct pack_group *out);
};

// NULL if the type is not packed.
const struct pack_source *pack_source_find(uint32_t type);

#endif
