/* gemm_lanes.h: the GEMM over packed tiles, written once for AVX2, AVX-512 and VNNI.
 *
 * The including file gives, before it includes this one:
 *     GEMM_NAME        the entry's name
 *     GEMM_ROWS        rows of the largest register block: 4 or 8
 *     GEMM_TILES       tiles of the widest: 1, or 2 where registers hold four rows of two
 *     quad             64 unsigned bytes: four inputs of each of 16 outputs; quad_load, quad_and_0f, quad_shift_4
 *     counts           running integer dot products of 16 outputs
 *     counts_zero()         (not GEMM_WIDE_BYTES)
 *     counts_from(i)        (GEMM_WIDE_BYTES) every output starts at i
 *     quad_spread(x)        the four signed bytes at x for each of 16 outputs
 *     counts_add(a, w, x)   a += w (unsigned) * x (signed)
 *     counts_keep(a)        a in a register, before more is added
 *     counts_finish(a)      as lanes_i: sums of 16 outputs
 *     products, nibble_products(x, bias)   what each four bits, less 8 if bias, are times x
 *     pick_product(line, shift, products)  of 16 words of four bytes that of the four bits from *shift on
 *     pick_byte(line, shift)               the eight bits from *shift on, as f32
 *     bytes            64 weights of 8 bits: four inputs of each of 16 outputs; bytes_load reads them as value + 128
 *     bytes_start(bias)     a sum of their products, as lanes_i; bias: -128 * the sum of all x that will be added
 *     bytes_add(a, w, x)    a += w * x, exactly
 *     GEMM_WIDE_BYTES  1 where counts_add is exact for w up to 255 (vpdpbusd); 0 where only for w up to 15
 *                      over 32 inputs (vpmaddubsw saturates at 16 bits)
 *     GEMM_ONE_ROW     the entry that takes a call of one quantized row instead, if defined
 *
 * One block_quantized() is one register block: n rows (8, 4, 2 or 1) of one tile of 16 outputs, or 4 rows of two, all of k.
 * Per group of 32, row and tile that is 8 vpdpbusd, one conversion and two fused multiply-adds, one of which takes in the
 * outlier's product, looked up in a table that costs one multiplication for the tiles of a row; a minimum is one more. Unpacking
 * the weights is shared by the rows. So where the multipliers take both, the ceiling is 8 / 11.5 of the int8 peak with minima
 * and 8 / 10.5 without; a loop of its own over data in the first level reaches nine tenths of that (0.63), and 0.49 while
 * another machine uses the core's second thread. (Bytes: the outlier's product is a conversion, an and, and a multiply-add.) n is
 * a constant after inlining; what branches in the loop over groups is the asking for later lines alone.
 *
 * With one tile a block reads 13 operands from memory for those 11; a core that loads as many vectors a cycle as it multiplies
 * waits for them. Two tiles read activations once: 7. Measured at 128 rows with the loop before this one: 0.53 of the int8 peak for 0.45.
 *
 * Loop order: rows are cut into panels whose quantized form fits the L2 cache beside a tile; within a panel, tile by
 * tile, all register blocks of a tile while it is in L1.
 */
#include "common/base/checked.h"
#include "common/base/status.h"

#define PANEL_BYTES (256u * 1024)
/* How far ahead of a tile's first register block the weights are asked for: into the second level. The first has a buffer for each line
 * that it waits for, and they are few: measured on a core of AMD's fourth generation (Zen 4) as a share of read bandwidth, at one row
 * and at four, into the first 0.62 and 0.55, into the second 0.90 and 0.91; without asking 0.5 at one. From 6 to 24 KiB ahead are alike
 * there. (Cores of other makes have not been compared.) All lines of a group at once, before its arithmetic: spread between the dot
 * products they come to 0.6. */
#define PREFETCH_BYTES 12288u
/* From so many rows on two tiles at once. There arithmetic decides, the weights of the next two are asked for while these are
 * used over and over. (Measured at 8 rows, where they are used
 * twice: up to a third slower than one tile.) */
