// pack_layout.h: the layouts of packed weights and their sizes; pack.h describes them.
#ifndef FD_KERNELS_QUANT_PACK_LAYOUT_H
#define FD_KERNELS_QUANT_PACK_LAYOUT_H

#define PACK_TILE_OUTPUTS 16u
#define PACK_GROUP 32u
#define PACK_SUPER 256u
#define PACK_ALIGN 64u

enum pack_layout { PACK_U4, PACK_S8, PACK_S8_HALVES, PACK_F32, PACK_F16, PACK_BF16 };

#endif
