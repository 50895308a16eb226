// gemm_float_lanes.h: the GEMM over float layouts (F32, F16, BF16). Part of gemm_lanes.h, which includes it.
//
// An output is one chain of fused multiply-adds over k, so the speed comes from many outputs at a time: a register block is n rows of T tiles
// of 16 outputs. Weights are converted to f32 in registers, once a block, and multiplied with one input of each row, broadcast.
//
//     rows of a block          1     2, 3    4 and more
//     tiles of a block         4     2       1
//
// One row is bound by memory. Two chains (a tile of AVX2) would wait for the multiply-adds' latency before they waited for memory; eight do
// not. Many rows are bound by arithmetic: six rows are 12 chains of AVX2, of 16 registers; twelve are 12 of AVX-512.
//
// Loop order, from the outside: panels of rows; groups of tiles; chunks of k, so that what a panel has of a chunk stays in L2 while all tiles
// of the group use it; tiles; register blocks. Between chunks the running sums lie in memory, exactly as they were.
#define FLOAT_PANEL_ROWS 128u
#define FLOAT_GROUP_TILES 8u
#define FLOAT_CHUNK_VALUES 65536u // of a panel's rows: 256 KiB
#define FLOAT_STRIP 16u           // inputs between prefetches

// A register block over one chunk of k.
struct float_block {
    const uint8_t *tile;
    size_t tile_bytes;
    const float *x;
    size_t x_stride;
    uint32_t k;  // of the chunk
    float *sums; // [tiles][FLOAT_PANEL_ROWS][16] running sums
    bool is_first, is_last;
    float *y;
    size_t y_stride;
    uint32_t columns; // of the last tile
    enum gemm_store store;
    // The bytes to prefetch: `ahead_lines` lines a strip and tile, from `ahead` on; after `ahead_bytes` from `later` on.
    const uint8_t *ahead, *later;
    size_t ahead_bytes;
    uint32_t ahead_lines;
};

LANES_INLINE size_t float_input_bytes(enum pack_layout layout) { return COLUMNS * (layout == PACK_F32 ? 4u : 2u); }

LANES_INLINE lanes load_weights(enum pack_layout layout, const uint8_t *at)
{
    return layout == PACK_F32   ? lanes_load((const float *)at)
           : layout == PACK_F16 ? lanes_load_f16((const uint16_t *)at)
                                : lanes_load_bf16((const uint16_t *)at);
}

LANES_INLINE void prefetch_strip(const struct float_block *b, uint32_t tiles, enum pack_layout layout, size_t line)
{
    const uint32_t most = (uint32_t)(FLOAT_STRIP * float_input_bytes(layout) / 64);
    size_t at = line * 64;
    const uint8_t *from = at < b->ahead_bytes ? b->ahead + at : b->later + (at - b->ahead_bytes);
    if (b->ahead_lines != most) {
        for (uint32_t i = 0; i < b->ahead_lines; i++)
            lanes_prefetch(from + i * 64);
        return;
    }
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        _Pragma("GCC unroll 16") for (uint32_t i = 0; i < most; i++)
            lanes_prefetch(from + t * b->tile_bytes + i * 64);
}

// Rows are addressed from every third one, so that few registers hold where they are.
LANES_INLINE void block_inputs(const struct float_block *b, uint32_t n, uint32_t tiles, enum pack_layout layout, const uint8_t *w,
                               const float *const *x, uint32_t count, lanes sum[][GEMM_FLOAT_ROWS])
{
    const size_t input_bytes = float_input_bytes(layout);
    _Pragma("GCC unroll 4") for (uint32_t i = 0; i < count; i++) {
        lanes weights[4];
        UNROLL for (uint32_t t = 0; t < tiles; t++)
            weights[t] = load_weights(layout, w + t * b->tile_bytes + i * input_bytes);
        _Pragma("GCC unroll 16") for (uint32_t r = 0; r < n; r++) {
            lanes input = lanes_set1(x[r / 3][r % 3 * b->x_stride + i]);
            UNROLL for (uint32_t t = 0; t < tiles; t++)
                sum[t][r] = lanes_fma(weights[t], input, sum[t][r]);
        }
    }
}