#define TWO_TILE_ROWS 16u
#define COLUMNS PACK_TILE_OUTPUTS
#define UNROLL _Pragma("GCC unroll 8")

_Static_assert(PACK_TILE_OUTPUTS == LANES, "a tile's outputs are the lanes");

/* A register block: rows slot .. slot + n - 1 of one row block, the tile and, in wide ones, the next. */
struct block {
    const struct packed_matrix *w;
    const uint8_t *tile;
    const struct quant_block *x; /* [groups] */
    uint32_t slot;
    /* What to bring into the cache meanwhile, group by group: what lies from `ahead` on, and from `ahead_end` on what lies at
     * `next`: `ahead_lines` of 64 bytes a group, 0 for nothing. The first block of one tile takes as much as its tile; blocks of two share
     * what the next two have. */
    const uint8_t *ahead, *ahead_end, *next;
    uint32_t ahead_lines;
};

/* count lines from distance `line` on. */
LANES_INLINE void prefetch_lines(const struct block *b, size_t line, uint32_t count)
{
    const uint8_t *at = b->ahead + line * 64;
    at = at < b->ahead_end ? at : b->next + (at - b->ahead_end);
    UNROLL for (uint32_t i = 0; i < count; i++)
        lanes_prefetch(at + i * 64);
}

/* A group of a register block's rows: views of a quant_block from the block's first row on, so that all lies at constant
 * distances from two pointers. */
struct x_rows {
    const int8_t (*q)[PACK_GROUP];
    const struct quant_part *part;
};

/* Of which form the weights are: a constant after inlining. */
struct form {
    enum pack_layout layout;
    bool minimum, super;
};

LANES_INLINE bool is_biased(struct form form) { return form.layout != PACK_U4 || !form.minimum; }

/* Scales of 16 outputs: entry `index` of the scale section, in group g. */
LANES_INLINE lanes load_scale(const struct packed_matrix *w, struct form form, const uint8_t *tile, uint32_t g, size_t index)
{
    if (!form.super)
        return lanes_load_f16((const uint16_t *)(tile + w->scale_offset) + index * COLUMNS);
    lanes super = lanes_load_f16((const uint16_t *)(tile + w->super_offset) + g / (PACK_SUPER / PACK_GROUP) * COLUMNS);
    return lanes_mul(super, lanes_load_s8((const int8_t *)(tile + w->scale_offset) + index * COLUMNS));
}

LANES_INLINE lanes load_minimum(const struct packed_matrix *w, struct form form, const uint8_t *tile, uint32_t g)
{
    if (!form.super)
        return lanes_load_f16((const uint16_t *)(tile + w->min_offset) + (size_t)g * COLUMNS);
    lanes super = lanes_load_f16((const uint16_t *)(tile + w->super_min_offset) + g / (PACK_SUPER / PACK_GROUP) * COLUMNS);
    lanes small = lanes_load_u8(tile + w->min_offset + (size_t)g * COLUMNS);
    return lanes_sub(lanes_zero(), lanes_mul(super, small));
}

/* What a sum begins with: the offset where it has room for it, and else it is added at the end. */
LANES_INLINE counts counts_start(int32_t offset)
{
#if GEMM_WIDE_BYTES
    return counts_from(offset);
#else
    (void)offset;
    return counts_zero();
#endif
}

/* sum[t][r] of every tile += w[t] * the four bytes at x, which are read once. With several rows gcc would add products to each
 * other first, and so run out of registers. One row has enough of them, and then memory decides, which is read faster without
 * the order that counts_keep imposes: 5 % on Zen 4. */
LANES_INLINE void counts_add_tiles(counts sum[GEMM_TILES][GEMM_ROWS], uint32_t r, uint32_t n, uint32_t tiles, const quad *w,
                                   const int8_t *x)
{
    quad spread = quad_spread(x);
    UNROLL for (uint32_t t = 0; t < tiles; t++) {
        counts added = counts_add(sum[t][r], w[t], spread);
        sum[t][r] = n == 1 ? added : counts_keep(added);
    }
}

