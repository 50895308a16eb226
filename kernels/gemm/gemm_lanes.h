// gemm_lanes.h: the GEMM over packed tiles, written once for all levels of lanes.h.
//
// The including file gives, before it includes this one:
//     GEMM_NAME        the entry's name
//     GEMM_ROWS        rows of the largest register block: 2, 4 or 8
//     GEMM_FLOAT_ROWS  rows of the largest register block of float layouts: 6 or 12
//     GEMM_TILES       tiles of a register block of widened weights: 1, or 2 of twice the rows where there are 32 registers
//     quad             64 unsigned bytes: four inputs of each of 16 outputs; quad_load, quad_and_0f, quad_shift_4
//     counts           running integer dot products of 16 outputs
//     counts_zero()         (not GEMM_WIDE_BYTES)
//     counts_from(i)        (GEMM_WIDE_BYTES) every output starts at i
//     quad_spread(x)        the four signed bytes at x for each of 16 outputs
//     counts_add(a, w, x)   a += w (unsigned) * x (signed)
//     counts_keep(a)        (not GEMM_WIDE_BYTES) a in a register, before more is added
//     counts_finish(a)      (not GEMM_WIDE_BYTES) as lanes_i: sums of 16 outputs
//     products, nibble_products(x, bias)   x times each value that four bits can have; bias: times that value - 8
//     pick_product(line, shift, products)  for each of 16 words, the product of its four bits from *shift on
//     pick_byte(line, shift)               for each of 16 words, its eight bits from *shift on, as f32
//     bytes            (this and its functions not with GEMM_WIDE_BYTES) 64 weights of 8 bits: four inputs of each of 16 outputs; bytes_load reads them as value + 128
//     bytes_start(bias)     a sum of their products, as lanes_i; bias: -128 * the sum of all x that will be added
//     bytes_add(a, w, x)    a += w * x, exactly
//     GEMM_WIDE_BYTES  1 where counts_add is exact for w up to 255 (vpdpbusd); 0 where only for w up to 15
//                      over 32 inputs (vpmaddubsw saturates at 16 bits)
//     quad_store, quad_add_120    of all 64 bytes
//     widened_products(x, bias), pick_widened_product(at, products)   like the two above, from bytes as gemm_widened_lanes.h has them
//     pick_widened_byte(at)  for each of 16 words at `at`, its low eight bits, as f32
//     WIDENED_LEAST    rows from which it pays to widen weights; not defined: it never does
//     GEMM_OWN_DOTS    if defined, the file has whole dot products instead of counts and bytes, and weights are not widened; n is a
//                      constant, 1 to GEMM_ROWS:
//                      own_dot_u4(quants, q, n, first, last, start, dot)   dot[r] = start[r] + the products of lines first .. last - 1
//                      own_dot_s8(quants, q, n, first, last, bias, dot)    dot[r] as dot_s8 computes it
//     GEMM_ONE_ROW     the entry that takes a call of one quantized row instead, if defined
//
// block_quantized() computes one register block: n rows (8, 4, 2 or 1) of one tile of 16 outputs over all of k. n is a constant after
// inlining, and the only branch in the loop over groups is that of the prefetch. From WIDENED_LEAST rows on weights are widened first:
// gemm_widened_lanes.h, which counts the operations.
//
// Loop order: rows are cut into panels whose quantized form fits the L2 cache beside a tile. Within a panel the loop takes tile
// by tile, and all register blocks of a tile while it is in L1.
#include "common/base/checked.h"
#include "common/base/status.h"

#if GEMM_WIDE_BYTES && !defined(GEMM_OWN_DOTS) // products are exact at once
LANES_INLINE counts counts_keep(counts a) { return a; } // gcc leaves the order of vpdpbusd as it is
LANES_INLINE lanes_i counts_finish(counts a) { return a; }
typedef quad bytes;
LANES_INLINE bytes bytes_load(const uint8_t *p) { return quad_load(p); }
LANES_INLINE lanes_i bytes_start(int32_t bias) { return counts_from(bias); }
LANES_INLINE lanes_i bytes_add(lanes_i a, bytes w, quad x) { return counts_add(a, w, x); }
#endif

