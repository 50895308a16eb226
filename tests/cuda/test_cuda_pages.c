/* test_cuda_pages.c: pages of the device's pool in the form of KV stores. The kernels beside attention's own store of K and V, bit for bit, and
 * the backend's entries beside the CPU's: a sequence that is handed over goes on at the other as it would have at the first.
 */
#include "tests/cuda/backend_rig.h"

#include "kernels/attention/attention.h"

enum { ROWS = 64, SIDES = 2, CPU = 0, CUDA = 1, PAGES = 12, CONTEXT = 128 };

/* f16 weights beside f32, as in test_cuda_backend.c. */
#define LIMIT 0.03f

static uint64_t seed = 1;

static float number(void) { return 2 * gguf_random_float(&seed); }

/* --- the kernels ----------------------------------------------------------------------------------------------------------- */

/* Writes tiles as a store has them, in f16, from [16][kv_width] K and V of one layer. */
static void tiles_of(const float *k, const float *v, uint32_t kv_heads, uint32_t head_dim, unsigned char *tiles)
{
    const struct attention_kernels *kernels_ref = attention_of_level(ISA_REF);
    size_t tile_bytes = kv_tile_bytes(head_dim, KV_F16);

    for (uint32_t head = 0; head < kv_heads; head++)
        for (uint32_t token = 0; token < GPU_PAGE_TOKENS; token++)
            kernels_ref->store(KV_F16, head_dim, k + ((size_t)token * kv_heads + head) * head_dim,
                               v + ((size_t)token * kv_heads + head) * head_dim, tiles + head * tile_bytes, token);
}

/* A page of three is written by gpu_store_kv, comes out as a store would have it, goes into another, and comes out of that the same. */
static void a_page(uint32_t layers, uint32_t kv_heads, uint32_t head_dim)
{
    enum { FROM = 1, TO = 2 };
    const size_t kv_width = (size_t)kv_heads * head_dim, values = GPU_PAGE_TOKENS * kv_width;
    const size_t tile_bytes = kv_tile_bytes(head_dim, KV_F16), layer_bytes = kv_heads * tile_bytes;
    const size_t page_bytes = layers * layer_bytes, row = 3 * kv_width;
    struct gpu_pool gpu = {.layers = layers, .heads = kv_heads, .kv_heads = kv_heads, .head_dim = head_dim};
    float *k = malloc(values * sizeof *k), *v = malloc(values * sizeof *v),
          *qkv_host = malloc(GPU_PAGE_TOKENS * row * sizeof *qkv_host);
    float *qkv = on_device(NULL, GPU_PAGE_TOKENS * row * sizeof *qkv);
    unsigned char *want = malloc(page_bytes), *host;
    uint32_t words[4 * GPU_PAGE_TOKENS] = {0};

    assert_true(k && v && qkv_host && want);
    memset(qkv_host, 0xff, GPU_PAGE_TOKENS * row * sizeof *qkv_host); /* q is NaN: nobody reads it */
    gpu.pages = on_device(NULL, 3 * page_bytes);
    rig_must(cudaHostAlloc((void **)&host, page_bytes, cudaHostAllocDefault));
    for (uint32_t i = 0; i < GPU_PAGE_TOKENS; i++)
        words[i] = words[GPU_PAGE_TOKENS + i] = i; /* row, position; table 0; its page: FROM */
    words[3 * GPU_PAGE_TOKENS] = FROM;
    uint32_t *device = on_device(words, sizeof words);
    const struct gpu_rows rows = {
        device,          device + GPU_PAGE_TOKENS, device + 2 * GPU_PAGE_TOKENS, device + 3 * GPU_PAGE_TOKENS,
        GPU_PAGE_TOKENS, GPU_PAGE_TOKENS};
    for (uint32_t layer = 0; layer < layers; layer++) {
        for (size_t i = 0; i < values; i++)
            k[i] = i % 97 ? number() : 1e6f, v[i] = i % 89 ? number() * 1e-5f : -1e6f; /* what f16 has not, and subnormals */
        for (uint32_t token = 0; token < GPU_PAGE_TOKENS; token++) {
            memcpy(qkv_host + token * row + kv_width, k + token * kv_width, kv_width * sizeof *k);
            memcpy(qkv_host + token * row + 2 * kv_width, v + token * kv_width, kv_width * sizeof *v);
        }
        tiles_of(k, v, kv_heads, head_dim, want + layer * layer_bytes);
        to_device(qkv, qkv_host, GPU_PAGE_TOKENS * row * sizeof *qkv);
        gpu_store_kv(&gpu, layer, &rows, qkv, rig_stream);
        rig_must(cudaStreamSynchronize(rig_stream));
    }
    memset(host, 0xee, page_bytes);
    gpu_pages_out(&gpu, FROM, 0, layers * kv_heads, host, rig_stream);
    rig_must(cudaStreamSynchronize(rig_stream));
    assert_memory_equal(host, want, page_bytes);
    /* in, in two parts; what lies beside it stays */
    uint32_t first = layers * kv_heads / 3;
    if (first)
        gpu_pages_in(&gpu, TO, 0, first, host, rig_stream);
    gpu_pages_in(&gpu, TO, first, layers * kv_heads - first, host + first * tile_bytes, rig_stream);
    rig_must(cudaStreamSynchronize(rig_stream));
    for (uint32_t page = FROM; page <= TO; page++) {
        memset(host, 0xee, page_bytes);
        gpu_pages_out(&gpu, page, 0, layers * kv_heads, host, rig_stream);
        rig_must(cudaStreamSynchronize(rig_stream));
        assert_memory_equal(host, want, page_bytes);
    }
    cudaFree(gpu.pages), cudaFree(qkv), cudaFree(device);
    cudaFreeHost(host);
    free(k), free(v), free(qkv_host), free(want);
}