/* The loops below run over a register block: rows 0 .. n - 1 and tiles 0 .. tiles - 1, which are `stride` bytes apart. */
typedef lanes_i dot_block[GEMM_TILES][GEMM_ROWS];

/* dot[t][r] of 32 inputs with nibbles. bias: take 8 off each weight. */
LANES_INLINE void dot_u4(const uint8_t *quants, size_t stride, struct x_rows x, uint32_t n,
                         uint32_t tiles, bool bias, dot_block dot)
{
    counts sum[GEMM_TILES][GEMM_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        counts start = counts_start(bias ? x.part[r].bias >> 4 : 0);
        UNROLL for (uint32_t t = 0; t < tiles; t++)
            sum[t][r] = start;
    }
    UNROLL for (uint32_t j = 0; j < 4; j++) {
        quad low[GEMM_TILES], high[GEMM_TILES];
        UNROLL for (uint32_t t = 0; t < tiles; t++) {
            quad both = quad_load(quants + t * stride + j * 64);
            low[t] = quad_and_0f(both), high[t] = quad_and_0f(quad_shift_4(both));
        }
        UNROLL for (uint32_t r = 0; r < n; r++)
            counts_add_tiles(sum, r, n, tiles, low, &x.q[r][8 * j]);
        UNROLL for (uint32_t r = 0; r < n; r++)
            counts_add_tiles(sum, r, n, tiles, high, &x.q[r][8 * j + 4]);
    }
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        UNROLL for (uint32_t r = 0; r < n; r++) {
            dot[t][r] = counts_finish(sum[t][r]);
            if (bias && !GEMM_WIDE_BYTES)
                dot[t][r] = lanes_add_i(dot[t][r], lanes_set1_i(x.part[r].bias >> 4));
        }
}

#if !GEMM_WIDE_BYTES
/* dot_s8 of one row of one tile, by nibbles. More arithmetic than bytes_add, but from memory 1.2 times as fast on Zen 4. */
LANES_INLINE lanes_i dot_s8_of_one(const uint8_t *quants, const int8_t *x, uint32_t first, uint32_t last, int32_t bias)
{
    counts low = counts_zero(), high = counts_zero();
    UNROLL for (uint32_t j = first; j < last; j++) {
        quad both = quad_load(quants + j * 64), spread = quad_spread(x + 4 * j);
        low = counts_add(low, quad_and_0f(both), spread);
        high = counts_add(high, quad_and_0f(quad_shift_4(both)), spread);
    }
    return lanes_add_i(lanes_add_i(lanes_sll_i(counts_finish(high), 4), lanes_set1_i(bias)), counts_finish(low));
}
#endif

/* dot[t][r] of the inputs of quads first .. last - 1 with bytes that are value + 128; bias[r] takes the 128 off. */
LANES_INLINE void dot_s8(const uint8_t *quants, size_t stride, struct x_rows x, uint32_t n,
                         uint32_t tiles, uint32_t first, uint32_t last, const int32_t *bias, dot_block dot)
{
#if !GEMM_WIDE_BYTES
    if (n == 1 && tiles == 1) {
        dot[0][0] = dot_s8_of_one(quants, x.q[0], first, last, bias[0]);
        return;
    }
#endif
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        UNROLL for (uint32_t r = 0; r < n; r++)
            dot[t][r] = bytes_start(bias[r]);
    UNROLL for (uint32_t j = first; j < last; j++) {
        bytes w[GEMM_TILES];
        UNROLL for (uint32_t t = 0; t < tiles; t++)
            w[t] = bytes_load(quants + t * stride + j * 64);
        UNROLL for (uint32_t r = 0; r < n; r++) {
            quad spread = quad_spread(&x.q[r][4 * j]); /* once for all tiles */
            UNROLL for (uint32_t t = 0; t < tiles; t++)
                dot[t][r] = bytes_add(dot[t][r], w[t], spread);
        }
    }
}

