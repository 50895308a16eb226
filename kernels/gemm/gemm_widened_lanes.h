// gemm_widened_lanes.h: the part of gemm_lanes.h for several rows. Weights are turned once into the operands of the products, in a buffer
// that fits L1: quants in bytes, scales and minima in f32. What each register block would do anew for its four rows (mask, shift, convert) is
// then done once for all rows.
//
//     for each tile, or two                                  packed, from memory
//       for each chunk of 8 groups (256 inputs)              widen: 6 KiB a tile, on the stack
//         for each 4 rows                                    add the chunk to their sums, 64 bytes a row and tile, on the stack
//       sums to y
//
// A row's chain of multiply-adds has the order of gemm.h: sums wait between two chunks in f32, as they would in a register.
//
// Operations on vectors for one row and tile of a group, without loads, where eight rows or four share what rows can share:
//
//                       products   sums to f32   outlier   multiply-adds   minimum    of them are products
//     maddubs, 4 bits   32         2 + 2         6         4               2          0.70; with minima 0.67
//     maddubs, 8 bits   32 of 68   2             6         4               2          0.40
//     VNNI, 4 bits      8          1             1.5       2               1          0.64; with minima 0.59
//     VNNI, 8 bits      8          1             3.5       2               1          0.55
//
// Without widening the first has 10 more and VNNI 5. 8 bits by vpmaddubsw are four operations for two of the peak: x must take the weight's
// sign, and a sum of two products fills 16 bits.

#define WIDENED_GROUPS (PACK_SUPER / PACK_GROUP)
#define WIDENED_ROWS 128u // whose sums are on the stack
#define WIDENED_BLOCK (GEMM_TILES == 2 ? 8u : 4u)

// A group of one tile. A pick reads up to 3 bytes beyond the quants.
struct widened_group {
    uint8_t quants[PACK_GROUP / 4][64]; // byte [j][o][b]: input 4j + b of output o; as S8, or for U4 what widen_quants() says
    float scale[2][COLUMNS];            // of the group, or of its halves
    float least[2][COLUMNS];            // minima, or 0
};

typedef struct widened_group widened_tiles[GEMM_TILES];

// Writes the quants of one group. Weights of 4 bits with an offset become value + 128, like those of 8 bits, where products are exact for
// them; elsewhere, and without an offset, they stay 0 to 15.
LANES_INLINE void widen_quants(const uint8_t *line, struct form form, struct widened_group *out)
{
    if (!pack_layout_is_u4(form.layout)) {
        UNROLL for (uint32_t j = 0; j < PACK_GROUP / 4; j++)
            quad_store(out->quants[j], quad_load(line + j * 64));
        return;
    }
    UNROLL for (uint32_t j = 0; j < PACK_GROUP / 8; j++) {
        quad both = quad_load(line + j * 64), low = quad_and_0f(both), high = quad_and_0f(quad_shift_4(both));
        const bool shifts = GEMM_WIDE_BYTES && is_biased(form);
        quad_store(out->quants[2 * j], shifts ? quad_add_120(low) : low);
        quad_store(out->quants[2 * j + 1], shifts ? quad_add_120(high) : high);
    }
}

static __attribute__((noinline)) void widen(const struct packed_matrix *w, const uint8_t *tile, uint32_t tiles, uint32_t first,
                                            uint32_t count, widened_tiles *out)
{
    const struct form form = {.layout = w->layout, .minimum = w->minimum, .super = w->super, .widened = true};
    const size_t line_bytes = pack_layout_is_u4(w->layout) ? 256 : 512;
    const uint32_t scales = pack_layout_has_halves(w->layout) ? 2 : 1;
    for (uint32_t g = 0; g < count; g++)
        for (uint32_t t = 0; t < tiles; t++) {
            const uint8_t *from = tile + t * w->tile_bytes;
            struct widened_group *to = &out[g][t];
            widen_quants(from + w->quant_offset + (first + g) * line_bytes, form, to);
            for (uint32_t i = 0; i < scales; i++) {
                size_t index = (size_t)(first + g) * scales + i;
                lanes_store(to->scale[i], load_scale(w, form, from, first + g, index));
                if (form.minimum)
                    lanes_store(to->least[i], load_minimum(w, form, from, first + g, index));
            }
        }
}