static void test_form(void **state)
{
    a_page(1, 1, 16);
    a_page(2, 3, 64);
    a_page(3, 1, 80);
    a_page(1, 2, 128);
    a_page(2, 1, 256);
}

/* --- the entries ------------------------------------------------------------------------------------------------------------ */

static struct rig sides[SIDES];

static int open_sides(void **state)
{
    struct backend_config config = rig_config(ROWS);
    config.context_tokens = CONTEXT, config.max_sequences = 16;
    rig_open(&sides[CPU], &backend_cpu, config, PAGES);
    rig_open(&sides[CUDA], fastdecode_device.ops, config, PAGES);
    return 0;
}

static int close_sides(void **state)
{
    for (uint32_t s = 0; s < SIDES; s++)
        rig_close(&sides[s]);
    return 0;
}

/* Positions [first, first + count) of a sequence, in one step; logits of the last. Not waited for. */
static void queue_step(struct rig *side, uint64_t sequence, uint32_t first, uint32_t count)
{
    struct backend_row rows[ROWS];
    rig_queue(side, rows, rig_rows(rows, 0, sequence, first, count, true));
}

static void step(struct rig *side, uint64_t sequence, uint32_t first, uint32_t count)
{
    queue_step(side, sequence, first, count);
    rig_wait(side);
}

/* The same row at both. */
static void next_row_is_near(uint64_t sequence, uint32_t position)
{
    for (uint32_t s = 0; s < SIDES; s++)
        step(&sides[s], sequence, position, 1);
    rig_near(&sides[CUDA], &sides[CPU], 1, LIMIT);
}

static uint64_t page_bytes(void) { return sides[CPU].ops->pool_page_bytes(sides[CPU].backend); }

static uint32_t export_page(struct rig *side, uint64_t sequence, uint32_t index, unsigned char *page)
{
    struct error error;
    uint32_t positions = 0;

    if (side->ops->pool_export(side->backend, sequence, index, page, &positions, &error))
        fail_msg("export: %s", error.text);
    while (!side->ops->pool_copied(side->backend)) {}
    return positions;
}

static void import_page(struct rig *side, uint64_t sequence, uint32_t index, const unsigned char *page, uint32_t positions)
{
    struct error error;

    if (side->ops->pool_import(side->backend, sequence, index, page, positions, &error))
        fail_msg("import: %s", error.text);
    while (!side->ops->pool_copied(side->backend)) {}
}

static uint32_t held(const struct rig *side, uint64_t sequence)
{
    struct kv_held items[16];
    uint32_t count = side->ops->pool_held(side->backend, items, 16);
    for (uint32_t i = 0; i < count; i++)
        if (items[i].sequence == sequence)
            return items[i].positions;
    return 0;
}

/* From one side to the other; there it comes out as it went in. */
static void hand_over(struct rig *from, struct rig *to, uint64_t sequence, uint32_t positions)
{
    unsigned char *page = malloc(page_bytes()), *again = malloc(page_bytes());

    for (uint32_t index = 0, done = 0; done < positions; index++) {
        uint32_t count = export_page(from, sequence, index, page);
        assert_int_equal(count, MIN(positions - done, (uint32_t)GPU_PAGE_TOKENS));
        import_page(to, sequence, index, page, count);
        done += count;
        assert_int_equal(held(to, sequence), done);
        memset(again, 0xee, page_bytes());
        assert_int_equal(export_page(to, sequence, index, again), count);
        if (count == GPU_PAGE_TOKENS) /* of the last, what is behind its positions may be anything */
            assert_memory_equal(again, page, page_bytes());
    }
    free(page);
    free(again);
}