/* Where a word of a line has input i of a group. */
#define OF_BYTES(a, b, c, d) a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d
#define OF_NIBBLES(a) a, a + 8, a + 16, a + 24, a + 4, a + 12, a + 20, a + 28
static const uint32_t byte_shift[PACK_GROUP] = {OF_BYTES(0, 8, 16, 24)};
static const uint32_t nibble_shift[PACK_GROUP] = {OF_NIBBLES(0), OF_NIBBLES(0), OF_NIBBLES(0), OF_NIBBLES(0)};
#undef OF_BYTES
#undef OF_NIBBLES

typedef lanes sum_block[GEMM_TILES][GEMM_ROWS];

/* sum += scale * (dot * scale of x + weight * outlier). first, last: of the inputs that dot and scale are of; an outlier
 * elsewhere is left out. */
LANES_INLINE void accumulate(const uint8_t *quants, size_t stride, struct x_rows x, uint32_t n, uint32_t tiles, struct form form,
                             uint32_t first, uint32_t last, const lanes *scale, dot_block dot, sum_block sum)
{
    UNROLL for (uint32_t r = 0; r < n; r++) {
        const struct quant_part *p = &x.part[r];
        const uint32_t index = p->index;
        const bool whole = first == 0 && last == PACK_GROUP; /* the outlier is of these inputs, without a branch */
        const float outlier = whole || (first <= index && index < last) ? p->outlier : 0.0f;
        lanes x_scale = lanes_set1(p->scale);
        products nibble = form.layout == PACK_U4 ? nibble_products(outlier, is_biased(form)) : nibble_products(0, false);
        UNROLL for (uint32_t t = 0; t < tiles; t++) {
            const uint8_t *group = quants + t * stride;
            lanes apart = form.layout == PACK_U4 ? pick_product(group + index / 8 * 64, &nibble_shift[index], nibble)
                                                 : lanes_fma(pick_byte(group + index / 4 * 64, &byte_shift[index]),
                                                             lanes_set1(outlier), lanes_set1(-128.0f * outlier));
            sum[t][r] = lanes_fma(scale[t], lanes_fma(lanes_from_i(dot[t][r]), x_scale, apart), sum[t][r]);
        }
    }
}

LANES_INLINE void block_groups(const struct block *b, uint32_t n, uint32_t tiles, struct form form, sum_block sum)
{
    const struct packed_matrix *w = b->w;
    const uint8_t *line = b->tile + w->quant_offset;
    const size_t stride = w->tile_bytes;
    const uint32_t group_count = w->group_count, half = PACK_GROUP / 2;
    const struct quant_block *block = b->x;
    for (uint32_t g = 0; g < group_count; g++, block++, line += form.layout == PACK_U4 ? 256 : 512) {
        const struct x_rows x = {&block->q[b->slot], &block->part[b->slot]};
        const uint32_t tile_lines = form.layout == PACK_U4 ? 5 : 9; /* of a group, rounded up */
        if (tiles == 1 && b->ahead_lines)
            prefetch_lines(b, (size_t)g * tile_lines, tile_lines);
        else if (tiles == 2)
            prefetch_lines(b, (size_t)g * b->ahead_lines, b->ahead_lines);
        dot_block dot;
        int32_t low[GEMM_ROWS], rest[GEMM_ROWS];
        UNROLL for (uint32_t r = 0; r < n; r++) {
            low[r] = x.part[r].bias_low;
            rest[r] = form.layout == PACK_S8_HALVES ? x.part[r].bias - low[r] : x.part[r].bias;
        }
        lanes scale[2][GEMM_TILES];
        UNROLL for (uint32_t t = 0; t < tiles; t++) {
            const uint8_t *tile = b->tile + t * stride;
            scale[0][t] = load_scale(w, form, tile, g, form.layout == PACK_S8_HALVES ? (size_t)g * 2 : g);
            if (form.layout == PACK_S8_HALVES)
                scale[1][t] = load_scale(w, form, tile, g, (size_t)g * 2 + 1);
        }
        if (form.layout == PACK_U4) {
            dot_u4(line, stride, x, n, tiles, is_biased(form), dot);
            accumulate(line, stride, x, n, tiles, form, 0, PACK_GROUP, scale[0], dot, sum);
        } else if (form.layout == PACK_S8) {
            dot_s8(line, stride, x, n, tiles, 0, 8, rest, dot);
            accumulate(line, stride, x, n, tiles, form, 0, PACK_GROUP, scale[0], dot, sum);
        } else {
            dot_s8(line, stride, x, n, tiles, 0, 4, low, dot);
            accumulate(line, stride, x, n, tiles, form, 0, half, scale[0], dot, sum);
            dot_s8(line, stride, x, n, tiles, 4, 8, rest, dot);
            accumulate(line, stride, x, n, tiles, form, half, PACK_GROUP, scale[1], dot, sum);
        }
        UNROLL for (uint32_t t = 0; t < tiles; t++) {
            if (!form.minimum)
                break;
            lanes least = load_minimum(w, form, b->tile + t * stride, g);
            UNROLL for (uint32_t r = 0; r < n; r++)
                sum[t][r] = lanes_fma(least, lanes_set1(x.part[r].sum), sum[t][r]);
        }
    }
}

