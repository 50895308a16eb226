/* test_cuda_tier.c: weights that come from the host each step: what stays on the device, the same bytes as with all of them there, one copy
 * for all mini-batches, and, by the emulated device's clock, that copies and products overlap.
 */
#include "tests/cuda/walk_rig.h"

/* --- the plan -------------------------------------------------------------------------------------------------------------- */

static void test_too_little(void **state)
{
    struct backend_config config = rig_config(ROWS);
    struct backend_plan plan;
    struct error error;

    config.weights_memory = room_for(LAYERS + 1);
    while (fastdecode_device.ops->plan(&config, &plan, &error) == STATUS_OK) {
        assert_true(plan.device_weight_bytes <= config.weights_memory && plan.weight_slots >= WEIGHT_SLOTS_MIN);
        config.weights_memory -= 256;
    }
    assert_non_null(strstr(error.text, "the weights need"));
}

/* --- the same bytes -------------------------------------------------------------------------------------------------------- */

/* Blobs that have their slot for themselves stay in it. */
static uint32_t copied_each_step(const struct weight_tiers *tiers)
{
    uint32_t count = 0;

    for (uint32_t k = 0; k < tiers->streamed_count; k++)
        count += k >= tiers->slots || k + tiers->slots < tiers->streamed_count;
    return count;
}

static void test_same_bytes(void **state)
{
    for (uint32_t streamed = 3; streamed <= LAYERS + 1; streamed *= 2) {
        struct backend_row rows[ROWS];
        struct rig resident, tiered;

        open_with(&resident, tier_config(0));
        open_with(&tiered, tier_config(room_for(streamed)));
        for (int graphs = 1; graphs >= 0; graphs--) {
            for (uint32_t step = 0; step < STEPS; step++) {
                const uint32_t count = fill(rows, 1 + 10 * (uint64_t)graphs, step);
                rig_step(&resident, rows, count);
                rig_step(&tiered, rows, count);
                same(&resident, &tiered, count);
            }
            cuda_graphs_close(tiered.batch);
        }
        assert_true(tiered.backend->tier.copies >= (uint64_t)2 * STEPS * copied_each_step(&tiered.backend->tier.tiers));
        rig_close(&resident);
        rig_close(&tiered);
    }
}

/* --- several mini-batches ---------------------------------------------------------------------------------------------------- */

static void test_mini_batches(void **state)
{
    struct walk tiered[BATCHES];
    float *resident = resident_walks();
    uint64_t seed = 9;

    for (uint32_t batches = 1; batches <= BATCHES; batches *= 2)
        for (enum order order = IN_TURN; order <= DISORDER; order += DISORDER) {
            open_walks(tiered, batches, tier_config(room_for(6)));
            const struct cuda_tier *tier = &tiered[0].rig.backend->tier;
            for (uint32_t step = 0; step < STEPS; step++) {
                walk_all(tiered, batches, step, order, &seed);
                same_as_resident(tiered, batches, step, resident);
            }
            if (order == IN_TURN) /* one copy for all, and the blob that the next step begins with */
                assert_int_equal(tier->copies, STEPS * tier->tiers.streamed_count + 1);
            close_walks(tiered, batches);
        }
    free(resident);
}

/* A step that is given up leaves nothing that others wait for. */
static void test_given_up(void **state)
{
    struct walk walks[2];
    struct backend_row rows[ROWS];
    uint64_t seed = 3;

    open_walks(walks, 2, tier_config(room_for(6)));
    const struct cuda_tier *tier = &walks[0].rig.backend->tier;
    rig_begin_step(&walks[1].rig, rows, rig_rows(rows, 0, 77, 0, 1, true));
    walks[1].s = 0;
    next_segment(&walks[1]);
    next_segment(&walks[1]);
    rig_wait(&walks[1].rig);
    walks[1].rig.ops->end(walks[1].rig.batch);
    walk_all(walks, 1, 0, IN_TURN, &seed); /* fetches the blob that the next step begins with */
    const uint64_t before = tier->copies;
    walk_all(walks, 1, 1, IN_TURN, &seed);
    assert_int_equal(tier->copies - before, tier->tiers.streamed_count);
    close_walks(walks, 2);
}

/* --- overlap ------------------------------------------------------------------------------------------------------------------- */

#ifdef FD_TESTS_CUDA_RUNTIME_API_H
/* Steps of local rows, each queued as a whole: over the slowest lane's time, what all takes. Links so fast that copies take a third of
 * what products take, as much, and three times as much. */
static void test_overlap(void **state)
{
    struct tiny_llama tiny = tiny_model();
    struct gguf_build build = {0};

    tiny.type = TENSOR_F16; /* whose products tell the clock what they read; those of packed weights are kernels like others */
    rig_model_close();
    gguf_build_llama(&build, &tiny);
    rig_model_open(&build);
    for (uint32_t streamed = 6; streamed <= LAYERS + 1; streamed += 6)
        for (double ratio = 1.0 / 3; ratio < 4; ratio *= 3) {
            struct rig rig;
            struct backend_row rows[ROWS];
            const double memory_mbs = 50;

            open_with(&rig, tier_config(room_for(streamed)));
            rig_queue(&rig, rows, rig_rows(rows, 0, 1, 0, 1, true)); /* so that what a step begins with is there */
            rig_wait(&rig);
            cudaStreamSynchronize(rig.backend->tier.stream);
            emulate_clock_start(memory_mbs / ratio * streamed / (LAYERS + 1), memory_mbs);
            for (uint32_t step = 1; step <= 4; step++) {
                rig_queue(&rig, rows, rig_rows(rows, 0, 1, step, 1, true));
                rig_wait(&rig);
            }
            const struct emulate_clock clock = emulate_clock_read();
            const double slowest = MAX(MAX(clock.busy_ns[EMULATE_COMPUTE], clock.busy_ns[EMULATE_UP]), clock.busy_ns[EMULATE_DOWN]);
            print_message("%u of %u blobs from the host, up %.0f us, compute %.0f us: all takes %.3f of the slowest lane\n",
                          streamed, LAYERS + 1, clock.busy_ns[EMULATE_UP] / 1e3, clock.busy_ns[EMULATE_COMPUTE] / 1e3,
                          clock.end_ns / slowest);
            if (clock.end_ns > 1.1 * slowest)
                fail_msg("copies and products do not overlap");
            emulate_clock_start(0, 0);
            rig_close(&rig);
        }
}
#endif

int main(void)
{
    const struct tiny_llama tiny = tiny_model();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_little),   cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_mini_batches), cmocka_unit_test(test_given_up),
#ifdef FD_TESTS_CUDA_RUNTIME_API_H
        cmocka_unit_test(test_overlap),
#endif
    };
    setenv("FD_CUDA_TRIAL_MS", "0", 1); /* two backends choose the same algorithms: their bytes are compared */
    return rig_begin(&tiny) ? rig_end(cmocka_run_group_tests_name("cuda tier", tests, NULL, NULL)) : 0;
}