LANES_INLINE void block_floats(const struct float_block *b, uint32_t n, uint32_t tiles, enum pack_layout layout)
{
    lanes sum[4][GEMM_FLOAT_ROWS];
    const float *x[(GEMM_FLOAT_ROWS + 2) / 3];
    UNROLL for (uint32_t t = 0; t < tiles; t++)
        _Pragma("GCC unroll 16") for (uint32_t r = 0; r < n; r++)
            sum[t][r] = b->is_first ? lanes_zero() : lanes_load(b->sums + ((size_t)t * FLOAT_PANEL_ROWS + r) * COLUMNS);
    UNROLL for (uint32_t r = 0; r < n; r += 3)
        x[r / 3] = b->x + r * b->x_stride;
    const uint8_t *w = b->tile;
    uint32_t left = b->k;
    for (size_t line = 0; left >= FLOAT_STRIP; left -= FLOAT_STRIP, line += b->ahead_lines) {
        prefetch_strip(b, tiles, layout, line);
        block_inputs(b, n, tiles, layout, w, x, FLOAT_STRIP, sum);
        w += FLOAT_STRIP * float_input_bytes(layout);
        UNROLL for (uint32_t r = 0; r < n; r += 3)
            x[r / 3] += FLOAT_STRIP;
    }
    for (; left > 0; left--) {
        block_inputs(b, n, tiles, layout, w, x, 1, sum);
        w += float_input_bytes(layout);
        UNROLL for (uint32_t r = 0; r < n; r += 3)
            x[r / 3]++;
    }
    UNROLL for (uint32_t t = 0; t < tiles; t++) {
        if (b->is_last)
            store_block(sum[t], n, b->y + t * COLUMNS, b->y_stride, t + 1 < tiles ? COLUMNS : b->columns, b->store);
        else
            store_block(sum[t], n, b->sums + (size_t)t * FLOAT_PANEL_ROWS * COLUMNS, COLUMNS, COLUMNS, GEMM_SET);
    }
}

// Defines the register block of n rows and some tiles as functions of their own, so that gcc allocates registers for each alone.
#define DEFINE_FLOAT_LAYOUT(n, tiles, layout)                                                                       \
    static __attribute__((noinline)) void block_floats_##n##x##tiles##_##layout(const struct float_block *b)        \
    {                                                                                                               \
        block_floats(b, n, tiles, layout);                                                                          \
    }
#define DEFINE_FLOAT_BLOCK(n, tiles)                               \
    DEFINE_FLOAT_LAYOUT(n, tiles, PACK_F32)                        \
    DEFINE_FLOAT_LAYOUT(n, tiles, PACK_F16)                        \
    DEFINE_FLOAT_LAYOUT(n, tiles, PACK_BF16)                       \
    static void block_floats_##n##x##tiles(const struct float_block *b, enum pack_layout layout) \
    {                                                              \
        switch (layout) {                                          \
        case PACK_F32: block_floats_##n##x##tiles##_PACK_F32(b); break;  \
        case PACK_F16: block_floats_##n##x##tiles##_PACK_F16(b); break;  \
        default: block_floats_##n##x##tiles##_PACK_BF16(b); break;       \
        }                                                          \
    }
DEFINE_FLOAT_BLOCK(1, 4)
DEFINE_FLOAT_BLOCK(1, 1)
DEFINE_FLOAT_BLOCK(2, 2)
DEFINE_FLOAT_BLOCK(2, 1)
DEFINE_FLOAT_BLOCK(3, 2)
DEFINE_FLOAT_BLOCK(3, 1)
DEFINE_FLOAT_BLOCK(4, 1)
DEFINE_FLOAT_BLOCK(5, 1)
DEFINE_FLOAT_BLOCK(6, 1)
#if GEMM_FLOAT_ROWS == 12
DEFINE_FLOAT_BLOCK(8, 1)
DEFINE_FLOAT_BLOCK(10, 1)
DEFINE_FLOAT_BLOCK(12, 1)
#endif