LANES_INLINE void store_block(const lanes *sum, uint32_t n, float *y, size_t y_stride, uint32_t columns, enum gemm_store store)
{
    UNROLL for (uint32_t r = 0; r < n; r++) {
        float *out = y + r * y_stride;
        if (columns == COLUMNS) {
            lanes_store(out, store == GEMM_ADD ? lanes_add(lanes_load(out), sum[r]) : sum[r]);
        } else {
            lanes old = store == GEMM_ADD ? lanes_load_tail(out, columns) : lanes_zero();
            lanes_store_tail(out, store == GEMM_ADD ? lanes_add(old, sum[r]) : sum[r], columns);
        }
    }
}

/* columns: of the last tile. */
LANES_INLINE void block_quantized(const struct block *b, uint32_t n, uint32_t tiles, float *y, size_t y_stride, uint32_t columns,
                                  enum gemm_store store)
{
    sum_block sum;
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        UNROLL for (uint32_t r = 0; r < n; r++)
            sum[t][r] = lanes_zero();
    switch (b->w->layout) {
    case PACK_U4:
        if (!b->w->minimum)
            block_groups(b, n, tiles, (struct form){PACK_U4, false, false}, sum); /* Q4_0 */
        else if (b->w->super)
            block_groups(b, n, tiles, (struct form){PACK_U4, true, true}, sum); /* Q4_K */
        else
            block_groups(b, n, tiles, (struct form){PACK_U4, true, false}, sum); /* Q4_1 */
        break;
    case PACK_S8:
        if (!b->w->minimum)
            block_groups(b, n, tiles, (struct form){PACK_S8, false, false}, sum); /* Q8_0, Q5_0 */
        else if (b->w->super)
            block_groups(b, n, tiles, (struct form){PACK_S8, true, true}, sum); /* Q5_K */
        else
            block_groups(b, n, tiles, (struct form){PACK_S8, true, false}, sum); /* Q5_1 */
        break;
    default: block_groups(b, n, tiles, (struct form){PACK_S8_HALVES, false, true}, sum); break; /* Q6_K */
    }
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        store_block(sum[t], n, y + t * COLUMNS, y_stride, t + 1 < tiles ? COLUMNS : columns, store);
}