static void test_handing_over(void **state)
{
    assert_int_equal(page_bytes(), sides[CUDA].ops->pool_page_bytes(sides[CUDA].backend));
    for (uint32_t slice = 1; slice < 6; slice += 2) { /* tiles: the page has four; all in one is the last */
        sides[CUDA].backend->copy.slice_tiles = slice;
        step(&sides[CPU], 1, 0, 37);
        hand_over(&sides[CPU], &sides[CUDA], 1, 37);
        next_row_is_near(1, 37);
        next_row_is_near(1, 38);
        step(&sides[CUDA], 2, 0, 33);
        hand_over(&sides[CUDA], &sides[CPU], 2, 33);
        next_row_is_near(2, 33);
        for (uint32_t s = 0; s < SIDES; s++)
            for (uint64_t sequence = 1; sequence <= 2; sequence++)
                sides[s].ops->pool_release(sides[s].backend, sequence);
    }
    assert_int_equal(rig_pages_used(&sides[CUDA]), 0);
}

/* The first positions of a page, K [head_dim][GPU_PAGE_TOKENS] and V [GPU_PAGE_TOKENS][head_dim] a tile, are another's. */
static void same_positions(const unsigned char *page, const unsigned char *want, uint32_t count)
{
    const struct model_shape *shape = &rig_model->shape;
    const uint32_t dim = shape->head_dim, values = GPU_PAGE_TOKENS * dim;
    const uint16_t *a = (const uint16_t *)(const void *)page, *b = (const uint16_t *)(const void *)want;

    for (uint32_t tile = 0; tile < shape->layers * shape->kv_heads; tile++, a += 2 * values, b += 2 * values) {
        for (uint32_t i = 0; i < values; i++)
            assert_true(i % GPU_PAGE_TOKENS >= count || a[i] == b[i]);
        assert_memory_equal(a + values, b + values, count * dim * sizeof *a);
    }
}

/* Pages leave that a step in flight writes to. Positions whose step's end was seen before are complete: so many does the export say there
 * are, and they come out as they were. Of what the step writes behind them nothing is promised, it may be there in part; it is complete
 * when the end of the step has been seen. A page that the step begins is none until then. */
static void export_what_is_written(struct rig *side, uint64_t sequence, uint32_t first, uint32_t end)
{
    unsigned char *page = malloc(page_bytes()), *want = malloc(page_bytes());
    struct error error;
    uint32_t positions;

    assert_true(page && want);
    for (uint32_t position = first; position < end; position++) {
        const uint32_t index = position / GPU_PAGE_TOKENS, complete = position % GPU_PAGE_TOKENS;
        if (complete)
            assert_int_equal(export_page(side, sequence, index, want), complete);
        queue_step(side, sequence, position, 1);
        enum status status = side->ops->pool_export(side->backend, sequence, index, page, &positions, &error);
        assert_int_equal(status, complete ? STATUS_OK : STATUS_NOT_FOUND);
        if (complete)
            assert_int_equal(positions, complete);
        while (!side->ops->pool_copied(side->backend)) {}
        same_positions(page, want, complete);
        rig_wait(side);
        assert_int_equal(export_page(side, sequence, index, page), complete + 1);
        same_positions(page, want, complete);
    }
    free(page);
    free(want);
}

/* A page leaves while its sequence, and another, go on. */
static void test_while_steps_run(void **state)
{
    struct rig *side = &sides[CUDA];
    unsigned char *page = malloc(page_bytes()), *want = malloc(page_bytes());
    struct error error;
    uint32_t positions;

    side->backend->copy.slice_tiles = 1;
    step(side, 1, 0, 20);
    assert_int_equal(export_page(side, 1, 0, want), GPU_PAGE_TOKENS);
    assert_int_equal(side->ops->pool_export(side->backend, 1, 0, page, &positions, &error), STATUS_OK);
    for (uint32_t i = 0; i < 6; i++) {
        step(side, 1, 20 + i, 1);
        step(side, 2, i, 1);
        (void)side->ops->pool_copied(side->backend);
    }
    while (!side->ops->pool_copied(side->backend)) {}
    assert_memory_equal(page, want, page_bytes());
    export_what_is_written(side, 1, 26, 50);
    /* and into the pages of a sequence that was released, behind a step that used them */
    side->ops->pool_release(side->backend, 1);
    assert_int_equal(side->ops->pool_import(side->backend, 3, 0, page, GPU_PAGE_TOKENS, &error), STATUS_OK);
    for (uint32_t i = 6; i < 12; i++) {
        step(side, 2, i, 1);
        (void)side->ops->pool_copied(side->backend);
    }
    while (!side->ops->pool_copied(side->backend)) {}
    memset(page, 0xee, page_bytes());
    assert_int_equal(export_page(side, 3, 0, page), GPU_PAGE_TOKENS);
    assert_memory_equal(page, want, page_bytes());
    side->ops->pool_release(side->backend, 2);
    side->ops->pool_release(side->backend, 3);
    assert_int_equal(rig_pages_used(side), 0);
    free(page);
    free(want);
}