typedef void float_block_fn(const struct float_block *b, enum pack_layout layout);
static float_block_fn *const float_blocks_of_one[GEMM_FLOAT_ROWS + 1] = {
    [1] = block_floats_1x1, [2] = block_floats_2x1, [3] = block_floats_3x1,
    [4] = block_floats_4x1, [5] = block_floats_5x1, [6] = block_floats_6x1,
#if GEMM_FLOAT_ROWS == 12
    [8] = block_floats_8x1, [10] = block_floats_10x1, [12] = block_floats_12x1,
#endif
};
static float_block_fn *const float_blocks_of_tiles[] = {[1] = block_floats_1x4, [2] = block_floats_2x2, [3] = block_floats_3x2};
static const uint32_t float_tiles[] = {[1] = 4, [2] = 2, [3] = 2};

// A call's rows of one panel.
struct float_panel {
    const struct packed_matrix *w;
    const struct quantized_rows *x;
    uint32_t row, row_count, block_count, block_rows;
    uint32_t tile_end, chunk; // chunk: inputs
    const uint8_t *after;     // what is read once this panel is done
    float *y;                 // of row 0 and output 0
    size_t y_stride;
    enum gemm_store store;
    float *sums; // [FLOAT_GROUP_TILES][FLOAT_PANEL_ROWS][16]
};

// Returns the rows of the next register block.
static uint32_t float_rows(const struct float_panel *p, uint32_t left)
{
    uint32_t rows = MIN(left, p->block_rows);
    return float_blocks_of_one[rows] ? rows : rows - 1;
}

// One block of rows over all of k: it reads several tiles side by side, and prefetches each of them.
static void float_tiles_once(const struct float_panel *p, uint32_t tile_begin)
{
    const struct packed_matrix *w = p->w;
    const uint32_t n = p->row_count, wide = n < ARRAY_COUNT(float_tiles) ? float_tiles[n] : 1;
    struct float_block b = {.tile_bytes = w->tile_bytes,
                            .x = p->x->values + p->row * p->x->value_stride,
                            .x_stride = p->x->value_stride,
                            .k = w->k,
                            .is_first = true,
                            .is_last = true,
                            .y_stride = p->y_stride,
                            .store = p->store,
                            .ahead_lines = (uint32_t)(FLOAT_STRIP * float_input_bytes(w->layout) / 64)};
    const size_t distance = MIN((size_t)PREFETCH_BYTES, w->tile_bytes);
    for (uint32_t t = tile_begin, tiles; t < p->tile_end; t += tiles) {
        tiles = p->tile_end - t >= wide ? wide : 1;
        b.tile = w->data + t * w->tile_bytes;
        b.ahead = b.tile + distance;
        b.ahead_bytes = w->tile_bytes - distance;
        b.later = t + tiles < p->tile_end ? b.tile + tiles * w->tile_bytes : p->after;
        b.columns = MIN(COLUMNS, w->output_count - (t + tiles - 1) * COLUMNS);
        b.y = p->y + p->row * p->y_stride + (size_t)t * COLUMNS;
        (tiles > 1 ? float_blocks_of_tiles : float_blocks_of_one)[n](&b, w->layout);
    }
}