LANES_INLINE void block_float(const struct packed_matrix *w, const uint8_t *tile, const float *x, size_t x_stride, uint32_t n,
                              float *y, size_t y_stride, uint32_t columns, enum gemm_store store)
{
    lanes sum[GEMM_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++)
        sum[r] = lanes_zero();
    for (uint32_t i = 0; i < w->k; i++) {
        size_t at = (size_t)i * COLUMNS;
        lanes weight = w->layout == PACK_F32   ? lanes_load((const float *)tile + at)
                       : w->layout == PACK_F16 ? lanes_load_f16((const uint16_t *)tile + at)
                                               : lanes_load_bf16((const uint16_t *)tile + at);
        UNROLL for (uint32_t r = 0; r < n; r++)
            sum[r] = lanes_fma(weight, lanes_set1(x[r * x_stride + i]), sum[r]);
    }
    store_block(sum, n, y, y_stride, columns, store);
}

/* The register block for a constant n, each a function of its own so that none holds the others' registers. */
#define DEFINE_BLOCK(n, tiles)                                                                                           \
    static __attribute__((noinline)) void block_quantized_##n##x##tiles(const struct block *b, float *y, size_t y_stride, \
                                                                        uint32_t columns, enum gemm_store store)         \
    {                                                                                                                    \
        block_quantized(b, n, tiles, y, y_stride, columns, store);                                                       \
    }
#define DEFINE_BLOCK_FLOAT(n)                                                                                            \
    static __attribute__((noinline)) void block_float_##n(const struct packed_matrix *w, const uint8_t *tile,           \
                                                          const float *x, size_t x_stride, float *y, size_t y_stride,    \
                                                          uint32_t columns, enum gemm_store store)                       \
    {                                                                                                                    \
        block_float(w, tile, x, x_stride, n, y, y_stride, columns, store);                                               \
    }
DEFINE_BLOCK(1, 1)
DEFINE_BLOCK(2, 1)
DEFINE_BLOCK(4, 1)
DEFINE_BLOCK_FLOAT(1)
DEFINE_BLOCK_FLOAT(2)
DEFINE_BLOCK_FLOAT(4)
#if GEMM_ROWS == 8
DEFINE_BLOCK(8, 1)
DEFINE_BLOCK_FLOAT(8)
#endif
#if GEMM_TILES == 2
DEFINE_BLOCK(4, 2)
#endif