#if !GEMM_WIDE_BYTES
// Computes dot[t][r] over the inputs of quads first .. last - 1 from weights of 0 to 15; is_biased: of value + 8, as in dot_u4.
LANES_INLINE void dot_widened_u4(const uint8_t *quants, size_t stride, struct x_rows x, uint32_t n, uint32_t tiles, uint32_t first,
                                 uint32_t last, bool is_biased, const int32_t *bias, dot_block dot)
{
    counts sum[GEMM_TILES][GEMM_ROWS];
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        UNROLL for (uint32_t r = 0; r < n; r++)
            sum[t][r] = counts_zero();
    UNROLL for (uint32_t j = first; j < last; j++) {
        quad w[GEMM_TILES];
        UNROLL for (uint32_t t = 0; t < tiles; t++)
            w[t] = quad_load(quants + t * stride + j * 64);
        UNROLL for (uint32_t r = 0; r < n; r++)
            counts_add_tiles(sum, r, n, tiles, w, &x.q[r][4 * j]);
    }
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        UNROLL for (uint32_t r = 0; r < n; r++) {
            dot[t][r] = counts_finish(sum[t][r]);
            if (is_biased)
                dot[t][r] = lanes_add_i(dot[t][r], lanes_set1_i(bias[r] >> 4));
        }
}
#endif

LANES_INLINE void dot_widened(const uint8_t *quants, struct x_rows x, uint32_t n, uint32_t tiles, struct form form, uint32_t first,
                              uint32_t last, const int32_t *bias, dot_block dot)
{
    static const int32_t none[GEMM_ROWS];
#if !GEMM_WIDE_BYTES
    if (pack_layout_is_u4(form.layout)) {
        dot_widened_u4(quants, sizeof(struct widened_group), x, n, tiles, first, last, is_biased(form), bias, dot);
        return;
    }
#endif
    dot_s8(quants, sizeof(struct widened_group), x, n, tiles, first, last, is_biased(form) ? bias : none, dot);
}

// Adds a chunk to the sums of a register block, whose x begins at `block`.
LANES_INLINE void add_widened(const widened_tiles *w, uint32_t count, const struct quant_block *block, uint32_t slot, uint32_t n,
                              uint32_t tiles, struct form form, sum_block sum)
{
    const uint32_t halves = pack_layout_has_halves(form.layout) ? 2 : 1, inputs = PACK_GROUP / halves;
    for (uint32_t g = 0; g < count; g++, block++, w++) {
        const struct x_rows x = {&block->q[slot], &block->part[slot]};
        UNROLL for (uint32_t h = 0; h < halves; h++) {
            lanes scale[GEMM_TILES], least[GEMM_TILES];
            int32_t bias[GEMM_ROWS];
            dot_block dot;
            UNROLL for (uint32_t r = 0; r < n; r++)
                bias[r] = halves == 1 ? x.part[r].bias : h == 0 ? x.part[r].bias_low : x.part[r].bias - x.part[r].bias_low;
            dot_widened((*w)[0].quants[0], x, n, tiles, form, h * inputs / 4, (h + 1) * inputs / 4, bias, dot);
            UNROLL for (uint32_t t = 0; t < tiles; t++) {
                scale[t] = lanes_load((*w)[t].scale[h]);
                if (form.minimum)
                    least[t] = lanes_load((*w)[t].least[h]);
            }
            accumulate((*w)[0].quants[0], sizeof(struct widened_group), x, n, tiles, form, h * inputs, (h + 1) * inputs, scale, dot,
                       sum);
            if (form.minimum && halves == 2)
                add_half_minimum(least, x, n, tiles, h, bias, sum);
            else if (form.minimum)
                add_minimum(least, x, n, tiles, sum);
        }
    }
}

// A register block's part of a chunk.
struct widened_block {
    const widened_tiles *w;
    const struct quant_block *x;
    float *sums; // [rows][tiles][16]
    uint32_t group_count, slot;
    enum pack_layout layout;
    bool minimum, is_first; // is_first: sums begin
};