#define PANEL_BYTES (256u * 1024)
// How far ahead of a tile's first register block its weights are prefetched, into L2: L1 can have only a few lines outstanding. Share of
// read bandwidth on Zen 4, at one row and at four: 0.90 and 0.91 into L2, 0.62 and 0.55 into L1; without prefetch 0.5 at one row. 6 to
// 24 KiB ahead make no difference there. All lines of a group are prefetched together, before its arithmetic: spread between the dot
// products they reach 0.6. Other makes of processor have not been measured.
#define PREFETCH_BYTES 12288u
#define COLUMNS PACK_TILE_OUTPUTS
#define UNROLL _Pragma("GCC unroll 8")

_Static_assert(PACK_TILE_OUTPUTS == LANES, "a tile's outputs are the lanes");

// A register block: rows slot .. slot + n - 1 of one row block and a tile.
struct block {
    const struct packed_matrix *w;
    const uint8_t *tile;
    const struct quant_block *x; // [groups]
    uint32_t slot;
    // The bytes to prefetch, if any: as much as a tile has, from `ahead` up to `ahead_end`, then from `next`.
    const uint8_t *ahead, *ahead_end, *next;
    bool has_ahead;
};

// Prefetches `count` lines, from the one with number `line` on.
LANES_INLINE void prefetch_lines(const struct block *b, size_t line, uint32_t count)
{
    const uint8_t *at = b->ahead + line * 64;
    at = at < b->ahead_end ? at : b->next + (at - b->ahead_end);
    UNROLL for (uint32_t i = 0; i < count; i++)
        lanes_prefetch(at + i * 64);
}

// One group of a register block's rows: a view of a quant_block that begins at the block's first row, so that everything is at a
// constant distance from two pointers.
struct x_rows {
    const int8_t (*q)[PACK_GROUP];
    const struct quant_part *part;
};

// The form of the weights: a constant after inlining.
struct form {
    enum pack_layout layout;
    bool minimum, super;
    bool widened; // quants lie as gemm_widened_lanes.h puts them
};

LANES_INLINE bool is_biased(struct form form) { return !pack_layout_is_u4(form.layout) || !form.minimum; }

// Returns the lines of a group, rounded up, to prefetch: quants, and scales with super-scales.
LANES_INLINE uint32_t group_lines(enum pack_layout layout, bool minimum)
{
    if (pack_layout_is_u4(layout))
        return pack_layout_has_halves(layout) && minimum ? 6 : 5;
    return 9;
}

// Returns the scales of 16 outputs in group g: entry `index` of the scale section, which has one a group, or two.
LANES_INLINE lanes load_scale(const struct packed_matrix *w, struct form form, const uint8_t *tile, uint32_t g, size_t index)
{
    if (form.layout == PACK_S8_F32)
        return lanes_load((const float *)(tile + w->scale_offset) + index * COLUMNS);
    if (!form.super)
        return lanes_load_f16((const uint16_t *)(tile + w->scale_offset) + index * COLUMNS);
    lanes super = lanes_load_f16((const uint16_t *)(tile + w->super_offset) + g / (PACK_SUPER / PACK_GROUP) * COLUMNS);
    return lanes_mul(super, lanes_load_s8((const int8_t *)(tile + w->scale_offset) + index * COLUMNS));
}

LANES_INLINE lanes load_minimum(const struct packed_matrix *w, struct form form, const uint8_t *tile, uint32_t g, size_t index)
{
    if (!form.super)
        return lanes_load_f16((const uint16_t *)(tile + w->min_offset) + index * COLUMNS);
    lanes super = lanes_load_f16((const uint16_t *)(tile + w->super_min_offset) + g / (PACK_SUPER / PACK_GROUP) * COLUMNS);
    lanes small = lanes_load_u8(tile + w->min_offset + index * COLUMNS);
    return lanes_sub(lanes_zero(), lanes_mul(super, small));
}