// All register blocks of one tile's chunk of k, which begins at input `first`. later: the chunk that is read next; they prefetch it together.
static void float_chunk(const struct float_panel *p, uint32_t tile, uint32_t first, float *sums, const uint8_t *later)
{
    const struct packed_matrix *w = p->w;
    const size_t input_bytes = float_input_bytes(w->layout);
    const uint32_t strip_lines = (uint32_t)(FLOAT_STRIP * input_bytes / 64), share = (strip_lines + p->block_count - 1) / p->block_count;
    struct float_block b = {.tile = w->data + tile * w->tile_bytes + first * input_bytes,
                            .tile_bytes = w->tile_bytes,
                            .x_stride = p->x->value_stride,
                            .k = MIN(p->chunk, w->k - first),
                            .is_first = first == 0,
                            .is_last = w->k - first <= p->chunk,
                            .y_stride = p->y_stride,
                            .columns = MIN(COLUMNS, w->output_count - tile * COLUMNS),
                            .store = p->store,
                            .ahead = later,
                            .ahead_bytes = SIZE_MAX};
    uint32_t lines = strip_lines;
    for (uint32_t at = 0, n; at < p->row_count; at += n, lines -= b.ahead_lines) {
        const uint32_t row = p->row + at;
        n = float_rows(p, p->row_count - at);
        b.x = p->x->values + row * p->x->value_stride + first;
        b.sums = sums + (size_t)at * COLUMNS;
        b.y = p->y + row * p->y_stride + (size_t)tile * COLUMNS;
        b.ahead_lines = MIN(share, lines);
        float_blocks_of_one[n](&b, w->layout);
        b.ahead += (size_t)(b.k / FLOAT_STRIP) * b.ahead_lines * 64;
    }
}

static void float_group(const struct float_panel *p, uint32_t tile_begin, uint32_t tile_end)
{
    const struct packed_matrix *w = p->w;
    const size_t chunk_bytes = p->chunk * float_input_bytes(w->layout);
    for (uint32_t first = 0; first < w->k; first += MIN(p->chunk, w->k - first)) {
        const uint8_t *at = w->data + tile_begin * w->tile_bytes + first / p->chunk * chunk_bytes;
        const uint8_t *after_chunk = w->k - first > p->chunk ? at + chunk_bytes
                                     : tile_end < p->tile_end ? w->data + tile_end * w->tile_bytes
                                                              : p->after;
        for (uint32_t t = tile_begin; t < tile_end; t++, at += w->tile_bytes)
            float_chunk(p, t, first, p->sums + (size_t)(t - tile_begin) * FLOAT_PANEL_ROWS * COLUMNS,
                        t + 1 < tile_end ? at + w->tile_bytes : after_chunk);
    }
}

static uint32_t divide_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

static void gemm_float(const struct packed_matrix *w, const struct quantized_rows *x, uint32_t row_begin, uint32_t row_count,
                       uint32_t tile_begin, uint32_t tile_count, const void *next, float *y, size_t y_stride, enum gemm_store store)
{
    float sums[FLOAT_GROUP_TILES * FLOAT_PANEL_ROWS * COLUMNS] __attribute__((aligned(64)));
    const uint32_t panels = divide_up(row_count, FLOAT_PANEL_ROWS), panel_rows = divide_up(row_count, MAX(panels, 1u));
    const uint8_t *begin = w->data + tile_begin * w->tile_bytes;
    struct float_panel p = {.w = w, .x = x, .tile_end = tile_begin + tile_count, .y = y, .y_stride = y_stride, .store = store, .sums = sums};
    for (uint32_t at = 0; at < row_count; at += p.row_count) {
        p.row = row_begin + at;
        p.row_count = MIN(panel_rows, row_count - at);
        p.after = at + p.row_count < row_count || !next ? begin : next;
        p.block_count = divide_up(p.row_count, GEMM_FLOAT_ROWS);
        p.block_rows = divide_up(p.row_count, p.block_count);
        if (float_blocks_of_one[p.row_count <= GEMM_FLOAT_ROWS ? p.row_count : 0]) {
            float_tiles_once(&p, tile_begin);
            continue;
        }
        p.block_rows += !float_blocks_of_one[p.block_rows]; // blocks of 7 rows are cut from 8
        uint32_t chunks = divide_up(w->k, MAX(FLOAT_CHUNK_VALUES / p.row_count, FLOAT_STRIP));
        p.chunk = divide_up(divide_up(w->k, chunks), FLOAT_STRIP) * FLOAT_STRIP;
        for (uint32_t t = tile_begin, last; t < p.tile_end; t = last) {
            last = MIN(t + FLOAT_GROUP_TILES, p.tile_end);
            float_group(&p, t, last);
        }
    }
}