/* Slices wait for one another, however late a device that has other work is with them. */
static void test_pages_of_any_content(void **state)
{
    struct rig *side = &sides[CUDA];
    unsigned char *page = malloc(page_bytes()), *again = malloc(page_bytes());

    side->backend->copy.slice_tiles = 1;
    for (uint32_t round = 0; round < 100; round++) {
        for (size_t i = 0; i < page_bytes(); i++)
            page[i] = (unsigned char)random_next(&seed);
        queue_step(side, 2, round % 90, 1);
        import_page(side, 1, 0, page, GPU_PAGE_TOKENS);
        rig_wait(side);
        queue_step(side, 2, round % 90, 1);
        assert_int_equal(export_page(side, 1, 0, again), GPU_PAGE_TOKENS);
        rig_wait(side);
        assert_memory_equal(again, page, page_bytes());
        side->ops->pool_release(side->backend, 1);
    }
    side->ops->pool_release(side->backend, 2);
    free(page);
    free(again);
}

static void test_what_is_refused_or_given_up(void **state)
{
    struct rig *side = &sides[CUDA];
    const struct backend_ops *ops = side->ops;
    unsigned char *page = calloc(1, page_bytes());
    struct error error;
    uint32_t positions;

    side->backend->copy.slice_tiles = 1;
    assert_int_equal(ops->pool_export(side->backend, 1, 0, page, &positions, &error), STATUS_NOT_FOUND);
    assert_int_equal(ops->pool_import(side->backend, 1, 1, page, 1, &error), STATUS_FAILED_PRECONDITION);
    assert_int_equal(ops->pool_import(side->backend, 1, 0, page, 17, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(ops->pool_import(side->backend, 1, CONTEXT / GPU_PAGE_TOKENS, page, 1, &error), STATUS_OUT_OF_RANGE);
    assert_true(ops->pool_copied(side->backend)); /* none is under way */
    step(side, 1, 0, 17);
    assert_int_equal(ops->pool_export(side->backend, 1, 2, page, &positions, &error), STATUS_NOT_FOUND);
    assert_int_equal(ops->pool_export(side->backend, 1, 1, page, &positions, &error), STATUS_OK);
    assert_int_equal(positions, 1);
    ops->pool_stop_copy(side->backend);
    ops->pool_stop_copy(side->backend);
    assert_int_equal(ops->pool_import(side->backend, 2, 0, page, GPU_PAGE_TOKENS, &error), STATUS_OK);
    (void)ops->pool_copied(side->backend);
    ops->pool_stop_copy(side->backend);
    assert_int_equal(held(side, 2), 0); /* half a page is none */
    ops->pool_release(side->backend, 2);
    step(side, 3, 0, ROWS);
    step(side, 3, ROWS, ROWS); /* 2 + 8 of 12 pages */
    import_page(side, 2, 0, page, GPU_PAGE_TOKENS);
    import_page(side, 2, 1, page, GPU_PAGE_TOKENS);
    assert_int_equal(ops->pool_import(side->backend, 2, 2, page, 1, &error), STATUS_RESOURCE_EXHAUSTED);
    for (uint64_t sequence = 1; sequence <= 3; sequence++)
        ops->pool_release(side->backend, sequence);
    assert_int_equal(rig_pages_used(side), 0);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_form), cmocka_unit_test(test_handing_over),
                                       cmocka_unit_test(test_while_steps_run), cmocka_unit_test(test_pages_of_any_content),
                                       cmocka_unit_test(test_what_is_refused_or_given_up)};
    const struct tiny_llama tiny = TINY_LLAMA;
    return rig_begin(&tiny) ? rig_end(cmocka_run_group_tests_name("cuda pages", tests, open_sides, close_sides)) : 0;
}