#ifndef GEMM_OWN_DOTS
// Returns the start of a sum: the offset if counts have room for it. Otherwise the caller adds it at the end.
LANES_INLINE counts counts_start(int32_t offset)
{
#if GEMM_WIDE_BYTES
    return counts_from(offset);
#else
    (void)offset;
    return counts_zero();
#endif
}

// Adds w[t] * the four bytes at x to sum[t][r] of every tile. With several rows gcc would add products to each other first and run
// out of registers; counts_keep prevents that. One row has registers enough, and without counts_keep it reads memory 5 % faster on
// Zen 4.
LANES_INLINE void counts_add_tiles(counts sum[GEMM_TILES][GEMM_ROWS], uint32_t r, uint32_t n, uint32_t tiles, const quad *w,
                                   const int8_t *x)
{
    quad spread = quad_spread(x);
    UNROLL for (uint32_t t = 0; t < tiles; t++) {
        counts added = counts_add(sum[t][r], w[t], spread);
        sum[t][r] = n == 1 ? added : counts_keep(added);
    }
}
#endif

// Below, n and tiles are the size of the register block, and `stride` is the distance of two tiles in bytes.
typedef lanes_i dot_block[GEMM_TILES][GEMM_ROWS];

// Computes dot[0][r] over the inputs of lines first .. last - 1, eight each, from weights of 4 bits. is_biased: each weight is its four
// bits - 8; bias[r] is then -128 * the sum of those inputs.
LANES_INLINE void dot_u4(const uint8_t *quants, struct x_rows x, uint32_t n, uint32_t first, uint32_t last, bool is_biased,
                         const int32_t *bias, dot_block dot)
{
#ifdef GEMM_OWN_DOTS
    int32_t start[GEMM_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++)
        start[r] = is_biased ? bias[r] >> 4 : 0;
    own_dot_u4(quants, x.q, n, first, last, start, dot[0]);
#else
    counts sum[GEMM_TILES][GEMM_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++)
        sum[0][r] = counts_start(is_biased ? bias[r] >> 4 : 0);
    UNROLL for (uint32_t j = first; j < last; j++) {
        quad both = quad_load(quants + j * 64), low = quad_and_0f(both), high = quad_and_0f(quad_shift_4(both));
        UNROLL for (uint32_t r = 0; r < n; r++)
            counts_add_tiles(sum, r, n, 1, &low, &x.q[r][8 * j]);
        UNROLL for (uint32_t r = 0; r < n; r++)
            counts_add_tiles(sum, r, n, 1, &high, &x.q[r][8 * j + 4]);
    }
    UNROLL for (uint32_t r = 0; r < n; r++) {
        dot[0][r] = counts_finish(sum[0][r]);
        if (is_biased && !GEMM_WIDE_BYTES)
            dot[0][r] = lanes_add_i(dot[0][r], lanes_set1_i(bias[r] >> 4));
    }
#endif
}

#if !defined(GEMM_OWN_DOTS) && !GEMM_WIDE_BYTES
// Returns what dot_s8 computes, for one row of one tile, by nibbles: more arithmetic than bytes_add, but 1.2 times as fast on Zen 4
// where weights come from memory.
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

// Computes dot[t][r] over the inputs of quads first .. last - 1 from weights of 8 bits, stored as value + 128; bias[r] is -128 * the
// sum of those inputs.
LANES_INLINE void dot_s8(const uint8_t *quants, size_t stride, struct x_rows x, uint32_t n,
                         uint32_t tiles, uint32_t first, uint32_t last, const int32_t *bias, dot_block dot)
{
#ifdef GEMM_OWN_DOTS
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        own_dot_s8(quants + t * stride, x.q, n, first, last, bias, dot[t]);
#else
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
            quad spread = quad_spread(&x.q[r][4 * j]); // once for all tiles
            UNROLL for (uint32_t t = 0; t < tiles; t++)
                dot[t][r] = bytes_add(dot[t][r], w[t], spread);
        }
    }