LANES_INLINE void block_widened(const struct widened_block *b, uint32_t n, uint32_t tiles)
{
    sum_block sum;
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        UNROLL for (uint32_t r = 0; r < n; r++)
            sum[t][r] = b->is_first ? lanes_zero() : lanes_load(b->sums + (r * GEMM_TILES + t) * COLUMNS);
#define ADD(kind, has_minimum) \
    add_widened(b->w, b->group_count, b->x, b->slot, n, tiles, (struct form){.layout = kind, .minimum = has_minimum, .widened = true}, sum)
    switch (b->layout) {
    case PACK_U4:
        if (b->minimum)
            ADD(PACK_U4, true);
        else
            ADD(PACK_U4, false);
        break;
    case PACK_U4_HALVES:
        if (b->minimum)
            ADD(PACK_U4_HALVES, true);
        else
            ADD(PACK_U4_HALVES, false);
        break;
    case PACK_S8_HALVES: ADD(PACK_S8_HALVES, false); break;
    default: // the two with 8 bits
        if (b->minimum)
            ADD(PACK_S8, true);
        else
            ADD(PACK_S8, false);
    }
#undef ADD
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        UNROLL for (uint32_t r = 0; r < n; r++)
            lanes_store(b->sums + (r * GEMM_TILES + t) * COLUMNS, sum[t][r]);
}

static __attribute__((noinline)) void block_widened_one(const struct widened_block *b) { block_widened(b, WIDENED_BLOCK, 1); }
#if GEMM_TILES == 2
static __attribute__((noinline)) void block_widened_two(const struct widened_block *b) { block_widened(b, WIDENED_BLOCK, 2); }
#endif

// The cache lines of the tiles after these, or of `next`, which are prefetched little by little.
struct widened_ahead {
    const uint8_t *at, *next;
    uint32_t line_count, share; // lines left; a register block's
};

LANES_INLINE void prefetch_share(struct widened_ahead *ahead)
{
    uint32_t count = MIN(ahead->share, ahead->line_count);
    for (uint32_t i = 0; i < count; i++)
        lanes_prefetch(ahead->at + i * 64);
    ahead->at += (size_t)count * 64;
    ahead->line_count -= count;
}

// Computes rows row .. row_end - 1, a multiple of 4 from a multiple of 4 on and at most WIDENED_ROWS, of one tile or two.
static void tiles_widened(const struct packed_matrix *w, const struct quantized_rows *x, uint32_t tile_index, uint32_t tiles,
                          uint32_t tile_end, const void *next, uint32_t row, uint32_t row_end, float *y, size_t y_stride,
                          uint32_t columns, enum gemm_store store)
{
    _Alignas(64) widened_tiles buffer[WIDENED_GROUPS];
    _Alignas(64) float sums[WIDENED_ROWS][GEMM_TILES][COLUMNS];
    const uint8_t *tile = w->data + tile_index * w->tile_bytes;
    const uint32_t chunks = (w->group_count + WIDENED_GROUPS - 1) / WIDENED_GROUPS;
    struct widened_ahead ahead = {.at = tile_index + tiles < tile_end ? tile + tiles * w->tile_bytes : next};
    ahead.line_count = ahead.at ? (uint32_t)(tiles * w->tile_bytes / 64) : 0;
    ahead.share = (ahead.line_count + chunks * ((row_end - row) / WIDENED_BLOCK) - 1) / (chunks * ((row_end - row) / WIDENED_BLOCK));
    for (uint32_t g = 0; g < w->group_count; g += WIDENED_GROUPS) {
        struct widened_block b = {.w = buffer, .layout = w->layout, .minimum = w->minimum, .is_first = g == 0};
        b.group_count = MIN(WIDENED_GROUPS, w->group_count - g);
        widen(w, tile, tiles, g, b.group_count, buffer);
        for (uint32_t r = row; r < row_end; r += WIDENED_BLOCK) {
            b.x = x->blocks + (size_t)(r / QUANT_BLOCK_ROWS) * x->group_count + g;
            b.slot = r % QUANT_BLOCK_ROWS;
            b.sums = sums[r - row][0];
            prefetch_share(&ahead);
#if GEMM_TILES == 2
            if (tiles == 2) {
                block_widened_two(&b);
                continue;
            }
#endif
            block_widened_one(&b);
        }
    }
    for (uint32_t r = row; r < row_end; r++)
        UNROLL for (uint32_t t = 0; t < tiles; t++) {
            lanes sum = lanes_load(sums[r - row][t]);
            store_block(&sum, 1, y + r * y_stride + t * COLUMNS, y_stride, t + 1 < tiles ? COLUMNS : columns, store);
        }
}
