// pack_layout.h: the layouts of packed weights and their sizes; pack.h describes them.
#ifndef FD_KERNELS_QUANT_PACK_LAYOUT_H
#define FD_KERNELS_QUANT_PACK_LAYOUT_H

#include <stdbool.h>

#define PACK_TILE_OUTPUTS 16u
#define PACK_GROUP 32u
#define PACK_SUPER 256u
#define PACK_ALIGN 64u

// A packed file's identity has these numbers: add at the end.
enum pack_layout { PACK_U4, PACK_S8, PACK_S8_HALVES, PACK_F32, PACK_F16, PACK_BF16, PACK_U4_HALVES, PACK_S8_F32 };

static inline bool pack_layout_is_u4(enum pack_layout layout) { return layout == PACK_U4 || layout == PACK_U4_HALVES; }

// A group's halves have scales (and minima) of their own.
static inline bool pack_layout_has_halves(enum pack_layout layout) { return layout == PACK_S8_HALVES || layout == PACK_U4_HALVES; }

#endif