#endif
}

// How far to shift a word of a line right for input i of a group.
#define OF_BYTES(a, b, c, d) a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d
#define OF_NIBBLES(a) a, a + 8, a + 16, a + 24, a + 4, a + 12, a + 20, a + 28
static const uint32_t byte_shift[PACK_GROUP] = {OF_BYTES(0, 8, 16, 24)};
static const uint32_t nibble_shift[PACK_GROUP] = {OF_NIBBLES(0), OF_NIBBLES(0), OF_NIBBLES(0), OF_NIBBLES(0)};
#undef OF_BYTES
#undef OF_NIBBLES

// The place of input i of a widened group: a table, because the ports that add also multiply.
#define OF_FOUR(a) a * 64, a * 64 + 1, a * 64 + 2, a * 64 + 3
static const uint16_t widened_at[PACK_GROUP] = {OF_FOUR(0), OF_FOUR(1), OF_FOUR(2), OF_FOUR(3),
                                                OF_FOUR(4), OF_FOUR(5), OF_FOUR(6), OF_FOUR(7)};
#undef OF_FOUR

typedef lanes sum_block[GEMM_TILES][GEMM_ROWS];

// Returns the outlier if it is one of the inputs first .. last - 1; else 0.
LANES_INLINE float outlier_within(const struct quant_part *p, uint32_t first, uint32_t last)
{
    const bool whole = first == 0 && last == PACK_GROUP; // holds every outlier: no branch
    return whole || (first <= p->index && p->index < last) ? p->outlier : 0.0f;
}

// Adds scale * (dot * scale of x + weight * outlier) to sum. dot and scale cover the inputs first .. last - 1; an outlier outside of
// them is left out.
LANES_INLINE void accumulate(const uint8_t *quants, size_t stride, struct x_rows x, uint32_t n, uint32_t tiles, struct form form,
                             uint32_t first, uint32_t last, const lanes *scale, dot_block dot, sum_block sum)
{
    UNROLL for (uint32_t r = 0; r < n; r++) {
        const struct quant_part *p = &x.part[r];
        const uint32_t index = p->index;
        const bool all = first == 0 && last == PACK_GROUP; // holds every outlier: no branch
        const float outlier = all || (first <= index && index < last) ? p->outlier : 0.0f;
        const bool is_u4 = pack_layout_is_u4(form.layout);
        lanes x_scale = lanes_set1(p->scale);
        products nibble = form.widened ? widened_products(is_u4 ? outlier : 0, is_biased(form))
                                       : nibble_products(is_u4 ? outlier : 0, is_biased(form));
        lanes whole = all ? lanes_spread(&p->outlier) : lanes_set1(outlier), offset = lanes_mul(whole, lanes_set1(-128.0f));
        UNROLL for (uint32_t t = 0; t < tiles; t++) {
            const uint8_t *group = quants + t * stride;
            lanes apart;
            if (is_u4)
                apart = form.widened ? pick_widened_product(group + widened_at[index], nibble)
                                     : pick_product(group + index / 8 * 64, &nibble_shift[index], nibble);
            else
                apart = lanes_fma(form.widened ? pick_widened_byte(group + widened_at[index])
                                               : pick_byte(group + index / 4 * 64, &byte_shift[index]),
                                  whole, offset);
            sum[t][r] = lanes_fma(scale[t], lanes_fma(lanes_from_i(dot[t][r]), x_scale, apart), sum[t][r]);
        }
    }
}

// Adds minimum * the sum of x to sum, for a whole group.
LANES_INLINE void add_minimum(const lanes *least, struct x_rows x, uint32_t n, uint32_t tiles, sum_block sum)
{
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        UNROLL for (uint32_t r = 0; r < n; r++)
            sum[t][r] = lanes_fma(least[t], lanes_set1(x.part[r].sum), sum[t][r]);
}

