/* test_cuda_invariant.c: --batch-invariant: a sequence's logits have the same bytes however its prompt is cut into steps, whoever is beside
 * it, in whatever row, with graphs and without, and when it is computed anew from its tokens. On the emulated device products are always so
 * (gemm_emulated.c): what is shown there is that they were asked to be, that nothing else lets a row see its companions, and that
 * there is room for whole tiles; on a real one (`make check-gpu`) it is the products too.
 */
#include "tests/cuda/backend_rig.h"

extern bool gemm_emulated_invariant __attribute__((weak)); /* a real device has none */

enum { ROWS = 300, PAGES = 160, PROMPT = 37, TOKENS = 9, LENGTH = PROMPT + TOKENS };

/* Tokens of the sequence that is watched, and of others. */
static struct backend_row row_of(uint64_t sequence, uint32_t position, bool local)
{
    return (struct backend_row){.needs_output = true,
                                .sequence = sequence,
                                .token = (uint32_t)(sequence * 41 + position * 13 + position / 7) % rig_model->shape.vocab,
                                .position = position,
                                .local = local};
}

struct schedule {
    uint32_t chunk;  /* of the prompt */
    uint32_t before; /* sequences that come before it in each step; as many behind it */
    bool local, graphs;
};

/* The watched sequence's logits at all positions, [LENGTH][vocab]. */
static float *logits_of(const struct schedule *schedule, bool invariant)
{
    const uint64_t own = 50;
    const uint32_t vocab = rig_model->shape.vocab;
    struct backend_config config = rig_config(ROWS);
    struct backend_row rows[ROWS];
    struct rig rig;
    float *out = calloc((size_t)LENGTH * vocab, sizeof *out);

    assert_non_null(out);
    config.batch_invariant = invariant;
    rig_open(&rig, fastdecode_device.ops, config, PAGES);
    if (&gemm_emulated_invariant)
        assert_int_equal(gemm_emulated_invariant, invariant);
    if (!schedule->graphs)
        cuda_graphs_close(rig.batch);
    for (uint32_t at = 0, step = 0; at < LENGTH; step++) {
        uint32_t own_rows = at < PROMPT ? MIN(schedule->chunk, PROMPT - at) : 1, count = 0, first;
        for (uint32_t i = 0; i < schedule->before; i++)
            rows[count++] = row_of(1 + i, step, i % 3 != 0);
        first = count;
        for (uint32_t i = 0; i < own_rows; i++)
            rows[count++] = row_of(own, at + i, schedule->local);
        for (uint32_t i = 0; i < schedule->before; i++)
            rows[count++] = row_of(100 + i, step, i % 3 != 0);
        rig_step(&rig, rows, count);
        memcpy(out + (size_t)at * vocab, rig.logits + (size_t)first * vocab, (size_t)own_rows * vocab * sizeof *out);
        at += own_rows;
    }
    struct backend_info info;
    fastdecode_device.ops->info(rig.backend, &info);
    assert_int_equal(strstr(info.level, "/invariant") != NULL, invariant);
    rig_close(&rig);
    return out;
}

static void test_same_bytes(void **state)
{
    static const struct schedule alone[2] = {{PROMPT, 0, false, true}, {PROMPT, 0, true, true}},
                                 schedules[] = {
                                     {1, 0, true, true},  {5, 0, true, false}, {16, 1, true, true}, {PROMPT, 20, true, true},
                                     {7, 6, true, false}, {1, 0, false, true}, {5, 3, false, true}, {PROMPT, 20, false, false},
                                 };
    const size_t bytes = (size_t)LENGTH * rig_model->shape.vocab * sizeof(float);
    float *want[2] = {logits_of(&alone[0], true), logits_of(&alone[1], true)};

    for (size_t i = 0; i < (size_t)LENGTH * rig_model->shape.vocab; i++)
        assert_true(want[1][i] == want[1][i]);
    for (uint32_t i = 0; i < ARRAY_COUNT(schedules); i++) {
        if (!rig_sample(i, 3))
            continue;
        float *got = logits_of(&schedules[i], true);
        if (memcmp(got, want[schedules[i].local], bytes) != 0)
            fail_msg("schedule %u", i);
        free(got);
    }
    free(want[0]), free(want[1]);
}

/* Without the option the numbers are near. (How many differ is printed: attention's sums do, on the emulated device products' do not.) */
static void test_what_it_is_for(void **state)
{
    const struct schedule alone = {1, 0, true, true}, company = {PROMPT, 20, true, true};
    const size_t count = (size_t)LENGTH * rig_model->shape.vocab;
    float *a = logits_of(&alone, false), *b = logits_of(&company, false), *c = logits_of(&alone, true);
    uint32_t differ = 0;

    for (size_t i = 0; i < count; i++) {
        differ += a[i] != b[i];
        if (!(a[i] - c[i] < 0.03f && c[i] - a[i] < 0.03f))
            fail_msg("%.6g for %.6g", (double)c[i], (double)a[i]);
    }
    print_message("values that differ without the option: %u of %zu\n", differ, count);
    free(a), free(b), free(c);
}

/* Whole tiles have room, whatever max_rows is. */
static void test_room(void **state)
{
    static const uint32_t max_rows[] = {1, 5, 127, 128, 129, 300};
    for (size_t i = 0; i < ARRAY_COUNT(max_rows); i++) {
        struct backend_config config = rig_config(max_rows[i]);
        struct backend_plan plain, tiles;
        struct error error;
        assert_int_equal(fastdecode_device.ops->plan(&config, &plain, &error), STATUS_OK);
        config.batch_invariant = true;
        assert_int_equal(fastdecode_device.ops->plan(&config, &tiles, &error), STATUS_OK);
        assert_true(max_rows[i] % GPU_GEMM_TILE_ROWS ? tiles.device_activation_bytes > plain.device_activation_bytes
                                                     : tiles.device_activation_bytes == plain.device_activation_bytes);
        assert_int_equal(tiles.activation_bytes, plain.activation_bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bytes), cmocka_unit_test(test_what_it_is_for),
                                       cmocka_unit_test(test_room)};
    const struct tiny_llama tiny = TINY_LLAMA;
    return rig_begin(&tiny) ? rig_end(cmocka_run_group_tests_name("batch-invariant", tests, NULL, NULL)) : 0;
}