/* The largest register block that fits into what is left. */
static uint32_t block_rows(uint32_t left)
{
    if (GEMM_ROWS == 8 && left >= 8)
        return 8;
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* n rows of one tile. */
static void block_of_one_tile(const struct block *b, uint32_t n, float *y, size_t y_stride, uint32_t columns, enum gemm_store store)
{
    switch (n) {
#if GEMM_ROWS == 8
    case 8: block_quantized_8x1(b, y, y_stride, columns, store); break;
#endif
    case 4: block_quantized_4x1(b, y, y_stride, columns, store); break;
    case 2: block_quantized_2x1(b, y, y_stride, columns, store); break;
    default: block_quantized_1x1(b, y, y_stride, columns, store); break;
    }
}

/* One tile or two. tile_end: the first that the call leaves out; columns: of the last tile. */
static void tiles_quantized(const struct packed_matrix *w, const struct quantized_rows *x, uint32_t tile_index, uint32_t tiles,
                            uint32_t tile_end, const void *next, uint32_t row, uint32_t row_end, float *y, size_t y_stride,
                            uint32_t columns, enum gemm_store store)
{
    struct block b = {.w = w, .tile = w->data + tile_index * w->tile_bytes};
    b.ahead = b.tile + (tiles == 2 ? 2 * w->tile_bytes : PREFETCH_BYTES);
    b.ahead_end = w->data + tile_end * w->tile_bytes;
    b.next = next ? next : b.tile;
    uint32_t block = tiles == 2 ? 4 : QUANT_BLOCK_ROWS, block_count = (row_end - row + block - 1) / block;
    uint32_t left = tiles * (w->layout == PACK_U4 ? 5 : 9), share = tiles == 2 ? (left + block_count - 1) / block_count : left;
    for (uint32_t n; row < row_end; row += n, left -= b.ahead_lines) {
        b.ahead_lines = MIN(share, left);
        float *out = y + row * y_stride;
        b.slot = row % QUANT_BLOCK_ROWS;
        b.x = x->blocks + (size_t)(row / QUANT_BLOCK_ROWS) * x->group_count;
        n = block_rows(MIN(row_end - row, MIN(block, QUANT_BLOCK_ROWS - b.slot)));
#if GEMM_TILES == 2
        if (tiles == 2 && n == 4) {
            block_quantized_4x2(&b, out, y_stride, columns, store);
            b.ahead += (size_t)b.ahead_lines * w->group_count * 64;
            continue;
        }
        if (tiles == 2) {
            b.ahead_lines = 0; /* a few rows behind the full blocks */
            struct block second = b;
            second.tile += w->tile_bytes;
            block_of_one_tile(&second, n, out + COLUMNS, y_stride, columns, store);
        }
#endif
        block_of_one_tile(&b, n, out, y_stride, tiles == 2 ? COLUMNS : columns, store);
    }
}

static void tile_float(const struct packed_matrix *w, const struct quantized_rows *x, uint32_t tile_index, uint32_t row,
                       uint32_t row_end, float *y, size_t y_stride, uint32_t columns, enum gemm_store store)
{
    const uint8_t *tile = w->data + tile_index * w->tile_bytes;
    size_t x_stride = x->value_stride;
    while (row < row_end) {
        uint32_t n = block_rows(row_end - row);
        const float *values = x->values + row * x_stride;
        float *out = y + row * y_stride;
        switch (n) {
#if GEMM_ROWS == 8
        case 8: block_float_8(w, tile, values, x_stride, out, y_stride, columns, store); break;
#endif
        case 4: block_float_4(w, tile, values, x_stride, out, y_stride, columns, store); break;
        case 2: block_float_2(w, tile, values, x_stride, out, y_stride, columns, store); break;
        default: block_float_1(w, tile, values, x_stride, out, y_stride, columns, store); break;
        }
        row += n;
    }
}

/* Rows of a panel: a multiple of 8. */
static uint32_t panel_rows(uint32_t k)
{
    uint32_t row_bytes = k + k / 4 * 3; /* 448 bytes for 8 rows of 32; about right for f32 rows too */
    return MAX(PANEL_BYTES / (row_bytes + 1) / QUANT_BLOCK_ROWS * QUANT_BLOCK_ROWS, QUANT_BLOCK_ROWS);
}

void GEMM_NAME(const struct packed_matrix *w, const struct quantized_rows *x, uint32_t row_begin, uint32_t row_count,
               uint32_t tile_begin, uint32_t tile_count, const void *next, float *y, size_t y_stride, enum gemm_store store)
{
    assert_always(w->k == x->k && (uint64_t)tile_begin + tile_count <= w->tile_count);
    assert_always((uint64_t)row_begin + row_count <= x->row_capacity);
#ifdef GEMM_ONE_ROW
    if (row_count == 1 && w->group_count && !(w->layout == PACK_U4 && w->super)) { /* Q4_K has most arithmetic a byte */
        GEMM_ONE_ROW(w, x, row_begin, row_count, tile_begin, tile_count, next, y, y_stride, store);
        return;
    }
#endif
    uint32_t panel = panel_rows(w->k), row_end = row_begin + row_count, tile_end = tile_begin + tile_count;
    for (uint32_t row = row_begin; row < row_end;) {
        uint32_t last = MIN(row_end, (row / panel + 1) * panel);
        for (uint32_t t = tile_begin, tiles; t < tile_end; t += tiles) {
            tiles = GEMM_TILES == 2 && w->group_count && t + 1 < tile_end && last - row >= TWO_TILE_ROWS ? 2 : 1;
            uint32_t first = t * COLUMNS, columns = MIN(COLUMNS, w->output_count - (first + (tiles - 1) * COLUMNS));
            if (w->group_count)
                tiles_quantized(w, x, t, tiles, tile_end, next, row, last, y + first, y_stride, columns, store);
            else
                tile_float(w, x, t, row, last, y + first, y_stride, columns, store);
        }
        row = last;
    }
}