// The same for half 0 or 1 of a group; bias[r] is -128 * the sum of its inputs. Its sum of x is rounded once, like that of a group.
LANES_INLINE void add_half_minimum(const lanes *least, struct x_rows x, uint32_t n, uint32_t tiles, uint32_t half,
                                   const int32_t *bias, sum_block sum)
{
    const uint32_t first = half * (PACK_GROUP / 2);
    lanes x_sum[GEMM_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        const struct quant_part *p = &x.part[r];
        x_sum[r] = lanes_fma(lanes_set1(p->scale), lanes_set1((float)-(bias[r] >> 7)),
                             lanes_set1(outlier_within(p, first, first + PACK_GROUP / 2)));
    }
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        UNROLL for (uint32_t r = 0; r < n; r++)
            sum[t][r] = lanes_fma(least[t], x_sum[r], sum[t][r]);
}

// Adds half 0 or 1 of group g, whose quants begin at `line`.
LANES_INLINE void add_half(const struct block *b, const uint8_t *line, struct x_rows x, uint32_t n, struct form form, uint32_t g,
                           uint32_t half, const lanes *scale, const int32_t *bias, sum_block sum)
{
    dot_block dot;
    if (pack_layout_is_u4(form.layout))
        dot_u4(line, x, n, half * 2, half * 2 + 2, is_biased(form), bias, dot);
    else
        dot_s8(line, 0, x, n, 1, half * 4, half * 4 + 4, bias, dot);
    accumulate(line, 0, x, n, 1, form, half * (PACK_GROUP / 2), (half + 1) * (PACK_GROUP / 2), scale, dot, sum);
    if (form.minimum) {
        lanes least = load_minimum(b->w, form, b->tile, g, (size_t)g * 2 + half);
        add_half_minimum(&least, x, n, 1, half, bias, sum);
    }
}

LANES_INLINE void block_groups(const struct block *b, uint32_t n, struct form form, sum_block sum)
{
    const struct packed_matrix *w = b->w;
    const uint8_t *line = b->tile + w->quant_offset;
    const uint32_t group_count = w->group_count;
    const bool is_u4 = pack_layout_is_u4(form.layout), has_halves = pack_layout_has_halves(form.layout);
    const struct quant_block *block = b->x;
    for (uint32_t g = 0; g < group_count; g++, block++, line += is_u4 ? 256 : 512) {
        const struct x_rows x = {&block->q[b->slot], &block->part[b->slot]};
        const uint32_t line_count = group_lines(form.layout, form.minimum);
        if (b->has_ahead)
            prefetch_lines(b, (size_t)g * line_count, line_count);
        dot_block dot;
        int32_t low[GEMM_ROWS], rest[GEMM_ROWS];
        UNROLL for (uint32_t r = 0; r < n; r++) {
            low[r] = x.part[r].bias_low;
            rest[r] = has_halves ? x.part[r].bias - low[r] : x.part[r].bias;
        }
        lanes scale[2] = {load_scale(w, form, b->tile, g, has_halves ? (size_t)g * 2 : g)};
        if (has_halves)
            scale[1] = load_scale(w, form, b->tile, g, (size_t)g * 2 + 1);
        if (!has_halves) {
            if (is_u4)
                dot_u4(line, x, n, 0, 4, is_biased(form), rest, dot);
            else
                dot_s8(line, 0, x, n, 1, 0, 8, rest, dot);
            accumulate(line, 0, x, n, 1, form, 0, PACK_GROUP, scale, dot, sum);
            if (form.minimum) {
                lanes least = load_minimum(w, form, b->tile, g, g);
                add_minimum(&least, x, n, 1, sum);
            }
            continue;
        }
        add_half(b, line, x, n, form, g, 0, &scale[0], low, sum);
        add_half(b, line, x, n, form, g, 1, &scale[1], rest, sum);
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

// columns: how many outputs the last tile has.
LANES_INLINE void block_quantized(const struct block *b, uint32_t n, float *y, size_t y_stride, uint32_t columns,
                                  enum gemm_store store)
{
    sum_block sum;
    UNROLL for (uint32_t r = 0; r < n; r++)
        sum[0][r] = lanes_zero();
    switch (b->w->layout) {
    case PACK_U4:
        if (!b->w->minimum)
            block_groups(b, n, (struct form){.layout = PACK_U4}, sum); // Q4_0
        else if (b->w->super)
            block_groups(b, n, (struct form){.layout = PACK_U4, .minimum = true, .super = true}, sum); // Q4_K
        else
            block_groups(b, n, (struct form){.layout = PACK_U4, .minimum = true}, sum); // Q4_1
        break;
    case PACK_S8:
        if (!b->w->minimum && b->w->super)
            block_groups(b, n, (struct form){.layout = PACK_S8, .super = true}, sum); // IQ4_XS
        else if (!b->w->minimum)
            block_groups(b, n, (struct form){.layout = PACK_S8}, sum); // Q8_0, Q5_0, IQ4_NL
        else if (b->w->super)
            block_groups(b, n, (struct form){.layout = PACK_S8, .minimum = true, .super = true}, sum); // Q5_K
        else
            block_groups(b, n, (struct form){.layout = PACK_S8, .minimum = true}, sum); // Q5_1
        break;
    case PACK_S8_F32: block_groups(b, n, (struct form){.layout = PACK_S8_F32}, sum); break; // MXFP4, Q8_K
    case PACK_U4_HALVES:
        if (b->w->minimum)
            block_groups(b, n, (struct form){.layout = PACK_U4_HALVES, .minimum = true, .super = true}, sum); // Q2_K
        else
            block_groups(b, n, (struct form){.layout = PACK_U4_HALVES, .super = true}, sum); // Q3_K
        break;
    default: block_groups(b, n, (struct form){.layout = PACK_S8_HALVES, .super = true}, sum); break; // Q6_K
    }
    store_block(sum[0], n, y, y_stride, columns, store);
}

// Defines the register block of n rows as a function of its own, so that gcc allocates registers for it alone.
#define DEFINE_BLOCK(n)                                                                                                        \
    static __attribute__((noinline)) void block_quantized_##n(const struct block *b, float *y, size_t y_stride, uint32_t columns, \
                                                              enum gemm_store store)                                           \
    {                                                                                                                          \
        block_quantized(b, n, y, y_stride, columns, store);                                                                    \
    }
DEFINE_BLOCK(1)
DEFINE_BLOCK(2)
#if GEMM_ROWS >= 4
DEFINE_BLOCK(4)
#endif
#if GEMM_ROWS == 8
DEFINE_BLOCK(8)
#endif

// Returns the rows of the largest register block that fits into `left` rows.
static uint32_t block_rows(uint32_t left)
{
    if (GEMM_ROWS == 8 && left >= 8)
        return 8;
    return GEMM_ROWS >= 4 && left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

// Computes rows row .. row_end - 1 of one tile. tile_end: the first tile beyond the call's; columns: the tile's outputs.
static void tile_quantized(const struct packed_matrix *w, const struct quantized_rows *x, uint32_t tile_index, uint32_t tile_end,
                           const void *next, uint32_t row, uint32_t row_end, float *y, size_t y_stride, uint32_t columns,
                           enum gemm_store store)
{
    struct block b = {.w = w, .tile = w->data + tile_index * w->tile_bytes, .has_ahead = true};
    b.ahead = b.tile + PREFETCH_BYTES;
    b.ahead_end = w->data + tile_end * w->tile_bytes;
    b.next = next ? next : b.tile;
    for (uint32_t n; row < row_end; row += n, b.has_ahead = false) { // the tile is in the cache then
        float *out = y + row * y_stride;
        b.slot = row % QUANT_BLOCK_ROWS;
        b.x = x->blocks + (size_t)(row / QUANT_BLOCK_ROWS) * x->group_count;
        n = block_rows(MIN(row_end - row, QUANT_BLOCK_ROWS - b.slot));
        switch (n) {
#if GEMM_ROWS == 8
        case 8: block_quantized_8(&b, out, y_stride, columns, store); break;
#endif
#if GEMM_ROWS >= 4
        case 4: block_quantized_4(&b, out, y_stride, columns, store); break;
#endif
        case 2: block_quantized_2(&b, out, y_stride, columns, store); break;
        default: block_quantized_1(&b, out, y_stride, columns, store); break;
        }
    }
}

#include "kernels/gemm/gemm_float_lanes.h"
#ifdef WIDENED_LEAST
#include "kernels/gemm/gemm_widened_lanes.h"
#endif

// Returns the rows of a panel, a multiple of 8.
static uint32_t panel_rows(uint32_t k)
{
    uint32_t row_bytes = k + k / 4 * 3; // a quant_block is 448 bytes for 8 rows of 32
    return MAX(PANEL_BYTES / (row_bytes + 1) / QUANT_BLOCK_ROWS * QUANT_BLOCK_ROWS, QUANT_BLOCK_ROWS);
}

// Returns the end of the rows to compute together from `row` on, and whether it pays to widen weights for them.
static uint32_t next_rows(uint32_t k, uint32_t row, uint32_t row_end, bool *widened)
{
    uint32_t panel = panel_rows(k), last = MIN(row_end, (row / panel + 1) * panel);
#ifndef WIDENED_LEAST
    *widened = false;
    return last;
#else
    uint32_t after = row + WIDENED_BLOCK - row % WIDENED_BLOCK;
    uint32_t whole = row + MIN(last - row, WIDENED_ROWS) / WIDENED_BLOCK * WIDENED_BLOCK;
    *widened = row % WIDENED_BLOCK == 0 && whole - row >= WIDENED_LEAST;
    if (*widened)
        return whole;
    return row % WIDENED_BLOCK == 0 ? last : MIN(last, after); // the rows before the first whole block, or too few
#endif
}

void GEMM_NAME(const struct packed_matrix *w, const struct quantized_rows *x, uint32_t row_begin, uint32_t row_count,
               uint32_t tile_begin, uint32_t tile_count, const void *next, float *y, size_t y_stride, enum gemm_store store)
{
    assert_always(w->k == x->k && (uint64_t)tile_begin + tile_count <= w->tile_count);
    assert_always((uint64_t)row_begin + row_count <= x->row_capacity);
    if (!w->group_count) {
        gemm_float(w, x, row_begin, row_count, tile_begin, tile_count, next, y, y_stride, store);
        return;
    }
#ifdef GEMM_ONE_ROW
    if (row_count == 1 && !(pack_layout_is_u4(w->layout) && w->super)) { // Q4_K has too much arithmetic a byte for it
        GEMM_ONE_ROW(w, x, row_begin, row_count, tile_begin, tile_count, next, y, y_stride, store);
        return;
    }
#endif
    uint32_t row_end = row_begin + row_count, tile_end = tile_begin + tile_count;
    for (uint32_t row = row_begin; row < row_end;) {
        bool widened;
        uint32_t last = next_rows(w->k, row, row_end, &widened);
        for (uint32_t t = tile_begin, tiles; t < tile_end; t += tiles) {
            tiles = widened ? MIN(GEMM_TILES, tile_end - t) : 1;
            uint32_t first = t * COLUMNS, columns = MIN(COLUMNS, w->output_count - (first + (tiles - 1) * COLUMNS));
#ifdef WIDENED_LEAST
            if (widened) {
                tiles_widened(w, x, t, tiles, tile_end, next, row, last, y + first, y_stride, columns, store);
                continue;
            }
#endif
            tile_quantized(w, x, t, tile_end, next, row, last, y + first, y_stride, columns, store);
        }
        row = last;
    }
}
